//! Random sessions: chunks of any size, readers at any pace, ends at any time. No wake-up may get lost
//! between copying and splicing, and no byte where one changes to the other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::{Case, Deliver, Delivered};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::chance::Chance;
use crate::client;
use crate::crowd::{in_parallel, nth_client};
use crate::pattern::{Digest, Pattern};

pub(super) const CASES: &[Case] = &[
    Case::new("any_mixture_of_sizes_and_paces_arrives_whole", any_mixture_of_sizes_and_paces_arrives_whole)
        .adjusted(|test| test.time_limit(Duration::from_secs(120))),
    Case::new("long_mixtures_arrive_whole", long_mixtures_arrive_whole)
        .adjusted(|test| test.time_limit(Duration::from_secs(600)).long()),
];

/// Bytes in one write or read: within a segment, smaller and larger than the copy buffer, more than a pipe.
const SIZES: [usize; 8] = [1, 60, 1500, 4095, 4097, 65_536, 70_000, 400_000];

fn any_mixture_of_sizes_and_paces_arrives_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    mix(bed, by, 2000)
}

fn long_mixtures_arrive_whole(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    mix(bed, by, 20_000)
}

fn mix(bed: &Bed, by: &dyn Deliver, sessions: usize) -> anyhow::Result<()> {
    let echo = by.put_behind(bed, Behaviour::Echo, &[])?;
    in_parallel(12, sessions, |n| one_session(&echo, n))
}

/// Receive buffers smaller than a segment on loopback (64 KiB) would slow it down to the persist timer.
fn one_session(echo: &Delivered, n: usize) -> anyhow::Result<()> {
    let mut chance = Chance::new(n as u64);
    let mut stream = echo.session(nth_client(n))?;
    if chance.below(3) == 0 {
        socket2::SockRef::from(&stream).set_recv_buffer_size(chance.one_of(&[100_000, 400_000]))?;
    }
    if chance.below(10) == 0 {
        return break_off(stream, &mut chance);
    }
    let mut writer = stream.try_clone()?;
    let mut fate = chance.clone();
    let sending = thread::spawn(move || send(&mut writer, &mut fate));
    let received = receive(&mut stream, &mut chance)?;
    let sent = sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
    ensure!(received == sent, "sent {sent}, came back {received}");
    Ok(())
}

/// Some leave in the middle, which must not affect the others.
fn break_off(mut stream: TcpStream, chance: &mut Chance) -> anyhow::Result<()> {
    stream.write_all(&Pattern::bytes(chance.one_of(&SIZES)))?;
    if chance.below(2) == 0 {
        client::reset(stream)?;
    }
    Ok(())
}

fn send(stream: &mut TcpStream, chance: &mut Chance) -> anyhow::Result<String> {
    let (mut pattern, mut digest) = (Pattern::default(), Digest::default());
    for _ in 0..chance.below(12) {
        let mut chunk = vec![0; chance.one_of(&SIZES)];
        pattern.fill(&mut chunk);
        digest.update(&chunk);
        stream.write_all(&chunk).with_context(|| format!("write, after {} bytes", digest.count()))?;
        pause(chance);
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(digest.report())
}

fn receive(stream: &mut TcpStream, chance: &mut Chance) -> anyhow::Result<String> {
    let mut digest = Digest::default();
    loop {
        // Single bytes only for a while: half a megabyte of them would take too long.
        let size = if digest.count() < 1000 { chance.one_of(&SIZES) } else { chance.one_of(&SIZES[2..]) };
        let mut buffer = vec![0; size];
        match stream.read(&mut buffer).with_context(|| format!("read, after {} bytes", digest.count()))? {
            0 => return Ok(digest.report()),
            count => digest.update(&buffer[..count]),
        }
        pause(chance);
    }
}

/// The sleep makes this end slow.
fn pause(chance: &mut Chance) {
    if chance.below(4) == 0 {
        thread::sleep(Duration::from_micros(chance.next() % 2000));
    }
}
