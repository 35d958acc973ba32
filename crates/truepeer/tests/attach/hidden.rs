//! Packets that the kernel reassembles after the programs: fragments, and packets with IPv6 extension
//! headers.

use anyhow::{Result, ensure};
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Test, Topology, wait_for};

use crate::kit::{attach_on, backend_on, command, counter_on, python};

pub(crate) fn tests() -> Vec<Test> {
    let all = [
        Test::new("fragments_do_not_get_past", fragments_do_not_get_past),
        Test::new("ipv6_extension_headers_do_not_get_past", ipv6_extension_headers_do_not_get_past),
        Test::new(
            "datagrams_behind_ipv6_extension_headers_are_refused",
            datagrams_behind_ipv6_extension_headers_are_refused,
        ),
        Test::new(
            "more_extension_headers_than_can_be_read_are_counted",
            more_extension_headers_than_can_be_read_are_counted,
        ),
    ];
    all.into_iter().map(|test| test.needs_program("python3").of_group("hidden")).collect()
}

/// A SYN in two fragments, and a whole hand-made one, which is tracked.
fn fragments_do_not_get_past(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let script = format!(
        "\
import struct
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
me = socket.inet_aton('{}')
def send(id, fragment, payload):
    header = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(payload), id, fragment, 64, 6, 0)
    raw.sendto(header + me + socket.inet_aton(to[0]) + payload, to)
def syn(port):
    header = struct.pack('!HHIIBBHHH', port, to[1], 1000, 0, 0x50, 2, 65535, 0, 0)
    pseudo = me + socket.inet_aton(to[0]) + struct.pack('!BBH', 0, 6, len(header))
    total = sum(struct.unpack('!%dH' % (len(pseudo + header) // 2), pseudo + header))
    total = (total & 0xffff) + (total >> 16)
    total = (total & 0xffff) + (total >> 16)
    return header[:16] + struct.pack('!H', ~total & 0xffff) + header[18:]
send(1, 0x2000, syn(4001)[:16])
send(1, 2, syn(4001)[16:])
send(2, 0, syn(4002))
",
        lb.v4
    );
    python(bed, lb, host.at(false, 80), "203.0.113.1:1001", &script)?;
    wait_for("both to be counted", || {
        let count = |name| counter_on(bed, host, name).unwrap_or_default();
        count("refused_fragment") == 1 && count("connections") == 1
    })
}

fn ipv6_extension_headers_do_not_get_past(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let who = backend_on(bed, host, Behaviour::Who, &["[::]:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    // Destination options: four bytes of padding.
    let script = "\
s = socket.socket(socket.AF_INET6)
s.settimeout(1)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
try:
    s.connect(to)
    print('connected')
except OSError:
    print('not connected')
";
    let said = python(bed, lb, host.at(true, 80), "203.0.113.1:1001", script)?;
    ensure!(said.trim() == "not connected", "{said}");
    ensure!(counter_on(bed, host, "refused_fragment")? >= 1);
    ensure!(!who.log().contains("accepted"));
    Ok(())
}

/// Runs `send(extensions, protocol, port)`: one UDP or TCP packet with this many headers of destination
/// options.
fn raw_ipv6(bed: &Bed, from: &Host, to: &Host, calls: &str) -> Result<()> {
    let source = format!(
        "\
import socket, struct
raw = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
me, to = '{}', '{}'
def with_sum(payload, at, protocol):
    pseudo = socket.inet_pton(socket.AF_INET6, me) + socket.inet_pton(socket.AF_INET6, to) + struct.pack('!II', len(payload), protocol)
    total = sum(struct.unpack('!%dH' % (len(pseudo + payload) // 2), pseudo + payload))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return payload[:at] + struct.pack('!H', ~total & 0xffff) + payload[at + 2:]
def send(extensions, protocol, port):
    if protocol == 17:
        upper = with_sum(struct.pack('!HHHH', 4001, port, 12, 0) + b'data', 6, 17)
    else:
        upper = with_sum(struct.pack('!HHIIBBHHH', 4001, port, 1000, 0, 0x50, 2, 65535, 0, 0), 16, 6)
    chain = b''.join(bytes([60 if n + 1 < extensions else protocol, 0, 1, 4, 0, 0, 0, 0]) for n in range(extensions))
    first = 60 if extensions else protocol
    ip = struct.pack('!IHBB', 6 << 28, len(chain + upper), first, 64)
    raw.sendto(ip + socket.inet_pton(socket.AF_INET6, me) + socket.inet_pton(socket.AF_INET6, to) + chain + upper, (to, 0))
{calls}
",
        from.v6, to.v6
    );
    Program::new("python3").args(["-c", &source]).in_netns(&from.netns).run(bed).map(drop)
}

fn datagrams_behind_ipv6_extension_headers_are_refused(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let backend = host.run(|| Backend::who(&["[::]:53".to_owned()]))??;
    let sender = format!("[{}]:4001", lb.v6);
    // From addresses that are not senders they pass, as before.
    command(bed, &["--port", "53/udp", "--allow", "10.0.0.0/8"])?.in_netns(&host.netns).run(bed)?;
    raw_ipv6(bed, lb, host, "send(1, 17, 53)\nsend(15, 17, 53)")?;
    wait_for("both to arrive", || backend.seen().len() == 2)?;
    ensure!(backend.seen().iter().all(|seen| seen.from.to_string() == sender), "{:?}", *backend.seen());
    attach_on(bed, host, &["--port", "53/udp"])?;
    raw_ipv6(bed, lb, host, "send(1, 17, 53)\nsend(15, 17, 53)\nsend(0, 17, 53)")?;
    wait_for("all to be counted", || {
        let count = |name| counter_on(bed, host, name).unwrap_or_default();
        count("refused_fragment") == 2 && count("refused_no_header") == 1
    })?;
    ensure!(backend.seen().len() == 2, "{:?}", *backend.seen());
    Ok(())
}

/// For any port.
fn more_extension_headers_than_can_be_read_are_counted(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let unread = |expected: u64| {
        wait_for("them to be counted", || {
            let status = command(bed, &["status", "--json"])
                .and_then(|command| command.in_netns(&host.netns).run(bed));
            status.is_ok_and(|text| text.contains(&format!("\"refused_unread\": {expected},")))
        })
    };
    for (ports, expected) in [
        (["--port", "53/udp"].as_slice(), 1),
        (&["--port", "80"], 3),
        (&["--port", "80", "--port", "53/udp"], 5),
    ] {
        attach_on(bed, host, &[ports, &["--replace"]].concat())?;
        let calls = if expected == 1 { "send(16, 17, 53)" } else { "send(16, 17, 53)\nsend(40, 6, 80)" };
        raw_ipv6(bed, lb, host, calls)?;
        unread(expected)?;
    }
    let said = command(bed, &["status"])?.in_netns(&host.netns).run(bed)?;
    ensure!(said.contains("too many IPv6 extension headers to find the port: 5 packets"), "{said}");
    Ok(())
}
