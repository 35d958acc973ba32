#!/bin/bash
# Makes an installed VPP, or one built in the checkout that TRUEPEER_VPP_SOURCE names, the one that tests and demo use on
# this machine: ~/.cache/truepeer/vpp leads to it. It builds nothing: VPP's own README says how to build it.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
link=${XDG_CACHE_HOME:-$HOME/.cache}/truepeer/vpp

fail() { printf 'vpp: %s\n' "$@" >&2; exit 1; }

# Where VPP's own make puts a release and a debug build, and where a build with a prefix of its own or a package puts it.
source=${TRUEPEER_VPP_SOURCE-}
if [ -n "$source" ]; then
  [ -d "$source" ] || fail "TRUEPEER_VPP_SOURCE: there is no directory $source; name the checkout in which VPP was built"
  places=("$source"/build-root/install-vpp{-native,_debug-native}/vpp "$source")
else
  places=(/usr /usr/local)
fi
for prefix in "${places[@]}"; do
  [ -x "$prefix/bin/vpp" ] || continue
  [ -x "$prefix/bin/vppctl" ] || fail "$prefix has bin/vpp, but no bin/vppctl"
  for file in libvcl_ldpreload.so vpp_plugins/af_packet_plugin.so; do
    [ -n "$(find "$prefix"/lib* -path "*/$file" -print -quit)" ] || fail "$prefix has bin/vpp, but no $file below lib"
  done
  mkdir -p "${link%/*}"
  ln -sfn "$(realpath "$prefix")" "$link"
  echo "vpp: $("$prefix/bin/vpp" --version | head -1)"
  echo "vpp: $link leads to $prefix; cargo test --workspace --test vpp"
  exit 0
done
fail "none of these has bin/vpp: ${places[*]}" \
  "build VPP in a checkout by its own README (plugins af_packet and ping), then make vpp TRUEPEER_VPP_SOURCE=CHECKOUT"
