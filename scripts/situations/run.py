"""Executes pages of docs/situations/ on hosts of hosts.py. Called by scripts/situations.sh."""

import os
import sys
import time
import tomllib
from pathlib import Path

import hosts
import page as pages

HERE = Path(__file__).parent
# What `apt install` enables on Debian, for each package that a page installs.
UNITS = {
    "haproxy": "haproxy",
    "nginx": "nginx",
    "postfix": "postfix",
    "dovecot-imapd": "dovecot",
    "openssh-server": "ssh",
    "fail2ban": "fail2ban",
    "unbound": "unbound",
    "dnsdist": "dnsdist",
}


class Failed(Exception):
    pass


def packaged():
    """The files of deploy/ that the package installs for the program, and where."""
    crate = Path("crates/truepeer")
    assets = tomllib.loads((crate / "Cargo.toml").read_text())["package"]["metadata"]["deb"]["assets"]
    for source, target, _ in assets:
        source = Path(os.path.normpath(crate / source))
        if source.is_relative_to("deploy") and not target.startswith("usr/share/"):
            yield source, f"/{target}{source.name if target.endswith('/') else ''}"


def install(host: hosts.Host):
    """What the packages of truepeer and frp bring, and `apt install` of what is unpacked already."""
    host.copy(Path(os.environ["TRUEPEER"]), "/usr/bin/truepeer")
    for source, target in packaged():
        host.copy(source, target)
    for program in ("frp/v0.67.0/frps", "frp/v0.67.0/frpc", "pebble/pebble"):
        if (source := Path("target/tools", program)).exists():
            host.copy(source, f"/usr/local/bin/{source.name}")
    cases = "\n".join(f"  {package}) systemctl -q enable --now {unit} ;;" for package, unit in UNITS.items())
    host.write(
        "/usr/local/bin/apt",
        f'#!/bin/sh -e\n[ "$1" = install ]\nshift\nfor each; do case $each in\n{cases}\n'
        '  *) dpkg -s "$each" >/dev/null ;;\nesac 2>/dev/null; done\n',
        0o755,
    )


