#!/usr/bin/env python3
"""Prints the commands of kubectl and helm in pages, one a line behind its page and a tab: commands.py PAGE...

They are in blocks of `shell`, in running text between backquotes, in comments of values.yaml, and indented in NOTES.txt. Two words
alone name a command and are none: `helm uninstall`, `helm install …`."""
import re
import sys
from pathlib import Path

BLOCK = re.compile(r"^```shell\n(.*?)^```", re.M | re.S)
WRITTEN = re.compile(r"`((?:kubectl|helm) [^`]+)`")
COMMENT = re.compile(r"^ *# ((?:kubectl|helm) .+)$", re.M)
INDENTED = re.compile(r"^  ((?:kubectl|helm) .+)$", re.M)


def commands(path):
    text = path.read_text()
    if path.suffix == ".yaml":
        return COMMENT.findall(text)
    if path.suffix == ".txt":
        return INDENTED.findall(text)
    of_blocks = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    return [line for line in of_blocks if re.match(r"(kubectl|helm) ", line)] + WRITTEN.findall(BLOCK.sub("", text))


for name in sys.argv[1:]:
    for command in commands(Path(name)):
        if len(command.removesuffix(" …").split()) > 2:
            print(f"{name}\t{command}")
