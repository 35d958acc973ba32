//! A sender proves itself by a secret in a TLV of its header.

use std::io::Write;

use anyhow::ensure;

use super::{CLIENT4, CLIENT6, Case, DESTINATION4, DESTINATION6, Deliver, cases};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client;
use crate::servers::Haproxy;
use crate::sockets::wait_until_read;

pub(super) const CASES: &[Case] =
    cases![a_header_counts_only_with_its_senders_secret, haproxy_proves_itself_by_a_tlv,];

const KIND: u8 = 0xE5;
const OLD: &[u8] = b"the-old-secret-0123456789";
const NEW: &[u8] = b"the-new-secret-9876543210-longer";

fn a_header_counts_only_with_its_senders_secret(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let file = bed.write("secrets", [b"# in change\n", NEW, b"\n", OLD, b"\n"].concat())?;
    let required = format!("0xE5=@{}", file.display());
    let who = by.put_behind(bed, Behaviour::Who, &["--require-tlv", &required])?;
    let of = |tlvs: &[(u8, &[u8])]| client::v2_with_tlvs(CLIENT4, DESTINATION4, tlvs);
    let wrong = [&NEW[..NEW.len() - 1], b"?"].concat();
    let refused = [
        of(&[])?,
        of(&[(KIND, &wrong)])?,
        of(&[(KIND, &NEW[..16])])?,
        of(&[(KIND, &[NEW, b"\0"].concat())])?,
        of(&[(KIND, NEW), (KIND, NEW)])?,
        of(&[(KIND, OLD), (KIND, NEW)])?,
        of(&[(KIND - 1, NEW)])?,
        of(&[(0x04, &[&[KIND, 0, 32], NEW].concat())])?,
        client::v1(CLIENT4, DESTINATION4)?,
        client::v2_local(),
    ];
    for header in refused {
        let mut stream = who.knock()?;
        // It may be refused before all of it is sent.
        let _ = stream.write_all(&[&header[..], b"data"].concat());
        client::read_end(&mut stream)?;
    }
    ensure!(!who.backend.log().contains("accepted"), "the backend was reached:\n{}", who.backend.log());
    for (client, destination, tlvs) in [
        (CLIENT4, DESTINATION4, &[(KIND, NEW)][..]),
        (CLIENT6, DESTINATION6, &[(0x02, b"site.example"), (KIND, OLD), (0x04, &[0; 300])]),
    ] {
        let header = client::v2_with_tlvs(client, destination, tlvs)?;
        let saw = who.ask(&header, b"data")?;
        ensure!(saw.trim() == client, "{client} was seen as {saw:?}");
    }
    // Within the part of a header that attach keeps (108 bytes), byte by byte.
    let mut stream = who.knock()?;
    for byte in client::v2_with_tlvs("203.0.113.7:5001", DESTINATION4, &[(KIND, NEW)])? {
        stream.write_all(&[byte])?;
        wait_until_read(&stream)?;
    }
    ensure!(client::ask(&mut stream, b"data")?.trim() == "203.0.113.7:5001");
    let logs = bed.outputs().concat();
    ensure!(!logs.contains("-secret-"), "{logs}");
    Ok(())
}

/// HAProxy since 2.9 writes the secret as it is.
fn haproxy_proves_itself_by_a_tlv(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let file = bed.write("secrets", [OLD, b"\n", NEW, b"\n"].concat())?;
    let required = format!("0xE0=@{}", file.display());
    let who = by.put_behind(bed, Behaviour::Who, &["--require-tlv", &required])?;
    let with =
        |kind: &str, secret: &[u8]| format!("set-proxy-v2-tlv-fmt({kind}) %[str({})]", secret.escape_ascii());
    let (believed, refused) =
        (["127.0.0.1:7001", "127.0.0.1:7002"], ["127.0.0.1:7003", "127.0.0.1:7004", "127.0.0.1:7005"]);
    let listeners = [&believed[..], &refused].concat();
    let options =
        [with("0xE0", NEW), with("0xE0", OLD), with("0xE0", &NEW[1..]), with("0xE1", NEW), String::new()];
    let config: Vec<_> = listeners
        .iter()
        .zip(options)
        .map(|(at, options)| {
            format!("listen {at}\n  bind {at} accept-proxy\n  server s {} send-proxy-v2 {options}", who.v4)
        })
        .collect();
    let _haproxy = Haproxy::with_config(&config.join("\n"), &listeners).newer().start(bed)?;
    let header = client::v1(CLIENT4, DESTINATION4)?;
    for address in refused {
        let mut stream = client::connect(address)?;
        stream.write_all(&[&header[..], b"data"].concat())?;
        client::read_end(&mut stream)?;
    }
    ensure!(!who.backend.log().contains("accepted"), "the backend was reached:\n{}", who.backend.log());
    for address in believed {
        let mut stream = client::connect(address)?;
        stream.write_all(&header)?;
        let saw = client::ask(&mut stream, b"data")?;
        ensure!(saw.trim() == CLIENT4, "{address}: the client was seen as {saw:?}");
    }
    Ok(())
}
