# The .rpm, from the tarball. Sourced by package.sh.
cp deploy/rpm/truepeer.spec "$out/truepeer.spec"
sed -i -e "s/@VERSION@/${version//-/\~}/" -e "s/@TARBALL@/$tar_name/" "$out/truepeer.spec"
if command -v rpmbuild >/dev/null; then
  rpmbuild -bb --quiet --target "$machine" --define "_topdir $parts/rpm" --define "_sourcedir $out" --define "_rpmdir $out" \
    --define "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm" --define "_buildhost localhost" \
    --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" "$out/truepeer.spec"
else
  say "rpmbuild is missing (package rpm): only the spec is made"
fi
