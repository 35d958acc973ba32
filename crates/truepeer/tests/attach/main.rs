//! `truepeer attach`: what is its own and not every way's, see `matrix` for that.

mod accept_queue;
mod io_uring;
mod surroundings;
mod udp;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::servers::{Haproxy, Nginx, Redis, curl};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, client, tests};

const BACKEND: &str = "[::ffff:127.0.0.1]:80";
const LISTENER: &str = "127.0.0.1:80";
const DESTINATION: &str = "192.0.2.1:443";

fn attach(bed: &Bed, args: &[&str]) -> anyhow::Result<String> {
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, args)?.run(bed)
}

fn start(bed: &Bed, args: &[&str]) -> anyhow::Result<String> {
    attach(bed, &[&["--port", "80"], args].concat())
}

fn status(bed: &Bed) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&attach(bed, &["status", "--json"])?)?)
}

fn counter(bed: &Bed, name: &str) -> anyhow::Result<u64> {
    let status = status(bed)?;
    status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

fn open(bed: &Bed, kind: &str) -> anyhow::Result<u64> {
    status(bed)?["ports"][0][kind].as_u64().context("a port's state")
}

fn header(client: &str) -> anyhow::Result<Vec<u8>> {
    client::v2(client, DESTINATION)
}

/// A header of another length than the one before, so that the guess is wrong.
fn longer_header(client: &str) -> anyhow::Result<Vec<u8>> {
    client::v2_with_tlvs(client, DESTINATION, &[(4, b"a few bytes more")])
}

fn session(header: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(header)?;
    Ok(stream)
}

/// Sends a byte and gets it back: the session is up.
fn is_answered(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut byte = [0];
    stream.write_all(b"x")?;
    stream.read_exact(&mut byte).context("the echo")?;
    ensure!(&byte == b"x");
    Ok(())
}

fn echo(bed: &Bed) -> anyhow::Result<Running> {
    Behaviour::Echo.start(bed, &[BACKEND])
}

/// A sender's first header is guessed to be a plain v2 one, the next ones as long as the one before.
fn a_right_guess_alters_no_packet(bed: &Bed) -> anyhow::Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = Vec::new();
    let clients = ["203.0.113.1:1001", "203.0.113.1:1002", "203.0.113.1:1003"];
    for (client, header) in clients.iter().zip([header, longer_header, longer_header]) {
        let mut stream = session(&header(client)?)?;
        is_answered(&mut stream)?;
        open.push(stream);
    }
    let counted = status(bed)?["ports"][0].clone();
    ensure!(counted["translated"] == 1 && counted["untouched"] == 2, "{counted}");
    ensure!(clients.iter().all(|client| echo.log().contains(&format!("{client} "))));
    Ok(())
}

fn flows_end_with_their_sockets(bed: &Bed) -> anyhow::Result<()> {
    let _echo = echo(bed)?;
    start(bed, &[])?;
    for round in 0..20 {
        let mut stream = session(&header("203.0.113.1:1001")?)?;
        is_answered(&mut stream)?;
        if round % 2 == 0 { client::reset(stream)? } else { drop(client::ask(&mut stream, b"")?) }
    }
    all_flows_end(bed)
}

fn all_flows_end(bed: &Bed) -> anyhow::Result<()> {
    bed.wait_for("all flows forgotten", || {
        open(bed, "translated").is_ok_and(|count| count == 0)
            && open(bed, "untouched").is_ok_and(|count| count == 0)
    })
}

/// A socket keeps its client's name though it is reset before accept(), and though another connection has its
/// addresses by then.
fn a_name_belongs_to_its_socket(bed: &Bed) -> anyhow::Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    start(bed, &[])?;
    let clients = ["203.0.113.1:1001", "203.0.113.2:1002", "203.0.113.3:1003"];
    for client in clients {
        let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
        stream.write_all(&[&header(client)?, b"data".as_slice()].concat())?;
        truepeer_testbed::sockets::wait_until_sent(&stream)?;
        client::reset(stream)?;
        all_flows_end(bed)?;
    }
    for client in clients {
        let (_, seen) = listener.accept()?;
        ensure!(seen.to_string() == client, "{client} was seen as {seen}");
    }
    Ok(())
}

