# The tarball: a static binary (musl), which carries the library that `run` loads into glibc programs. Sourced by package.sh.
if [ "$profile" = dev ]; then
  tar_binary=$parts/truepeer tar_name=truepeer-$version-$machine-linux-dev
else
  tar_name=truepeer-$version-$machine-linux-musl
  say "building for musl"
  library=$(find "$target/$profile" -path '*/preloaded/libtruepeer_preload.so' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)
  rustup target add "$musl" >/dev/null 2>&1 || true # an error of the build says what is missing
  TRUEPEER_LIBRARY=$library CC_x86_64_unknown_linux_musl=musl-gcc CC_aarch64_unknown_linux_musl=musl-gcc build --target "$musl"
  tar_binary=$parts/truepeer-static
  install -m755 "$(built "$musl")" "$tar_binary"
  strip --strip-all "$tar_binary"
  file "$tar_binary" | grep -Eq 'statically linked|static-pie' || { say "the binary is not static"; exit 1; }
fi
tree "$parts/$tar_name" "$tar_binary" site-functions
install -Dm644 -t "$parts/$tar_name" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT
archive -C "$parts" "$tar_name" | gzip -9n >"$out/$tar_name.tar.gz"
