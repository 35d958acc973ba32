//! truepeer under the names and options of the programs that it replaces, as in their documentation.

use std::os::unix::fs::symlink;

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Program, Running, Test, ip_here};

use crate::kit::{Backend, TRUEPEER, ask, counted, proxy, sender_towards, start, v2};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = truepeer_testbed::tests![mmproxy_rs, go_mmproxy];
    tests.push(Test::new("the_iperf_chain_of_mmproxy_rs", iperf_chain).needs_program("iperf").alone());
    tests
}

/// Starts truepeer through a link, with these arguments.
fn start_as(bed: &Bed, name: &str, words: &str, listener: &str) -> Result<Running> {
    let link = bed.dir().join(name);
    if !link.exists() {
        symlink(TRUEPEER, &link)?;
    }
    let running = Program::new(&link).args(words.split_whitespace()).start(bed)?;
    running.wait_for_log(&format!("listening on {listener}"))?;
    Ok(running)
}

/// The README of mmproxy-rs, "Routing" and "Usage": a mark, and manual rules.
fn mmproxy_rs(bed: &Bed) -> Result<()> {
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", "route add local 0.0.0.0/0 dev lo table 123"])?;
    let _backend = Backend::who(&["127.0.0.1:1122"])?;
    let words = "-m 123 -l 127.0.0.1:25577 -4 127.0.0.1:1122 -p udp";
    let truepeer = start_as(bed, "mmproxy", words, "127.0.0.1:25577")?;
    let sender = sender_towards("127.0.0.1:25577")?;
    for client in ["192.0.2.7:5000", "127.0.0.99:5000"] {
        let answer = ask(&sender, &[&v2(client, "127.0.0.1:25577")?, b"?"])?;
        ensure!(answer == format!("{client} ?").as_bytes(), "{answer:?}");
    }
    ensure!(counted(&truepeer, "flows_opened")? == 2);
    ensure!(Program::new("ip").args(["rule"]).run(bed)?.matches("lookup 123").count() == 1);
    Ok(())
}

fn go_mmproxy(bed: &Bed) -> Result<()> {
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", "route add local 0.0.0.0/0 dev lo table 123"])?;
    ip_here(&["-6 rule add from ::1/128 iif lo table 123", "-6 route add local ::/0 dev lo table 123"])?;
    let _backend = Backend::who(&["127.0.0.1:1122", "[::1]:1122"])?;
    let words = "-l 0.0.0.0:25577 -4 127.0.0.1:1122 -6 [::1]:1122 -p udp -close-after 1 -v 1";
    let truepeer = start_as(bed, "go-mmproxy", words, "0.0.0.0:25577")?;
    let sender = sender_towards("127.0.0.1:25577")?;
    for (client, destination) in [("192.0.2.7:5000", "127.0.0.1:1"), ("[2001:db8::7]:5000", "[::1]:1")] {
        let answer = ask(&sender, &[&v2(client, destination)?, b"?"])?;
        ensure!(answer == format!("{client} ?").as_bytes(), "{answer:?}");
    }
    crate::kit::wait_counted(&truepeer, "flows_expired", 2)
}

/// `iperf -s`, mmproxy, and truepeer's sending side in place of udppp, all on 127.0.0.1.
fn iperf_chain(bed: &Bed) -> Result<()> {
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", "route add local 0.0.0.0/0 dev lo table 123"])?;
    let server = Program::new("iperf").args(["-sup", "1122"]).start(bed)?;
    server.wait_bound_udp("0.0.0.0:1122")?;
    let words = "-l 127.0.0.1:25577 -4 127.0.0.1:1122 -p udp -c 1";
    let receiving = start_as(bed, "mmproxy", words, "127.0.0.1:25577")?;
    let sending = proxy("--header forbid --send-proxy v2").ipv4("127.0.0.1:25577");
    let _sending = start(bed, sending, &["127.0.0.1:25578"])?;
    let client = "-c 127.0.0.1 -p 25578 -t 2 -Rub 10G";
    let report = Program::new("iperf").args(client.split(' ')).run(bed)?;
    ensure!(report.contains("bits/sec"), "{report}");
    ensure!(counted(&receiving, "datagrams_down")? > 1000, "{report}");
    Ok(())
}
