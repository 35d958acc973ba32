//! Sessions that the kernel makes.

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Test, Topology, client as sender, kernel_counter, tests, wait_for};

use crate::stand::{Stand, client, echo, header, header_v1};

const FAMILIES: [bool; 2] = [false, true];

pub(crate) fn tests() -> Vec<Test> {
    tests![
        headers_of_both_versions_and_families_make_sessions_of_the_client,
        bytes_behind_the_header_arrive_whole_and_once,
        a_backend_that_answers_by_cookies_gets_what_it_asks_for,
        a_sender_that_is_new_is_answered_at_once,
        an_end_of_one_side_leaves_the_other_open,
        a_reset_is_passed_on,
        sessions_over_a_macvlan_are_served_whoever_makes_them,
        the_operator_sees_and_ends_them,
        a_ban_ends_them_and_those_that_follow,
        after_a_kill_they_go_on,
        the_next_truepeer_lists_them,
        an_upgrade_cuts_none_of_them,
    ]
}

/// Towards the sender and towards the backend, with an address at the device below as well. The kernel
/// makes few of these sessions, and truepeer relays the others.
fn sessions_over_a_macvlan_are_served_whoever_makes_them(bed: &Bed) -> Result<()> {
    for below in ["sender", "backend"] {
        let hosts = Topology::line(&["sender", "relay", "backend"])?;
        let link = usize::from(below == "backend");
        let own = if link == 0 { 2 } else { 1 };
        hosts.host("relay").ip(&[
            &format!("addr flush dev {below}"),
            &format!("addr add 10.78.{link}.1/24 dev {below}"),
            &format!("addr add fd78:{link}::1/64 dev {below} nodad"),
            &format!("link add top link {below} type macvlan mode bridge"),
            &format!("addr add 10.77.{link}.{own}/24 dev top"),
            &format!("addr add fd77:{link}::{own}/64 dev top nodad"),
            "link set top up",
        ])?;
        if link == 0 {
            hosts
                .host("relay")
                .ip(&["route replace default via 10.77.0.1", "-6 route replace default via fd77::1"])?;
        }
        let stand = Stand::make_on(bed, hosts, Behaviour::Echo, &[], |program| program)?;
        for v6 in FAMILIES {
            stand.learn(v6)?;
            for port in 5000..5008 {
                let mut stream = stand.open(v6, port)?;
                for len in [1, 3000, 200_000] {
                    echo(&mut stream, &vec![4; len]).with_context(|| format!("{below}: {len} bytes"))?;
                }
            }
            eprintln!("{below}: IPv6 {v6}: the kernel has made {}", stand.made()?);
        }
    }
    Ok(())
}

fn headers_of_both_versions_and_families_make_sessions_of_the_client(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    let mut made = 0;
    for v6 in FAMILIES {
        stand.learn(v6)?;
        for (number, header) in (0..).zip([header(v6, 5000)?, header_v1(v6, 5001)?]) {
            let mut stream = stand.connect(v6)?;
            stream.write_all(&header)?;
            echo(&mut stream, &[1; 10_000])?;
            stream.shutdown(Shutdown::Write)?;
            ensure!(stream.read(&mut [0])? == 0, "no end");
            stand.backend.wait_for_log(&format!("{} eof 10000", client(v6, 5000 + number)))?;
            made += 1;
            stand.wait_made(made)?;
            let line = format!("client={}", client(v6, 5000 + number));
            stand.truepeer.wait_for_log(&line)?;
            let log = stand.truepeer.log();
            let line = log.lines().find(|one| one.contains(&line)).context("no line")?;
            ensure!(line.contains("bytes_up=10000 bytes_down=10000"), "{line}");
            ensure!(line.contains("close=\"finished\""), "{line}");
        }
    }
    Ok(())
}