class Situation:
    def __init__(self, name: str):
        self.name, self.path = name, next(
            path for path in (HERE / f"{name}.md", Path("docs/situations", f"{name}.md")) if path.exists()
        )
        self.steps = pages.steps(self.path)
        self.hosts = {}

    def run(self):
        names = [name for name in hosts.ADDRESSES if any(step.host == name for step in self.steps)]
        try:
            for name in names:
                self.hosts[name] = hosts.Host(name, self.name)
                install(self.hosts[name])
            for host in self.hosts.values():
                host.wait_booted()
            for step in self.steps:
                self.step(step)
            if self.path.parent == HERE:
                return
            self.reboot()
            again = [step for step in self.steps if "again" in step.flags]
            if not again:
                raise Failed(f"{self.path}: nothing is checked after the reboot")
            for step in again:
                self.step(step, "after the reboot: ")
        finally:
            for host in self.hosts.values():
                host.end()

    def reboot(self):
        """All hosts at once; where clients connect meanwhile, the server when the sender is back."""
        booted = [self.hosts[name] for name in hosts.BOOTED if name in self.hosts]
        meanwhile = [step for step in self.steps if step.does == "meanwhile"]
        for several in [[host] for host in booted] if meanwhile else [booted]:
            running = []
            if meanwhile and several == [self.hosts["server"]]:
                running = [(step, self.start(step)) for step in meanwhile]
            for host in several:
                host.reboot()
            for host in several:
                host.wait_booted()
            for step, process in running:
                output, _ = process.communicate(timeout=120)
                print(f"  while the server rebooted: {output.strip()}", flush=True)
                if process.returncode != 0:
                    raise Failed(f"{self.path}:{step.line} ({step.host}): {output}\n{self.journals()}")

    def start(self, step: pages.Step):
        """Runs a script beside everything else, and waits for its first line."""
        host, (name, *words) = self.hosts[step.host], step.path.split()
        host.copy(HERE / f"{name}.py", f"/usr/local/bin/{name}.py")
        pipe = hosts.subprocess.PIPE
        process = hosts.subprocess.Popen(
            [*host.enter(), "python3", f"/usr/local/bin/{name}.py", *words], text=True, stdin=pipe, stdout=pipe
        )
        process.stdout.readline()
        return process

    def step(self, step: pages.Step, when: str = ""):
        host = self.hosts[step.host]
        where = f"{when}{self.path}:{step.line} ({step.host})"
        if step.does == "file":
            if "appended" in step.flags:
                step.text = (host.root / step.path.lstrip("/")).read_text() + step.text
            host.write(
                step.path,
                step.text,
                0o755 if step.text.startswith("#!") else 0o600 if "secret" in step.flags else 0o644,
            )
        elif step.does == "stand-in":
            name, *words = step.path.split()
            host.copy(HERE / f"{name}.py", f"/usr/local/bin/{name}")
            host.write(
                f"/etc/systemd/system/{name}.service",
                f"[Service]\nExecStart=/usr/bin/python3 /usr/local/bin/{' '.join([name, *words])}\n"
                "Restart=always\n[Install]\nWantedBy=multi-user.target\n",
            )
            self.execute(host, f"systemctl -q enable --now {name}\n", step, where)
        elif step.does == "given":
            self.execute(host, step.path, step, where)
        elif step.does == "meanwhile":
            pass
        elif step.does == "check":
            name, *words = step.path.split()
            host.copy(HERE / f"{name}.py", f"/usr/local/bin/{name}.py")
            self.execute(host, f"python3 /usr/local/bin/{name}.py {' '.join(words)}", step, where)
        else:
            self.execute(host, step.text, step, where)

    def execute(self, host: hosts.Host, text: str, step: pages.Step, where: str):
        deadline = time.monotonic() + 20
        while True:
            done = host.run(text)
            missing = pages.shown(step.shows, done.stdout)
            ok = (done.returncode != 0) == ("fails" in step.flags) and missing is None
            if ok or "until shown" not in step.flags or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if "-v" in sys.argv:
            print(f"--- {where}\n{text}=> {done.returncode}\n{done.stdout}", flush=True)
        if not ok:
            why = f"is not shown: {missing}" if missing else f"exit status {done.returncode}"
            raise Failed(f"{where}: {why}\n{text}--- output:\n{done.stdout}--- journals:\n{self.journals()}")

    def journals(self) -> str:
        ask = (
            "systemctl --failed --no-legend --plain; journalctl --no-pager -q -o short-monotonic -n 600 -p 6 | "
            "grep -Ev '(sudo|systemd-journald|systemd-logind|dbus-daemon)' | tail -90"
        )
        return "".join(
            f"{name}:\n{self.hosts[name].run(ask).stdout}" for name in hosts.BOOTED if name in self.hosts
        )


def main() -> int:
    names = [name for name in sys.argv[1:] if name != "-v"] or sorted(
        path.stem
        for folder in (Path("docs/situations"), HERE)
        for path in folder.glob("*.md")
        if path.stem != "security-review"
    )
    hosts.network_up()
    results = {"ok": 0, "FAILED": 0}
    for name in names:
        start, reason = time.monotonic(), ""
        try:
            Situation(name).run()
        except (Failed, RuntimeError, ValueError, OSError, hosts.subprocess.SubprocessError) as error:
            reason = f"{error}\n"
        result = "FAILED" if reason else "ok"
        results[result] += 1
        what = "the page" if Path("docs/situations", f"{name}.md").exists() else "the situation"
        after = ", and again after a reboot" if what == "the page" else ""
        print(f"test {what} {name}{after} ... {result}")
        print(f"{reason}  {time.monotonic() - start:.0f} s", flush=True)
    total = "FAILED" if results["FAILED"] else "ok"
    print(f"test result: {total}. {results['ok']} passed; {results['FAILED']} failed; 0 ignored")
    return 1 if results["FAILED"] else 0


sys.exit(main())
