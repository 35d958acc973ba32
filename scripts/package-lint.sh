#!/bin/bash
# Checks what goes into the packages, in seconds: the man pages and completions that the given truepeer writes (by default the
# debug build), the units, the maintainer scripts, the RPM's spec, the workflows. What needs a missing tool is left out, and named.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
truepeer=${1:-$target/debug/truepeer}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0 missing=()
has() { command -v "$1" >/dev/null || { missing+=("$1"); return 1; }; }
complain() { # what, output
  [ -z "$2" ] || { echo "package-lint: $1: $2"; failed=1; }
}

mkdir "$dir/man" "$dir/units"
SOURCE_DATE_EPOCH=0 "$truepeer" man "$dir/man"
[ -s "$dir/man/truepeer.1" ] && [ -s "$dir/man/truepeer.toml.5" ] || complain "man pages" "truepeer.1 or truepeer.toml.5 is missing"
if has groff; then
  for page in "$dir"/man/*; do complain "${page##*/}" "$(groff -k -ww -z -man -Tutf8 "$page" 2>&1)"; done
fi
if has mandoc; then complain "man pages" "$(cd "$dir/man" && mandoc -Tlint -W warning ./* 2>&1)"; fi

for shell in bash zsh fish; do
  "$truepeer" completion $shell >"$dir/completion"
  if has $shell; then complain "completion for $shell" "$($shell -n "$dir/completion" 2>&1)"; fi
done

for script in deploy/debian/p*; do complain "$script" "$(sh -n "$script" 2>&1)"; done

if has systemd-analyze; then
  for unit in deploy/systemd/*; do
    name=${unit##*/}
    name=${name/@/@web}
    # Older ones complain about the type that newer ones want.
    sed -e "s|/usr/bin/truepeer|$(realpath "$truepeer")|" -e '/^Type=notify-reload/d' "$unit" >"$dir/units/$name"
  done
  for unit in "$dir"/units/*; do
    complain "${unit##*/}" "$(cd "$dir/units" && SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no --recursive-errors=no "$unit" 2>&1)"
  done
  # attach loads kernel programs as root.
  for limit in truepeer.service:23 truepeer-attach@web.service:30; do
    exposure=$(systemd-analyze security --offline=true --threshold="${limit#*:}" --no-pager "$dir/units/${limit%:*}" 2>&1 | tail -1) ||
      complain "exposure above ${limit#*:} tenths" "$exposure"
    echo "${exposure#→ }"
  done
fi

if has rpmspec; then
  complain "truepeer.spec" "$(sed -e 's/@VERSION@/1.2.3/' -e 's/@TARBALL@/truepeer-1.2.3/' deploy/rpm/truepeer.spec | rpmspec -P /dev/stdin 2>&1 >/dev/null)"
fi
export PATH=$PWD/target/tools/actionlint:$PATH
if has actionlint; then complain workflows "$(actionlint -no-color .github/workflows/*.yml 2>&1)"; fi

[ ${#missing[@]} = 0 ] || echo "package-lint: not checked, because they are missing: ${missing[*]}"
exit $failed
