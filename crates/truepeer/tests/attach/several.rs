//! Several attachments in one network namespace: each with its ports, lists and rules.

use std::io::{Read as _, Write as _};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use truepeer_testbed::{Bed, Behaviour, Test, client, datagrams, tests, with_child_signal};

use crate::kit::{DESTINATION, attach, attachments, command, header, is_answered, longer_header, status};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        each_has_its_own_rules,
        none_takes_a_port_of_another_unasked,
        a_removed_port_leaves_the_rest_as_it_is,
        rules_of_one_change_and_no_other_connection_meets_a_gap,
        there_is_room_for_sixteen,
        udp_ports_have_their_own_rules,
        a_waiting_detach_takes_nothing_that_is_attached_meanwhile,
        a_removal_takes_nothing_that_is_attached_meanwhile,
        more_ports_than_there_is_room_for_change_nothing,
        a_range_costs_one_entry_and_one_warning,
        what_another_version_has_attached_is_told_and_stays,
    ];
    all.into_iter().map(|test| test.of_group("several")).collect()
}

/// Of another version's tables this one knows the directory alone.
fn what_another_version_has_attached_is_told_and_stays(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &SERVERS)?;
    attach(bed, &["--port", "80"])?;
    let pins = attachments(bed)?.pop().context("what is attached")?;
    let others = pins.with_file_name("99999");
    std::fs::rename(&pins, &others)?;
    for command in [["status"].as_slice(), &["status", "--all"]] {
        let said = attach(bed, command)?;
        ensure!(
            said.contains("attached by another version of truepeer") && !said.contains("nothing"),
            "{said}"
        );
    }
    let found = status(bed)?;
    ensure!(found["attached"] == json!(true) && found["other_version"] == json!(true), "{found}");
    ensure!(found["netns"].as_u64().is_some(), "{found}");
    for command in [["detach"].as_slice(), &["detach", "--now"], &["--port", "81"]] {
        let said = fails(bed, command)?;
        ensure!(said.contains("detach with that one first, or restart"), "{said}");
    }
    ensure!(asks("127.0.0.1:0", 80, &header("203.0.113.1:1001")?)? == "203.0.113.1:1001", "it goes on");
    std::fs::rename(&others, &pins)?;
    ensure!(status(bed)?["other_version"] == json!(false));
    attach(bed, &["detach"]).map(drop)
}

const SERVERS: [&str; 3] = ["[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:81", "[::ffff:127.0.0.1]:82"];

fn fails(bed: &Bed, args: &[&str]) -> Result<String> {
    let running = command(bed, args)?.start(bed)?;
    ensure!(!running.wait_end()?.success(), "{args:?}: {}", running.log());
    Ok(running.stderr())
}

/// What the server said, to a sender at this address; an empty answer: it was refused.
fn asks(from: &str, port: u16, bytes: &[u8]) -> Result<String> {
    let mut stream = client::connect_from(from, format!("127.0.0.1:{port}"))?;
    if stream.write_all(bytes).is_err() {
        return Ok(String::new());
    }
    Ok(client::ask(&mut stream, b"").unwrap_or_default().trim().to_owned())
}

fn each_has_its_own_rules(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &SERVERS)?;
    let deny = bed.write("deny", "203.0.113.0/25\n")?.to_string_lossy().into_owned();
    attach(bed, &["--port", "80", "--allow", "127.0.0.0/30"])?;
    attach(
        bed,
        &["add", "--port", "81", "--allow", "127.0.0.2", "--header", "optional", "--deny-clients", &deny],
    )?;
    attach(bed, &["add", "--port", "82", "--allow", "127.0.0.4", "--allow-claims", "127.0.0.0/8"])?;
    let denied = header("203.0.113.1:1001")?;
    let loopback = header("127.0.0.77:1001")?;
    let line = client::v1("203.0.113.1:1001", DESTINATION)?;
    let bare = b"GET / HTTP/1.1\r\n\r\n".as_slice();
    for (from, port, bytes, expected) in [
        ("127.0.0.2:0", 80, denied.as_slice(), "203.0.113.1:1001"),
        ("127.0.0.2:0", 80, bare, ""),
        ("127.0.0.2:0", 80, &loopback, ""),
        ("127.0.0.2:0", 81, &denied, ""),
        ("127.0.0.2:0", 81, &header("203.0.113.200:7")?, "203.0.113.200:7"),
        ("127.0.0.2:4001", 81, bare, "127.0.0.2:4001"),
        ("127.0.0.4:4002", 80, &line, "127.0.0.4:4002"),
        ("127.0.0.4:0", 82, &loopback, "127.0.0.77:1001"),
        ("127.0.0.4:0", 82, bare, ""),
        ("127.0.0.2:4003", 82, &line, "127.0.0.2:4003"),
    ] {
        let seen = asks(from, port, bytes)?;
        ensure!(
            seen.lines().next().unwrap_or_default() == expected,
            "from {from} to port {port}, {:?}: {seen:?} instead of {expected:?}",
            bytes.escape_ascii().to_string()
        );
    }
    let status = status(bed)?;
    let found = status["attachments"].as_array().map_or(0, Vec::len);
    ensure!(found == 3 && status["netns"].as_u64().is_some(), "{status}");
    // The rules are those that the kernel has, of each attachment its own.
    let senders = |id: usize| &status["attachments"][id]["rules"]["senders"];
    ensure!(*senders(0) == json!([{"prefix": "127.0.0.0/30", "header": "require"}]), "{status}");
    ensure!(*senders(1) == json!([{"prefix": "127.0.0.2/32", "header": "optional"}]), "{status}");
    let rules = |id: usize, name: &str| &status["attachments"][id]["rules"][name];
    ensure!(*rules(1, "denied") == json!(["203.0.113.0/25"]) && *rules(0, "denied") == json!([]), "{status}");
    ensure!(*rules(2, "claims_allowed") == json!(["127.0.0.0/8"]), "{status}");
    ensure!(
        *rules(0, "claims_allowed") == json!([]) && *rules(0, "header_timeout_ms") == json!(5000),
        "{status}"
    );
    ensure!(status["current"] == json!(true), "{status}");
    ensure!(attach(bed, &["status"])?.contains("senders of port 81: 127.0.0.2/32 optional"));
    ensure!(attach(bed, &["status"])?.contains("attachment 1: port 81"));
    Ok(())
}

