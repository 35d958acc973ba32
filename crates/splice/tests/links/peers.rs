//! The two ends of a session. The first eight bytes tell the backend what will happen; both ends know each
//! byte that the other sends.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::SockRef;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::pattern::Pattern;

use crate::fates::Fates;

/// What is lost several times is sent again after seconds.
const STALL: Duration = Duration::from_secs(60);
/// Between two looks whether a session has left.
const MOMENT: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// One speaks, the other answers.
    Questions,
    /// Both write all the time.
    Bulk,
    /// Likewise, and read little at a time, with [small receive
    /// buffers](crate::stand::Stand::shrink_receive_buffers).
    Slow,
    /// One end resets the connection on its way.
    Reset,
}

/// What both ends do, made up by the number.
struct Plan {
    way: Way,
    chance: Chance,
    /// Bytes of each direction: up, down.
    lens: [usize; 2],
    rounds: usize,
    /// The end that ends first, or resets: 0 the sender's.
    first: usize,
}

impl Plan {
    fn new(way: Way, number: u64) -> Plan {
        let mut chance = Chance::new(number.wrapping_mul(0x1234_5677));
        let (least, most) = match way {
            Way::Questions => (1, 3000),
            Way::Bulk | Way::Reset => (1, 3_000_000),
            // A session takes up to a second to leave while its reader is slow; one that ends before stays.
            Way::Slow => (300_000, 1_000_000),
        };
        let lens = [0, 1].map(|_| least + chance.below(most - least));
        let rounds = 20 + chance.below(60);
        let first = chance.below(2);
        Plan { way, chance, lens, rounds, first }
    }
}

/// The sender's end.
pub(crate) fn talk(to: SocketAddr, way: Way, number: u64, fates: &Fates) -> Result<()> {
    let mut stream = truepeer_testbed::client::connect(to)?;
    let code = WAYS.iter().position(|one| *one == way).context("a way")? as u64;
    stream.write_all(&(number << 8 | code).to_be_bytes())?;
    let fate = Fate { fates: fates.clone(), port: stream.local_addr()?.port() };
    play(stream, Plan::new(way, number), 0, &fate).with_context(|| format!("the sender of {number}"))
}

/// What becomes of a session, for both of its peers.
#[derive(Clone)]
struct Fate {
    fates: Fates,
    port: u16,
}

impl Fate {
    fn is_decided(&self) -> bool {
        self.fates.is_decided(self.port)
    }
}

const WAYS: [Way; 4] = [Way::Questions, Way::Bulk, Way::Slow, Way::Reset];

pub(crate) struct Backend(Arc<Mutex<Vec<anyhow::Error>>>);

impl Backend {
    pub(crate) fn start(listener: TcpListener, fates: Fates) -> Result<Backend> {
        let complaints: Arc<Mutex<Vec<anyhow::Error>>> = Arc::default();
        let shared = Arc::clone(&complaints);
        thread::Builder::new().name("backend".into()).spawn(move || {
            while let Ok((stream, sender)) = listener.accept() {
                let shared = Arc::clone(&shared);
                let fate = Fate { fates: fates.clone(), port: sender.port() };
                thread::spawn(move || {
                    if let Err(error) = answer(stream, &fate) {
                        shared.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    }
                });
            }
        })?;
        Ok(Backend(complaints))
    }

    pub(crate) fn outcome(&self) -> Result<()> {
        let complaints = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match complaints.first() {
            None => Ok(()),
            Some(first) => bail!("{} complaints, the first: {first:#}", complaints.len()),
        }
    }
}

fn answer(mut stream: TcpStream, fate: &Fate) -> Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    let mut code = [0; 8];
    match stream.read_exact(&mut code) {
        // The sender has reset the session before these bytes were delivered; if it did not mean to, it
        // complains itself.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
        read => read.context("what will happen")?,
    }
    let code = u64::from_be_bytes(code);
    let way = WAYS[usize::from(code.to_be_bytes()[7]) % 4];
    play(stream, Plan::new(way, code >> 8), 1, fate).with_context(|| format!("the backend of {}", code >> 8))
}

fn play(stream: TcpStream, plan: Plan, end: usize, fate: &Fate) -> Result<()> {
    stream.set_read_timeout(Some(STALL))?;
    stream.set_write_timeout(Some(STALL))?;
    stream.set_nodelay(true)?;
    match plan.way {
        Way::Questions => questions(stream, plan, end, fate),
        Way::Bulk | Way::Slow => bulk(stream, plan, end, fate),
        Way::Reset => reset(stream, plan, end, fate),
    }
}

/// Each end writes when it has read; then the first one ends, and the other.
fn questions(mut stream: TcpStream, mut plan: Plan, end: usize, fate: &Fate) -> Result<()> {
    let (mut out, mut back) = (Pattern::default(), Pattern::default());
    for round in 0..plan.rounds {
        let lens = [0, 1].map(|side: usize| 1 + plan.chance.below(plan.lens[side]));
        let pause = plan.chance.below(6);
        for (turn, len) in lens.into_iter().enumerate() {
            if turn == end {
                let mut bytes = vec![0; len];
                out.fill(&mut bytes);
                thread::sleep(Duration::from_millis(pause as u64));
                stream.write_all(&bytes).with_context(|| format!("writing in round {round}"))?;
            } else {
                expect(&mut stream, &mut back, len).with_context(|| format!("in round {round}"))?;
            }
        }
    }
    ask_until_decided(&mut stream, end, fate).context("until it has left or stays")?;
    if plan.first == end {
        stream.shutdown(Shutdown::Write)?;
        expect_end(&mut stream)
    } else {
        expect_end(&mut stream)?;
        stream.shutdown(Shutdown::Write).context("shutdown")
    }
}