/// The bytes come in the header's segment or in their own one right behind it; there are odd lengths, and
/// more than the kernel holds.
fn bytes_behind_the_header_arrive_whole_and_once(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Account, &[])?;
    let mut made = 0;
    for v6 in FAMILIES {
        // truepeer learns of them a moment later, on a busy machine after the next one has begun.
        stand.wait_made(made)?;
        stand.learn(v6)?;
        let lengths = [1, 2, 3, 333, 500, 995, 996, 997, 1024, 1025, 1448, 5000, 1 << 20];
        for (number, length) in (0..).zip(lengths) {
            for (way, is_together) in [true, false].into_iter().enumerate() {
                let port = 5000 + number * 2 + u16::try_from(way)?;
                let header = if number % 2 == 0 { header(v6, port)? } else { header_v1(v6, port)? };
                let bytes = Pattern::bytes(length);
                let mut stream = stand.connect(v6)?;
                if is_together {
                    stream.write_all(&[header, bytes.clone()].concat())?;
                } else {
                    stream.write_all(&header)?;
                    stream.write_all(&bytes)?;
                }
                stream.shutdown(Shutdown::Write)?;
                let mut told = String::new();
                stream.read_to_string(&mut told)?;
                let wanted = format!("{} {}", client(v6, port), Digest::of_pattern(length as u64));
                ensure!(
                    told.trim() == wanted,
                    "{length} bytes, together: {is_together}: {told:?}, not {wanted:?}"
                );
                made += 1;
            }
        }
    }
    stand.wait_made(made)
}

/// It remembers nothing of the SYN: what comes first must have the number behind it, and the cookie's.
fn a_backend_that_answers_by_cookies_gets_what_it_asks_for(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    let far = stand.host("backend");
    far.run(|| fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2"))??;
    let mut made = 0;
    for v6 in FAMILIES {
        stand.learn(v6)?;
        for number in 0..10 {
            let mut stream = stand.connect(v6)?;
            let bytes = header(v6, 5000 + number)?;
            // Every second one says more in the header's segment.
            let more: &[u8] = if number % 2 == 0 { b"" } else { b"more" };
            stream.write_all(&[&bytes, more].concat())?;
            let mut back = vec![0; more.len()];
            stream.read_exact(&mut back).context("the echo of the header's segment")?;
            ensure!(back == more, "other bytes came back");
            echo(&mut stream, &[5; 10_000])?;
            made += 1;
        }
        stand.wait_made(made)?;
    }
    let cookies = far.run(|| kernel_counter("SyncookiesRecv"))??;
    ensure!(cookies >= made, "the backend has taken {cookies} cookies only");
    Ok(())
}

/// Where this host forwards, its routes tell how the sender is reached.
fn a_sender_that_is_new_is_answered_at_once(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &["--allow", "10.77.0.99"])?;
    stand.learn(false)?;
    stand.host("sender").ip(&["addr add 10.77.0.99/24 dev relay"])?;
    let to = stand.listener(false);
    let mut stream = stand.host("sender").run(|| sender::connect_from("10.77.0.99:0", to))??;
    stream.write_all(&header(false, 5000)?)?;
    echo(&mut stream, &[7; 5000])?;
    stand.wait_made(1)
}

fn an_end_of_one_side_leaves_the_other_open(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::SlowSource, &[])?;
    for (made, v6) in [(1, false), (2, true)] {
        stand.learn(v6)?;
        let mut stream = stand.connect(v6)?;
        stream.write_all(&header(v6, 5000)?)?;
        stream.write_all(b"3000000\n")?;
        stream.shutdown(Shutdown::Write)?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        ensure!(bytes == Pattern::bytes(3_000_000), "{} bytes, or other ones", bytes.len());
        // truepeer learns of it a moment later.
        stand.wait_made(made)?;
    }
    Ok(())
}

fn a_reset_is_passed_on(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let stream = stand.open(false, 5000)?;
    sender::reset(stream)?;
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"reset_by_client\"")
}

fn the_operator_sees_and_ends_them(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let mut stream = stand.open(false, 5000)?;
    stand.wait_made(1)?;
    echo(&mut stream, &[3; 700])?;
    let listed = stand.ask(&["sessions"])?;
    ensure!(listed.contains("203.0.113.7:5000") && listed.contains(" spliced "), "{listed}");
    stand.ask(&["sessions", "--client", "203.0.113.0/24", "--kill"])?;
    ensure!(stream.read(&mut [0]).is_err(), "no reset");
    stand.backend.wait_for_log("203.0.113.7:5000 reset")?;
    stand.truepeer.wait_for_log("close=\"ended_by_operator\"")
}

fn a_ban_ends_them_and_those_that_follow(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let mut stream = stand.open(false, 5000)?;
    stand.wait_made(1)?;
    echo(&mut stream, &[3; 700])?;
    stand.ask(&["ban", "203.0.113.7"])?;
    ensure!(stream.read(&mut [0]).is_err(), "no reset");
    stand.truepeer.wait_for_log("close=\"banned\"")?;
    // The kernel makes one more; truepeer ends it when it learns of it.
    let mut stream = stand.connect(false)?;
    stream.write_all(&header(false, 5001)?)?;
    ensure!(stream.read(&mut [0]).is_err(), "no reset");
    stand.truepeer.wait_for_log("is banned")?;
    stand.ask(&["unban", "203.0.113.7"])?;
    stand.open(false, 5002).map(drop)
}

