//! Exhausted descriptors, pipes and memory; and the memory of an idle session.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::crowd::{gather, in_parallel, nth_client};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Behaviour, Running, Test, Truepeer, User, client, sockets};

use crate::stand::{BACKEND_V4, DOOR_V4, Stand, bare_proxy, header_of, open_as, proxy, proxy_without_routes};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "twenty_thousand_connections_against_1024_descriptors_are_survived",
            twenty_thousand_connections_against_1024_descriptors_are_survived,
        )
        .needs_open_files(6_000)
        .time_limit(Duration::from_secs(120))
        .alone(),
        Test::new(
            "open_sessions_continue_when_descriptors_run_out",
            open_sessions_continue_when_descriptors_run_out,
        ),
        Test::new(
            "two_truepeers_of_one_user_share_the_pipe_quota_and_lose_nothing",
            two_truepeers_of_one_user_share_the_pipe_quota_and_lose_nothing,
        )
        .needs_several_users()
        .time_limit(Duration::from_secs(120))
        .alone(),
        Test::new("a_client_at_its_limit_keeps_out_no_other", a_client_at_its_limit_keeps_out_no_other),
        Test::new("an_idle_session_holds_less_than_a_kibibyte", an_idle_session_holds_less_than_a_kibibyte)
            .needs_open_files(14_000)
            .alone(),
    ]
}

/// Of 20 000 simultaneous connections about 400 get a session, some thousands wait in the kernel's queue, and
/// the rest get no answer. When they have left, the next client is served normally.
fn twenty_thousand_connections_against_1024_descriptors_are_survived(bed: &Bed) -> anyhow::Result<()> {
    let truepeer =
        proxy().args(&["--header-timeout", "1s"]).with(|program| program.limit("nofile=1024:1024"));
    let stand = Stand::behind(bed, Behaviour::Echo, &truepeer)?;
    let mut bystander = open_as(nth_client(0))?;
    ping(&mut bystander)?;
    let crowd = gather(bed, 20_000, DOOR_V4)?;
    stand.truepeer.wait_for_log("accepting paused")?;
    ensure!(stand.truepeer.descriptors()? <= 1024);
    ping(&mut bystander)?;
    drop(crowd);
    for n in 1..100 {
        ping(&mut open_as(nth_client(n))?).with_context(|| format!("client {n} after the crowd"))?;
    }
    ping(&mut bystander)?;
    ensure!(stand.truepeer.is_alive());
    let log = stand.truepeer.log();
    let pauses = log.lines().filter(|line| line.contains("accepting paused")).count();
    ensure!(pauses <= 2, "{pauses} lines about it"); // one line for each listener
    Ok(())
}

fn ping(stream: &mut TcpStream) -> anyhow::Result<()> {
    stream.write_all(b"ping")?;
    let mut echoed = [0; 4];
    stream.read_exact(&mut echoed)?;
    ensure!(&echoed == b"ping");
    Ok(())
}

/// A client is an IPv4 address, or a /64 network of IPv6.
fn a_client_at_its_limit_keeps_out_no_other(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::behind(bed, Behaviour::Echo, &proxy().option("--max-per-client", 2))?;
    let serve = |client: &str| {
        let mut stream = open_as(client.parse()?)?;
        ping(&mut stream).map(|()| stream)
    };
    for ([first, second, third], other) in [
        (["203.0.113.7:1001", "203.0.113.7:1002", "203.0.113.7:1003"], "203.0.113.8:1001"),
        (
            ["[2001:db8:0:1::1]:1001", "[2001:db8:0:1:ffff::2]:1002", "[2001:db8:0:1::3]:1003"],
            "[2001:db8:0:2::1]:1001",
        ),
    ] {
        let (open, _second) = (serve(first)?, serve(second)?);
        ensure!(serve(third).is_err(), "{third} is served");
        let _other = serve(other)?;
        drop(open);
        stand.truepeer.wait_state("a place for the client", || serve(third).is_ok())?;
    }
    stand.truepeer.wait_for_log(
        "203.0.113.7 has 2 connections open, as many as one client may have; --max-per-client sets how many",
    )?;
    // A sender that names no client stands for many.
    let mut unnamed = Vec::new();
    for _ in 0..3 {
        let mut unknown = client::connect(DOOR_V4)?;
        unknown.write_all(&client::v1_unknown())?;
        ping(&mut unknown)?;
        unnamed.push(unknown);
    }
    Ok(())
}

/// Bulk data needs pipes, which are descriptors, too: without them it is copied.
fn open_sessions_continue_when_descriptors_run_out(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = proxy().args(&["--header-timeout", "60s"]).with(|program| program.limit("nofile=128:128"));
    let stand = Stand::behind(bed, Behaviour::Echo, &truepeer)?;
    let mut working = open_as(nth_client(0))?;
    ping(&mut working)?;
    let _crowd = gather(bed, 200, DOOR_V4)?;
    stand.truepeer.wait_for_log("accepting paused")?;
    let bytes = Pattern::bytes(8 << 20);
    let mut writer = working.try_clone()?;
    let echoed = std::thread::scope(|scope| -> anyhow::Result<Vec<u8>> {
        let sending = scope.spawn(|| -> anyhow::Result<()> {
            writer.write_all(&bytes)?;
            Ok(writer.shutdown(std::net::Shutdown::Write)?)
        });
        let mut echoed = Vec::new();
        working.read_to_end(&mut echoed)?;
        sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
        Ok(echoed)
    })?;
    ensure!(echoed == bytes, "{} of {} bytes", echoed.len(), bytes.len());
    Ok(())
}