fn a_connection_from_before_is_untouched(bed: &Bed) -> anyhow::Result<()> {
    let _echo = echo(bed)?;
    let mut before = session(b"")?;
    is_answered(&mut before)?;
    start(bed, &[])?;
    is_answered(&mut before)?;
    ensure!(client::ask(&mut before, b"PROXY is only a word here")? == "PROXY is only a word here");
    Ok(())
}

fn others_than_the_senders_pass_untouched(bed: &Bed) -> anyhow::Result<()> {
    let echo = echo(bed)?;
    start(bed, &["--allow", "10.0.0.0/8"])?;
    let line = client::v1("203.0.113.1:1001", DESTINATION)?;
    let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
    ensure!(client::ask(&mut stream, &line)?.as_bytes() == line);
    ensure!(echo.log().contains("127.0.0.9:4000 accepted"));
    ensure!(counter(bed, "not_a_sender")? == 1);
    Ok(())
}

fn rules_are_changed_while_it_runs(bed: &Bed) -> anyhow::Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let deny = bed.write("deny", "203.0.113.0/25\n")?;
    let said = start(bed, &["--deny-clients", &deny.to_string_lossy()])?;
    ensure!(said.contains("1 open connections go on"), "{said}");
    let mut denied = session(&header("203.0.113.1:1002")?)?;
    ensure!(client::read_end(&mut denied)? == client::End::Reset);
    let mut allowed = session(&header("203.0.113.200:1003")?)?;
    is_answered(&mut allowed)?;
    is_answered(&mut open)?;
    ensure!(!echo.log().contains("203.0.113.1:1002"));
    ensure!(counter(bed, "refused_denied")? == 1);
    Ok(())
}

fn refusals_are_counted_by_reason(bed: &Bed) -> anyhow::Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let too_long = client::v2_with_tlvs("203.0.113.1:1", DESTINATION, &[(4, &[0; 20_000])])?;
    let refused: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n\r\n", "refused_no_header"),
        (b"PROXY TCP4 1.2.3.4.5 1.2.3.4 1 2\r\n", "refused_malformed"),
        (&client::v2_raw(0x21, 0x11, &[])?, "refused_malformed"),
        (&header("127.0.0.1:1")?, "refused_claim"),
        (&too_long, "refused_too_long"),
    ];
    for (bytes, _) in &refused {
        let mut stream = client::connect(LISTENER)?;
        let _ = stream.write_all(bytes); // a reset may be faster than the end of a long one
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", bytes.escape_ascii());
    }
    for (_, reason) in &refused {
        let expected = refused.iter().filter(|(_, other)| other == reason).count() as u64;
        ensure!(counter(bed, reason)? == expected, "{reason}: {}", status(bed)?);
    }
    ensure!(!echo.log().contains("accepted"));
    Ok(())
}

fn a_server_that_speaks_first_waits_a_second_for_an_optional_header(bed: &Bed) -> anyhow::Result<()> {
    let banner = Behaviour::Banner.start(bed, &[BACKEND])?;
    start(bed, &["--header", "optional"])?;
    let begin = Instant::now();
    let mut silent = client::connect_from("127.0.0.9:4000", LISTENER)?;
    let said = client::ask(&mut silent, b"")?;
    ensure!(said.starts_with("SSH-2.0-testbed 127.0.0.9:4000"), "{said:?}");
    let mut silent = client::connect_from("127.0.0.9:4001", LISTENER)?;
    silent.read_exact(&mut [0; 8]).context("the banner without a word of ours")?;
    ensure!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    let mut speaking = client::connect_from("127.0.0.9:4002", LISTENER)?;
    ensure!(client::ask(&mut speaking, b"GET /")?.ends_with("GET /"));
    let named = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(named.starts_with("SSH-2.0-testbed 203.0.113.1:1001"), "{named:?}");
    banner.wait_for_log("127.0.0.9:4001 accepted")
}

fn an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:80"])?;
    start(bed, &[])?;
    let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
    let saw = client::ask(&mut stream, &client::v2("[2001:db8::7]:5000", "[2001:db8::1]:443")?)?;
    ensure!(saw.trim() == "127.0.0.9:4000", "{saw:?}");
    ensure!(counter(bed, "client_not_showable")? == 1);
    Ok(())
}