/// truepeer doesn't listen any more, so the kernel makes no new sessions.
fn after_a_kill_they_go_on(bed: &Bed) -> Result<()> {
    let stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let mut streams = (0..50).map(|n| stand.open(false, 5000 + n)).collect::<Result<Vec<_>>>()?;
    stand.wait_made(50)?;
    stand.truepeer.signal(Signal::KILL)?;
    stand.truepeer.wait_end()?;
    streams.iter_mut().try_for_each(|stream| echo(stream, b"nobody is there"))?;
    ensure!(stand.connect(false).is_err(), "a connection without a listener");
    Ok(())
}

fn wait_listed(stand: &Stand, count: usize) -> Result<()> {
    let listed = || stand.ask(&["sessions"]).is_ok_and(|list| list.matches(" spliced ").count() == count);
    stand.truepeer.wait_state(&format!("{count} listed sessions"), listed)
}

fn the_next_truepeer_lists_them(bed: &Bed) -> Result<()> {
    let mut stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let mut streams = (0..20).map(|n| stand.open(false, 5000 + n)).collect::<Result<Vec<_>>>()?;
    stand.wait_made(20)?;
    stand.truepeer.signal(Signal::KILL)?;
    stand.truepeer.wait_end()?;
    stand.next(&[])?;
    wait_listed(&stand, 20)?;
    streams.iter_mut().try_for_each(|stream| echo(stream, b"goes on"))?;
    end(&stand, streams.pop().context("none")?, 5019, "first".len() + "goes on".len())?;
    stand.learn(false)?;
    let mut later = stand.open(false, 6000)?;
    stand.wait_made(1)?;
    echo(&mut later, b"made by the next one")
}

/// Its programs go on with the old one's tables: no place is used twice, and the cookies that senders have
/// got stay good.
fn an_upgrade_cuts_none_of_them(bed: &Bed) -> Result<()> {
    let mut stand = Stand::make(bed, Behaviour::Echo, &[])?;
    stand.learn(false)?;
    let mut streams = (0..50).map(|n| stand.open(false, 5000 + n)).collect::<Result<Vec<_>>>()?;
    let mut silent = [stand.connect(false)?, stand.connect(false)?];
    // Some of them truepeer has not seen yet.
    let old = stand.next(&["--take-over"])?;
    stand.truepeer.wait_for_log("upgrade: serves in place of process")?;
    ensure!(old.wait_end()?.code() == Some(0), "the old process: {}", old.log());
    wait_listed(&stand, 50)?;
    ensure!(!old.log().contains("makes no more sessions"), "{}", old.log());
    let mut later = (0..20).map(|n| stand.open(false, 6000 + n)).collect::<Result<Vec<_>>>()?;
    streams.iter_mut().chain(&mut later).try_for_each(|stream| echo(stream, b"one process"))?;
    silent[0].write_all(&header(false, 7000)?)?;
    echo(&mut silent[0], b"said nothing before")?;
    let mut port = 8000;
    wait_for("a session that the kernel makes for the new process", || {
        port += 1;
        later.extend(stand.open(false, port));
        stand.made().is_ok_and(|made| made > 0)
    })?;
    silent[1].write_all(&header(false, 7001)?)?;
    echo(&mut silent[1], b"nor has this one")?;
    // One that truepeer relays is not worth leaving for so few bytes.
    let is_made = |list: String| {
        list.lines().any(|line| line.contains("203.0.113.7:7001") && line.contains(" spliced "))
    };
    let listed = || stand.ask(&["sessions"]).is_ok_and(is_made);
    stand.truepeer.wait_state("the kernel's session of a sender that was silent", listed)?;
    end(&stand, streams.pop().context("none")?, 5049, "first".len() + "one process".len())
}

fn end(stand: &Stand, mut stream: std::net::TcpStream, port: u16, bytes: usize) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    let line = format!("client=203.0.113.7:{port} ");
    stand.truepeer.wait_for_log(&line)?;
    let log = stand.truepeer.log();
    let line = log.lines().find(|one| one.contains(&line)).context("no line")?;
    ensure!(line.contains(&format!("bytes_up={bytes} bytes_down={bytes} ")), "{line} instead of {bytes}");
    Ok(())
}
