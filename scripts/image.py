#!/usr/bin/env python3
"""Makes images for all processors from the tarballs of target/packages: image.py [DIRECTORY OF PACKAGES].

truepeer-VERSION-image.tar and, if its tarballs are there, truepeer-agent-VERSION-image.tar are OCI image layouts whose index has a
manifest for each processor: `skopeo copy --all oci-archive:FILE docker://REGISTRY/truepeer:VERSION` pushes one, `podman load` and
`docker load` (25 or newer) load it. An image is static programs and their licenses, on nothing: truepeer with the example of
truepeer.toml, or truepeer-agent with truepeer. NAME-VERSION-image-MACHINE.cdx.json is its SBOM: each file with its digest, and the
crates in the programs. Prints the digest of each index, which is what a registry shows; the chart takes the agent's. The same packages
make the same bytes.
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
# In the image: the package whose tarball has the file, its place there, and its mode. The first one is started.
LICENSES = {f"usr/share/licenses/truepeer/{name}": ("truepeer", name, 0o644) for name in ("LICENSE-APACHE", "LICENSE-MIT")}
IMAGES = {
    "truepeer": {
        "usr/bin/truepeer": ("truepeer", "usr/bin/truepeer", 0o755),
        "etc/truepeer/truepeer.toml": ("truepeer", "etc/truepeer/truepeer.toml", 0o644),
    }
    | LICENSES,
    "truepeer-agent": {
        "usr/bin/truepeer-agent": ("truepeer-agent", "usr/bin/truepeer-agent", 0o755),
        "usr/bin/truepeer": ("truepeer", "usr/bin/truepeer", 0o755),
    }
    | LICENSES,
}
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


def contents(packages, name, version, machine):
    """The image's files, and the commit's time, which each file of the tarballs has."""
    files, when = {}, 0
    for place, (package, path, mode) in IMAGES[name].items():
        directory = f"{package}-{version}-{machine}-linux-musl"
        with tarfile.open(packages / f"{directory}.tar.gz") as tar:
            member = tar.getmember(f"{directory}/{path}")
            files[place], when = (tar.extractfile(member).read(), mode), int(member.mtime)
    return files, when


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


def crates(packages, name, version, machine):
    """The crates in the image's programs, as the SBOMs of their packages name them."""
    found = {}
    for package in sorted({package for package, _, _ in IMAGES[name].values()}):
        own = packages / f"{package}-{version}-{machine}.cdx.json"
        if own.exists():
            found |= {one["bom-ref"]: one for one in json.loads(own.read_text())["components"]}
    return list(found.values())


def image(packages, name, version, machines):
    blobs, manifests = {}, []

    def blob(content, kind, **more):
        blobs[digest(content)] = content
        return {"mediaType": kind, "digest": digest(content), "size": len(content), **more}

    for machine in machines:
        files, when = contents(packages, name, version, machine)
        tar = archive(files, when)
        layer = blob(gzip.compress(tar, 9, mtime=0), OCI + "layer.v1.tar+gzip")
        labels = {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version,
                  "org.opencontainers.image.licenses": "MIT OR Apache-2.0"}
        config = blob(as_json({
            "architecture": PROCESSORS[machine],
            "os": "linux",
            "config": {"Entrypoint": ["/" + next(iter(IMAGES[name]))], "Env": ["PATH=/usr/bin"], "Labels": labels},
            "rootfs": {"type": "layers", "diff_ids": [digest(tar)]},
        }), OCI + "config.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": config, "layers": [layer]}
        platform = {"architecture": PROCESSORS[machine], "os": "linux"}
        manifests.append(blob(as_json(manifest), OCI + "manifest.v1+json", platform=platform))
        sbom = bill(files, crates(packages, name, version, machine), f"{name} ({machine})", version)
        (packages / f"{name}-{version}-image-{machine}.cdx.json").write_text(json.dumps(sbom, indent=2) + "\n")

    content = as_json({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": manifests})
    index = blob(content, OCI + "index.v1+json", annotations={"org.opencontainers.image.ref.name": f"{name}:{version}"})
    layout = {f"blobs/sha256/{key.split(':')[1]}": (data, 0o644) for key, data in blobs.items()}
    layout["oci-layout"] = (as_json({"imageLayoutVersion": "1.0.0"}), 0o644)
    layout["index.json"] = (as_json({"schemaVersion": 2, "mediaType": OCI + "index.v1+json", "manifests": [index]}), 0o644)
    (packages / f"{name}-{version}-image.tar").write_bytes(archive(layout, when))
    print(f"image: {name}-{version}-image.tar, {', '.join(PROCESSORS[machine] for machine in machines)}: {digest(content)}")


def main(packages):
    made = {}
    for path in sorted(packages.iterdir()):
        if match := re.match(r"(truepeer|truepeer-agent)-(\d.*)-(x86_64|aarch64)-linux-musl\.tar\.gz$", path.name):
            made.setdefault((match[1], match[2]), []).append(match[3])
    if not made:
        sys.exit(f"image: no tarball is in {packages}: make package first")
    for (name, version), machines in made.items():
        image(packages, name, version, machines)


main(Path(sys.argv[1] if len(sys.argv) > 1 else "target/packages"))