fn syn_cookies_take_whole_headers_and_refuse_split_ones(bed: &Bed) -> anyhow::Result<()> {
    let who = Behaviour::Who.start(bed, &[BACKEND])?;
    std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").context("tcp_syncookies")?;
    start(bed, &[])?;
    for port in [1001, 1002] {
        let client = format!("203.0.113.1:{port}");
        let saw = client::ask(&mut session(&header(&client)?)?, b"data")?;
        ensure!(saw.trim() == client, "{saw:?}");
    }
    let mut split = session(&header("203.0.113.1:1003")?[..20])?;
    ensure!(client::read_end(&mut split)? == client::End::Reset);
    ensure!(counter(bed, "refused_split_under_syn_cookies")? == 1);
    ensure!(!who.log().contains("1003"));
    Ok(())
}

fn detach_waits_for_open_connections(bed: &Bed) -> anyhow::Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let detach = ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, &["detach"])?.start(bed)?;
    detach.wait_for_log("waiting for 1 open")?;
    // New ones are no longer ours, the old one still is.
    let line = client::v1("203.0.113.2:1002", DESTINATION)?;
    ensure!(client::ask(&mut session(&line)?, b"")?.as_bytes() == line);
    let bytes = Pattern::bytes(1_000_000);
    let mut writer = open.try_clone()?;
    let sending = std::thread::spawn(move || writer.write_all(&bytes));
    let mut back = vec![0; 1_000_000];
    open.read_exact(&mut back)?;
    sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
    let mut digest = Digest::default();
    digest.update(&back);
    ensure!(digest.report() == Digest::of_pattern(1_000_000));
    ensure!(client::ask(&mut open, b"end")? == "end");
    ensure!(detach.wait_end()?.success(), "{}", detach.log());
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    ensure!(!echo.log().contains("203.0.113.2"));
    Ok(())
}

fn an_upgrade_under_load_loses_nothing(bed: &Bed) -> anyhow::Result<()> {
    let _digest = Behaviour::Digest.start(bed, &[BACKEND])?;
    start(bed, &[])?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> anyhow::Result<u16> {
            let (bytes, expected) = (Pattern::bytes(200_000), Digest::of_pattern(200_000));
            let mut done = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let client = format!("203.0.113.1:{}", 2000 + done);
                let header = if done % 3 == 0 { longer_header(&client)? } else { header(&client)? };
                let answer = client::ask(&mut session(&header)?, &bytes)?;
                ensure!(answer.trim() == expected, "{client}: {answer:?}");
                done += 1;
            }
            Ok(done)
        });
        let upgrades = (0..5).try_for_each(|_| start(bed, &[]).map(drop));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let done = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        ensure!(done > 10, "only {done} connections met the upgrades");
        upgrades
    })
}

fn a_dry_run_changes_nothing(bed: &Bed) -> anyhow::Result<()> {
    let said = start(bed, &["--dry-run", "--allow", "10.0.0.0/8"])?;
    ensure!(said.contains("tc ingress lo: tcp_ingress") && said.contains("senders: 10.0.0.0/8"), "{said}");
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    Ok(())
}

fn what_is_forwarded_is_left_alone(bed: &Bed) -> anyhow::Result<()> {
    let line = truepeer_testbed::Topology::line(&["lb", "router", "backend"])?;
    let to: SocketAddr = line.host("backend").at(false, 80);
    let (router, far) = (&line.host("router").netns, &line.host("backend").netns);
    // A listener on every address of the router would take them, if they were for it.
    let _trap = Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(router))?;
    let _echo = Behaviour::Echo.start_program(bed, &[to], |program| program.in_netns(far))?;
    let command = ByAttach::new(env!("CARGO_BIN_EXE_truepeer"));
    command.command(bed, &["--port", "80", "--allow", "any"])?.in_netns(router).run(bed)?;
    let header = client::v1("203.0.113.1:1001", DESTINATION)?;
    let answer = line.host("lb").run(|| client::ask(&mut client::connect(to)?, &header))??;
    ensure!(answer.as_bytes() == header, "{answer:?}");
    Ok(())
}

