//! A link that damages, reorders, duplicates and loses packets: every connection shows its own client and
//! delivers exactly its bytes.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use socket2::{Domain, SockAddr, Socket, Type};
use truepeer_testbed::account::{self, account_of, data_of, read_account};
use truepeer_testbed::chance::Chance;
use truepeer_testbed::crowd::{in_parallel, nth_client};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::packets::{BadLink, Mischief};
use truepeer_testbed::peers::{Place, classic_rules, over_tcp, peer};
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, client};

/// Of 1000 segments, this many are damaged, as many delayed, as many duplicated, and as many lost.
const SHARE: usize = 50;
/// How long a connection may stand still. One segment in ten is lost or damaged, and each repetition waits
/// twice as long, at most 120 s. From the kernel's slowest first timer (3 s), 400 s allow eight tries: all
/// fail with a chance of 10^-8. At most two segments of a connection are waited for by that timer, in one
/// connection of ten: 2 * 10^-4 for 100,000 connections.
const STALL: Duration = Duration::from_secs(400);
/// Bad luck alone must not cause a refusal.
const HEADER_TIMEOUT: &str = "390s";
/// How often a SYN is sent. By default seven times: one run of 100,000 connections in a hundred would lose
/// all of one.
const SYNS: &str = "12";
/// Nearly all of them wait for a timer at any time.
const PARALLEL: usize = 150;
const SOURCES: u8 = 16;

pub(crate) fn tests() -> Vec<Test> {
    let few = 200;
    let many =
        std::env::var("TRUEPEER_CONNECTIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(100_000);
    let limit = |count: usize| Duration::from_secs(500 + count as u64 / 40);
    let test = |name: &str, count: usize, way: fn(&Bed, usize) -> Result<()>| {
        Test::new(name, move |bed| way(bed, count))
            .of_group("bad_link")
            .time_limit(limit(count))
            .needs_program("ethtool")
    };
    vec![
        test("attach_names_every_client", few, by_attach),
        test("proxy_names_every_client", few, by_proxy),
        test("attach_names_every_client_of_100_000", many, by_attach).long().alone(),
        test("proxy_names_every_client_of_100_000", many, by_proxy).long().alone(),
    ]
}

fn by_attach(bed: &Bed, count: usize) -> Result<()> {
    let link = BadLink::make(bed, Mischief::of_each(SHARE), 1)?;
    let host = &link.right;
    let _backend =
        account::behaviour().start_program(bed, &["[::ffff:0.0.0.0]:80", "[::]:80"], |program| {
            program.in_netns(&host.netns)
        })?;
    let args = ["--port", "80", "--allow", "any", "--header-timeout", HEADER_TIMEOUT];
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, &args)?.in_netns(&host.netns).run(bed)?;
    all_are_right(bed, &link, [host.at(false, 80), host.at(true, 80)], count)
        .with_context(|| counted(bed, &link))
}

/// Counters of truepeer and the kernel that may explain a failure.
fn counted(bed: &Bed, link: &BadLink) -> String {
    let status = ByAttach::new(env!("CARGO_BIN_EXE_truepeer"))
        .command(bed, &["status"])
        .and_then(|command| command.in_netns(&link.right.netns).run(bed));
    let sockets: Vec<String> = [&link.left, &link.right]
        .map(|host| Program::new("ss").args(["-tanoi"]).in_netns(&host.netns).run(bed).unwrap_or_default())
        .map(|all| {
            all.lines().filter(|line| !line.starts_with("TIME-WAIT")).take(40).collect::<Vec<_>>().join("\n")
        })
        .into();
    let kernel = link.right.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"));
    format!(
        "{}\n{}\n{}",
        status.unwrap_or_default(),
        sockets.join("\n"),
        kernel.ok().and_then(Result::ok).unwrap_or_default()
    )
}

fn by_proxy(bed: &Bed, count: usize) -> Result<()> {
    let link = BadLink::make(bed, Mischief::of_each(SHARE), 2)?;
    let host = &link.right;
    let _backend = account::behaviour()
        .start_program(bed, &["127.0.0.1:80", "[::1]:80"], |program| program.in_netns(&host.netns))?;
    let _proxy = start_proxy(bed, &link)?;
    all_are_right(bed, &link, [host.at(false, 8443), host.at(true, 8443)], count)
}

/// Truepeer, or a peer that `FAULTS_OF` names.
fn start_proxy(bed: &Bed, link: &BadLink) -> Result<Running> {
    if let Some(name) = peer() {
        let place = Place { listen: "[::]:8443", ipv4: "127.0.0.1:80", ipv6: "[::1]:80" };
        let peer = link.right.run(|| -> Result<Running> {
            classic_rules(bed)?;
            over_tcp(bed, &name, place)?.start(bed)
        })??;
        peer.wait_listening(place.listen)?;
        return Ok(peer);
    }
    Truepeer::of(Program::new(env!("CARGO_BIN_EXE_truepeer")).arg("proxy"))
        .ipv4("127.0.0.1:80")
        .ipv6("[::1]:80")
        .allow("any")
        .option("--header-timeout", HEADER_TIMEOUT)
        .listen(link.right.at(false, 8443))
        .listen(link.right.at(true, 8443))
        .with(|program| program.in_netns(&link.right.netns))
        .start(bed)
}

