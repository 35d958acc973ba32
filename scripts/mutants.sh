#!/bin/bash
# Mutation tests of the crates that decide: each function or operator is changed, one at a time, and the crate's own tests must notice.
# Hours. Prints a line for each crate, and the mutants that nothing noticed; docs/reliability.md explains those.
#
#     make mutants
#     MUTANTS=policy make mutants                        # one crate
#     make mutants MUTANTS_ARGS='--file src/opening.rs'  # more arguments for cargo mutants
#
# Fetches cargo-mutants (built once, minutes, under target/tools). The changed sources are a copy below TMPDIR, without target and .git.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PWD/target/tools/bin:$PATH"
# Without lines for debuggers and with fewer random cases, a mutant takes half the time.
export CARGO_PROFILE_DEV_DEBUG=0 PROPTEST_CASES=${PROPTEST_CASES:-64}
read -ra crates <<<"${MUTANTS:-proto policy http}"
read -ra more <<<"${MUTANTS_ARGS:-}"
# An endless loop ends by the CPU time of its test binary (unchanged ones of policy and http take less than 1 s), and a mutant that fills the memory by its
# address space. --timeout is real time, for mutants that wait: a short one would also end tests that are slow because the machine is busy.
# --build-timeout ends endless loops in code that the compiler runs (constants).
host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
export "CARGO_TARGET_${host}_RUNNER=prlimit --cpu=30 --as=4294967296"

command -v cargo-mutants >/dev/null || {
  echo "mutants: building cargo-mutants (once)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root target/tools cargo-mutants
}
status=0
for crate in "${crates[@]}"; do
  out=$target/mutants/$crate
  rm -rf "$out"
  mkdir -p "$out"
  # 2 and 3: some mutants were missed, or timed out. Others are errors of the run.
  env -u CARGO_TARGET_DIR nice cargo mutants --package "truepeer-$crate" --output "$out" --cap-lints=true --timeout 600 --build-timeout 600 --colors never \
    "${more[@]}" >"$out/log" 2>&1 || [[ $? = [23] ]] || { tail -n 20 "$out/log"; status=1; continue; }
  count() { grep -c . "$out/mutants.out/$1.txt" || true; }
  endless=$(grep -l SIGXCPU "$out"/mutants.out/log/*.log | wc -l || true)
  echo "mutants $crate: $(count caught) caught ($endless of them by the limit of CPU time), $(count missed) missed, $(count timeout) timed out," \
    "$(count unviable) that don't compile"
  sed 's/^/  missed: /' "$out/mutants.out/missed.txt"
done
exit "$status"
