#!/bin/bash
# Makes a Debian of another processor as a tar file: foreign-root.sh ARCHITECTURE RELEASE FILE PACKAGE... Needs root, mmdebstrap and
# qemu-user-static. Packages configure themselves under emulation. The kernel is told of it in a user namespace of its own
# (binfmt_misc; Linux 6.7), so that the machine itself still runs no foreign programs. Of this machine's own architecture, it needs none
# of this.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
architecture=$1 release=$2 file=$3
shift 3
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
make=(mmdebstrap --mode=root --arch="$architecture" --variant=apt --format=tar --include="$(IFS=,; echo "$*")"
  --skip=check/qemu --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' "$release" "$file.new" "$mirror")
if [ "$architecture" = "$(dpkg --print-architecture)" ]; then
  "${make[@]}"
  mv "$file.new" "$file"
  exit
fi
case $architecture in arm64) binfmt=/usr/lib/binfmt.d/qemu-aarch64.conf ;; *) echo "foreign-root: arm64 only" >&2; exit 1 ;; esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkfifo "$work/mapped"
unshare --user --mount bash -ec '
  read -r _ <"$1"
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  cat "$2" >/proc/sys/fs/binfmt_misc/register
  shift 2
  exec "$@"' bash "$work/mapped" "$binfmt" "${make[@]}" &
inside=$!
until [ "$(readlink "/proc/$inside/ns/user")" != "$(readlink /proc/self/ns/user)" ]; do sleep .1; done
for map in uid_map gid_map; do echo "0 0 65536" >"/proc/$inside/$map"; done
echo >"$work/mapped"
wait "$inside"
mv "$file.new" "$file"
