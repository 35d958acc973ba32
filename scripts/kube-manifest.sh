#!/bin/bash
# Prints deploy/kubernetes/agent.yaml: the chart with its default values, a namespace, and senders of private networks; without what only an uninstall by helm needs.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/containers/node.sh
echo "# The agent, for kubectl apply: made from deploy/helm/truepeer by scripts/kube-manifest.sh."
"$kube/helm" template truepeer deploy/helm/truepeer --set image.repository=truepeer-agent,allowSenders={private} \
  --set namespace.create=true,namespace.name=truepeer --kube-version "$kube_version" --no-hooks | grep -v -e managed-by -e '^# Source'
