"""Reads a page of docs/situations/: the fenced blocks that a comment in front of them marks.

    <!-- HOST: /etc/a/file -->   the block is this whole file; ", appended": its end; ", secret": mode 600
    <!-- HOST: run -->           its commands are run, as root; ", again": after the reboot as well;
                                 ", until shown": repeated for up to 20 s; ", fails": they must fail
    <!-- shows -->               what the commands before it print: these lines in this order, others
                                 between; … is any text
    <!-- HOST: stand-in NAME ARGUMENTS -->   no block: situations/NAME.py is a service, in a program's place
    <!-- HOST: check NAME ARGUMENTS -->      no block: situations/NAME.py is run, and again after the reboot
    <!-- HOST: meanwhile NAME ARGUMENTS --> no block: situations/NAME.py runs while the server reboots
    <!-- HOST: given COMMANDS -->            no block: what readers have already, such as accounts; "given, again"

HOST is client, other client, sender or server. A block without a comment is not executed.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

MARK = re.compile(r"<!-- (?:([a-z ]+): )?(.+) -->")


@dataclass
class Step:
    """A block of a page. `host` is where it belongs; `does` is file, run or check."""

    line: int
    host: str
    does: str
    text: str = ""
    path: str = ""
    flags: set = field(default_factory=set)
    shows: list = field(default_factory=list)


def steps(path: Path) -> list[Step]:
    """All marked blocks, in the page's order. Raises ValueError for a mark that it does not know."""
    found, lines, number = [], path.read_text().splitlines(), 0
    while number < len(lines):
        mark = MARK.fullmatch(lines[number].strip())
        number += 1
        if not mark:
            continue
        host, words = mark[1] or "", mark[2]
        where = f"{path}:{number}"
        if plain := re.fullmatch(r"(check|given|stand-in|meanwhile)(, again)? (.+)", words):
            flags = {"again"} if plain[2] or plain[1] == "check" else set()
            found.append(Step(number, host, plain[1], path=plain[3], flags=flags))
            continue
        start = number
        if not lines[number].startswith("```"):
            raise ValueError(f"{where}: no block follows")
        end = next(n for n in range(start + 1, len(lines)) if lines[n] == "```")
        text, number = "\n".join(lines[start + 1 : end]) + "\n", end + 1
        if words == "shows":
            found[-1].shows = [line for line in text.splitlines() if line.strip()]
        elif words.startswith("/"):
            name, _, flags = words.partition(", ")
            found.append(Step(start, host, "file", text, name, set(flags.split(", ")) - {""}))
        elif words.split(", ")[0] == "run":
            flags = set(words.split(", ")[1:])
            if flags - {"again", "until shown", "fails"}:
                raise ValueError(f"{where}: unknown words: {words}")
            found.append(Step(start, host, "run", text, flags=flags))
        else:
            raise ValueError(f"{where}: unknown mark: {words}")
    return found


def shown(expected: list[str], output: str) -> str | None:
    """The first expected line that is missing in the output."""
    position, lines = 0, output.splitlines()
    for line in expected:
        wanted = re.compile(re.escape(line.strip()).replace("…", ".*").replace(r"\ ", r"\s+"))
        while position < len(lines) and not wanted.search(lines[position]):
            position += 1
        if position == len(lines):
            return line
        position += 1
    return None