/// Bulk both ways over a link that aggregates (GRO, TSO) and one that doesn't, translated and not.
fn links_with_and_without_offloads_carry_everything(bed: &Bed) -> anyhow::Result<()> {
    let line = truepeer_testbed::Topology::line(&["lb", "backend"])?;
    let (lb, host) = (line.host("lb"), line.host("backend"));
    let _digest =
        Behaviour::Digest.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    let command = ByAttach::new(env!("CARGO_BIN_EXE_truepeer"));
    command.command(bed, &["--port", "80", "--allow", "any"])?.in_netns(&host.netns).run(bed)?;
    let bytes = Pattern::bytes(10_000_000);
    for (offloads, port) in [("on", 1000), ("off", 2000)] {
        for (host, device) in [(lb, "backend"), (host, "lb")] {
            let set = ["-K", device, "gro", offloads, "tso", offloads, "gso", offloads, "tx", offloads];
            Program::new("ethtool").args(set).in_netns(&host.netns).run(bed)?;
        }
        for n in 0..6 {
            let client = format!("203.0.113.1:{}", port + n);
            let header = if n % 2 == 0 { longer_header(&client)? } else { header(&client)? };
            let answer = lb.run(|| {
                let mut stream = client::connect(host.at(false, 80))?;
                stream.write_all(&header)?;
                client::ask(&mut stream, &bytes)
            })??;
            ensure!(answer.trim() == Digest::of_pattern(10_000_000), "{offloads}, {client}: {answer:?}");
        }
    }
    Ok(())
}

/// One packet of a hundred is lost in each direction, after the sender and before the programs; translated and not.
fn what_is_lost_is_sent_again(bed: &Bed) -> anyhow::Result<()> {
    let line = truepeer_testbed::Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, host) = (line.host("lb"), line.host("router"), line.host("backend"));
    let drop = "table inet loss { chain forward { type filter hook forward priority 0; numgen random mod 100 < 1 drop; }; }";
    Program::new("nft").arg(drop).in_netns(&router.netns).run(bed)?;
    let _echo =
        Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    let command = ByAttach::new(env!("CARGO_BIN_EXE_truepeer"));
    command.command(bed, &["--port", "80", "--allow", "any"])?.in_netns(&host.netns).run(bed)?;
    for n in 0..30_u16 {
        let client = format!("203.0.113.1:{}", 1000 + n);
        let header = if n % 3 == 0 { longer_header(&client)? } else { header(&client)? };
        let report = lb.run(|| echo_in_parts(host.at(false, 80), &header, n % 2 == 0))??;
        ensure!(report == Digest::of_pattern(2_000_000), "{client}: {report}");
    }
    Ok(())
}

/// One packet of a hundred, in each direction, takes a lane of the link's queue that is slow, and is overtaken; translated and not.
fn what_is_overtaken_is_put_in_order(bed: &Bed) -> anyhow::Result<()> {
    let line = truepeer_testbed::Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, host) = (line.host("lb"), line.host("router"), line.host("backend"));
    for device in ["lb", "backend"] {
        // 6 ms for a packet of 1500 bytes.
        if let Err(error) = Program::new("/bin/sh")
            .args(["-ec", &SLOW_LANE.replace("DEVICE", device)])
            .in_netns(&router.netns)
            .run(bed)
        {
            return truepeer_testbed::skip(format!("this kernel has no htb queue: {error:#}"));
        }
    }
    let choose = "table inet lanes { chain forward { type filter hook forward priority 0; numgen random mod 100 < 1 meta priority set 0x10002; }; }";
    Program::new("nft").arg(choose).in_netns(&router.netns).run(bed)?;
    // Single packets, to be overtaken by many.
    for (host, device) in [(lb, "router"), (router, "lb"), (router, "backend"), (host, "router")] {
        Program::new("ethtool")
            .args(["-K", device, "gro", "off", "gso", "off", "tso", "off"])
            .in_netns(&host.netns)
            .run(bed)?;
    }
    let _echo =
        Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    let command = ByAttach::new(env!("CARGO_BIN_EXE_truepeer"));
    command.command(bed, &["--port", "80", "--allow", "any"])?.in_netns(&host.netns).run(bed)?;
    let mut n = 0_u16;
    // How many are overtaken is left to chance and the machine's pace.
    while n < 12 || out_of_order(lb)? < 20 || out_of_order(host)? < 20 {
        let client = format!("203.0.113.1:{}", 1000 + n);
        let header = if n.is_multiple_of(3) { longer_header(&client)? } else { header(&client)? };
        let report = lb.run(|| echo_in_parts(host.at(false, 80), &header, n.is_multiple_of(2)))??;
        ensure!(report == Digest::of_pattern(2_000_000), "{client}: {report}");
        n += 1;
    }
    Ok(())
}

