#!/bin/bash
# Starts one program and probes it, for conformance.sh: one.sh NAME WORK HOME TRUEPEER
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
name=$1 work=$2 home=$3 truepeer=$4
out=$home/out dir=$work/$name
mkdir -p "$dir"
chmod 777 "$dir"
: >"$dir/clients"
chmod 666 "$dir/clients"
. scripts/conformance/kit.sh
. scripts/conformance/receivers.sh
. scripts/conformance/senders.sh
if declare -F "receiver_$name" >/dev/null; then "receiver_$name"; else "sender_$name"; fi
