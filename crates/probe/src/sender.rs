//! Plays the receiver: does a sender write what the specification says?

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use truepeer_proto::{
    Addresses, Command, Decoded, Header, Limits, Transport, Version, decode, decode_datagram, sniff,
};

use crate::ProbeError;
use crate::app::App;
use crate::case::SEGMENT;
use crate::report::{Finding, Report};
use crate::verdict::Verdict;

/// Where senders are awaited.
#[derive(Debug, Clone)]
pub struct Listening {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Datagrams.
    pub is_udp: bool,
    /// How many connections or datagrams are judged.
    pub count: usize,
    /// How long a header, and the data after it, are waited for.
    pub patience: Duration,
}

/// Of a header's TLVs, the first are named: there can be thousands.
const NAMED: usize = 32;
const LIMITS: Limits = Limits { max_len: 16 + 65535, versions: truepeer_proto::Versions::BOTH };

/// Judges senders, and hands each report over as it is made. `ready` is told the address.
///
/// # Errors
/// [`ProbeError`], if the address can't be bound; or the error of `each`.
pub fn judge(
    listening: &Listening,
    ready: impl FnOnce(SocketAddr),
    mut each: impl FnMut(&Report) -> std::io::Result<()>,
) -> Result<(), ProbeError> {
    let not = |error| ProbeError::Bind(listening.address, error);
    if listening.is_udp {
        let socket = UdpSocket::bind(listening.address).map_err(not)?;
        ready(socket.local_addr()?);
        let mut buffer = vec![0; 65536];
        for _ in 0..listening.count {
            let (length, sender) = socket.recv_from(&mut buffer)?;
            each(&of_datagram(sender, &buffer[..length]))?;
        }
        return Ok(());
    }
    let listener = TcpListener::bind(listening.address).map_err(not)?;
    ready(listener.local_addr()?);
    for _ in 0..listening.count {
        let (stream, sender) = listener.accept()?;
        each(&of_connection(&stream, sender, listening.patience)?)?;
    }
    Ok(())
}

/// What arrived, and in which pieces.
#[derive(Debug, Default)]
struct Arrived {
    bytes: Vec<u8>,
    /// The length after each read.
    reads: Vec<usize>,
    has_ended: bool,
    took: Duration,
}

fn of_connection(stream: &TcpStream, sender: SocketAddr, patience: Duration) -> Result<Report, ProbeError> {
    let mut arrived = Arrived::default();
    read(stream, &mut arrived, patience, |bytes| {
        !matches!(decode(bytes, LIMITS), Ok(Decoded::NeedMore { .. }))
    })?;
    let mut report = Report::new(format!("a sender at {sender}"), App::NONE, None);
    let header_at = arrived.reads.len();
    match decode(&arrived.bytes, LIMITS) {
        Ok(Decoded::Done { header, consumed }) => {
            report.notes.push(described(&header, consumed));
            of_header(&mut report, &header, &arrived.bytes[..consumed]);
            at_once(&mut report, &arrived, consumed, header_at);
            say(&mut report, "the header comes first", "sent-first", true, "before any data");
            answer(stream, &mut report, &mut arrived, consumed, patience)?;
        }
        Ok(Decoded::NeedMore { .. }) if arrived.bytes.is_empty() => {
            let how =
                if arrived.has_ended { "the connection ended without a byte" } else { "nothing was sent" };
            let how = format!("{how} ({} ms)", arrived.took.as_millis());
            say(&mut report, "the header comes first", "sent-first", false, &how);
        }
        Ok(Decoded::NeedMore { missing }) => {
            let how = format!("{} bytes came, {missing} or more are missing", arrived.bytes.len());
            say(&mut report, "the header is complete", "sent-at-once", false, &how);
        }
        Err(error) => {
            let like = sniff(&arrived.bytes).map(|name| format!("; looks like {name}")).unwrap_or_default();
            let how = format!("{error}{like}");
            let rule = match error.kind.as_str() {
                "not_proxy" => "sent-first",
                "crc32c_mismatch" => "sent-crc32c",
                "v2_version" => "sent-version",
                "v2_command" => "sent-command",
                "v2_family" | "v2_transport" => "sent-values",
                kind if kind.starts_with("v1") => "sent-valid",
                _ => "sent-tlv",
            };
            say(&mut report, "the header is valid", rule, false, &how);
        }
    }
    Ok(report.with_sent(&arrived.bytes))
}

fn of_datagram(sender: SocketAddr, datagram: &[u8]) -> Report {
    let mut report = Report::new(format!("a sender at {sender} (UDP)"), App::NONE, None);
    match decode_datagram(datagram, LIMITS) {
        Ok((header, consumed)) => {
            report.notes.push(described(&header, consumed));
            of_header(&mut report, &header, &datagram[..consumed]);
            let has_payload = consumed < datagram.len();
            let how = if has_payload { "in one datagram" } else { "the datagram ends with the header" };
            say(&mut report, "header and payload are in one datagram", "sent-datagram", has_payload, how);
        }
        Err(error) => {
            let like = sniff(datagram).map(|name| format!("; looks like {name}")).unwrap_or_default();
            say(
                &mut report,
                "each datagram has its header",
                "sent-datagram",
                false,
                &format!("{error}{like}"),
            );
        }
    }
    report.with_sent(datagram)
}

