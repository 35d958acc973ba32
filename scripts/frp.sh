#!/bin/bash
# Builds frp under target/tools/frp, for the tests with frp as the sender: a version with the PROXY header in the
# first datagram of a flow (since 0.67), and one with a header in each. Needs Go; takes a minute or two, once.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
export PATH="$PATH:/usr/local/go/bin"
home=$PWD/target/tools/frp

if ! command -v go >/dev/null; then
  echo "frp: Go is missing: the tests that need frp will be skipped"
  exit 0
fi

# go install refuses a module with replace directives. Newer versions embed web pages that their module lacks.
source_of() { # version
  local source=$home/src-$1 module
  if [ ! -d "$source" ]; then
    module=$(cd "$home" && go mod download -json "github.com/fatedier/frp@$1" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p')
    [ -n "$module" ] && cp -r "$module" "$source.new" && chmod -R u+w "$source.new" || return 1
    for page in frpc frps; do
      [ ! -f "$source.new/web/$page/embed.go" ] || echo "package $page" >"$source.new/web/$page/embed.go"
    done
    mv "$source.new" "$source"
  fi
  echo "$source"
}

build() { # version, command
  [ ! -x "$home/$1/$2" ] || return 0
  echo "frp: building $2 $1 (once)"
  local source
  source=$(source_of "$1") || { echo "frp: can't fetch $1: its tests will be skipped"; return 0; }
  (cd "$source" && go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$home/$1/$2" "./cmd/$2")
}

mkdir -p "$home"
build v0.67.0 frps
build v0.67.0 frpc
build v0.66.0 frpc