const SLOW_LANE: &str = "\
tc qdisc add dev DEVICE root handle 1: htb default 1
tc class add dev DEVICE parent 1: classid 1:1 htb rate 100gbit quantum 60000
tc class add dev DEVICE parent 1: classid 1:2 htb rate 2mbit burst 1500 quantum 1500
";

/// How many segments a host has received before one that precedes them.
fn out_of_order(host: &truepeer_testbed::Host) -> anyhow::Result<u64> {
    let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/netstat"))??;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().context("names")?, lines.next().context("values")?);
    let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == "TCPOFOQueue");
    Ok(found.context("TCPOFOQueue")?.1.parse()?)
}

/// Sends a header, whole or in two segments, and two megabytes; digests the echo.
fn echo_in_parts(to: SocketAddr, header: &[u8], split: bool) -> anyhow::Result<String> {
    let mut stream = client::connect(to)?;
    let (first, second) = header.split_at(if split { 20 } else { 0 });
    stream.write_all(first)?;
    stream.write_all(second)?;
    let mut writer = stream.try_clone()?;
    let sending = std::thread::spawn(move || -> std::io::Result<()> {
        writer.write_all(&Pattern::bytes(2_000_000))?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
    let mut digest = Digest::default();
    digest.update(&back);
    Ok(digest.report())
}

/// A sender on a client's behalf: HAProxy's health checks and requests, NGINX as the running server.
fn haproxy_and_a_running_nginx(bed: &Bed) -> anyhow::Result<()> {
    let _nginx = Nginx::default().who(&["0.0.0.0:80", "[::]:80"]).start(bed)?;
    start(bed, &[])?;
    let _haproxy = Haproxy::default()
        .relay("127.0.0.1:81", "127.0.0.1:80", "send-proxy")
        .relay("127.0.0.1:82", "127.0.0.1:80", "send-proxy-v2")
        .relay("127.0.0.1:83", "[::1]:80", "send-proxy-v2")
        .start(bed)?;
    for port in [81, 82, 83] {
        let curl = curl(&format!("http://127.0.0.1:{port}/")).args(["--interface", "127.0.0.7"]);
        // A client on loopback, who may not be claimed by default.
        ensure!(curl.run(bed).is_err(), "a claim of loopback was let through on {port}");
    }
    start(bed, &["--allow-claims", "loopback"])?;
    for port in [81, 82, 83] {
        let curl = curl(&format!("http://127.0.0.1:{port}/")).args(["--interface", "127.0.0.7"]);
        let seen = Nginx::seen(&curl.run(bed)?)?;
        ensure!(seen.ip().to_canonical().to_string() == "127.0.0.7", "NGINX saw {seen} behind {port}");
    }
    Ok(())
}

fn a_running_redis_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _redis = Redis::start(bed, &["127.0.0.1", "::1"], 80)?;
    start(bed, &[])?;
    let mut stream = session(&header("203.0.113.1:1001")?)?;
    let answer = client::ask(&mut stream, b"CLIENT INFO\r\nQUIT\r\n")?;
    ensure!(answer.contains(" addr=203.0.113.1:1001 "), "{answer:?}");
    Ok(())
}

/// A running server of another language: the source, the words that run it, and how it listens.
fn a_running_server_names_the_client(
    bed: &Bed,
    file: &str,
    source: &str,
    runner: &[&str],
) -> anyhow::Result<()> {
    let file = bed.write(file, source)?;
    let server = Program::new(runner[0]).args(&runner[1..]).arg(file).start(bed)?;
    server.wait_listening(LISTENER)?;
    start(bed, &[])?;
    for (client, header) in [
        ("203.0.113.1:1001", header("203.0.113.1:1001")?),
        ("203.0.113.1:1002", header("203.0.113.1:1002")?),
        ("203.0.113.1:1003", longer_header("203.0.113.1:1003")?),
    ] {
        let saw = client::ask(&mut session(&header)?, b"")?;
        let expected = client.replace(':', " ");
        ensure!(saw.trim().trim_start_matches("::ffff:") == expected, "{client} was seen as {saw:?}");
    }
    Ok(())
}

fn a_running_python_server_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
import asyncio
async def answer(reader, writer):
    await reader.read()
    writer.write(('%s %d\\n' % writer.get_extra_info('peername')[:2]).encode())
    writer.close()
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 80)
    await server.serve_forever()
asyncio.run(main())
";
    a_running_server_names_the_client(bed, "server.py", source, &["python3"])
}

