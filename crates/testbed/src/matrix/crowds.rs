//! Many connections: each is complete, and silent ones delay no other.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::ensure;

use super::{Case, Deliver, header_of};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client;
use crate::crowd::{in_parallel, nth_client};
use crate::pattern::Pattern;

pub(super) const CASES: &[Case] = &[
    Case::new("ten_thousand_short_connections_are_all_whole", ten_thousand_short_connections_are_all_whole)
        .adjusted(|test| test.time_limit(Duration::from_secs(120))),
    Case::new("a_thousand_silent_connections_delay_no_other", a_thousand_silent_connections_delay_no_other)
        .adjusted(|test| test.needs_open_files(4096)),
    Case::new("a_thousand_half_sent_headers_delay_no_other", a_thousand_half_sent_headers_delay_no_other)
        .adjusted(|test| test.needs_open_files(4096)),
];

/// Each client writes at once and ends its direction at once: the end is there before the relay starts.
fn ten_thousand_short_connections_are_all_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    const LENGTHS: [usize; 8] = [0, 1, 5, 100, 1447, 4096, 17_000, 66_000];
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    let pattern = Pattern::bytes(66_000);
    in_parallel(8, 10_000, |n| {
        let body = &pattern[..LENGTHS[n % LENGTHS.len()]];
        let mut stream = echo.knock()?;
        stream.write_all(&[&header_of(nth_client(n))?, body].concat())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut echoed = Vec::with_capacity(body.len());
        stream.read_to_end(&mut echoed)?;
        ensure!(echoed == body, "{} of {} bytes came back", echoed.len(), body.len());
        Ok(())
    })
}

fn a_thousand_silent_connections_delay_no_other(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    delay_nobody(bed, by, b"")
}

fn a_thousand_half_sent_headers_delay_no_other(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    delay_nobody(bed, by, b"PROXY TCP4 203.0.113.7 ")
}

fn delay_nobody(bed: &Bed, by: &dyn Deliver, said: &[u8]) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &["--header-timeout", "100s"])?;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        let mut stream = who.knock()?;
        stream.write_all(said)?;
        silent.push(stream);
    }
    let client = nth_client(0);
    let seen = client::ask(&mut who.session(client)?, b"")?;
    ensure!(seen.trim() == client.to_string(), "{seen:?}");
    // It has not waited for the others.
    for stream in &silent {
        stream.set_nonblocking(true)?;
        let mut stream = stream;
        let still_open = stream.read(&mut [0]).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
        ensure!(still_open, "a silent connection was closed before its time");
    }
    Ok(())
}
