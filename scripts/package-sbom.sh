# The software bill of materials (CycloneDX): every crate in the binary. Sourced by package.sh.
sbom=$(command -v cargo-cyclonedx || find "$target/tools" -name cargo-cyclonedx -perm -u+x 2>/dev/null | head -1)
if [ -z "$sbom" ] && [ "$profile" != dev ]; then
  say "building cargo-cyclonedx (once, minutes)"
  env -u CARGO_TARGET_DIR cargo install -q --locked --root "$target/tools" cargo-cyclonedx && sbom=$target/tools/bin/cargo-cyclonedx
fi
if [ -n "$sbom" ]; then
  "$sbom" cyclonedx --format json --spec-version 1.5 --override-filename sbom --manifest-path crates/truepeer/Cargo.toml \
    --target "$machine-unknown-linux-gnu" --quiet
  # It writes one beside each crate.
  mv crates/truepeer/sbom.json "$out/truepeer-$version.cdx.json"
  git clean -qf -- '*/sbom.json'
else
  say "cargo-cyclonedx is missing: no SBOM"
fi