fn none_takes_a_port_of_another_unasked(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &SERVERS)?;
    attach(bed, &["--port", "80", "--port", "53/udp"])?;
    let said = fails(bed, &["--port", "81"])?;
    ensure!(said.contains("port 80, 53/udp is attached here and not named"), "{said}");
    ensure!(said.contains("attach add") && said.contains("--replace"), "{said}");
    let said = fails(bed, &["add", "--port", "80-81", "--port", "53/udp"])?;
    ensure!(said.contains("port 80, 53/udp is attached here already"), "{said}");
    let ports = || -> Result<Vec<u64>> {
        let status = status(bed)?;
        Ok(status["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| port["port"].as_u64())
            .collect())
    };
    ensure!(ports()? == [80, 53], "{:?}", ports()?);
    // All named: one attachment again, with these rules.
    attach(bed, &["add", "--port", "81"])?;
    attach(bed, &["--port", "80-81", "--port", "53/udp"])?;
    ensure!(status(bed)?["attachments"].as_array().map_or(0, Vec::len) == 1);
    attach(bed, &["--port", "82", "--replace"])?;
    ensure!(asks("127.0.0.1:0", 82, &header("203.0.113.1:1001")?)? == "203.0.113.1:1001");
    let raw = asks("127.0.0.1:4000", 80, &client::v1("203.0.113.1:1001", DESTINATION)?)?;
    ensure!(raw.starts_with("127.0.0.1:4000"), "{raw}");
    Ok(())
}

fn a_removed_port_leaves_the_rest_as_it_is(bed: &Bed) -> Result<()> {
    let _echo = Behaviour::Echo.start(bed, &SERVERS)?;
    attach(bed, &["--port", "80-81", "--port", "53/udp"])?;
    attach(bed, &["add", "--port", "82"])?;
    let open = |port: u16| -> Result<std::net::TcpStream> {
        let mut stream = client::connect(format!("127.0.0.1:{port}"))?;
        stream.write_all(&longer_header("203.0.113.1:1001")?)?;
        is_answered(&mut stream)?;
        Ok(stream)
    };
    let (mut kept, mut removed) = (open(80)?, open(81)?);
    let said = fails(bed, &["remove", "--port", "81,83", "--port", "54/udp"])?;
    ensure!(said.contains("port 83, 54/udp is not attached here"), "{said}");
    attach(bed, &["remove", "--port", "81", "--port", "53/udp"])?;
    is_answered(&mut kept)?;
    is_answered(&mut removed)?;
    let line = client::v1("203.0.113.2:1002", DESTINATION)?;
    let ask = |port: u16| -> Result<Vec<u8>> {
        let mut stream = client::connect(format!("127.0.0.1:{port}"))?;
        stream.write_all(&line)?;
        Ok(client::ask(&mut stream, b"x")?.into_bytes())
    };
    ensure!(ask(81)? == [&line[..], b"x"].concat(), "a removed port passes connections unchecked");
    ensure!(ask(80)? == b"x" && ask(82)? == b"x", "the others remove their headers");
    drop((kept, removed));
    let said = attach(bed, &["remove", "--port", "80,82"])?;
    ensure!(said.contains("no longer served: port 80, 82"), "{said}");
    ensure!(attachments(bed)?.is_empty(), "the last port detaches");
    Ok(())
}

