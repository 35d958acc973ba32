#!/bin/bash
# How many lines of a crate its own tests and those of the relay's sessions reach: a line for each crate, and which fall short of
# their goal. Fetches cargo-llvm-cov (built once, minutes, under target/tools) and rustup's llvm-tools. What only whole programs
# reach, in namespaces and without privileges, is not counted.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PWD/target/tools/bin:$PATH"

# Crate and the least percentage of its lines.
goals=(proto 98 policy 98 http1 98 session 92 relay 92 https 90)

command -v cargo-llvm-cov >/dev/null || {
  echo "coverage: building cargo-llvm-cov (once)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root target/tools cargo-llvm-cov
}
rustup component list --installed 2>/dev/null | grep -q '^llvm-tools' || rustup component add llvm-tools

packages=()
for ((at = 0; at < ${#goals[@]}; at += 2)); do packages+=(-p "truepeer-${goals[at]}"); done
mkdir -p "$target/logs"
CARGO_TARGET_DIR=$target/coverage cargo llvm-cov "${packages[@]}" --no-fail-fast --json --summary-only \
  --ignore-filename-regex '/(tests|vectors|sim|examples)/|tests\.rs$' --output-path "$target/logs/coverage.json" \
  >"$target/logs/coverage.log" 2>&1 || { tail -30 "$target/logs/coverage.log"; exit 1; }

python3 - "$target/logs/coverage.json" "${goals[@]}" <<'PYTHON'
import collections, json, re, sys

crates = collections.defaultdict(lambda: [0, 0])
for file in json.load(open(sys.argv[1]))["data"][0]["files"]:
    crate = re.search(r"/crates/([^/]+)/src/", file["filename"])
    if crate:
        crates[crate[1]][0] += file["summary"]["lines"]["covered"]
        crates[crate[1]][1] += file["summary"]["lines"]["count"]
short = 0
for crate, goal in zip(sys.argv[2::2], map(float, sys.argv[3::2])):
    reached, lines = crates[crate]
    share = 100 * reached / lines
    short += share < goal
    print(f"{crate:10} {share:6.2f} % of {lines:6} lines{'' if share >= goal else f', below its goal of {goal:.0f} %'}")
sys.exit(short > 0)
PYTHON
