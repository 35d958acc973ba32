//! Who was refused: what `attach status --follow` says.

use std::io::Write;
use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::{
    Bed, Behaviour, Program, Running, Test, Topology, client, datagrams, kernel_counter, tests,
};

use crate::kit::{BACKEND, DESTINATION, LISTENER, attach, attach_on, backend_on, command, counter, header};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        each_refusal_is_told_with_its_sender_and_the_claimed_client,
        a_flood_of_refusals_is_told_in_few_lines_that_count_all,
        namespaces_that_are_attached_later_are_followed_too,
        a_card_that_leaves_sums_to_the_kernel_sends_the_reset,
    ];
    all.into_iter().map(|test| test.of_group("refusals")).collect()
}

fn follow(bed: &Bed, options: &[&str]) -> Result<Running> {
    command(bed, &[&["status", "--follow", "--json"], options].concat())?.start(bed)
}

fn told(follower: &Running) -> Result<Vec<Value>> {
    let lines = follower.stdout();
    lines.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

fn is_refused(from: &str, bytes: &[u8]) -> Result<()> {
    let mut stream = client::connect_from(from, LISTENER)?;
    let _ = stream.write_all(bytes);
    ensure!(client::read_end(&mut stream)? == client::End::Reset, "{from} is refused");
    Ok(())
}

fn each_refusal_is_told_with_its_sender_and_the_claimed_client(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let server = UdpSocket::bind("127.0.0.1:53")?;
    let deny = bed.write("deny", "203.0.113.0/25\n2001:db8::/32\n")?.to_string_lossy().into_owned();
    attach(bed, &["--port", "80", "--port", "53/udp", "--deny-clients", &deny])?;
    // What nobody has read yet comes first.
    is_refused("127.0.0.9:4000", b"GET / HTTP/1.1\r\n\r\n")?;
    let follower = follow(bed, &[])?;
    follower.wait_for_log("127.0.0.9:4000")?;
    is_refused("127.0.0.9:4001", b"PROXY TCP4 1.2.3.4.5 1.2.3.4 1 2\r\n")?;
    is_refused("127.0.0.9:4002", &header("127.0.0.77:1001")?)?;
    is_refused("127.0.0.9:4003", &header("203.0.113.1:1002")?)?;
    is_refused("127.0.0.9:4004", &client::v2("[2001:db8::7]:5000", "[2001:db8::1]:443")?)?;
    let sender = UdpSocket::bind("127.0.0.9:4005")?;
    sender.send_to(b"no header", "127.0.0.1:53")?;
    sender
        .send_to(&[datagrams::v2("203.0.113.2:7", DESTINATION)?, b"x".to_vec()].concat(), "127.0.0.1:53")?;
    bed.wait_for("all to be told", || told(&follower).is_ok_and(|told| told.len() == 7))
        .with_context(|| follower.log())?;
    let expected = [
        ("tcp", 80, "127.0.0.9:4000", None, "refused_no_header"),
        ("tcp", 80, "127.0.0.9:4001", None, "refused_malformed"),
        ("tcp", 80, "127.0.0.9:4002", Some("127.0.0.77:1001"), "refused_claim"),
        ("tcp", 80, "127.0.0.9:4003", Some("203.0.113.1:1002"), "refused_denied"),
        ("tcp", 80, "127.0.0.9:4004", Some("[2001:db8::7]:5000"), "refused_denied"),
        ("udp", 53, "127.0.0.9:4005", None, "refused_no_header"),
        ("udp", 53, "127.0.0.9:4005", Some("203.0.113.2:7"), "refused_denied"),
    ];
    for (line, (protocol, port, sender, client, reason)) in told(&follower)?.iter().zip(expected) {
        let is_right = line["protocol"] == protocol
            && line["port"] == port
            && line["sender"] == sender
            && line["client"].as_str() == client
            && line["reason"] == reason
            && line["count"] == 1
            && line["netns"].as_u64().is_some();
        ensure!(is_right, "{line} instead of {reason} of {sender}");
    }
    let second = follow(bed, &[])?;
    ensure!(!second.wait_end()?.success() && second.stderr().contains("one at a time"), "{}", second.log());
    drop(server);
    Ok(())
}

fn a_flood_of_refusals_is_told_in_few_lines_that_count_all(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    attach(bed, &["--port", "80"])?;
    let follower = follow(bed, &[])?;
    for _ in 0..150 {
        is_refused("127.0.0.9:0", b"GET / HTTP/1.1\r\n\r\n")?;
    }
    let lines = told(&follower)?.len();
    ensure!(lines < 120, "{lines} lines for 150 refusals");
    // The next one that is told counts those before it.
    let counted =
        || -> Result<u64> { Ok(told(&follower)?.iter().filter_map(|line| line["count"].as_u64()).sum()) };
    bed.wait_for("all to be counted", || {
        is_refused("127.0.0.9:0", b"GET / HTTP/1.1\r\n\r\n").is_ok()
            && counted().is_ok_and(|sum| counter(bed, "refused_no_header").is_ok_and(|all| sum == all))
    })
    .with_context(|| follower.log())
}

fn namespaces_that_are_attached_later_are_followed_too(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let follower = follow(bed, &["--all"])?;
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    for expected in 1..=2 {
        attach_on(bed, host, &["--port", "80"])?;
        lb.run(|| -> Result<()> {
            let mut stream = client::connect(host.at(false, 80))?;
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
            ensure!(client::read_end(&mut stream)? == client::End::Reset);
            Ok(())
        })??;
        bed.wait_for("the refusal", || told(&follower).is_ok_and(|told| told.len() == expected))
            .with_context(|| follower.log())?;
        command(bed, &["detach", "--now"])?.in_netns(&host.netns).run(bed)?;
    }
    Ok(())
}

/// The refused segment has only its pseudo header's sum, like one that GRO has merged. The reset made of it
/// leaves by a device for which the kernel finishes the sum, as a real card does.
fn a_card_that_leaves_sums_to_the_kernel_sends_the_reset(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = host.run(|| Behaviour::Who.start(bed, &[host.at(false, 80), host.at(true, 80)]))??;
    Program::new("ethtool").args(["-K", &lb.name, "tx", "off"]).in_netns(&host.netns).run(bed)?;
    attach_on(bed, host, &["--port", "80"])?;
    for v6 in [false, true] {
        let mut stream = lb.run(|| client::connect(host.at(v6, 80)))??;
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "IPv6: {v6}");
    }
    let wrong = lb.run(|| kernel_counter("InErrs"))??;
    ensure!(wrong == 0, "{wrong} segments had a wrong sum");
    Ok(())
}
