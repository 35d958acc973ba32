#!/bin/bash
# How many lines of a crate the tests reach. Prints a line for each crate: what the crate's own tests and truepeer's unit tests reach, and
# what they reach together with the tests of whole programs, which start truepeer. The second figure counts: the exit status is 1 if it is below its goal.
# Writes the lines that are not reached to target/logs/coverage-missed.txt.
#
# Fetches cargo-llvm-cov (built once, minutes, under target/tools) and rustup's llvm-tools.
#
#     COVERAGE_PROGRAMS='tls udp' make coverage    # only these tests of whole programs
#     COVERAGE_PROGRAMS= make coverage             # only the crates' own tests
#
# A failed test is printed and does not change the exit status: `make test` decides about tests, and a few of them compare memory,
# descriptors or times, which instrumentation changes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PWD/target/tools/bin:$PATH"
export CARGO_TERM_COLOR=never

# Crate and the least percentage of its lines.
goals=(proto 98 policy 98 http 98 session 92 relay 92 https 90 origin 90 stream 90)
# Tests of whole programs: of crates/truepeer/tests. `splice` runs the matrix of `proxy`.
read -ra programs <<<"${COVERAGE_PROGRAMS-suite udp tls https splice}"

command -v cargo-llvm-cov >/dev/null || {
  echo "coverage: building cargo-llvm-cov (once)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root target/tools cargo-llvm-cov
}
rustup component list --installed 2>/dev/null | grep -q '^llvm-tools' || rustup component add llvm-tools

# %c: a process maps the file of its counters when it starts, and each count is in the file at once. A process that is killed by
# kill -9, or that may not write files after its start, is counted, too. On Linux the mapping needs counters that can be moved.
# %9m: processes of the same program share at most 9 files. A file for each of the thousands of processes would fill the disk.
export LLVM_PROFILE_FILE_NAME='%9m%c.profraw'
mkdir -p target/tools
# A wrapper and not RUSTFLAGS: only the workspace's own crates are compiled in another way.
export RUSTC_WORKSPACE_WRAPPER=$PWD/target/tools/rustc-coverage
printf '#!/bin/sh\nexec "$@" -C llvm-args=-runtime-counter-relocation\n' >"$RUSTC_WORKSPACE_WRAPPER"
chmod +x "$RUSTC_WORKSPACE_WRAPPER"
export CARGO_TARGET_DIR=$target/coverage
logs=$target/logs
mkdir -p "$logs"

crates=() own=(--lib)
# The program's own crates.
packages=(-p truepeer)
for crate in attach cli config privilege routes run vpp; do packages+=(-p "truepeer-$crate"); done
for ((at = 0; at < ${#goals[@]}; at += 2)); do
  crate=${goals[at]}
  crates+=("$crate")
  packages+=(-p "truepeer-$crate")
  for test in "crates/$crate"/tests/*.rs "crates/$crate"/tests/*/main.rs; do
    [ -e "$test" ] || continue
    test=${test#"crates/$crate/tests/"}
    test=${test%.rs}
    own+=(--test "${test%/main}")
  done
done

# run NAME ARGUMENT…: runs tests and counts what they reach. Prints the results of each test program, the failed tests, and a line each
# minute. All runs name the same packages: with others, some would have other features and would be compiled again.
run() {
  local log=$logs/coverage-$1.log start=$SECONDS watcher
  shift
  while sleep 60 >/dev/null; do
    echo "coverage: $((SECONDS - start)) s, $(grep -c '^test .* \.\.\. ' "$log") tests; $(tail -n 1 "$log" | cut -c -100)"
  done &
  watcher=$!
  cargo llvm-cov --no-report --no-fail-fast "${packages[@]}" "$@" 2>&1 | tee "$log" |
    grep --line-buffered -E '^ *Running |^test result:|^test .*\.\.\. FAILED' || true
  kill "$watcher" 2>/dev/null || true
  # A failed build has no results.
  grep -q '^test result:' "$log" || { tail -n 30 "$log"; exit 1; }
  echo "coverage: took $((SECONDS - start)) s"
}

# report NAME: writes the counts of all runs so far.
report() {
  cargo llvm-cov report --lcov --ignore-filename-regex \
    '/(tests|sim|examples)/|(tests|fuzzed|fuzzed_watch|fuzzing)\.rs$' --output-path "$logs/coverage-$1.lcov" \
    >"$logs/coverage-report.log" 2>&1 || { tail -30 "$logs/coverage-report.log"; exit 1; }
}

# Deletes the programs of earlier builds as well: the report would count their lines as lines of the present sources.
cargo llvm-cov clean --workspace
echo "coverage: own tests of ${crates[*]}"
run own "${own[@]}"
report own
cp "$logs/coverage-own.lcov" "$logs/coverage-all.lcov"
if [ ${#programs[@]} -gt 0 ]; then
  echo "coverage: whole programs: ${programs[*]}"
  # Sessions of a gibibyte take minutes and reach the same lines as shorter ones.
  run programs "${programs[@]/#/--test=}" -- --skip gibibyte
  report all
fi

python3 - "$logs" "${goals[@]}" <<'PYTHON'
import collections, re, sys

def read(name):
    """Of each crate: its lines, how many of them are reached, and which are not."""
    crates = collections.defaultdict(lambda: [0, 0, []])
    for record in open(f"{logs}/coverage-{name}.lcov").read().split("end_of_record\n"):
        file = re.search(r"^SF:.*/crates/((\w+)/src/.*)$", record, re.M)
        if not file:
            continue
        crate = crates[file[2]]
        crate[0] += int(re.search(r"^LF:(\d+)", record, re.M)[1])
        crate[1] += int(re.search(r"^LH:(\d+)", record, re.M)[1])
        missed = [int(line) for line in re.findall(r"^DA:(\d+),0$", record, re.M)]
        if missed:
            crate[2].append((file[1], missed))
    return crates

def ranges(lines):
    starts = [line for line in lines if line - 1 not in lines]
    ends = [line for line in lines if line + 1 not in lines]
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in zip(starts, ends))

logs = sys.argv[1]
own, everything = read("own"), read("all")
short = 0
print(f"{'crate':10} {'own tests':>12} {'with programs':>14} {'lines':>7} {'goal':>6}")
with open(f"{logs}/coverage-missed.txt", "w") as missed:
    for crate, goal in zip(sys.argv[2::2], map(float, sys.argv[3::2])):
        share = [100 * reached / lines for lines, reached, _ in (own[crate], everything[crate])]
        is_short = share[1] < goal
        short += is_short
        print(f"{crate:10} {share[0]:10.2f} % {share[1]:12.2f} % {everything[crate][0]:7} {goal:4.0f} %{' missed' if is_short else ''}")
        for file, lines in everything[crate][2]:
            print(f"{file}: {ranges(lines)}", file=missed)
sys.exit(short > 0)
PYTHON
