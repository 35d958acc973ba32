#!/bin/bash
# The soak for SOAK_SECONDS (1800), with its charts in docs. Fails if it was skipped: its reason is printed then.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export SOAK_SECONDS=${SOAK_SECONDS:-1800} SOAK_CHARTS=${SOAK_CHARTS:-$PWD/docs}
log=$target/logs/soak.log
mkdir -p "$target/logs"
cargo test --workspace --test rounds -- all_kinds_of_load 2>&1 | tee "$log"
grep -q '^test result: ok. 1 passed' "$log" || { echo "the soak did not run"; exit 1; }
