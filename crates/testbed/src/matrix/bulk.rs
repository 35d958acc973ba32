//! Bulk data with fast and slow ends: every byte arrives once, in order.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{CLIENT4, CLIENT6, Case, Deliver, Delivered};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::crowd::{in_parallel, nth_client};
use crate::harness::Test;
use crate::pattern::{Digest, Pattern};
use crate::sockets;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const BUFFER: usize = 64 << 10;

pub(super) const CASES: &[Case] = &[
    Case::new("a_gibibyte_up_arrives_whole", a_gibibyte_up_arrives_whole).adjusted(for_minutes),
    Case::new("a_gibibyte_down_arrives_whole", a_gibibyte_down_arrives_whole).adjusted(for_minutes),
    Case::new("a_gibibyte_each_way_at_once_arrives_whole", a_gibibyte_each_way_at_once_arrives_whole)
        .adjusted(for_minutes),
    Case::new("a_slow_backend_gets_everything", a_slow_backend_gets_everything),
    Case::new("a_slow_backend_gets_a_gibibyte_whole", a_slow_backend_gets_a_gibibyte_whole).adjusted(long),
    Case::new("a_slow_client_gets_everything", a_slow_client_gets_everything),
    Case::new("a_slow_client_gets_a_gibibyte_whole", a_slow_client_gets_a_gibibyte_whole).adjusted(long),
    Case::new("a_slow_backends_bytes_all_arrive", a_slow_backends_bytes_all_arrive),
    Case::new(
        "three_hundred_stalled_bulk_sessions_lose_nothing",
        three_hundred_stalled_bulk_sessions_lose_nothing,
    )
    .adjusted(for_minutes),
];

fn for_minutes(test: Test) -> Test {
    test.time_limit(Duration::from_secs(120)).alone()
}

fn long(test: Test) -> Test {
    test.time_limit(Duration::from_secs(300)).long()
}

fn a_gibibyte_up_arrives_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::Digest, &[])?;
    send_and_compare(&delivered, GIB)
}

fn a_gibibyte_down_arrives_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::Source, &[])?;
    receive_and_compare(&delivered, GIB, Duration::ZERO)
}

fn a_gibibyte_each_way_at_once_arrives_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::Echo, &[])?;
    let stream = delivered.session(CLIENT6.parse()?)?;
    let mut writer = stream.try_clone()?;
    let sender = thread::spawn(move || {
        let sent = send_pattern(&mut writer, GIB)?;
        writer.shutdown(Shutdown::Write)?;
        anyhow::Ok(sent)
    });
    let received = receive(&stream, Duration::ZERO)?;
    let sent = sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    ensure!(received == sent, "sent {sent}, came back {received}");
    Ok(())
}

fn a_slow_backend_gets_everything(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::SlowDigest, &[])?;
    send_and_compare(&delivered, 32 * MIB)
}

fn a_slow_backend_gets_a_gibibyte_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::SlowDigest, &[])?;
    send_and_compare(&delivered, GIB)
}

fn a_slow_client_gets_everything(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::Source, &[])?;
    receive_and_compare(&delivered, 32 * MIB, Duration::from_millis(5))
}

fn a_slow_client_gets_a_gibibyte_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::Source, &[])?;
    receive_and_compare(&delivered, GIB, Duration::from_millis(5))
}

fn a_slow_backends_bytes_all_arrive(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let delivered = by.put_behind(bed, Behaviour::SlowSource, &[])?;
    receive_and_compare(&delivered, 16 * MIB, Duration::ZERO)
}

/// No end reads until every session is full. Together they hold more than the 64 MiB of pipes that a plain
/// user may have (pipe(7), `pipe-user-pages-soft`). Afterwards each session must deliver everything.
fn three_hundred_stalled_bulk_sessions_lose_nothing(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    const SESSIONS: usize = 300;
    const LEN: u64 = 2 * MIB;
    sockets::keep_buffers_below(256 << 10)?;
    let delivered = by.put_behind(bed, Behaviour::Source, &[])?;
    let ask = |n| -> anyhow::Result<TcpStream> {
        let mut stream = delivered.session(nth_client(n))?;
        stream.write_all(format!("{LEN}\n").as_bytes())?;
        Ok(stream)
    };
    let streams = (0..SESSIONS).map(ask).collect::<anyhow::Result<Vec<_>>>()?;
    sockets::wait_until_stuck()?;
    let expected = Digest::of_pattern(LEN);
    in_parallel(8, SESSIONS, |n| {
        let received = receive(&streams[n], Duration::ZERO)?;
        ensure!(received == expected, "of session {n} came {received}, expected {expected}");
        Ok(())
    })
}

fn send_and_compare(delivered: &Delivered, len: u64) -> anyhow::Result<()> {
    let mut stream = delivered.session(CLIENT4.parse()?)?;
    let sent = send_pattern(&mut stream, len)?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.trim() == sent, "sent {sent}, the backend received {answer:?}");
    Ok(())
}

fn receive_and_compare(delivered: &Delivered, len: u64, pause: Duration) -> anyhow::Result<()> {
    let mut stream = delivered.session(CLIENT4.parse()?)?;
    stream.write_all(format!("{len}\n").as_bytes())?;
    let received = receive(&stream, pause)?;
    let expected = Digest::of_pattern(len);
    ensure!(received == expected, "received {received}, expected {expected}");
    Ok(())
}

/// Sends the pattern. Returns the report of the sent bytes.
fn send_pattern(stream: &mut TcpStream, len: u64) -> anyhow::Result<String> {
    let (mut pattern, mut digest) = (Pattern::default(), Digest::default());
    let mut buffer = vec![0; BUFFER];
    while digest.count() < len {
        let part = usize::try_from(len - digest.count()).unwrap_or(BUFFER).min(BUFFER);
        pattern.fill(&mut buffer[..part]);
        digest.update(&buffer[..part]);
        stream.write_all(&buffer[..part]).with_context(|| format!("after {} bytes", digest.count()))?;
    }
    Ok(digest.report())
}

/// Reads to the end, with a pause after each 64 KiB. Returns the report of the received bytes.
fn receive(mut stream: &TcpStream, pause: Duration) -> anyhow::Result<String> {
    let mut digest = Digest::default();
    let mut buffer = vec![0; BUFFER];
    loop {
        match stream.read(&mut buffer).with_context(|| format!("after {} bytes", digest.count()))? {
            0 => return Ok(digest.report()),
            count => digest.update(&buffer[..count]),
        }
        thread::sleep(pause);
    }
}
