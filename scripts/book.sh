#!/bin/bash
# Builds docs/ as a site under target/book, by the installed mdBook or one that is built from source (once, minutes).
#
#   scripts/book.sh [DIRECTORY]   under this directory instead
#   scripts/book.sh --program     mdBook alone, for the test that opens the site in a browser
set -euo pipefail
. "$(dirname "$0")/lib.sh"
tools=$PWD/target/tools
version=0.5.4

if command -v mdbook >/dev/null; then mdbook=mdbook
else
  mdbook=$tools/bin/mdbook
  if [ ! -x "$mdbook" ]; then
    echo "book: building mdBook $version from source (once, minutes)"
    env -u CARGO_TARGET_DIR cargo install -q --locked --no-default-features --features search --root "$tools" "mdbook@$version" || {
      echo "book: can't build mdBook"
      [ "${1-}" = --program ]
      exit
    }
  fi
fi
[ "${1-}" != --program ] || exit 0
site=${1:-$target/book}
# Two books: for users (docs/SUMMARY.md), and Inside (docs/INSIDE.md) in the folder inside/ of the first. mdBook takes
# its chapters from SUMMARY.md alone, so each is built from a copy, with the links between the two changed.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 - "$work" <<'PYTHON'
import os, re, shutil, sys
from pathlib import Path

work, docs = Path(sys.argv[1]), Path("docs")
chapters = lambda name: {link for link in re.findall(r"\]\(([^)]+\.md)\)", (docs / name).read_text())}
users, inside = chapters("SUMMARY.md"), chapters("INSIDE.md")
for book, own, summary, other in (("users", users, "SUMMARY.md", "inside"), ("inside", inside, "INSIDE.md", "..")):
    shutil.copytree(docs, work / book)
    for page in (work / book).rglob("*.md"):
        name = page.relative_to(work / book).as_posix()
        if name in ("SUMMARY.md", "INSIDE.md"):
            continue
        if name not in own:
            page.unlink()
            continue
        here = Path(name).parent

        def link(match):
            text, target, anchor = match[1], match[2], match[3] or ""
            path = Path(os.path.normpath(here / target))
            if path.as_posix() not in users | inside:
                return text  # a page of the repository, outside of docs/
            if path.name == "README.md":  # mdBook calls its page so
                path, target = path.with_name("index.md"), target.replace("README.md", "index.md")
            if os.path.normpath(here / match[2]) in own:
                return f"[{text}]({target}{anchor})"
            return f"[{text}]({os.path.relpath(Path(other, path).with_suffix('.html'), here)}{anchor})"

        page.write_text(re.sub(r"\[([^\]]*)\]\(([^)#:]+\.md)(#[^)]*)?\)", link, page.read_text()))
    shutil.copy(docs / summary, work / book / "SUMMARY.md")
    (work / book / "INSIDE.md").unlink()
config = work / "inside" / "book.toml"
config.write_text(config.read_text().replace('title = "truepeer"', 'title = "Inside truepeer"'))
PYTHON
rm -rf "$site"
"$mdbook" build "$work/users" --dest-dir "$site"
"$mdbook" build "$work/inside" --dest-dir "$site/inside"
echo "book: open $site/index.html; inside: $site/inside/index.html"