/// The sender asks on; a question that begins with 0 is the last one.
fn ask_until_decided(stream: &mut TcpStream, end: usize, fate: &Fate) -> Result<()> {
    let mut message = [1; 500];
    while message[0] != 0 {
        if end == 0 {
            message[0] = u8::from(!fate.is_decided());
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            thread::sleep(MOMENT);
        } else {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    }
    Ok(())
}

/// Each end writes on until the session has left or stays.
fn bulk(stream: TcpStream, mut plan: Plan, end: usize, fate: &Fate) -> Result<()> {
    let mut writing = stream.try_clone()?;
    let (len, seed) = (plan.lens[end], plan.chance.next());
    let is_slow = plan.way == Way::Slow;
    let undecided = fate.clone();
    let writer = thread::spawn(move || -> Result<()> {
        let mut out = Pattern::default();
        write_pattern(&mut writing, &mut out, len, Chance::new(seed), is_slow)?;
        let mut total = len;
        while !undecided.is_decided() {
            let mut more = [0; 1000];
            out.fill(&mut more);
            writing.write_all(&more).context("until it has left or stays")?;
            total += more.len();
            thread::sleep(MOMENT);
        }
        undecided.fates.wrote(undecided.port, end, total);
        writing.shutdown(Shutdown::Write).context("shutdown")
    });
    let mut reading = stream;
    let (mut back, mut total) = (Pattern::default(), 0);
    let mut buffer = vec![0; 100_000];
    loop {
        let most = if is_slow { 1 + plan.chance.below(5000) } else { buffer.len() };
        let read = reading.read(&mut buffer[..most]).with_context(|| format!("after {total} bytes"))?;
        if read == 0 {
            break;
        }
        let mut wanted = vec![0; read];
        back.fill(&mut wanted);
        let differs = buffer.iter().zip(&wanted).position(|(read, wanted)| read != wanted);
        ensure!(differs.is_none(), "byte {differs:?} behind {total} is another");
        total += read;
        if is_slow && plan.chance.below(20) == 0 {
            thread::sleep(Duration::from_millis(plan.chance.below(30) as u64));
        }
    }
    let written = fate.fates.total(fate.port, 1 - end);
    ensure!(total == written, "an end after {total} bytes of {written}");
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?.context("writing")
}

fn write_pattern(
    stream: &mut TcpStream,
    out: &mut Pattern,
    len: usize,
    mut chance: Chance,
    is_slow: bool,
) -> Result<()> {
    let mut left = len;
    while left > 0 {
        let mut bytes = vec![0; left.min(1 + chance.below(60_000))];
        out.fill(&mut bytes);
        stream.write_all(&bytes).with_context(|| format!("with {left} to go"))?;
        left -= bytes.len();
        if chance.below(if is_slow { 4 } else { 8 }) == 0 {
            thread::sleep(Duration::from_millis(chance.below(20) as u64));
        }
    }
    Ok(())
}

/// One end resets after some bytes; the other's bytes up to there are right, and then it learns of the reset,
/// not of an orderly end.
fn reset(mut stream: TcpStream, mut plan: Plan, end: usize, fate: &Fate) -> Result<()> {
    let seed = plan.chance.next();
    let after = Duration::from_millis(plan.chance.below(400) as u64);
    let waits = plan.chance.below(2) == 0;
    if plan.first == end {
        let mut writing = stream.try_clone()?;
        let endless = usize::MAX;
        let writer = thread::spawn(move || {
            write_pattern(&mut writing, &mut Pattern::default(), endless, Chance::new(seed), true)
        });
        thread::sleep(after);
        // If the session ends before, the writer does.
        while waits && !fate.is_decided() && !writer.is_finished() {
            thread::sleep(MOMENT);
        }
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        stream.shutdown(Shutdown::Read)?;
        // close() resets, but not while the writer holds the connection.
        let _ = rustix::net::connect_unspec(&stream);
        let _ = writer.join();
        return Ok(());
    }
    let mut back = Pattern::default();
    let mut buffer = vec![0; 50_000];
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut until = Instant::now() + STALL;
    while Instant::now() < until {
        match stream.read(&mut buffer) {
            Ok(0) => bail!("an orderly end instead of a reset"),
            Ok(read) => {
                let mut wanted = vec![0; read];
                back.fill(&mut wanted);
                ensure!(wanted == buffer[..read], "other bytes than were sent");
                until = Instant::now() + STALL;
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("waiting for the reset"),
        }
        // So that a reset which was lost is asked for.
        if let Err(error) = stream.write_all(&[7]) {
            ensure!(
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
                "writing: {error}"
            );
            return Ok(());
        }
    }
    bail!("no reset")
}

fn expect(stream: &mut TcpStream, pattern: &mut Pattern, len: usize) -> Result<()> {
    let (mut read, mut wanted) = (vec![0; len], vec![0; len]);
    pattern.fill(&mut wanted);
    stream.read_exact(&mut read).with_context(|| format!("reading {len} bytes"))?;
    let differs = read.iter().zip(&wanted).position(|(read, wanted)| read != wanted);
    ensure!(differs.is_none(), "byte {differs:?} of {len} is another");
    Ok(())
}

fn expect_end(stream: &mut TcpStream) -> Result<()> {
    let mut more = [0; 64];
    let read = stream.read(&mut more).context("waiting for the end")?;
    ensure!(read == 0, "{read} bytes behind the end");
    Ok(())
}