/// The rules that a valid header can still break.
fn of_header(report: &mut Report, header: &Header<'_>, bytes: &[u8]) {
    say(
        report,
        "the header is valid",
        if header.version == Version::V1 { "sent-valid" } else { "sent-values" },
        true,
        "read to its end",
    );
    if let Addresses::Inet { source, destination, .. } = header.addresses {
        let is_one = source.is_ipv4() == destination.is_ipv4();
        let how = format!("{source} and {destination}");
        say(report, "both addresses are of one family", "sent-family", is_one, &how);
    }
    if header.version == Version::V1 {
        if header.addresses == Addresses::Unspecified {
            say(report, "no UNKNOWN", "sent-unknown", false, &bytes.escape_ascii().to_string());
        }
        return;
    }
    if header.command == Command::Local {
        // A family that is not UNSPEC has them; HAProxy's health checks have TLVs alone.
        let (family, block) = (bytes[13] >> 4, bytes.len() - 16);
        let has_none = block == 0 || family == 0 && !header.tlvs.is_empty();
        say(report, "LOCAL has no addresses", "sent-local", has_none, &format!("{block} bytes follow"));
    }
    let mut kinds = header.tlvs.raw().map(|(kind, _)| kind);
    if let Some(kind) = kinds.clone().find(|kind| (0xf0..=0xf7).contains(kind)) {
        say(report, "no experimental TLV", "sent-types", false, &format!("type {kind:#04x}"));
    }
    if kinds.any(|kind| kind == truepeer_proto::tlv::CRC32C) {
        say(report, "the checksum is right", "sent-crc32c", true, "verified");
    }
}

/// A header longer than a segment may be split on its way; a shorter one was split by its sender, unless the
/// network has an unusual MTU.
fn at_once(report: &mut Report, arrived: &Arrived, length: usize, reads: usize) {
    if length <= SEGMENT || reads == 1 {
        let how = if reads == 1 {
            "in one piece".to_owned()
        } else {
            format!("in pieces that ended at bytes {:?}", arrived.reads)
        };
        say(report, "the header is sent at once", "sent-at-once", reads == 1, &how);
    }
}

/// Names the data after the header. A request of HTTP is answered, so that the sender's client need not wait.
fn answer(
    mut stream: &TcpStream,
    report: &mut Report,
    arrived: &mut Arrived,
    consumed: usize,
    patience: Duration,
) -> Result<(), ProbeError> {
    read(stream, arrived, patience, |bytes| bytes.len() > consumed + 4)?;
    let data = &arrived.bytes[consumed..];
    if decode(data, LIMITS).is_ok_and(|decoded| matches!(decoded, Decoded::Done { .. })) {
        report.notes.push(
            "the data begins with another header: a proxy before the sender, or two options that add one"
                .to_owned(),
        );
    }
    let kind = sniff(data).unwrap_or("unknown");
    report.notes.push(format!("data after the header: {} bytes, {kind}", data.len()));
    if kind == "HTTP request" {
        let said = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let _gone = said.is_err();
    }
    Ok(())
}

fn read(
    mut stream: &TcpStream,
    arrived: &mut Arrived,
    patience: Duration,
    is_enough: impl Fn(&[u8]) -> bool,
) -> Result<(), ProbeError> {
    let (begin, mut buffer) = (Instant::now(), vec![0; 65536]);
    while !is_enough(&arrived.bytes) && !arrived.has_ended {
        let left = patience.saturating_sub(begin.elapsed());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => arrived.has_ended = true,
            Ok(length) => {
                arrived.bytes.extend_from_slice(&buffer[..length]);
                arrived.reads.push(arrived.bytes.len());
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => arrived.has_ended = true,
        }
    }
    arrived.took = begin.elapsed();
    Ok(())
}

fn described(header: &Header<'_>, length: usize) -> String {
    let version = if header.version == Version::V1 { 1 } else { 2 };
    let who = match header.addresses {
        _ if header.command == Command::Local => "LOCAL".to_owned(),
        Addresses::Unspecified => "no addresses".to_owned(),
        Addresses::Unix { .. } => "UNIX sockets".to_owned(),
        Addresses::Inet { transport, source, destination } => {
            let transport = if transport == Transport::Dgram { "UDP" } else { "TCP" };
            format!("{transport}, client {source}, destination {destination}")
        }
    };
    let named = |(kind, value): (u8, &[u8])| format!("{kind:#04x} ({} bytes)", value.len());
    let mut kinds: Vec<_> = header.tlvs.raw().take(NAMED).map(named).collect();
    kinds.extend(header.tlvs.raw().nth(NAMED).map(|_| "and more".to_owned()));
    let tlvs = if kinds.is_empty() { String::new() } else { format!(", TLVs {}", kinds.join(", ")) };
    format!("version {version}, {length} bytes: {who}{tlvs}")
}

