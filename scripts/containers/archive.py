#!/usr/bin/env python3
"""Makes an image's archive, as `docker save` does, of one directory: archive.py DIRECTORY NAME:TAG COMMAND(JSON) > FILE."""
import hashlib
import io
import json
import subprocess
import sys
import tarfile

directory, name, command = sys.argv[1:]
command = json.loads(command)
layer = subprocess.run(["tar", "-C", directory, "--owner=0", "--group=0", "-c", "."], check=True, stdout=subprocess.PIPE).stdout
config = {
    "architecture": "amd64",
    "os": "linux",
    "config": {"Entrypoint": command[:1], "Cmd": command[1:], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
}
files = {
    "layer.tar": layer,
    "config.json": json.dumps(config).encode(),
    "manifest.json": json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode(),
}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    for path, content in files.items():
        entry = tarfile.TarInfo(path)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
