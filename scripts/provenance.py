#!/usr/bin/env python3
"""Prints what the files of a release were made of and with, as an in-toto statement (SLSA 1.0): provenance.py VERSION COMMIT [MACHINE...].

The files are those of target/packages/SHA256SUMS. The same commit and tools make the same bytes: no time is in it.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

# Their versions change the bytes.
TOOLS = ["rustc", "target/cross/rustc", "clang", "cc", "aarch64-linux-gnu-gcc", "ldd", "rpmbuild", "dpkg-deb", "xz", "gzip",
         "target/tools/bin/cargo-deb deb", "target/tools/bin/cargo-cyclonedx cyclonedx"]


def first_line(tool):
    words = tool.split()
    if not shutil.which(words[0]):
        return None
    said = subprocess.run([*words, "--version"], text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return said.split("\n")[0]


def main(version, commit, *machines):
    lines = Path("target/packages/SHA256SUMS").read_text().splitlines()
    subjects = [{"name": name, "digest": {"sha256": digest}} for digest, name in (line.split("  ", 1) for line in lines)]
    locks = [{"name": name, "digest": {"sha256": hashlib.sha256(Path(name).read_bytes()).hexdigest()}}
             for name in ("Cargo.lock", "crates/agent/Cargo.lock")]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:truepeer:make-release:1",
                "externalParameters": {"version": version, "machines": list(machines)},
                "resolvedDependencies": [{"name": "source", "digest": {"gitCommit": commit}}, *locks],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:truepeer:make-release",
                    "version": {tool.split()[0]: line for tool in TOOLS if (line := first_line(tool))},
                }
            },
        },
    }
    print(json.dumps(statement, indent=2))


main(*sys.argv[1:])
