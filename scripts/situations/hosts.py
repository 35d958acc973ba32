"""The hosts of a page: a network namespace each on one bridge, and the same Debian below a layer of its own.

`sender` and `server` boot a real systemd, by scripts/debian.sh. Clients are a namespace with the same
programs. The caller has its own mount and network namespace.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["TRUEPEER_SITUATIONS_ROOT"])
LOGS = Path(os.environ["TRUEPEER_SITUATIONS_LOGS"])
WORK = Path("/mnt")
NEW_NETWORK = Path(__file__).parents[1] / "new-network.sh"
# Each host's addresses. The default route is by the first one of each family.
ADDRESSES = {
    "client": ["203.0.113.7/24", "2001:db8:c::7/64"],
    "other client": ["203.0.113.8/24", "2001:db8:c::8/64"],
    "sender": ["198.51.100.10/24", "10.0.0.7/24", "2001:db8:5::10/64", "fd00::7/64"],
    "server": ["10.0.0.2/24", "fd00::2/64"],
}
BOOTED = ("sender", "server")
ROUTERS = [
    "10.0.0.1/24",
    "203.0.113.1/24",
    "198.51.100.1/24",
    "fd00::1/64",
    "2001:db8:c::1/64",
    "2001:db8:5::1/64",
]
ENVIRONMENT = [
    "LC_ALL=C.UTF-8",
    "TERM=dumb",
    "HOME=/root",
    "BASH_ENV=/root/.env",
    "USER=root",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
]


def sh(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def network_up():
    """The bridge that joins all hosts, and routes between their networks."""
    if subprocess.run([NEW_NETWORK, "scripts/situations.sh"]).returncode != 0:
        sys.exit(1)
    sh("mount", "-t", "tmpfs", "tmpfs", str(WORK))
    Path("/run/netns").mkdir(exist_ok=True)
    sh("mount", "-t", "tmpfs", "tmpfs", "/run/netns")
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "link", "add", "br0", "address", "02:00:00:00:00:ff", "type", "bridge")
    for address in ROUTERS:
        sh("ip", "address", "add", address, "dev", "br0", *(["nodad"] if ":" in address else []))
    sh("ip", "link", "set", "br0", "up")
    for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", key).write_text("1")
    for key in ("all", "br0"):
        Path(f"/proc/sys/net/ipv4/conf/{key}/send_redirects").write_text("0")


class Host:
    def __init__(self, name: str, page: str):
        self.name, self.boots = name, 0
        self.id = name.replace(" ", "-")
        self.namespace = f"{page}-{self.id}"
        self.hardware = (
            f"02:00:00:00:00:0{list(ADDRESSES).index(name)}"  # as a machine keeps it over a reboot
        )
        self.shell = None
        layer = WORK / self.namespace
        self.root = layer / "root"
        for part in ("upper", "work", "root"):
            (layer / part).mkdir(parents=True)
        sh(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            f"lowerdir={ROOT},upperdir={layer}/upper,workdir={layer}/work",
            str(self.root),
        )
        self.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n10.0.0.2 server\n10.0.0.7 sender\n")
        if name in BOOTED:
            self.write("/etc/hostname", f"{self.id}\n")
            self.write("/etc/network/interfaces", self.interfaces())
        else:
            for what, where in (("proc", "proc"), ("tmpfs", "tmp"), ("tmpfs", "run")):
                sh("mount", "-t", what, what, str(self.root / where))
            sh("mount", "--rbind", "/dev", str(self.root / "dev"))
        self.up()

    def interfaces(self) -> str:
        """Debian's file of the network, as a host has it whose addresses are static."""
        text, routed = "auto lo\niface lo inet loopback\nauto eth0\n", set()
        for address in ADDRESSES[self.name]:
            family = "inet6" if ":" in address else "inet"
            text += f"iface eth0 {family} static\n  address {address}\n"
            text += "  dad-attempts 0\n  accept_ra 0\n" if family == "inet6" else ""
            if family not in routed:
                text += f"  gateway {router(address)}\n"
            routed.add(family)
        return text

    def up(self):
        """Connects it, and boots it."""
        self.boots += 1
        sh("ip", "netns", "add", self.namespace)
        self.port = f"{self.id}{self.boots}"
        sh(
            "ip",
            "link",
            "add",
            self.port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "address",
            self.hardware,
            "netns",
            self.namespace,
        )
        sh("ip", "link", "set", self.port, "master", "br0", "up")
        inside = ("ip", "-n", self.namespace)
        if self.name not in BOOTED:
            sh(*inside, "link", "set", "lo", "up")
            for address in ADDRESSES[self.name]:
                sh(*inside, "address", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []))
            sh(*inside, "link", "set", "eth0", "up")
            for address in ADDRESSES[self.name]:
                sh(*inside, "route", "add", "default", "via", router(address))
            return
        script = (
            "set -e; . scripts/lib.sh; . scripts/debian.sh; "
            'debian_boot "$1" && echo "booted $debian_pid" && read -r _ || true; debian_end'
        )
        environment = dict(os.environ, debian_name=self.id, debian_netns=f"/run/netns/{self.namespace}")
        self.shell = subprocess.Popen(
            ["bash", "-c", script, "bash", str(self.root)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def wait_booted(self):
        if self.shell is None:
            return
        line = self.shell.stdout.readline().split()
        if line[:1] != ["booted"]:
            raise RuntimeError(f"systemd does not boot on the {self.name} ({LOGS}/{self.id}.log)")
        self.pid = line[1]
        # The kernel turns a new link's queue on up to a second late.
        for _ in range(100):
            if " state UP " in sh("ip", "link", "show", self.port, capture_output=True).stdout:
                return
            time.sleep(0.1)
        raise RuntimeError(f"the {self.name} has no network")

    def enter(self) -> list[str]:
        if self.shell is None:
            return [
                "nsenter",
                f"--net=/run/netns/{self.namespace}",
                "chroot",
                str(self.root),
                "env",
                "-i",
                *ENVIRONMENT,
            ]
        return [
            "nsenter",
            "-t",
            self.pid,
            "-m",
            "-p",
            "-n",
            "-u",
            "-i",
            "-C",
            "env",
            "-i",
            "-C",
            "/root",
            *ENVIRONMENT,
        ]

    def run(self, text: str) -> subprocess.CompletedProcess:
        """Runs shell commands as root, as one who pastes them, but stops at the first that fails.

        The time-out is for commands that hang: on a busy machine others take minutes.
        """
        command = [*self.enter(), "bash", "-euo", "pipefail", "-c", text]
        out = WORK / "output"
        with out.open("w+") as output:
            try:
                done = subprocess.run(
                    command,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=600,
                )
            except subprocess.TimeoutExpired as error:
                said = out.read_text(errors="replace")
                raise RuntimeError(f"hangs on the {self.name}: {text}--- output:\n{said}") from error
        return subprocess.CompletedProcess(command, done.returncode, out.read_text(errors="replace"))

    def write(self, path: str, text: str, mode: int = 0o644):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def copy(self, source: Path, path: str):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, file)

    def reboot(self):
        """Stops its units in order, ends everything of this host, and boots it again. Its disk stays."""
        self.run("systemctl reboot")
        for _ in range(600):
            if not Path(f"/proc/{self.pid}").exists():
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"the {self.name} does not shut down within 60 s")
        self.down()
        # `journalctl -b` shows one boot, and so do the pages: all boots here have the same kernel's number.
        shutil.rmtree(self.root / "var/log/journal", ignore_errors=True)
        for log in self.root.glob("var/log/*/access.log"):
            log.rename(f"{log}.1")
        self.up()

    def down(self):
        if self.shell is not None:
            self.shell.stdin.close()
            self.shell.wait()
            self.shell.stdout.close()
        sh("ip", "link", "delete", self.port)
        sh("ip", "netns", "delete", self.namespace)

    def end(self):
        self.down()
        sh("umount", "-R", "-l", str(self.root))
        shutil.rmtree(self.root.parent, ignore_errors=True)


def router(address: str) -> str:
    """The router of this address' network."""
    network = address.rpartition("/")[0]
    return network.rpartition("::")[0] + "::1" if ":" in network else network.rpartition(".")[0] + ".1"
