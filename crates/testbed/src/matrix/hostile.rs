//! Invalid headers, and bytes that are no header: only that connection ends, and the log has the reason.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use anyhow::ensure;

use super::{CLIENT4, Case, DESTINATION4, Deliver, Delivered};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::chance::Chance;
use crate::client;
use crate::crowd::{in_parallel, nth_client};
use crate::running::Running;

pub(super) const CASES: &[Case] = &[
    Case::new(
        "bytes_that_are_no_header_end_their_connection_only",
        bytes_that_are_no_header_end_their_connection_only,
    ),
    Case::new(
        "ten_thousand_connections_of_random_bytes_disturb_no_other",
        ten_thousand_connections_of_random_bytes_disturb_no_other,
    )
    .adjusted(|test| test.time_limit(Duration::from_secs(120))),
];

/// What the log must contain for recognisable bytes.
fn recognisable() -> Vec<(&'static str, Vec<u8>)> {
    let client_hello = [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), &[7; 500]].concat();
    vec![
        ("TLS", client_hello),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec()),
        ("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".to_vec()),
    ]
}

/// Headers with one error each (PROXY 2.1, 2.2).
fn wrong_headers() -> anyhow::Result<Vec<Vec<u8>>> {
    let v1 = [
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
        "PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        "PROXY TCP4 ::1 ::2 1 2\r\n",
        "PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
        "PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY TCP6 fe80::1%lo ::2 1 2\r\n",
        "proxy TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
    ];
    let overrunning_tlv = [&[1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2][..], &[0x02, 0xff, 0xff]].concat();
    let wrong_checksum = client::v2_with_tlvs(CLIENT4, DESTINATION4, &[(0x03, &[1, 2, 3, 4])])?;
    let mut all: Vec<Vec<u8>> = v1.iter().map(|line| line.as_bytes().to_vec()).collect();
    all.extend([
        [b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(), // no CRLF within 107 bytes
        client::v2_raw(0x21, 0x11, &[])?,                   // 16 bytes that claim IPv4: panics go-mmproxy 2.1
        client::v2_raw(0x21, 0x21, &[0; 12])?,
        client::v2_raw(0x11, 0x11, &[0; 12])?, // version 1 in binary
        client::v2_raw(0x22, 0x11, &[0; 12])?, // a command that does not exist
        client::v2_raw(0x21, 0x41, &[0; 12])?, // a family that does not exist
        client::v2_raw(0x21, 0x11, &overrunning_tlv)?,
        wrong_checksum,
        vec![0; 64],
        b"\r\n\r\n\0\r\nQUIT\r\n".to_vec(), // almost the signature
    ]);
    Ok(all)
}

fn bytes_that_are_no_header_end_their_connection_only(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    let mut bystander = echo.session(nth_client(0))?;
    // Each from another address: the log repeats itself at most once a minute for each sender.
    for ((name, bytes), host) in recognisable().into_iter().zip(10..) {
        refused(&echo, host, &bytes)?;
        process_of(&echo).wait_for_log(name)?;
    }
    for (bytes, host) in wrong_headers()?.into_iter().zip(20..) {
        refused(&echo, host, &bytes)?;
        process_of(&echo).wait_for_log(&format!("127.0.0.{host}:"))?;
    }
    ensure!(client::ask(&mut bystander, b"undisturbed")? == "undisturbed");
    works(&echo)
}

/// The process whose log contains truepeer's messages: its own, or that of the backend that it has started.
fn process_of(echo: &Delivered) -> &Running {
    echo.truepeer.as_ref().unwrap_or(&echo.backend)
}

/// The resident memory of truepeer's process, if the way has one.
fn resident_bytes(echo: &Delivered) -> anyhow::Result<usize> {
    echo.truepeer.as_ref().map_or(Ok(0), Running::resident_bytes)
}

/// Expects no answer, no backend connection, and an end.
fn refused(echo: &Delivered, host: u8, bytes: &[u8]) -> anyhow::Result<()> {
    let mut stream = client::connect_from(format!("127.0.0.{host}:0"), echo.v4)?;
    stream.write_all(bytes)?;
    // Don't end the sending direction: the bytes alone must suffice.
    let end = client::read_end(&mut stream);
    end.map_err(|error| anyhow::anyhow!("{error}: not refused: {:?}", String::from_utf8_lossy(bytes)))?;
    Ok(())
}

/// After any bytes, truepeer runs, holds no session, and serves the next client.
fn works(echo: &Delivered) -> anyhow::Result<()> {
    ensure!(echo.truepeer.as_ref().is_none_or(Running::is_alive));
    ensure!(client::ask(&mut echo.session(nth_client(1))?, b"still here")? == "still here");
    let log = echo.truepeer.as_ref().map(Running::log).unwrap_or_default();
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

fn ten_thousand_connections_of_random_bytes_disturb_no_other(
    bed: &Bed,
    by: &dyn Deliver,
) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    let seeds = wrong_headers()?;
    let mut bystander = echo.session(nth_client(60_000))?;
    let one = |n: usize| -> anyhow::Result<()> {
        let bytes = Chance::new(n as u64).hostile_bytes(&seeds);
        let mut stream = echo.knock()?;
        // It may be closed during the write; only the later checks count.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        client::read_end(&mut stream)?;
        Ok(())
    };
    in_parallel(4, 2000, one)?; // after this, everything kept for the next connections has been allocated
    let before = resident_bytes(&echo)?;
    in_parallel(4, 10_000, |n| one(2000 + n))?;
    let grown = resident_bytes(&echo)?.saturating_sub(before);
    ensure!(grown < 512 << 10, "memory has grown by {grown} bytes");
    ensure!(client::ask(&mut bystander, b"undisturbed")? == "undisturbed");
    works(&echo)
}
