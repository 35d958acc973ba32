//! Headers, and a runner for both families.

use anyhow::{Context, Result};
use truepeer_testbed::client;
use truepeer_testbed::packets::{ACK, FIN, Talker};

use crate::stage::Stage;

/// The client in the headers.
pub(crate) const CLIENT: &str = "203.0.113.1:1001";

pub(crate) fn header(client: &str) -> Vec<u8> {
    client::v2(client, "192.0.2.1:443").expect("addresses of one family")
}

/// Runs a case for IPv4 and for IPv6, with a sender whose port is its own.
pub(crate) fn for_both_families(
    stage: &Stage<'_>,
    first_port: u16,
    case: impl Fn(Talker<'_>) -> Result<()>,
) -> Result<()> {
    for (v6, port) in [(false, first_port), (true, first_port + 1)] {
        let name = if v6 { "IPv6" } else { "IPv4" };
        case(stage.talker(v6, port)).with_context(|| name)?;
    }
    Ok(())
}

/// A valid header and data arrive: the connection is served with the client's name.
pub(crate) fn is_served(stage: &Stage<'_>, talker: &mut Talker<'_>) -> Result<()> {
    talker.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
    let stream = stage.accepts(CLIENT, b"DATA1")?;
    talker.is_acknowledged()?;
    is_closed(talker, stream)
}

/// Both sides end it, so that nothing remains.
pub(crate) fn is_closed(talker: &mut Talker<'_>, stream: std::net::TcpStream) -> Result<()> {
    drop(stream);
    let end = talker.hear("the end", |segment| segment.flags & FIN != 0)?;
    talker.ack = end.seq.wrapping_add(1);
    talker.send(&talker.segment(FIN | ACK, b""))?;
    talker.seq = talker.seq.wrapping_add(1);
    talker.is_acknowledged()
}
