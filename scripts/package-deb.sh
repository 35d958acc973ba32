# The .deb. Sourced by package.sh.
#
# dpkg-deb makes it from the tree, so it needs no further tool.
deb_machine=$(dpkg --print-architecture)
deb_dir=$parts/deb
tree "$deb_dir" "$parts/truepeer" vendor-completions
install -Dm644 "$parts/changelog.gz" "$deb_dir/usr/share/doc/truepeer/CHANGELOG.md.gz"
maintainer=$(sed -n 's/^maintainer = //p' deploy/debian/origin)
printf 'truepeer (%s) unstable; urgency=medium\n\n  * What has changed is in CHANGELOG.md.gz.\n\n -- %s  %s\n' "$version" "$maintainer" \
  "$(date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$deb_dir/usr/share/doc/truepeer/changelog.gz"
{ echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
  echo; echo "Files: *"; echo "Copyright: the authors of truepeer"; echo "License: MIT or Apache-2.0"
  echo " The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0. The MIT license:"
  sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT; } >"$deb_dir/usr/share/doc/truepeer/copyright"

# The newest version of glibc whose symbols the binary uses.
glibc=$(objdump -T "$parts/truepeer" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
mkdir -p "$deb_dir/DEBIAN"
cat >"$deb_dir/DEBIAN/control" <<END
Package: truepeer
Version: $version
Architecture: $deb_machine
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$deb_dir" | cut -f1)
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1 (>= 4.2)
Recommends: iproute2
Section: net
Priority: optional
Homepage: $(sed -n 's/^homepage = //p' deploy/debian/origin)
Description: PROXY protocol in, the client's own address out
 truepeer reads the PROXY protocol header (v1, v2, SPP) and makes unmodified
 backends see the client: as a proxy for TCP, UDP and TLS that connects from
 the client's own address, as an HTTPS reverse proxy, in the kernel for servers
 that run already, or at accept() for programs that it starts.
END
echo /etc/truepeer/truepeer.toml >"$deb_dir/DEBIAN/conffiles"
for script in postinst prerm postrm; do install -m755 "deploy/debian/$script" "$deb_dir/DEBIAN/$script"; done
(cd "$deb_dir" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\n' | sort | xargs md5sum >DEBIAN/md5sums)
chmod 644 "$deb_dir"/DEBIAN/{control,conffiles,md5sums}
find "$deb_dir" -exec touch -hd "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz -b "$deb_dir" "$out/truepeer_${version}_$deb_machine.deb" >/dev/null
