# Sourced by smoke and long: builds the targets, and the seeds beside them. Sets `targets`, `out` (the directory for everything that is
# written) and `programs`.
#
# Needs cargo, what truepeer's own build needs, and a C++ compiler, nothing else: the coverage instrumentation is asked for
# directly, on the pinned stable toolchain, so that neither cargo-fuzz nor a nightly compiler has to be installed. Address
# sanitising, which would need one, has little to find: most of the fuzzed crates forbid unsafe code.
#
# Prints "SKIP fuzz: <reason>" and succeeds where the machine lacks something.

out=${CARGO_TARGET_DIR:-$(cd .. && pwd)/target}/fuzz
# FUZZ_HTTPS=0: without those of TLS, HTTP/2, whole exchanges and truepeer.toml, which take most of the build.
features=() without='^$'
if [ "${FUZZ_HTTPS:-}" = 0 ]; then features=(--no-default-features) without=required-features; fi
mapfile -t targets < <(awk -v RS= -v without="$without" '/^\[\[bin\]\]/ && $0 !~ without' Cargo.toml | sed -n 's/^name = "\(.*\)"$/\1/p')
# FUZZ_TARGETS: only these targets.
read -ra targets <<<"${FUZZ_TARGETS:-${targets[*]}}"

skip() {
  echo "SKIP fuzz: $1"
  exit 0
}

command -v cargo >/dev/null || skip "cargo is not installed"
command -v "${CXX:-c++}" >/dev/null || skip "no C++ compiler (${CXX:-c++}) to build libFuzzer with"
# Says first whether Cargo.lock belongs to the crates as they are now: that needs no network.
why=$(cargo metadata --locked --offline --format-version 1 2>&1 >/dev/null) || case $why in
  *"because --locked was passed"*) echo "fuzz/Cargo.lock is older than the crates; renew it: cd fuzz && cargo metadata >/dev/null"; exit 1 ;;
esac
cargo fetch --quiet --locked || skip "crates cannot be fetched"
host=$(rustc -vV | sed -n 's/^host: //p')
programs=$out/$host/release
mkdir -p "$out/artifacts"

# The seeds first, without instrumentation: an instrumented program needs libFuzzer's main.
rm -rf "$out/seeds"
CARGO_TARGET_DIR=$out cargo run --quiet --locked --release -p truepeer-fuzz-seeds -- write "$out/seeds"
# Some targets have no seeds: make their directories, too.
for target in "${targets[@]}"; do mkdir -p "$out/seeds/$target"; done

# build FLAGS DIRECTORY: builds the targets with these flags of rustc. --target keeps the flags from build scripts, which can't be linked with them.
build() {
  RUSTFLAGS="--cfg fuzzing $1" CARGO_TARGET_DIR=$2 cargo build --quiet --locked --release --target "$host" "${features[@]}"
}

sancov="-Cpasses=sancov-module -Ccodegen-units=1"
for option in coverage-level=4 coverage-inline-8bit-counters coverage-pc-table coverage-trace-compares; do
  sancov+=" -Cllvm-args=-sanitizer-$option"
done
build "$sancov" "$out"