fn say(report: &mut Report, name: &str, rule: &str, holds: bool, how: &str) {
    let mut finding = Finding::of_rule(name, rule, None, Verdict::Holds, how.to_owned());
    if !holds {
        finding.verdict = Verdict::against(finding.rule.level);
    }
    report.findings.push(finding);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
    use std::thread::{sleep, spawn};
    use std::time::{Duration, Instant};

    use super::{Listening, judge};
    use crate::report::Report;

    /// What is said of a sender that writes these pieces.
    #[expect(clippy::disallowed_methods, reason = "the test is the sender")]
    fn said(is_udp: bool, pieces: &[&'static [u8]]) -> String {
        let pieces = pieces.to_vec();
        let listening = Listening {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            is_udp,
            count: 1,
            patience: Duration::from_millis(300),
        };
        let mut said = String::new();
        let send = move |address: SocketAddr| {
            spawn(move || {
                if is_udp {
                    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
                    return drop(socket.send_to(pieces[0], address));
                }
                let mut stream = TcpStream::connect(address).expect("a connection");
                for piece in pieces {
                    let _gone = stream.write_all(piece);
                    sleep(Duration::from_millis(30));
                }
                let _answer = stream.read(&mut [0; 100]);
            });
        };
        let each = |report: &Report| {
            said = format!("{} {report}", report.status());
            Ok(())
        };
        judge(&listening, send, each).expect("judged");
        said
    }

    #[test]
    fn a_right_sender_breaks_nothing() {
        let said = said(false, &[b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\n\r\n"]);
        assert!(said.starts_with("0 a sender at 127.0.0.1:"), "{said}");
        assert!(
            said.contains("version 1, 36 bytes: TCP, client 192.0.2.1:1, destination 192.0.2.2:2"),
            "{said}"
        );
        assert!(said.contains("HTTP request") && !said.contains("BROKEN"), "{said}");
    }

    /// HAProxy's health checks with `proxy-v2-options crc32c`.
    #[test]
    fn tlvs_of_a_local_header_are_no_addresses() {
        let said = said(false, &[b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x07\x03\0\x04\xa9\xb8\x7e\x8f"]);
        assert!(said.contains("LOCAL, TLVs 0x03 (4 bytes)") && !said.contains("against advice:"), "{said}");
    }

    #[test]
    fn each_fault_of_a_sender_is_named_with_its_section() {
        const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
        let cases: [(&'static [&'static [u8]], &str); 9] = [
            (&[b"GET / HTTP/1.1\r\n\r\n"], "looks like HTTP request"),
            (&[b"PROXY TCP4 192.0.2.1 19", b"2.0.2.2 1 2\r\n"], "in pieces that ended at bytes [23, 36]"),
            (&[b"PROXY TCP6 2001:db8::1 192.0.2.2 1 2\r\n"], "both addresses are of one family"),
            (&[b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n"], "bad port"),
            (&[b"PROXY TCP4 192.0.2.1"], "20 bytes came"),
            (
                &[V2, b"\x20\x11\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb"],
                "LOCAL has no addresses",
            ),
            (&[b"\r\n\r\n\0\r\nQUIT\n\x21\x51\x00\x00"], "unassigned address family"),
            (&[b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x03\xf0\x00\x00"], "no experimental TLV"),
            (&[], "nothing was sent"),
        ];
        for (pieces, fault) in cases {
            let said = said(false, pieces);
            assert!(said.contains(fault) && said.contains("PROXY 2"), "{fault}: {said}");
        }
    }

    #[test]
    fn each_rule_by_which_senders_are_judged_is_a_sentence() {
        let literals = include_str!("sender.rs").split('"');
        let named: Vec<_> = literals.filter(|text| text.starts_with("sent-") && text.len() > 5).collect();
        assert!(named.len() > 10, "{named:?}");
        let missing: Vec<_> =
            named.into_iter().filter(|rule| truepeer_proto::vectors::rule(rule).is_none()).collect();
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn a_hostile_sender_neither_holds_nor_fills_the_probe() {
        const LONG: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x00\xff\xff";
        static FLOOD: [u8; 1 << 20] = [0; 1 << 20];
        let begin = Instant::now();
        let flooded = said(false, &[LONG, &FLOOD, &FLOOD, &FLOOD]);
        assert!(flooded.contains("65551 bytes") && flooded.len() < 9000, "{flooded}");
        let trickled = said(false, &[LONG, b"\0", b"\0", b"\0", b"\0", b"\0", b"\0", b"\0", b"\0", b"\0"]);
        assert!(trickled.contains("or more are missing"), "{trickled}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    }

    #[test]
    fn a_datagram_has_its_header_and_a_payload() {
        let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb";
        let alone = said(true, &[header]);
        assert!(alone.starts_with("1 ") && alone.contains("ends with the header"), "{alone}");
        let whole = said(
            true,
            &[b"\r\n\r\n\0\r\nQUIT\n\x21\x12\x00\x0c\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbbquery"],
        );
        assert!(whole.starts_with("0 ") && whole.contains("UDP, client 192.0.2.1:56324"), "{whole}");
        let bare = said(true, &[b"query"]);
        assert!(bare.starts_with("1 ") && bare.contains("not a PROXY header"), "{bare}");
    }
}
