//! Devices above other devices of the same namespace: packets pass the programs of both, and are translated
//! once. And senders whose headers differ in length.

use anyhow::{Context, Result, ensure};
use truepeer_testbed::datagrams::{self, Backend, ask, socket};
use truepeer_testbed::servers::Haproxy;
use truepeer_testbed::{Bed, Behaviour, Test, Topology, client, tests};

use crate::kit::{DESTINATION, attach_on, backend_on, counter_on, header, who};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_device_above_another_translates_once,
        datagrams_by_a_device_above_another_are_named_once,
        checks_that_name_nobody_teach_no_length,
    ];
    let of_haproxy = tests![haproxys_checks_between_clients_teach_no_length];
    let all = all.into_iter().chain(of_haproxy.into_iter().map(|test| test.needs_program("haproxy")));
    all.map(|test| test.of_group("stacks")).collect()
}

/// What makes `above` of `lb`, the device towards the sender.
const STACKS: [(&str, &[&str]); 5] = [
    ("macvlan", &["link add above link lb type macvlan mode bridge"]),
    ("macvlan passthru", &["link add above link lb type macvlan mode passthru"]),
    ("bridge", &["link add above type bridge", "link set lb master above"]),
    (
        "bridge above a macvlan",
        &[
            "link add mid link lb type macvlan mode bridge",
            "link set mid up",
            "link add above type bridge",
            "link set mid master above",
        ],
    ),
    (
        "macvlan on a bridge",
        &[
            "link add low type bridge",
            "link set lb master low",
            "link set low up",
            "link add above link low type macvlan mode bridge",
        ],
    ),
];

fn a_device_above_another_translates_once(bed: &Bed) -> Result<()> {
    for (name, stack) in STACKS {
        over(bed, stack, false).with_context(|| name)?;
    }
    over(bed, STACKS[0].1, true).context("IPv6")
}

fn datagrams_by_a_device_above_another_are_named_once(bed: &Bed) -> Result<()> {
    for (name, stack) in STACKS {
        let line = stacked(stack, false)?;
        let (lb, host) = (line.host("lb"), line.host("host"));
        let _backend = host.run(|| Backend::who(&["0.0.0.0:53".to_owned()]))??;
        attach_on(bed, host, &["--port", "53/udp", "--dev", "all"])?;
        let sender = lb.run(|| -> Result<_> {
            let socket = socket("0.0.0.0:0")?;
            socket.connect(host.at(false, 53))?;
            Ok(socket)
        })??;
        for n in 0..20 {
            let client = format!("203.0.113.1:{}", 1000 + n);
            let question = "a question ".repeat(n);
            let answer = ask(&sender, &[&datagrams::v2(&client, DESTINATION)?, question.as_bytes()])?;
            let answer = String::from_utf8_lossy(&answer);
            ensure!(answer == format!("{client} {question}"), "{name}, datagram {n}: {answer}");
        }
    }
    Ok(())
}

/// 20 connections, of which 8 have a header of an unexpected length. The backend's answer is long enough for
/// acknowledgements in between.
fn over(bed: &Bed, stack: &[&str], is_v6: bool) -> Result<()> {
    let line = stacked(stack, is_v6)?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let (any, ip, destination) = match is_v6 {
        true => ("[::]:80", "[2001:db8::1]", "[2001:db8::2]:443"),
        false => ("0.0.0.0:80", "203.0.113.1", DESTINATION),
    };
    let _who = backend_on(bed, host, Behaviour::Who, &[any])?;
    attach_on(bed, host, &["--port", "80", "--dev", "all"])?;
    for n in 0..20 {
        let client = format!("{ip}:{}", 1000 + n);
        // Each length that differs from the one before is unexpected: 8 of 20.
        let more: &[(u8, &[u8])] = if n % 5 == 3 { &[(4, b"a few bytes more")] } else { &[] };
        let header = client::v2_with_tlvs(&client, destination, more)?;
        let seen = who(lb, host.at(is_v6, 80), &header).with_context(|| format!("connection {n}"))?;
        ensure!(seen == client, "{client} was seen as {seen}");
    }
    ensure!(counter_on(bed, host, "translated")? == 8);
    Ok(())
}

/// A sender and a host that reaches it by the device `above`, which has the host's address.
fn stacked(stack: &[&str], is_v6: bool) -> Result<Topology> {
    let line = Topology::line(&["lb", "host"])?;
    let host = line.host("host");
    // The lower device, which also has an address, must not answer for the upper one.
    host.run(|| std::fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", "1"))??;
    host.ip(&["addr flush dev lb"])?;
    host.ip(stack)?;
    let address = match is_v6 {
        true => format!("addr add {}/64 dev above nodad", host.v6),
        false => format!("addr add {}/24 dev above", host.v4),
    };
    host.ip(&["link set lb up", "link set above up", "addr add 10.99.0.1/24 dev lb", &address])?;
    Ok(line)
}

/// As HAProxy checks a server (LOCAL, 16 bytes) between its clients (28).
fn checks_that_name_nobody_teach_no_length(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    for (n, check) in [client::v2_local(), client::v1_unknown()].iter().cycle().take(8).enumerate() {
        let seen = who(lb, host.at(false, 80), check)?;
        ensure!(seen.starts_with(&format!("{}:", lb.v4)), "{seen}");
        let client = format!("203.0.113.1:{}", 1000 + n);
        ensure!(who(lb, host.at(false, 80), &header(&client)?)? == client);
    }
    ensure!(counter_on(bed, host, "guessed_right")? == 8, "each client, and no check");
    Ok(())
}

fn haproxys_checks_between_clients_teach_no_length(bed: &Bed) -> Result<()> {
    const DOOR: &str = "127.0.0.1:8000";
    const CLIENTS: u64 = 8;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    // A check that takes more than 50 ms has failed; the server must stay up on a busy machine.
    let config = format!(
        "listen web\n  bind {DOOR} accept-proxy\n  server host {} send-proxy-v2 check inter 50ms fall 9999",
        host.at(false, 80)
    );
    let _haproxy = lb.run(|| Haproxy::with_config(&config, &[DOOR]).start(bed))??;
    for n in 0..CLIENTS {
        let before = counter_on(bed, host, "connections")?;
        bed.wait_for("two checks", || {
            counter_on(bed, host, "connections").is_ok_and(|count| count >= before + 2)
        })?;
        let client = format!("203.0.113.1:{}", 1000 + n);
        let seen = who(lb, DOOR.parse()?, &header(&client)?)?;
        ensure!(seen == client, "{client} was seen as {seen}");
    }
    ensure!(counter_on(bed, host, "guessed_right")? == CLIENTS, "each client, and no check");
    Ok(())
}
