//! Receivers of known virtues and faults: each fault is found, and a right receiver is not accused of any.
#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::Value;
use truepeer_probe::{Receiver, Report, probe_datagrams, probe_receiver};
use truepeer_proto::{Command, Decoded, Header, Limits, decode, decode_datagram};

/// What is wrong with a receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Serves connections without a header.
    Guesses,
    /// Takes families 4 to 15.
    ReservedFamilies,
    /// Gives the application what was in the first segment.
    Leaks,
    /// Shows itself in place of a LOCAL sender.
    LocalIsItself,
    /// Wants the whole header in one segment, as PROXY 2 permits.
    OneSegment,
    /// Refuses UNKNOWN.
    NoUnknown,
    /// Refuses every header.
    TakesNone,
    /// Ends when an address block is missing and no data follows.
    Dies,
    /// Names the sender, whatever the header says.
    NamesTheSender,
    /// Names nobody.
    NamesNobody,
    /// Looks at nothing before a line's CRLF, its longest length or version 2's fixed part is there, as the
    /// text says.
    Waits,
}

/// An echo server that names its clients in a file.
fn receiver(fault: Fault) -> Receiver {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let target = listener.local_addr().unwrap();
    let log = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe-{}", target.port()));
    std::fs::write(&log, "").unwrap();
    let path = log.clone();
    listener.set_nonblocking(true).unwrap();
    spawn(move || {
        let is_dead = Arc::new(AtomicBool::new(false));
        while !is_dead.load(Relaxed) {
            let Ok((stream, _)) = listener.accept() else {
                sleep(Duration::from_millis(1));
                continue;
            };
            let (path, is_dead) = (path.clone(), is_dead.clone());
            spawn(move || serve(stream, fault, &path, &is_dead));
        }
    });
    Receiver {
        target,
        app: "echo".parse().unwrap(),
        from: Some(Ipv4Addr::new(127, 0, 0, 9).into()),
        patience: Duration::from_millis(300),
        log: Some(log),
        is_stranger: false,
    }
}

fn serve(mut stream: TcpStream, fault: Fault, log: &Path, is_dead: &AtomicBool) {
    let sender = stream.peer_addr().unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 65536]);
    let data = loop {
        let Ok(length @ 1..) = stream.read(&mut buffer) else { return };
        bytes.extend_from_slice(&buffer[..length]);
        let is_v2 = bytes.starts_with(b"\r\n");
        let may_go_on = if is_v2 { bytes.len() < 16 } else { bytes.len() < 107 && !bytes.ends_with(b"\r\n") };
        if fault == Fault::Waits && may_go_on {
            continue;
        }
        if fault == Fault::ReservedFamilies && is_v2 && bytes.get(13).is_some_and(|byte| byte >> 4 > 3) {
            bytes[13] = 0;
        }
        match decode(&bytes, Limits::default()) {
            Ok(Decoded::Done { header, consumed }) => {
                let refuses =
                    fault == Fault::TakesNone || fault == Fault::NoUnknown && bytes.starts_with(b"PROXY UNK");
                if refuses {
                    return;
                }
                name_client(&header, sender, fault, log);
                break bytes[consumed..].to_vec();
            }
            Ok(Decoded::NeedMore { .. }) if fault == Fault::Leaks => break bytes,
            Ok(Decoded::NeedMore { .. }) if fault == Fault::OneSegment => return,
            Ok(Decoded::NeedMore { .. }) => {}
            Err(_) if fault == Fault::Dies && bytes.len() == 16 => return is_dead.store(true, Relaxed),
            Err(_) if fault == Fault::Guesses && bytes.starts_with(b"truepeer") => break bytes,
            Err(_) if fault == Fault::TakesNone && bytes.starts_with(b"truepeer") => break bytes,
            Err(_) => return,
        }
    };
    let _gone = stream.write_all(&data);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let _gone = stream.write_all(&buffer[..length]);
    }
}

fn name_client(header: &Header<'_>, sender: SocketAddr, fault: Fault, log: &Path) {
    if fault == Fault::NamesNobody {
        return;
    }
    let client = match header.client() {
        _ if fault == Fault::NamesTheSender => sender.ip(),
        Some(client) => client.ip(),
        None if fault == Fault::LocalIsItself && header.command == Command::Local => {
            Ipv4Addr::LOCALHOST.into()
        }
        None => sender.ip(),
    };
    let mut log = std::fs::File::options().append(true).open(log).unwrap();
    writeln!(log, "a client: {client}").unwrap();
}

fn judged(fault: Fault) -> Value {
    let receiver = receiver(fault);
    let report = probe_receiver(&receiver).unwrap();
    std::fs::remove_file(receiver.log.unwrap()).unwrap();
    each_finding_has_a_rule(&report);
    report.json()
}

/// Without one it could not be against a MUST.
fn each_finding_has_a_rule(report: &Report) {
    let report = report.json();
    let has_none = |one: &&Value| one["rule"] == "" || one["quote"] == "";
    assert_eq!(report["findings"].as_array().unwrap().iter().find(has_none), None);
}

