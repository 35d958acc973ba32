#!/usr/bin/env python3
"""Writes the table of docs/tried.md from the last lines of use.py that are in logs: page.py LOG...

A row is a distribution, a processor, a kernel and a kind of package; a cell is a run of one way. Rows of the page that no log names
stay as they are.
"""

import json
import sys
from pathlib import Path

PAGE = Path("docs/tried.md")
WAYS = ["attach", "attach-udp", "preload", "notify", "proxy", "splice", "udp", "https"]
HEAD = ["distribution", "processor", "Linux", "installed from", *(f"`{way}`" for way in WAYS), "on"]


def rows_of(log):
    text = log.read_text(errors="replace")
    for line in text.split("\n"):
        # A serial console may put something before it.
        if "tried: {" in line:
            row = json.loads(line[line.index("tried: {") + 7 :])
            ways = [{True: "yes", False: "**no**", None: ""}[row["ways"].get(way)] for way in WAYS]
            yield (row["distribution"], row["processor"], row["kernel"], row["how"]), (*ways, row["date"])


def main(logs):
    before, _, rest = PAGE.read_text().partition("<!-- scripts/tried/page.py writes this table. -->\n")
    old, after = [], rest.split("\n")
    while after and after[0].startswith("|"):
        old.append(after.pop(0))
    rows = {}
    for line in old[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        rows[tuple(cells[:4])] = tuple(cells[4:])
    for log in logs:
        rows |= dict(rows_of(Path(log)))
    lines = [HEAD, ["---"] * len(HEAD), *([*key, *cells] for key, cells in sorted(rows.items()))]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    PAGE.write_text(f"{before}<!-- scripts/tried/page.py writes this table. -->\n{table}" + "\n".join(after))
    print(f"page: {len(rows)} rows")


main(sys.argv[1:])
