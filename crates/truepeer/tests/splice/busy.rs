//! Sessions that have left, or are about to, while bytes are on their way or a peer takes none.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Running, Test, client, ip_here, tests};

use crate::stand::{BACKEND, DOOR, SITE, Stand, TRUEPEER, echo, open, proxy, spliced};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_backend_of_a_busy_upload_is_reset_by_the_operator,
        the_backend_of_a_busy_upload_is_reset_at_a_stop,
        clients_that_stop_reading_at_any_moment_are_ended_when_idle,
        clients_that_vanish_are_looked_at_seldom,
        clients_that_vanish_at_any_moment_are_ended_when_idle,
        sessions_leave_while_routes_change,
    ]
}

/// Sends without an end, until the connection breaks.
fn uploading(mut stream: TcpStream) -> thread::JoinHandle<u64> {
    thread::spawn(move || {
        let mut sent = 0;
        while stream.write_all(&[5; 1 << 16]).is_ok() {
            sent += 1 << 16;
        }
        sent
    })
}

/// Sessions that have left and send without an end, both ways.
fn busy(bed: &Bed, options: &[&str]) -> Result<(Stand, Vec<thread::JoinHandle<u64>>)> {
    let stand = Stand::make(bed, options)?;
    let mut streams = (0..8).map(open).collect::<Result<Vec<_>>>()?;
    stand.wait_spliced(bed, &mut streams)?;
    let mut uploads = Vec::new();
    for stream in streams {
        let mut echoed = stream.try_clone()?;
        thread::spawn(move || while let Ok(1..) = echoed.read(&mut [0; 1 << 16]) {});
        uploads.push(uploading(stream));
    }
    thread::sleep(Duration::from_millis(300));
    Ok((stand, uploads))
}

fn all_are_reset(stand: &Stand, uploads: Vec<thread::JoinHandle<u64>>) -> Result<()> {
    let count = uploads.len();
    stand
        .backend
        .wait_state("resets at the backend", || stand.backend.log().matches(" reset").count() == count)?;
    for upload in uploads {
        ensure!(upload.join().is_ok_and(|sent| sent > 0), "nothing was sent");
    }
    Ok(())
}

fn the_backend_of_a_busy_upload_is_reset_by_the_operator(bed: &Bed) -> Result<()> {
    let (stand, uploads) = busy(bed, &[])?;
    stand.ask(bed, &["sessions", "--client", "203.0.113.0/24", "--kill"])?;
    all_are_reset(&stand, uploads)
}

fn the_backend_of_a_busy_upload_is_reset_at_a_stop(bed: &Bed) -> Result<()> {
    let (stand, uploads) = busy(bed, &["--drain-timeout", "0s"])?;
    stand.truepeer.signal(Signal::TERM)?;
    all_are_reset(&stand, uploads)?;
    stand.truepeer.wait_end()?;
    Ok(())
}

