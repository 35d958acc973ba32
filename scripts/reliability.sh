#!/bin/bash
# Whether every test that docs/reliability.md names is one: a function with #[test], an entry of tests![…] or cases![…], or the name that a Test is
# given. A function that tests call is none.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
python3 - docs/reliability.md <<'PYTHON'
import glob, re, sys

page = sys.argv[1]
tests, strings = set(), set()
for path in glob.glob("crates/**/*.rs", recursive=True):
    source = re.sub(r"^\s*//.*$", "", open(path).read(), flags=re.M)
    tests |= set(re.findall(r"#\[test\]\s*(?:#\[[^\n]*\]\s*)*fn (\w+)", source))
    for entries in re.findall(r"(?:tests|cases)!\[(.*?)\]", source, re.S):
        tests |= set(re.findall(r"\w+", entries))
    # A name may end in what the test is run with: "NAME_{family}".
    strings |= set(re.findall(r'"(\w+?)_?(?:\{\w*\}\w*)*"', source))
named = set(re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+){3,})`", open(page).read()))
if len(named) < 80:
    sys.exit(f"{page}: only {len(named)} names of tests were found")
unknown = sorted(named - tests - strings)
for name in unknown:
    print(f"{page} names a test that does not exist: {name}")
sys.exit(bool(unknown))
PYTHON
