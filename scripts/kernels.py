#!/usr/bin/env python3
"""Writes docs/internals/kernels.md from the logs of scripts/kernels.sh: kernels.py DIRECTORY. It prints what a log shows, and nothing else."""
import glob, os, re, sys

WAYS = [("attach", "`attach`"), ("auto", "`--splice auto`"), ("attach_udp", "`attach`, UDP"),
        ("proxy_udp", "`proxy`, UDP")]
NETS = ["ipv4", "ipv6", "a_vlan_ipv4", "a_vlan_ipv6"]
OFFLOADS = [("tx-checksumming", "sums out"), ("rx-checksumming", "sums in"), ("tcp-segmentation-offload", "TSO"),
            ("generic-receive-offload", "GRO"), ("tx-vlan-offload", "VLAN out"), ("rx-vlan-offload", "VLAN in")]
TEXT = """# Kernels and network cards

<!-- Written by `make kernels` (scripts/kernels.py). -->

Each way of delivery, between a sender, a relay and a backend in three network namespaces, which network cards of one model join in pairs. Kernels and drivers are Debian's; the machine and its cards are qemu's ({accel}). Dates: {dates}. `virtio-net-queues` has four queues, `virtio-net-plain` has TSO, GSO, GRO and the sums of what it sends off, `igb-no-uso` leaves UDP's segmentation to Linux.

A cell counts the kinds of links (IPv4, IPv6, and each in a VLAN) on which all was right: the backend saw the client's address; 2 MiB and fifty short messages in each of four sessions at once came back with the right digest, for UDP 48 datagrams of each of four clients; `truepeer sessions` said that the sessions had left user space (`attach`: its status, that its programs had them). A session that hangs fails its cell. A letter stands for a reason below: the kernel or the card lacks something. Sessions then went another way, and were right, too; datagrams have no other way and were not tried.

{table}
{reasons}
## The cards

As the driver reports them in the machine, with the state of its offloads, and how many TCP packets the cards have cut into segments.

{cards}
{tests}"""


def read(path):
    log = open(path, errors="replace").read()
    end = re.findall(r"^kernels: Linux (\S+) \((\S+)\), (\S+), (\w+)$", log, re.M)
    outcomes = {}
    # Programs may print between a name and its outcome.
    for name, outcome in re.findall(r"^test (\S+) +\.\.\. (.*)$", log, re.M):
        outcomes[name] = outcome
    return log, end[-1] if end else None, outcomes


def columns(rows):
    lines = ["|" + "|".join(row) + "|" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0])] + lines[1:]) + "\n"


def release_key(version):
    return [int(part) for part in re.findall(r"\d+", version)[:3]]


def main(directory):
    machines = []
    for path in glob.glob(f"{directory}/cards-*.log"):
        log, end, outcomes = read(path)
        if end:
            card = re.match(r"cards-[a-z]+-(.*)\.log", os.path.basename(path)).group(1)
            machines.append((release_key(end[0]), card, end, outcomes, log))
    machines.sort(key=lambda machine: machine[:2])
    reasons = []

    def cell(way, outcomes, log):
        right, marks, seen = 0, [], 0
        for net in NETS:
            outcome = outcomes.get(f"{way}_over_{net}")
            if outcome is None:
                continue
            seen += 1
            if outcome.startswith("ok"):
                right += 1
                continue
            ignored = re.match(r"ignored(?: \(|, *)(.*?)\)?$", outcome)
            reason = ignored.group(1) if ignored else None
            if reason is None:
                told = re.search(rf"^---- {way}_over_{net} ----\n(.*)", log, re.M)
                reason = f"failed: {told.group(1) if told else 'it did not end'}"
            if reason not in reasons:
                reasons.append(reason)
            letter = chr(ord("a") + reasons.index(reason))
            marks.append(letter if ignored else f"**{letter}**")
        if not outcomes:
            told = re.search(r"^kernels: not tried: .*: (.*)$", log, re.M)
            return f"not tried: {told.group(1)}" if told else "**the machine did not start**"
        return " ".join([f"{right} of {seen}" if seen else "not tried"] + sorted(set(marks)))

    table, cards = [["Linux", "driver"] + [title for _, title in WAYS]], [["Linux", "machine", "driver", "queues"] + [t for _, t in OFFLOADS] + ["packets cut"]]
    for _, card, (version, package, _, _), outcomes, log in machines:
        table.append([version, card] + [cell(way, outcomes, log) for way, _ in WAYS])
        state = dict(re.findall(r"^card: ([\w-]+):?[ \t]+(.*?)\s*$", log, re.M))
        queues = re.findall(r"\d+", state.get("queues", "")) or ["1"]
        cards.append([f"{version} ({package})", card, state.get("driver", "?"), queues[0]] +
                     [state.get(key, "?").split()[0] for key, _ in OFFLOADS] + [state.get("cut", "not counted")])
    tests = [["Linux", "passed", "failed", "left out, with a reason"]]
    for path in glob.glob(f"{directory}/tests-*.log"):
        log, end, _ = read(path)
        if end:
            sums = [sum(map(int, column)) for column in
                    zip(*re.findall(r"^test result: .*?(\d+) passed; (\d+) failed; (\d+) ignored", log, re.M))] or [0, 0, 0]
            tests.append([end[0]] + [str(number) for number in sums])
    tests[1:] = sorted(tests[1:], key=lambda row: release_key(row[0]))
    ends = [machine[2] for machine in machines]
    print(TEXT.format(
        accel=", ".join(sorted({"under KVM" if end[3] == "kvm" else "emulated in software" for end in ends})),
        dates=", ".join(sorted({end[2] for end in ends})),
        table=columns(table),
        reasons="".join(f"- {chr(ord('a') + number)}: {reason}\n" for number, reason in enumerate(reasons)),
        cards=columns(cards),
        tests="## Other tests there\n\nOver veth pairs: `attach`, hand-made packets, models of the kernel programs, hand-overs over bad links.\n\n"
              + columns(tests) if len(tests) > 1 else "",
    ).rstrip())


main(sys.argv[1])