/// A session that echoes nothing, or some lines, and then sends much and reads nothing; every second one
/// reads slowly before.
fn stuck(number: u16) -> Result<TcpStream> {
    let mut stream = open(number)?;
    for _ in 0..number % 8 {
        echo(&mut stream, b"bytes move")?;
        thread::sleep(Duration::from_millis(u64::from(number % 5)));
    }
    stream.set_nonblocking(true)?;
    let begun = Instant::now();
    let reads_for = Duration::from_millis(u64::from(number % 2 * 1500));
    // Until the echo has filled all windows.
    let mut silent_since = Instant::now();
    while silent_since.elapsed() < Duration::from_millis(500) {
        if begun.elapsed() < reads_for {
            let _ = stream.read(&mut [0; 1 << 14]);
        }
        match stream.write(&[9; 1 << 16]) {
            Ok(_) => silent_since = Instant::now(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(stream)
}

/// Sessions begin to leave when 64 KiB wait for their clients.
fn stands(bed: &Bed, options: &[&str]) -> Result<Stand> {
    mount_bpf_in_place()?;
    let backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let truepeer = proxy(bed, &[&["--splice", "auto"], options].concat()).start(bed)?;
    Ok(Stand { truepeer, backend, admin: bed.dir().join("admin") })
}

fn all_stuck(count: u16) -> Result<Vec<TcpStream>> {
    let threads: Vec<_> = (0..count).map(|number| thread::spawn(move || stuck(number))).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

fn clients_that_stop_reading_at_any_moment_are_ended_when_idle(bed: &Bed) -> Result<()> {
    let stand = stands(bed, &["--idle-timeout", "2s"])?;
    let mut streams = all_stuck(48)?;
    let ends = || stand.truepeer.log().matches("close=\"idle\"").count();
    stand.truepeer.wait_state("48 idle ends", || ends() == 48)?;
    for stream in &mut streams {
        stream.set_nonblocking(false)?;
        // Read the bytes that had come before the end.
        while let Ok(1..) = stream.read(&mut [0; 1 << 16]) {}
    }
    Ok(())
}

/// Echoes through the listener on the bed's host as fast as it can, until no echo comes. Tells `echoed` of
/// each.
fn echoes_until_cut_off(number: u16, echoed: &Sender<()>) -> Result<()> {
    let mut stream = client::connect("10.78.9.1:8443")?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    let address: SocketAddr = format!("203.0.113.7:{}", 5000 + number).parse()?;
    stream.write_all(&client::v2(address, SITE)?)?;
    while echo(&mut stream, &[7; 20_000]).is_ok() {
        let _ = echoed.send(());
    }
    // The kernel's last segments of this connection don't arrive either.
    Ok(())
}

/// Senders that are cut off `after` milliseconds from the first echo.
fn vanish(bed: &Bed, after: u64, options: &[&str]) -> Result<Running> {
    const COUNT: u16 = 32;
    let far = NetNs::create()?;
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    ip_here(&[
        // The backend's segments must fit through the wire.
        "link set lo mtu 1500",
        &format!("link add near type veth peer name wire netns {there}"),
        "addr add 10.78.9.1/24 dev near",
        "link set near up",
    ])?;
    far.run(|| ip_here(&["addr add 10.78.9.2/24 dev wire", "link set wire up"]))??;
    let always = ["--allow", "10.78.9.0/24", "--listen", "10.78.9.1:8443"];
    let truepeer = spliced(bed, &[&always[..], options].concat()).start(bed)?;
    truepeer.wait_listening("10.78.9.1:8443")?;
    let (echoed, first_echo) = channel();
    let client = |number| {
        let (far, echoed) = (far.clone(), echoed.clone());
        thread::spawn(move || far.run(move || echoes_until_cut_off(number, &echoed)))
    };
    let clients: Vec<_> = (0..COUNT).map(client).collect();
    first_echo.recv_timeout(Duration::from_secs(30)).context("no echo")?;
    thread::sleep(Duration::from_millis(after));
    ip_here(&["link set near down"])?;
    for client in clients {
        // One that had not connected yet has failed.
        let _ = client.join();
    }
    Ok(truepeer)
}

fn clients_that_vanish_at_any_moment_are_ended_when_idle(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let admin = bed.dir().join("admin").display().to_string();
    for after in [15, 45, 90] {
        let truepeer = vanish(bed, after, &["--idle-timeout", "2s"])?;
        let open =
            || Program::new(TRUEPEER).args(["sessions", "--admin", &admin]).run(bed).unwrap_or_default();
        truepeer.wait_state("the end of all sessions", || !open().contains("203.0.113.7:"))?;
        ensure!(truepeer.log().contains("close=\"idle\""), "none has begun");
        drop(truepeer);
        let _ = std::fs::remove_file(&admin);
        ip_here(&["link del near"])?;
    }
    Ok(())
}

/// How often the process's threads have gone to sleep so far.
fn sleeps(truepeer: &Running) -> Result<u64> {
    let mut all = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", truepeer.pid()))? {
        let status = std::fs::read_to_string(thread?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.context("no count")?.trim().parse::<u64>()?;
    }
    Ok(all)
}

fn clients_that_vanish_are_looked_at_seldom(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let truepeer = vanish(bed, 15, &[])?;
    thread::sleep(Duration::from_secs(3));
    let before = sleeps(&truepeer)?;
    thread::sleep(Duration::from_secs(3));
    let looks = sleeps(&truepeer)? - before;
    // While nothing moves, truepeer looks at each session once a second.
    ensure!(looks < 300, "{looks} wake-ups in 3 s");
    Ok(())
}

/// Reads with pauses at first: meanwhile the session leaves, and its sockets have much to deliver.
fn counts_late(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    let (mut count, mut pauses) = (0_usize, 0);
    loop {
        match stream.read(&mut bytes)? {
            0 => return stream.write_all(&count.to_be_bytes()),
            read => count += read,
        }
        if count >= pauses * 150_000 && pauses < 6 {
            pauses += 1;
            thread::sleep(Duration::from_millis(30));
        }
    }
}

fn is_counted(number: u16) -> Result<()> {
    const LEN: usize = 2 << 20;
    let mut stream = client::connect(DOOR)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let address: SocketAddr = format!("203.0.113.7:{}", 5000 + number).parse()?;
    stream.write_all(&client::v2(address, SITE)?)?;
    stream.write_all(&vec![7; LEN])?;
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; size_of::<usize>()];
    stream.read_exact(&mut count).context("the backend's count")?;
    ensure!(usize::from_be_bytes(count) == LEN, "{count:?}");
    Ok(())
}

/// A change of any route makes all sockets forget theirs. While a session leaves, its sockets still have to
/// hear what the peers acknowledge.
fn sessions_leave_while_routes_change(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    ip_here(&["link set lo mtu 1500"])?;
    let backend = TcpListener::bind(BACKEND)?;
    thread::spawn(move || {
        backend.incoming().flatten().for_each(|stream| _ = thread::spawn(|| counts_late(stream)))
    });
    let truepeer = spliced(bed, &[]).start(bed)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let changing = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                ip_here(&["route add 10.200.0.0/24 dev lo", "route del 10.200.0.0/24 dev lo"])?;
            }
            Ok(())
        })
    };
    let mut broken = Vec::new();
    // On a fast machine all may end before they have left.
    while broken.is_empty() && !truepeer.log().contains("has left user space") {
        let clients: Vec<_> = (0..64).map(|number| thread::spawn(move || is_counted(number))).collect();
        let outcomes = clients.into_iter().map(|client| client.join().expect("no panic"));
        broken = outcomes.filter_map(Result::err).collect();
    }
    is_over.store(true, Ordering::Relaxed);
    changing.join().expect("no panic")?;
    ensure!(broken.is_empty(), "{} of 64 stood still: {:#}", broken.len(), broken[0]);
    Ok(())
}
