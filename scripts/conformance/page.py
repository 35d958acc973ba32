#!/usr/bin/env python3
"""Writes docs/conformance.md from the reports of conformance.sh: page.py DIRECTORY PAGE

A MUST that a program breaks is on the page only with the place in that program's source or manual which confirms it
(confirmed.txt: report, rule, place). Others are printed, and the exit status is 1.
"""
import collections, glob, json, os, re, sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
HEAD = """# Conformance

What `truepeer probe` ([how it judges](probe.md)) finds at programs that read or write PROXY headers, by [the published vectors](../vectors/README.md). Made by `make conformance`: `scripts/conformance.sh` has each program's configuration. Versions are Debian 12's; those of libraries, of Envoy, and of programs in Go and Rust, are from their registries.

The PROXY protocol's text is of 2026/04/27. A broken MUST is listed with its vectors, and with the place in the program's own source or manual that confirms it. "Can't tell" is no fault: the program neither answered nor ended the connection.
"""

ABSENT = """
## Not probed

| program | why |
|---|---|
| Traefik | its module (3.7.13) has `replace` directives, so `go install` refuses it. It reads headers by go-proxyproto 0.12 |
| mosquitto | Debian's 2.0 reads no headers; [2.1 does](https://mosquitto.org/documentation/listeners/haproxy) |
| vsftpd | reads no headers |
| ProFTPD | Debian's packages have no mod_proxy_protocol |
| kzemek/go-mmproxy | the Go module proxy does not serve it. Debian has 2.1, of which it is a fork |
| libproxyproto | no package. Its leak, a header in parts that reaches the application, is a case of probe's own tests (`crates/probe/tests/judged.rs`) |
| Rust's libraries | they are parsers, not servers: `crates/proto/tests/oracles` compares them with the vectors |
"""


def confirmed():
    places = {}
    for line in open(os.path.join(FOLDER, "confirmed.txt")):
        if line.strip() and not line.startswith("#"):
            report, rule, place = line.rstrip("\n").split("\t")
            places[report, rule] = place
    return places


def reports(directory):
    for path in sorted(glob.glob(f"{directory}/*.json")):
        name = os.path.basename(path)[:-5]
        version = open(f"{directory}/{name}.version").read().strip()
        for report in map(json.loads, filter(str.strip, open(path))):
            yield name, version, report


def short(seen):
    return "yes" if seen == "taken" else "no"


def kind(report):
    return {"none": "", "echo": "TCP"}.get(report["as"], report["as"]) + (", UDP" if "(UDP)" in report["target"] else "")


def main():
    directory, page = sys.argv[1:]
    places, missing = confirmed(), []
    receivers, senders, faults = [], [], []
    for name, version, report in reports(directory):
        grouped = collections.defaultdict(list)
        for finding in report["findings"]:
            grouped[finding["verdict"]].append(finding)
        broken = collections.defaultdict(list)
        for finding in grouped["broken"]:
            broken[finding["rule"]].append(finding)
        cells = []
        for rule, found in broken.items():
            place = places.get((name, rule))
            if not place:
                missing.append(f"{name}\t{rule}\t{len(found)}: {found[0]['name']}: {found[0]['seen']}")
                continue
            cells.append(f"**{rule}** ({len(found)})" if len(found) > 1 else f"**{rule}**")
            faults.append((version, kind(report), rule, found, place))
        listed = ", ".join(cells) or "–"
        def rules(verdict):
            count = collections.Counter(finding["rule"] for finding in grouped[verdict])
            return ", ".join(f"{rule} ({n})" if n > 1 else rule for rule, n in sorted(count.items())) or "–"
        if name.startswith("send") or report["target"].startswith("a sender"):
            first = next((note for note in report["notes"] if note.startswith("version")), "no header")
            senders.append(f"| {version} | {first.split(':')[0]} | {listed} | {rules('advised')} |")
        else:
            takes = report["takes"]
            versions = f"{short(takes['v1'])} | {short(takes['v2'])}" if takes else "– | " + ("yes" if report["findings"] else "no")
            receivers.append(f"| {version} | {kind(report)} | {versions} | {report['totals']['holds']} | {listed} | {rules('advised')} | {rules('permitted')} | {report['totals']['unknown'] or '–'} |")
    with open(page, "w") as out:
        out.write(HEAD)
        out.write("\n## Receivers\n\nA number in brackets counts vectors. The rules are explained [below](#rules).\n\n")
        out.write("| program | as | v1 | v2 | hold | MUSTs broken | against advice | other choices, permitted | can't tell |\n|---|---|---|---|---|---|---|---|---|\n")
        out.write("\n".join(receivers) + "\n")
        out.write("\n## Senders\n\n| program | wrote | MUSTs broken | against advice |\n|---|---|---|---|\n" + "\n".join(senders) + "\n")
        out.write("\n## Broken, and where to see it\n\nThe bytes of each vector are in [vectors/](../vectors/README.md), by its name.\n\n")
        out.write("| program | rule | vectors | confirmed by |\n|---|---|---|---|\n")
        for version, as_kind, rule, found, place in faults:
            names = "; ".join(finding["name"] for finding in found)
            out.write(f"| {version}{', ' + as_kind if as_kind else ''} | {rule} | {names} | {place} |\n")
        out.write(ABSENT)
        names = re.findall(r"^(?:receiver|sender)_(\w+)\(\)", "".join(open(os.path.join(FOLDER, file)).read() for file in ("receivers.sh", "senders.sh")), re.M)
        for name in names:
            if not os.path.exists(f"{directory}/{name}.json"):
                out.write(f"| {name.replace('_', '-')} | `scripts/conformance/` has it. It did not run for this page |\n")
        rules = json.load(open(os.path.join(FOLDER, "../../vectors/rules.json")))["rules"]
        out.write("\n## Rules\n\n| rule | section | level | text |\n|---|---|---|---|\n")
        for rule in rules:
            text = rule["quote"].replace("|", "\\|")
            out.write(f"| {rule['id']} | {rule['section']} | {rule['level']} | {text} |\n")
    print("\n".join(f"not confirmed: {line}" for line in missing))
    sys.exit(1 if missing else 0)


main()