/// The names of the findings with this verdict.
fn names(report: &Value, verdict: &str) -> BTreeSet<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|one| one["verdict"] == verdict)
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// truepeer's own parser takes lines of mixed families on purpose, against the letter.
fn beyond_mixed_families(names: BTreeSet<String>) -> Vec<String> {
    let mixed = ["NGINX writes", "source is IP", "one of each"];
    names.into_iter().filter(|name| !mixed.iter().any(|part| name.contains(part))).collect()
}

#[test]
fn a_right_receiver_is_not_accused() {
    let report = judged(Fault::None);
    assert_eq!(beyond_mixed_families(names(&report, "broken")), [""; 0], "{report:#}");
    assert_eq!(names(&report, "broken").len(), 5, "the lines of mixed families: {report:#}");
    assert_eq!(names(&report, "advised"), BTreeSet::new(), "{report:#}");
    assert!(names(&report, "holds").len() > 130, "{report:#}");
    let local =
        report["findings"].as_array().unwrap().iter().find(|one| one["name"] == "v2 LOCAL with addresses");
    assert_eq!(local.unwrap()["log"], serde_json::json!(["127.0.0.9"]));
}

#[test]
fn each_fault_is_found_and_no_other() {
    let cases = [
        (Fault::Guesses, &["no header"] as &[&str]),
        (Fault::ReservedFamilies, &["NGINX: reserved families accepted", "v2 family 15", "v2 family 4"]),
        (
            Fault::LocalIsItself,
            &[
                "CVE-2024-23327: LOCAL with a NOOP",
                "CVE-2024-23327: a load balancer's LOCAL health check",
                "go-mmproxy: LOCAL with a family and a short block",
                "tlv CRC32C in LOCAL",
                "tlv overrun in LOCAL is no TLV",
                "v2 LOCAL",
                "v2 LOCAL with a short block, part of which looks like a wrong CRC32C",
                "v2 LOCAL with addresses",
                "v2 LOCAL with unassigned family and protocol",
            ],
        ),
        (Fault::OneSegment, &[]),
        (Fault::NoUnknown, &[]),
        (Fault::NamesTheSender, &["whom the log names after a plain header"]),
        (Fault::NamesNobody, &[]),
    ];
    std::thread::scope(|scope| {
        for (fault, found) in cases {
            scope.spawn(move || {
                let report = judged(fault);
                assert_eq!(beyond_mixed_families(names(&report, "broken")), found, "{report:#}");
            });
        }
    });
}

#[test]
fn a_header_that_reaches_the_application_in_part_is_a_leak() {
    let report = judged(Fault::Leaks);
    let broken = beyond_mixed_families(names(&report, "broken"));
    let cuts: Vec<_> = broken.iter().filter(|name| name.contains("cut at every byte")).collect();
    assert_eq!(cuts.len(), 4, "{broken:?}");
}

#[test]
fn a_receiver_that_ends_is_named_with_the_header_that_ended_it() {
    let report = judged(Fault::Dies);
    let broken = beyond_mixed_families(names(&report, "broken"));
    assert_eq!(broken.len(), 1, "{report:#}");
    let last = report["findings"].as_array().unwrap().last().unwrap();
    assert!(last["seen"].as_str().unwrap().contains("accepts no connections"), "{last:#}");
}

#[test]
fn choices_that_the_text_permits_are_no_faults() {
    let one_segment = names(&judged(Fault::OneSegment), "permitted");
    assert_eq!(
        one_segment.iter().filter(|name| name.contains("cut at every byte")).count(),
        4,
        "{one_segment:?}"
    );
    let no_unknown = judged(Fault::NoUnknown);
    assert!(names(&no_unknown, "advised").contains("v1 UNKNOWN, short"), "{no_unknown:#}");
}

#[test]
fn a_stranger_is_told_whether_headers_are_taken() {
    let status = |fault| {
        let receiver = Receiver { is_stranger: true, log: None, ..receiver(fault) };
        let report = probe_receiver(&receiver).unwrap();
        each_finding_has_a_rule(&report);
        (report.status(), report.totals().broken)
    };
    assert_eq!(status(Fault::None), (1, 2));
    assert_eq!(status(Fault::TakesNone), (0, 0));
}

/// Without a protocol, what is broken of a receiver with this fault.
fn broken_by_ends(fault: Fault) -> Vec<String> {
    let receiver = Receiver {
        app: "none".parse().unwrap(),
        log: None,
        patience: Duration::from_millis(40),
        ..receiver(fault)
    };
    let report = probe_receiver(&receiver).unwrap();
    assert!(report.totals().holds > 40, "{report}");
    beyond_mixed_families(names(&report.json(), "broken"))
}

#[test]
fn without_a_protocol_an_end_shows_what_it_can() {
    assert_eq!(
        broken_by_ends(Fault::ReservedFamilies),
        ["NGINX: reserved families accepted", "v2 family 15", "v2 family 4"]
    );
}

#[test]
fn a_receiver_that_waits_for_the_rest_of_a_line_is_not_accused() {
    assert_eq!(broken_by_ends(Fault::Waits), [""; 0]);
}