/// Connections of both families, from several addresses, with headers of all kinds in parts of all sizes.
fn all_are_right(bed: &Bed, link: &BadLink, to: [SocketAddr; 2], count: usize) -> Result<()> {
    let sources: Vec<String> =
        (0..SOURCES).flat_map(|n| [source(false, n), source(true, n)]).map(add_address).collect();
    link.left.ip(&sources.iter().map(String::as_str).collect::<Vec<_>>())?;
    let deeds = &link.deeds;
    let times = Mutex::new(Vec::with_capacity(count));
    let failures = Mutex::new(Vec::new());
    link.left.run(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "10000 65000")?;
        std::fs::write("/proc/sys/net/ipv4/tcp_syn_retries", SYNS)?;
        in_parallel(PARALLEL.min(count), count, |n| {
            let began = Instant::now();
            let outcome = is_right(n, to);
            times.lock().unwrap_or_else(PoisonError::into_inner).push(began.elapsed());
            if let Err(error) = outcome {
                let failure = format!("number {n}: {error:#}");
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
            }
            Ok(())
        })
    })??;
    let hit =
        [&deeds.damaged, &deeds.late, &deeds.doubled, &deeds.lost].map(|deed| deed.load(Ordering::Relaxed));
    let carried = deeds.carried.load(Ordering::Relaxed);
    let program = peer().unwrap_or_else(|| "truepeer".into());
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{program}: {}: {count} connections, {} failed; {carried} segments; damaged, late, doubled, lost: {hit:?}",
        bed.name(),
        failures.len()
    );
    let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable();
    let part = |of_1000: usize| times.get(times.len() * of_1000 / 1000).copied().unwrap_or_default();
    println!(
        "a connection took {:?}; the slowest of 10 {:?}, of 100 {:?}, of 1000 {:?}, of all {:?}",
        part(500),
        part(900),
        part(990),
        part(999),
        times.last()
    );
    ensure!(failures.is_empty(), "{}", failures.iter().take(20).cloned().collect::<Vec<_>>().join("\n"));
    ensure!(hit.iter().all(|deed| *deed > carried / 40), "the link was too good: {hit:?} of {carried}");
    Ok(())
}

fn source(v6: bool, n: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 1, n.into()).into()
    } else {
        Ipv4Addr::new(10, 77, 0, 100 + n).into()
    }
}

fn add_address(ip: IpAddr) -> String {
    if ip.is_ipv6() {
        format!("addr add {ip}/128 dev wire nodad")
    } else {
        format!("addr add {ip}/32 dev wire")
    }
}

fn is_right(n: usize, to: [SocketAddr; 2]) -> Result<()> {
    let mut chance = Chance::new(n as u64);
    let v6 = chance.below(2) == 1;
    let client = nth_client(n);
    let len = chance.below(if n.is_multiple_of(50) { 100_000 } else { 4000 });
    let header = header(&client, &mut chance)?;
    let from = source(v6, u8::try_from(chance.below(SOURCES.into()))?);
    let mut stream = connect(from, to[usize::from(v6)])?;
    // The header whole, alone, or in parts; then the data. Not all peers take a header in parts, and none
    // must (PROXY 2.2).
    let within_the_header = if peer().is_none() { chance.below(header.len() + 1) } else { 0 };
    let data = data_of(client, len);
    let bytes = [header.as_slice(), &data].concat();
    let mut at = 0;
    for cut in [within_the_header, header.len(), header.len() + chance.below(data.len() + 1)] {
        if chance.below(3) == 0 {
            stream.write_all(&bytes[at..cut.max(at)]).context("write")?;
            at = cut.max(at);
        }
    }
    stream.write_all(&bytes[at..]).context("write")?;
    let (answer, end) = read_account(&mut stream);
    end.with_context(|| {
        format!(
            "after {answer:?}, {} of {client}",
            stream.local_addr().map(|own| own.to_string()).unwrap_or_default()
        )
    })?;
    let expected = account_of(client, &data);
    ensure!(answer == expected, "{answer:?}, not {expected:?}");
    Ok(())
}

/// Headers of several lengths, so that guesses are often wrong.
fn header(client: &SocketAddr, chance: &mut Chance) -> Result<Vec<u8>> {
    let destination = "192.0.2.1:443";
    match chance.below(4) {
        // NGINX takes no header of more than 107 bytes.
        1 if peer().is_some() => client::v2(client, destination),
        0 => client::v1(client, destination),
        1 => {
            let len = chance.below(300);
            let tlv = chance.bytes(len);
            client::v2_with_tlvs(client, destination, &[(0xE0, &tlv)])
        }
        _ => client::v2(client, destination),
    }
}

fn connect(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::new(from, 0))).with_context(|| format!("bind {from}"))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect_timeout(&SockAddr::from(to), STALL).with_context(|| format!("connect from {from}"))?;
    socket.set_read_timeout(Some(STALL))?;
    Ok(socket.into())
}
