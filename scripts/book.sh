#!/bin/bash
# Builds docs/ as a site under target/book, by the installed mdBook or one that is built from source (once, minutes).
set -euo pipefail
. "$(dirname "$0")/lib.sh"
tools=$PWD/target/tools
version=0.5.4

if command -v mdbook >/dev/null; then mdbook=mdbook
else
  mdbook=$tools/bin/mdbook
  if [ ! -x "$mdbook" ]; then
    echo "book: building mdBook $version from source (once, minutes)"
    env -u CARGO_TARGET_DIR cargo install -q --locked --no-default-features --features search --root "$tools" "mdbook@$version"
  fi
fi
"$mdbook" build docs --dest-dir "$target/book"
echo "book: open $target/book/index.html"
