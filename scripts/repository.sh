#!/bin/bash
# Makes an apt and an rpm repository of the packages in target/packages, for any web server, in target/repository. Signed with a key
# of gpg: REPOSITORY_KEY=you@example.org. REPOSITORY_URL is where users will find it. The same packages make the same indexes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export LC_ALL=C TZ=UTC
umask 022
say() { echo "repository: $*"; }
packages=$PWD/target/packages out=$PWD/target/repository
key=${REPOSITORY_KEY:?gpg\'s name of the key that signs: REPOSITORY_KEY=you@example.org (gpg --quick-gen-key makes one)}
url=${REPOSITORY_URL:?where users will find it: REPOSITORY_URL=https://example.org/truepeer}
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
missing=()
for need in dpkg-scanpackages:dpkg-dev createrepo_c:createrepo-c gpg:gpg rpmsign:rpm; do
  command -v "${need%:*}" >/dev/null || missing+=("${need#*:}")
done
[ ${#missing[@]} = 0 ] || apt_install "${missing[@]}" || { say "missing: ${missing[*]}"; exit 1; }
ls "$packages"/*.deb >/dev/null || { say "make package first"; exit 1; }

# With the commit's time, if the key is older.
sign() { gpg --batch --yes --quiet --local-user "$key" --faked-system-time "$signed!" "$@" 2> >(grep -v 'faked system time' >&2); }
made=$(gpg --batch --list-keys --with-colons "$key" 2>/dev/null | awk -F: '$1 == "pub" { print $6; exit }')
[ -n "$made" ] || { say "gpg has no key $key"; exit 1; }
signed=$((epoch > made ? epoch : made))

rm -rf "$out"
mkdir -p "$out"/apt/pool "$out"/rpm
gpg --batch --armor --export "$key" >"$out/truepeer.asc"

# Each index also by its digest, because a client may read an older Release while the repository changes.
apt_repository() {
  local architecture index file digest name
  cd "$out/apt"
  cp "$packages"/*.deb pool/
  for architecture in $(for deb in pool/*.deb; do dpkg-deb -f "$deb" Architecture; done | sort -u); do
    index=dists/stable/main/binary-$architecture
    mkdir -p "$index/by-hash/SHA256"
    dpkg-scanpackages --multiversion --arch "$architecture" pool >"$index/Packages" 2>/dev/null
    gzip -9nk "$index/Packages"
    for file in "$index"/Packages*; do cp "$file" "$index/by-hash/SHA256/$(sha256sum "$file" | cut -d' ' -f1)"; done
  done
  cd dists/stable
  { printf 'Origin: truepeer\nLabel: truepeer\nSuite: stable\nCodename: stable\nComponents: main\nAcquire-By-Hash: yes\n'
    echo "Architectures: $(cd main && echo binary-* | sed 's/binary-//g')"
    echo "Date: $(date -uRd "@$epoch")"
    echo "SHA256:"
    sha256sum main/binary-*/Packages* | while read -r digest name; do echo " $digest $(stat -c %s "$name") $name"; done
  } >Release
  sign --clearsign -o InRelease Release
  sign --armor --detach-sign -o Release.gpg Release
  cd "$OLDPWD"
}

rpm_repository() {
  cp "$packages"/*.rpm "$out/rpm/"
  rpmsign --define "__gpg $(command -v gpg)" --define "_gpg_name $key" --define "_gpg_sign_cmd_extra_args --batch --faked-system-time $signed!" --addsign "$out"/rpm/*.rpm >/dev/null 2> >(grep -v -e "faked system time" -e GPG_TTY >&2)
  touch -d "@$epoch" "$out"/rpm/*.rpm # the index has the time of each file
  createrepo_c --quiet --set-timestamp-to-revision --revision "$epoch" --no-database "$out/rpm"
  sign --armor --detach-sign -o "$out/rpm/repodata/repomd.xml.asc" "$out/rpm/repodata/repomd.xml"
  printf '[truepeer]\nname=truepeer\nbaseurl=%s/rpm\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\ngpgkey=%s/truepeer.asc\n' "$url" "$url" >"$out/truepeer.repo"
}

(apt_repository)
! ls "$packages"/*.rpm >/dev/null 2>&1 || rpm_repository
say "made: $(cd "$out" && find . -type f | wc -l) files, $(du -sh "$out" | cut -f1)"
cat <<END
Debian, Ubuntu:
  sudo curl -fsSLo /etc/apt/keyrings/truepeer.asc $url/truepeer.asc
  echo "deb [signed-by=/etc/apt/keyrings/truepeer.asc] $url/apt stable main" | sudo tee /etc/apt/sources.list.d/truepeer.list
  sudo apt update && sudo apt install truepeer
Fedora, RHEL:
  sudo curl -fsSLo /etc/yum.repos.d/truepeer.repo $url/truepeer.repo
  sudo dnf install truepeer
END