/// Two times 240 pipes of 256 KiB would be 120 MiB. A plain user may have 64 MiB (pipe(7)); above that, pipes
/// have 8 KiB.
fn two_truepeers_of_one_user_share_the_pipe_quota_and_lose_nothing(bed: &Bed) -> anyhow::Result<()> {
    const SESSIONS: usize = 600;
    const LEN: usize = 2 << 20;
    /// 16 384 pages, 64 for each.
    const QUOTA_PIPES: usize = 256;
    sockets::keep_buffers_below(256 << 10)?;
    let listeners: [SocketAddr; 2] = [DOOR_V4.parse()?, "127.0.0.1:8444".parse()?];
    let source = Behaviour::Source.start(bed, &[BACKEND_V4])?;
    let _root_makes_the_routes = bare_proxy().listen("127.0.0.1:8445").ipv4(BACKEND_V4).start(bed)?;
    let as_user = |listener: SocketAddr| -> Truepeer {
        let truepeer = proxy_without_routes().listen(listener).ipv4(BACKEND_V4);
        truepeer.with(|program| program.as_user(User::TESTER).with_capabilities(&["net_raw"]))
    };
    let truepeers = [as_user(listeners[0]).start(bed)?, as_user(listeners[1]).start(bed)?];
    let mut sessions = Vec::new();
    for n in 0..SESSIONS {
        let mut stream = client::connect(listeners[n % 2])?;
        stream.write_all(&[header_of(nth_client(n))?, format!("{LEN}\n").into_bytes()].concat())?;
        sessions.push(stream);
    }
    // 256 of them fill the quota. Other processes with this user id use a part of it, too.
    // Waited for instead of counted once: a session whose SYN was dropped starts a second late.
    let pipes = || truepeers.iter().map(pipes_of).sum::<anyhow::Result<usize>>();
    bed.wait_for("pipes enough to fill the quota", || pipes().is_ok_and(|pipes| pipes > QUOTA_PIPES / 2))?;
    sockets::wait_until_stuck()?;
    let pipes = pipes()?;
    ensure!(pipes < QUOTA_PIPES + 8, "{pipes} pipes for {SESSIONS} sessions: the quota refused none");
    let expected = Pattern::bytes(LEN);
    in_parallel(4, SESSIONS, |n| {
        let mut received = Vec::with_capacity(LEN);
        (&sessions[n]).read_to_end(&mut received)?;
        ensure!(received == expected, "{} of {LEN} bytes are right", common_prefix(&received, &expected));
        Ok(())
    })?;
    drop(source);
    Ok(())
}

fn pipes_of(program: &Running) -> anyhow::Result<usize> {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", program.pid()))?;
    let is_pipe =
        |file: PathBuf| fs::read_link(file).is_ok_and(|to| to.to_string_lossy().starts_with("pipe:"));
    Ok(descriptors.flatten().filter(|entry| is_pipe(entry.path())).count() / 2)
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The memory that 5 000 sessions add to a thousand. The first ones bring pages of the program, and memory
/// for sessions that wait for their backend, of which more do so at once on a busy machine. Kernel memory (of
/// all their sockets, including the test's and the backend's) is only printed.
fn an_idle_session_holds_less_than_a_kibibyte(bed: &Bed) -> anyhow::Result<()> {
    const FIRST: usize = 1000;
    const SESSIONS: usize = 5000;
    let stand = Stand::with_options(bed, Behaviour::Hold, &[])?;
    let measure =
        || anyhow::Ok((stand.truepeer.resident_bytes()?, stand.truepeer.descriptors()?, kernel_memory()?));
    let accepted = || stand.backend.stdout().lines().count();
    // A session that waits for its backend holds more.
    let open = |n: usize| -> anyhow::Result<_> {
        let session = open_as(nth_client(n))?;
        if n % 100 == 99 {
            bed.wait_for("the backend to have them all", || accepted() == n + 1)?;
        }
        Ok(session)
    };
    let mut sessions = (0..FIRST).map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let before = measure()?;
    for n in FIRST..FIRST + SESSIONS {
        sessions.push(open(n)?);
    }
    let after = measure()?;
    drop(sessions);
    let (resident, files) = ((after.0.saturating_sub(before.0)) / SESSIONS, after.1 - before.1);
    let [slab, sockets] = std::array::from_fn(|i| after.2[i].saturating_sub(before.2[i]) / SESSIONS);
    println!(
        "an idle session holds {resident} bytes and {} descriptors; with the client's and the backend's own \
         sockets the kernel's slabs grew by {slab} bytes for each, TCP buffers by {sockets}",
        files / SESSIONS
    );
    ensure!(resident < 1024, "{resident} bytes of resident memory for each session");
    ensure!(files == 2 * SESSIONS, "{files} descriptors for {SESSIONS} sessions");
    Ok(())
}

/// The kernel's slabs and TCP buffer pages of the whole machine, in bytes.
fn kernel_memory() -> anyhow::Result<[usize; 2]> {
    let slab = kilobytes(&fs::read_to_string("/proc/meminfo")?, "Slab:")? * 1024;
    let sockets = fs::read_to_string("/proc/net/sockstat")?;
    let pages =
        sockets.lines().find(|line| line.starts_with("TCP:")).and_then(|line| line.rsplit(' ').next());
    let pages: usize = pages.context("TCP: in sockstat")?.parse()?;
    Ok([slab, pages * rustix::param::page_size()])
}

fn kilobytes(text: &str, name: &str) -> anyhow::Result<usize> {
    let line = text.lines().find(|line| line.starts_with(name)).with_context(|| name.to_owned())?;
    let number = line.split_whitespace().nth(1).with_context(|| line.to_owned())?;
    Ok(number.parse()?)
}
