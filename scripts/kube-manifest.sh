#!/bin/bash
# Prints deploy/kubernetes/agent.yaml: the chart with its default values, without what only an uninstall by helm needs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
echo "# The agent, for kubectl apply: made from deploy/helm/truepeer by scripts/kube-manifest.sh."
"$kube/helm" template truepeer deploy/helm/truepeer --kube-version "$kube_version" --no-hooks | grep -v -e managed-by -e '^# Source'