fn a_running_node_server_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
require('net').createServer({ allowHalfOpen: true }, socket => {
  socket.resume();
  socket.on('end', () => socket.end(`${socket.remoteAddress} ${socket.remotePort}\\n`));
}).listen(80, '::');
";
    a_running_server_names_the_client(bed, "server.js", source, &["node"])
}

fn a_running_java_server_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
public class Server {
  public static void main(String[] args) throws Exception {
    var listener = new java.net.ServerSocket(80);
    while (true) {
      try (var socket = listener.accept()) {
        socket.getInputStream().readAllBytes();
        var text = socket.getInetAddress().getHostAddress() + \" \" + socket.getPort() + \"\\n\";
        socket.getOutputStream().write(text.getBytes());
      }
    }
  }
}
";
    a_running_server_names_the_client(bed, "Server.java", source, &["java"])
}

/// Static, and its listeners are MPTCP sockets.
fn a_running_go_server_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
package main

import (
\t\"fmt\"
\t\"io\"
\t\"net\"
)

func main() {
\tlistener, err := net.Listen(\"tcp\", \":80\")
\tif err != nil {
\t\tpanic(err)
\t}
\tfor {
\t\tconn, err := listener.Accept()
\t\tif err != nil {
\t\t\tpanic(err)
\t\t}
\t\tgo func() {
\t\t\tdefer conn.Close()
\t\t\tio.Copy(io.Discard, conn)
\t\t\tpeer := conn.RemoteAddr().(*net.TCPAddr)
\t\t\tfmt.Fprintf(conn, \"%s %d\\n\", peer.IP, peer.Port)
\t\t}()
\t}
}
";
    let go = ["env", "CGO_ENABLED=0", "HOME=/tmp", "GOFLAGS=-mod=mod", "go", "run"];
    a_running_server_names_the_client(bed, "server.go", source, &go)
}

type Body = fn(&Bed) -> anyhow::Result<()>;

fn main() -> ExitCode {
    if let Some(status) = io_uring::run_if_asked() {
        return status;
    }
    let mut all = tests![
        a_right_guess_alters_no_packet,
        flows_end_with_their_sockets,
        a_name_belongs_to_its_socket,
        a_connection_from_before_is_untouched,
        others_than_the_senders_pass_untouched,
        rules_are_changed_while_it_runs,
        refusals_are_counted_by_reason,
        a_server_that_speaks_first_waits_a_second_for_an_optional_header,
        an_ipv6_client_keeps_the_senders_address_on_an_ipv4_socket,
        syn_cookies_take_whole_headers_and_refuse_split_ones,
        detach_waits_for_open_connections,
        an_upgrade_under_load_loses_nothing,
        a_dry_run_changes_nothing,
        what_is_forwarded_is_left_alone,
    ];
    all.push(Test::new(
        "a_running_io_uring_server_names_the_client",
        io_uring::a_running_io_uring_server_names_the_client,
    ));
    let offloads = Test::new(
        "links_with_and_without_offloads_carry_everything",
        links_with_and_without_offloads_carry_everything,
    );
    all.push(offloads.needs_program("ethtool"));
    all.push(Test::new("what_is_lost_is_sent_again", what_is_lost_is_sent_again).needs_program("nft"));
    all.push(
        Test::new("what_is_overtaken_is_put_in_order", what_is_overtaken_is_put_in_order)
            .needs_program("nft")
            .needs_program("tc")
            .needs_program("ethtool"),
    );
    all.push(Test::new("haproxy_and_a_running_nginx", haproxy_and_a_running_nginx));
    all.push(Test::new("a_running_redis_names_the_client", a_running_redis_names_the_client));
    let languages: [(&str, &str, Body); 4] = [
        ("a_running_python_server_names_the_client", "python3", a_running_python_server_names_the_client),
        ("a_running_node_server_names_the_client", "node", a_running_node_server_names_the_client),
        ("a_running_java_server_names_the_client", "java", a_running_java_server_names_the_client),
        ("a_running_go_server_names_the_client", "go", a_running_go_server_names_the_client),
    ];
    all.extend(languages.map(|(name, program, run)| {
        Test::new(name, run).needs_program(program).time_limit(Duration::from_secs(180))
    }));
    all.extend(accept_queue::tests());
    all.extend(surroundings::tests());
    all.extend(udp::tests());
    truepeer_testbed::main(all)
}
