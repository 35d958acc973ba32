//! The cost of attach for one thread that is both ends of a connection over the loopback: its own CPU time,
//! which includes the kernel's work for both, and no scheduler between them. The kernel's hooks are in it,
//! which no program's account has (`attach_cost`). Needs root.
//!
//! `cargo run -p truepeer-bpf --example attach_both_ends -- [PROGRAM]...`: each is a truepeer; they take
//! turns, with none beside them.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, NetNs, client, ip_here};

/// Of each, the least is told.
const TURNS: usize = 5;
const ROUNDS: usize = 500;
const EXCHANGES: u32 = 100;
const CONNECTIONS: u32 = 20;
/// Of two lengths, so that numbers are translated.
const HEADERS: [&[u8]; 2] =
    [b"PROXY TCP4 203.0.113.7 192.0.2.1 5000 80\r\n", b"PROXY TCP4 203.0.113.77 192.0.2.1 5000 80\r\n"];
const BACKEND: ([u8; 4], u16) = ([127, 0, 0, 1], 80);

/// One round of a load, with a header or without.
type Load = fn(&TcpListener, bool) -> Result<u64>;

const LOADS: [(&str, Load); 4] = [
    ("64 bytes there and back, no packet altered", |listener, has| exchange(listener, has, false)),
    ("64 bytes there and back, numbers translated", |listener, has| exchange(listener, has, true)),
    ("a connection, header and first byte together", |listener, has| connect(listener, has, true)),
    ("a connection, header alone in its segment", |listener, has| connect(listener, has, false)),
];

fn main() -> ExitCode {
    truepeer_testbed::run_privately("attach_both_ends", |bed| {
        let programs: Vec<Option<PathBuf>> =
            std::iter::once(None).chain(env::args().skip(1).map(|path| Some(path.into()))).collect();
        for (name, load) in LOADS {
            println!("{name}, ns:");
            let mut least = vec![u64::MAX; programs.len()];
            for _ in 0..TURNS {
                for (program, least) in programs.iter().zip(&mut least) {
                    *least = turn(bed, program.as_ref(), load)?.min(*least);
                }
            }
            for (program, least) in programs.iter().zip(least) {
                let name = program.as_ref().map_or("nothing attached".into(), |path| path.to_string_lossy());
                println!("  {least:6}  {name}");
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn turn(bed: &Bed, program: Option<&PathBuf>, load: Load) -> Result<u64> {
    let netns = NetNs::create()?;
    netns.run(|| -> Result<()> {
        ip_here(&["link set lo up"])?;
        // Each connection leaves its port in TIME_WAIT.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")?;
        Ok(fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "500")?)
    })??;
    if let Some(program) = program {
        let args = ["--port", "80", "--allow", "127.0.0.1", "--dev", "lo"];
        ByAttach::new(program).command(bed, &args)?.in_netns(&netns).run(bed)?;
    }
    let nanoseconds =
        netns.run(|| load(&TcpListener::bind(SocketAddr::from(BACKEND))?, program.is_some()))??;
    if let Some(program) = program {
        ByAttach::new(program).command(bed, &["detach", "--now"])?.in_netns(&netns).run(bed)?;
    }
    Ok(nanoseconds)
}

/// The tenth of all rounds, by what one time costs.
fn tenth(times: u32, mut work: impl FnMut(u32) -> Result<()>) -> Result<u64> {
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
    };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let begun = now();
        (0..times).try_for_each(&mut work)?;
        rounds.push((now() - begun) / u64::from(times));
    }
    rounds.sort_unstable();
    rounds.get(ROUNDS / 10).copied().context("no round")
}

fn pass_on(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut read = [0; 64];
    from.write_all(bytes)?;
    let len = to.read(&mut read)?;
    ensure!(read.get(..len) == Some(bytes), "{len} bytes came");
    Ok(())
}

fn open(listener: &TcpListener, first: &[u8]) -> Result<(TcpStream, TcpStream)> {
    let mut client = client::connect(listener.local_addr()?)?;
    client.set_nodelay(true)?;
    client.write_all(first)?;
    let (server, _) = listener.accept()?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

fn exchange(listener: &TcpListener, has_header: bool, is_translated: bool) -> Result<u64> {
    let header = |which: usize| if has_header { HEADERS[which] } else { b"" };
    drop(open(listener, header(0))?);
    let (mut client, mut server) = open(listener, header(is_translated.into()))?;
    tenth(EXCHANGES, |_| {
        pass_on(&mut client, &mut server, &[b'!'; 64])?;
        pass_on(&mut server, &mut client, &[b'!'; 64])
    })
}

fn connect(listener: &TcpListener, has_header: bool, is_together: bool) -> Result<u64> {
    tenth(CONNECTIONS, |number| {
        let header =
            if has_header { HEADERS[if is_together { number as usize % 2 } else { 0 }] } else { b"" };
        let first: &[u8] = if is_together { b"!" } else { b"" };
        let (mut client, mut server) = open(listener, &[header, first].concat())?;
        if is_together {
            let mut byte = [0; 64];
            ensure!(server.read(&mut byte)? == 1, "more than a byte came");
        } else {
            pass_on(&mut client, &mut server, b"!")?;
        }
        pass_on(&mut server, &mut client, b"!")?;
        drop(client);
        drop(server);
        Ok(())
    })
}
