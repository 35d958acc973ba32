#!/bin/bash
# How many lines of a crate its own tests reach, and how many with the tests of whole programs: a line for each crate, and which
# fall short of their goal. Fetches cargo-llvm-cov (built once, minutes, under target/tools) and rustup's llvm-tools.
# Whole programs give up the right to write files when they start, so they count in files that are mapped before that (%c).
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

# The suites of whole programs that reach these crates.
suites=(suite splice full udp https tls run_notify)

packages=()
for ((at = 0; at < ${#goals[@]}; at += 2)); do packages+=(-p "truepeer-${goals[at]}"); done
programs=()
for suite in "${suites[@]}"; do programs+=(--test "$suite"); done
logs=$target/logs
mkdir -p "$logs"
export CARGO_TARGET_DIR=$target/coverage RUSTFLAGS="-C llvm-args=-runtime-counter-relocation" LLVM_PROFILE_FILE_NAME="%10m%c.profraw"
others='/(tests|vectors|sim|examples)/|tests\.rs$'

# measure LOG ARGUMENTS...: runs these tests; later reports have their lines as well.
measure() {
  local log=$logs/$1.log
  shift
  cargo llvm-cov --no-report --no-fail-fast "$@" >"$log" 2>&1 || {
    grep -q '^test result' "$log" || { tail -30 "$log"; exit 1; }
    echo "coverage: some tests failed, so that fewer lines are reached: ${log#"$PWD"/}"
  }
}
report() { cargo llvm-cov report --json --summary-only --ignore-filename-regex "$others" --output-path "$1" >/dev/null; }

cargo llvm-cov clean --workspace
measure coverage-own "${packages[@]}"
report "$logs/coverage-own.json"
measure coverage-whole -p truepeer "${programs[@]}"
report "$logs/coverage-whole.json"

python3 - "$logs/coverage-own.json" "$logs/coverage-whole.json" "${goals[@]}" <<'PYTHON'
import collections, json, re, sys

def lines_of(report):
    crates = collections.defaultdict(lambda: [0, 0])
    for file in json.load(open(report))["data"][0]["files"]:
        crate = re.search(r"/crates/([^/]+)/src/", file["filename"])
        if crate:
            crates[crate[1]][0] += file["summary"]["lines"]["covered"]
            crates[crate[1]][1] += file["summary"]["lines"]["count"]
    return crates

own, whole = map(lines_of, sys.argv[1:3])
short = 0
print("crate           own tests   with whole programs")
for crate, goal in zip(sys.argv[3::2], map(float, sys.argv[4::2])):
    alone, both = (100 * reached / lines for reached, lines in (own[crate], whole[crate]))
    short += both < goal
    missed = "" if both >= goal else f", below its goal of {goal:.0f} %"
    print(f"{crate:10} {alone:12.2f} % {both:12.2f} % of {whole[crate][1]:6} lines{missed}")
sys.exit(short > 0)
PYTHON
