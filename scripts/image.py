#!/usr/bin/env python3
"""Makes one image for all processors from the tarballs of target/packages: image.py [DIRECTORY OF PACKAGES].

truepeer-VERSION-image.tar is an OCI image layout whose index has a manifest for each processor: `skopeo copy --all
oci-archive:FILE docker://REGISTRY/truepeer:VERSION` pushes it, `podman load` and `docker load` (25 or newer) load it. An image is
the static program, its licenses and the example of truepeer.toml, on nothing. truepeer-VERSION-image-MACHINE.cdx.json is its SBOM:
each file with its digest, and the crates in the program. Prints the digest of the index, which is what a registry shows and what
the chart takes. The same packages make the same bytes.
"""

import gzip
import hashlib
import io
import json
import re
import sys
import tarfile
from pathlib import Path

PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
# In the tarball, and in the image.
FILES = {
    "usr/bin/truepeer": 0o755,
    "LICENSE-APACHE": 0o644,
    "LICENSE-MIT": 0o644,
    "etc/truepeer/truepeer.toml": 0o644,
}
PLACES = {"LICENSE-APACHE": "usr/share/licenses/truepeer/LICENSE-APACHE", "LICENSE-MIT": "usr/share/licenses/truepeer/LICENSE-MIT"}
OCI = "application/vnd.oci.image."


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def archive(files, when):
    """A tar with the directories of these files: {path: (content, mode)}."""
    out = io.BytesIO()
    directories = sorted({str(parent) for path in files for parent in Path(path).parents if str(parent) != "."})
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for directory in directories:
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, 0o755, when
            tar.addfile(entry)
        for path, (content, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode, entry.mtime = len(content), mode, when
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def contents(tarball):
    """The image's files, and the commit's time, which each file of the tarball has."""
    with tarfile.open(tarball) as tar:
        members = {name.split("/", 1)[1]: name for name in tar.getnames() if "/" in name}
        files = {PLACES.get(name, name): (tar.extractfile(members[name]).read(), mode) for name, mode in FILES.items()}
        return files, int(tar.getmember(members["usr/bin/truepeer"]).mtime)


def bill(files, crates, name, version):
    """CycloneDX: the files of the image, and the crates in the program, as cargo names them."""
    entry = lambda path, content: {
        "type": "file",
        "bom-ref": "file:/" + path,
        "name": "/" + path,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}],
    }
    components = [entry(path, content) for path, (content, _) in sorted(files.items())]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": components + crates,
    }


def main(packages):
    found = [(re.match(r"truepeer-(.+)-(x86_64|aarch64)-linux-musl\.tar\.gz$", path.name), path) for path in sorted(packages.iterdir())]
    tarballs = [(match[1], match[2], path) for match, path in found if match]
    if not tarballs:
        sys.exit(f"image: no tarball is in {packages}: make package first")
    blobs, manifests = {}, []

    def blob(content, kind, **more):
        blobs[digest(content)] = content
        return {"mediaType": kind, "digest": digest(content), "size": len(content), **more}

    for version, machine, tarball in tarballs:
        files, when = contents(tarball)
        tar = archive(files, when)
        layer = blob(gzip.compress(tar, 9, mtime=0), OCI + "layer.v1.tar+gzip")
        labels = {"org.opencontainers.image.title": "truepeer", "org.opencontainers.image.version": version,
                  "org.opencontainers.image.licenses": "MIT OR Apache-2.0"}
        config = blob(as_json({
            "architecture": PROCESSORS[machine],
            "os": "linux",
            "config": {"Entrypoint": ["/usr/bin/truepeer"], "Env": ["PATH=/usr/bin"], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        }), OCI + "config.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": config, "layers": [layer]}
        platform = {"architecture": PROCESSORS[machine], "os": "linux"}
        manifests.append(blob(as_json(manifest), OCI + "manifest.v1+json", platform=platform))
        own = packages / f"truepeer-{version}-{machine}.cdx.json"
        crates = json.loads(own.read_text())["components"] if own.exists() else []
        name = f"truepeer-{version}-image-{machine}.cdx.json"
        (packages / name).write_text(json.dumps(bill(files, crates, f"truepeer ({machine})", version), indent=2) + "\n")

    content = as_json({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": manifests})
    version = tarballs[0][0]
    index = blob(content, OCI + "index.v1+json", annotations={"org.opencontainers.image.ref.name": version})
    layout = {f"blobs/sha256/{name.split(':')[1]}": (data, 0o644) for name, data in blobs.items()}
    layout["oci-layout"] = (as_json({"imageLayoutVersion": "1.0.0"}), 0o644)
    layout["index.json"] = (as_json({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": [index]}), 0o644)
    (packages / f"truepeer-{version}-image.tar").write_bytes(archive(layout, when))
    print(f"image: truepeer-{version}-image.tar, {', '.join(PROCESSORS[machine] for _, machine, _ in tarballs)}: {digest(content)}")


main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/packages"))