/// New rules for one port; connections to both under way all the time.
fn rules_of_one_change_and_no_other_connection_meets_a_gap(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &SERVERS)?;
    attach(bed, &["--port", "80"])?;
    attach(bed, &["add", "--port", "81"])?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<u16> {
            let mut done = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let client = format!("203.0.113.1:{}", 2000 + done);
                let header = if done % 3 == 0 { longer_header(&client)? } else { header(&client)? };
                let seen = asks("127.0.0.1:0", 80 + done % 2, &header)?;
                ensure!(seen == client, "{client}: {seen:?}");
                done += 1;
            }
            Ok(done)
        });
        let changes = (0..6).try_for_each(|n| -> Result<()> {
            let header = if n % 2 == 0 { "optional" } else { "require" };
            attach(bed, &["add", "--replace", "--port", "81", "--header", header])?;
            attach(bed, &["add", "--port", "82", "--allow", "203.0.113.0/24"])?;
            attach(bed, &["remove", "--port", "82"]).map(drop)
        });
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let done = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        ensure!(done > 10, "only {done} connections met the changes");
        changes
    })
}

fn there_is_room_for_sixteen(bed: &Bed) -> Result<()> {
    attach(bed, &["--port", "80"])?;
    let add = |port: u16| command(bed, &["add", "--port", &port.to_string()]);
    for port in 81..96 {
        add(port)?.run(bed)?;
    }
    let full = add(96)?.start(bed)?;
    ensure!(
        !full.wait_end()?.success() && full.stderr().contains("at most 16 attachments"),
        "{}",
        full.log()
    );
    attach(bed, &["remove", "--port", "90"])?;
    add(96)?.run(bed)?;
    ensure!(status(bed)?["attachments"].as_array().map_or(0, Vec::len) == 16, "{}", status(bed)?);
    Ok(())
}

fn udp_ports_have_their_own_rules(bed: &Bed) -> Result<()> {
    use std::net::UdpSocket;
    attach(bed, &["--port", "53/udp", "--allow", "127.0.0.2"])?;
    attach(bed, &["add", "--port", "54/udp", "--allow", "127.0.0.0/8", "--header", "optional"])?;
    let said = fails(bed, &["add", "--port", "55:54/udp"])?;
    ensure!(said.contains("UDP port 54 of the server belongs to another attachment"), "{said}");
    let servers = [53, 54].map(|port| UdpSocket::bind(("127.0.0.1", port)));
    let header = datagrams::v2("203.0.113.1:1001", DESTINATION)?;
    let named = [header.as_slice(), b"named"].concat();
    for (from, port, bytes, expected) in [
        ("127.0.0.2:7000", 53, named.as_slice(), Some(("203.0.113.1:1001", b"named".as_slice()))),
        ("127.0.0.2:7001", 53, b"bare", None),
        ("127.0.0.3:7002", 53, b"bare", Some(("127.0.0.3:7002", b"bare"))),
        ("127.0.0.3:7003", 54, b"bare", Some(("127.0.0.3:7003", b"bare"))),
        ("127.0.0.3:7004", 54, &named, Some(("203.0.113.1:1001", b"named"))),
    ] {
        let server = servers[port - 53].as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
        server.set_read_timeout(Some(std::time::Duration::from_millis(300)))?;
        UdpSocket::bind(from)?.send_to(bytes, ("127.0.0.1", u16::try_from(port)?))?;
        let mut buffer = [0; 256];
        let seen =
            server.recv_from(&mut buffer).ok().map(|(len, from)| (from.to_string(), buffer[..len].to_vec()));
        let expected = expected.map(|(from, bytes)| (from.to_owned(), bytes.to_vec()));
        ensure!(seen == expected, "from {from} to {port}: {seen:?} instead of {expected:?}");
    }
    Ok(())
}

/// By `add`, and again with the same port. Both stay.
fn a_waiting_detach_takes_nothing_that_is_attached_meanwhile(bed: &Bed) -> Result<()> {
    let _echo = Behaviour::Echo.start(bed, &SERVERS)?;
    let is_served = |port: u16| -> Result<()> {
        let mut stream = client::connect(format!("127.0.0.1:{port}"))?;
        stream.write_all(&header("203.0.113.2:1002")?)?;
        ensure!(client::ask(&mut stream, b"x")? == "x", "port {port} removes the header");
        Ok(())
    };
    for again in [["add", "--port", "81"].as_slice(), &["--port", "80"], &["add", "--port", "53/udp"]] {
        attach(bed, &["--port", "80"])?;
        let mut open = client::connect("127.0.0.1:80")?;
        open.write_all(&longer_header("203.0.113.1:1001")?)?;
        is_answered(&mut open)?;
        let detach = command(bed, &["detach"])?.start(bed)?;
        detach.wait_for_log("waiting for 1 open")?;
        attach(bed, again)?;
        ensure!(!detach.wait_end()?.success());
        ensure!(detach.stderr().contains("attached again meanwhile; not detached"), "{}", detach.log());
        match again {
            ["add", "--port", "81"] => is_served(81)?,
            ["--port", ..] => is_served(80)?,
            _ => ensure!(attach(bed, &["status"])?.contains("port 53/udp: attached")),
        }
        is_answered(&mut open)?;
        drop(open);
        attach(bed, &["detach"])?;
        ensure!(attachments(bed)?.is_empty());
    }
    Ok(())
}