#[test]
fn a_server_that_answers_nothing_is_not_judged() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let receiver = Receiver { target: silent.local_addr().unwrap(), log: None, ..receiver(Fault::None) };
    let report = probe_receiver(&receiver).unwrap();
    assert_eq!((report.status(), report.totals().broken), (3, 0));
    assert!(report.to_string().contains("can't tell: no request was answered"), "{report}");
}

/// Floods, trickles, or greets for ever.
#[test]
fn a_hostile_receiver_neither_holds_nor_fills_the_probe() {
    for (part, pause) in [(vec![b'x'; 65536], 0), (b"x".to_vec(), 2), (b"220-more\r\n".to_vec(), 2)] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, part) = (stream.unwrap(), part.clone());
                spawn(move || {
                    while stream.write_all(&part).is_ok() {
                        sleep(Duration::from_millis(pause));
                    }
                });
            }
        });
        let app = "smtp".parse().unwrap();
        let patience = Duration::from_millis(100);
        let receiver = Receiver { target, app, patience, log: None, ..receiver(Fault::None) };
        let begin = Instant::now();
        let report = probe_receiver(&receiver).unwrap();
        assert_eq!((report.status(), report.totals().broken), (3, 0), "{report}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert!(report.json().to_string().len() < 2000, "{report}");
    }
}

/// What a receiver does with datagrams.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Datagrams {
    /// Each needs a header.
    Each,
    /// The first of a flow needs one.
    First,
    /// Each needs one, and the network loses every third.
    Lossy,
    /// Gives each back as it is.
    Plain,
}

/// A server at this address that echoes datagrams and names their clients in a file.
fn udp_receiver(datagrams: Datagrams, fault: Fault, at: IpAddr) -> Receiver {
    let socket = UdpSocket::bind((at, 0)).unwrap();
    let target = socket.local_addr().unwrap();
    let receiver = receiver(fault);
    let log = receiver.log.clone().unwrap();
    spawn(move || {
        let (mut buffer, mut known) = ([0; 2048], BTreeSet::new());
        for count in 1.. {
            let (length, sender) = socket.recv_from(&mut buffer).unwrap();
            if datagrams == Datagrams::Lossy && count % 3 == 0 {
                continue;
            }
            let answer = match decode_datagram(&buffer[..length], Limits::default()) {
                _ if datagrams == Datagrams::Plain => &buffer[..length],
                Ok((header, consumed)) => {
                    name_client(&header, sender, fault, &log);
                    known.insert(sender);
                    &buffer[consumed..length]
                }
                Err(_) if datagrams == Datagrams::First && known.contains(&sender) => &buffer[..length],
                Err(_) => continue,
            };
            socket.send_to(answer, sender).unwrap();
        }
    });
    let from = at.is_ipv4().then_some(Ipv4Addr::new(127, 0, 0, 9).into());
    Receiver { target, from, patience: Duration::from_millis(300), ..receiver }
}

fn judged_datagrams(datagrams: Datagrams, fault: Fault, at: IpAddr) -> Report {
    let receiver = udp_receiver(datagrams, fault, at);
    let report = probe_datagrams(&receiver).unwrap();
    std::fs::remove_file(receiver.log.unwrap()).unwrap();
    each_finding_has_a_rule(&report);
    report
}

#[test]
fn datagrams_are_judged_each_by_itself() {
    let report = judged_datagrams(Datagrams::Each, Fault::None, Ipv4Addr::LOCALHOST.into());
    assert_eq!((report.status(), report.totals().broken), (0, 0), "{report}");
    assert!(report.totals().holds > 40, "{report}");
    let report = judged_datagrams(Datagrams::First, Fault::None, Ipv4Addr::LOCALHOST.into());
    let broken = names(&report.json(), "broken");
    assert!(broken.contains("a bare datagram after one with a header"), "{broken:?}");
}

#[test]
fn a_datagram_that_is_lost_accuses_nobody() {
    let report = judged_datagrams(Datagrams::Lossy, Fault::None, Ipv4Addr::LOCALHOST.into());
    assert_eq!((report.totals().broken, report.totals().advised), (0, 0), "{report}");
    assert!(report.totals().holds > 40, "{report}");
}

/// Without `--from`, the sender has the address by which it reaches the receiver.
#[test]
fn the_log_of_datagrams_may_name_the_sender_where_the_header_names_nobody() {
    let report = judged_datagrams(Datagrams::Each, Fault::None, Ipv6Addr::LOCALHOST.into());
    assert_eq!(report.totals().broken, 0, "{report}");
    let report = judged_datagrams(Datagrams::Each, Fault::NamesTheSender, Ipv4Addr::LOCALHOST.into());
    let broken = names(&report.json(), "broken");
    assert_eq!(broken, BTreeSet::from(["whom the log names after a plain header".to_owned()]), "{report}");
}

#[test]
fn a_server_of_bare_datagrams_takes_no_headers() {
    let report = judged_datagrams(Datagrams::Plain, Fault::None, Ipv4Addr::LOCALHOST.into());
    assert_eq!((report.status(), report.totals().broken), (0, 0), "{report}");
    assert!(report.to_string().contains("takes no headers"), "{report}");
}