/// Between the removal of the last port and that of the rest: the command waits there, because nobody reads
/// what it says.
fn a_removal_takes_nothing_that_is_attached_meanwhile(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &SERVERS)?;
    attach(bed, &["--port", "80"])?;
    let (mut said, mut says) = std::io::pipe()?;
    let room = rustix::pipe::fcntl_getpipe_size(&says)?;
    says.write_all(&vec![b'.'; room])?;
    let mut remove = Command::new(env!("CARGO_BIN_EXE_truepeer"));
    remove.args(["attach", "remove", "--now", "--port", "80", "--pins"]);
    remove.arg(bed.dir().join("bpf/truepeer")).stdout(says);
    let mut removing = with_child_signal(|| remove.spawn())?;
    drop(remove);
    bed.wait_for("port 80 to be removed", || {
        status(bed).is_ok_and(|status| status["ports"][0]["draining"] != false)
    })?;
    attach(bed, &["add", "--port", "81"])?;
    let mut text = String::new();
    said.read_to_string(&mut text)?;
    ensure!(removing.wait()?.success() && text.ends_with("no longer served: port 80\n"));
    ensure!(asks("127.0.0.1:0", 81, &header("203.0.113.1:1001")?)? == "203.0.113.1:1001");
    Ok(())
}

fn more_ports_than_there_is_room_for_change_nothing(bed: &Bed) -> Result<()> {
    let each = |from: u16, to: u16| (from..=to).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
    let (few, rest) = (each(1000, 1059), each(2000, 2003));
    let said = fails(bed, &["--port", &each(1000, 1064)])?;
    ensure!(said.contains("65 ports are too many"), "{said}");
    ensure!(attachments(bed).unwrap_or_default().is_empty());
    attach(bed, &["--port", &few])?;
    let before = status(bed)?["attachments"].clone();
    let said = fails(bed, &["add", "--port", &each(2000, 2004)])?;
    ensure!(said.contains("65 ports are too many"), "{said}");
    ensure!(status(bed)?["attachments"] == before, "{}", status(bed)?);
    attach(bed, &["add", "--port", &rest])?;
    // Ports that were taken out and have no connection make room.
    attach(bed, &["remove", "--port", &few])?;
    attach(bed, &["add", "--port", &each(3000, 3059)]).map(drop)
}

/// As FTP's passive ports.
fn a_range_costs_one_entry_and_one_warning(bed: &Bed) -> Result<()> {
    let others = (1000..1063).map(|port| port.to_string()).collect::<Vec<_>>().join(",");
    let _echo = Behaviour::Echo.start(bed, &["[::ffff:127.0.0.1]:40500"])?;
    let attaching = command(bed, &["--port", &others, "--port", "40000-41000"])?.start(bed)?;
    ensure!(attaching.wait_end()?.success(), "{}", attaching.log());
    let said = attaching.stderr();
    ensure!(said.lines().count() == 1 && said.contains("1000-1062, 40000-40499, 40501-41000"), "{said}");
    ensure!(attach(bed, &["status"])?.contains("port 40000-41000/tcp: attached"));
    for n in 0..3 {
        let mut stream = client::connect("127.0.0.1:40500")?;
        stream.write_all(&header(&format!("203.0.113.1:{}", 1000 + n))?)?;
        is_answered(&mut stream)?;
    }
    let status = status(bed)?;
    let ports = status["ports"].as_array().context("ports")?;
    let range = ports.iter().find(|port| port["ports"] == "40000-41000").context("the range")?;
    ensure!(ports.len() == 64 && range["counters"]["connections"] == 3, "{range}");
    let said = fails(bed, &["add", "--port", "2000"])?;
    ensure!(said.contains("65 ports are too many"), "{said}");
    // A part of it leaves, and the rest goes on with the same counters.
    attach(bed, &["remove", "--port", "40000-40499"])?;
    let mut stream = client::connect("127.0.0.1:40500")?;
    stream.write_all(&header("203.0.113.1:1009")?)?;
    is_answered(&mut stream)
}
