//! Attaching again, and detaching, while connections are open.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::chance::Chance;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Host, KernelState, Test, Topology, client, tests};

use crate::kit::{
    BACKEND, DESTINATION, LISTENER, attach, attach_on, attachments, backend_on, command, counter, counter_on,
    echo, header, is_answered, list, longer_header, session, start, who,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        detach_waits_for_open_connections,
        detach_under_load_cuts_no_connection_off,
        detach_now_leaves_what_needs_no_translation,
        an_interrupted_detach_can_be_resumed,
        detach_refuse_new_refuses_new_connections,
        an_interrupted_removal_can_be_resumed,
        an_upgrade_under_load_loses_nothing,
    ];
    all.push(Test::new("an_attachment_killed_15_times_half_way_loses_nothing", |bed| {
        killed_half_way(bed, 15)
    }));
    all.push(
        Test::new("an_attachment_killed_200_times_half_way_loses_nothing", |bed| killed_half_way(bed, 200))
            .time_limit(Duration::from_secs(1800))
            .long(),
    );
    all
}

fn detach_waits_for_open_connections(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let detach = command(bed, &["detach"])?.start(bed)?;
    detach.wait_for_log("waiting for 1 open")?;
    // New connections are no longer tracked; the old one still is.
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

/// All connections are in the middle of their bytes, translated or not.
fn detach_under_load_cuts_no_connection_off(bed: &Bed) -> Result<()> {
    const LEN: usize = 4_000_000;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _digest = backend_on(bed, host, Behaviour::Digest, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let (bytes, expected) = (Pattern::bytes(LEN), Digest::of_pattern(LEN as u64));
    let half_way = |n: usize| -> Result<TcpStream> {
        let client = format!("203.0.113.1:{}", 1000 + n);
        let mut stream = lb.run(|| client::connect(host.at(false, 80)))??;
        stream.write_all(&if n % 4 < 2 { longer_header(&client)? } else { header(&client)? })?;
        stream.write_all(&bytes[..LEN / 2])?;
        Ok(stream)
    };
    let streams = (0..12).map(half_way).collect::<Result<Vec<_>>>()?;
    ensure!(counter_on(bed, host, "translated")? > 0 && counter_on(bed, host, "guessed_right")? > 0);
    let detach = command(bed, &["detach"])?.in_netns(&host.netns).start(bed)?;
    detach.wait_for_log("waiting for 12 open")?;
    std::thread::scope(|scope| {
        let rest = |mut stream: TcpStream| client::ask(&mut stream, &bytes[LEN / 2..]);
        let threads: Vec<_> = streams.into_iter().map(|stream| scope.spawn(move || rest(stream))).collect();
        threads.into_iter().try_for_each(|thread| {
            let answer = thread.join().map_err(|_| anyhow::anyhow!("a sender panicked"))??;
            ensure!(answer.trim() == expected, "{answer:?}");
            Ok(())
        })
    })?;
    ensure!(detach.wait_end()?.success(), "{}", detach.log());
    Ok(())
}

fn detach_now_leaves_what_needs_no_translation(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    attach(bed, &["detach", "--now"])?;
    nothing_is_left(bed)?;
    ensure!(client::ask(&mut open, b"goes on")? == "goes on");
    Ok(())
}

/// By a signal that can be handled, and by SIGKILL.
fn an_interrupted_detach_can_be_resumed(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let detach = command(bed, &["detach"])?.start(bed)?;
        detach
            .wait_for_log("waiting for 1 open connections (--now cuts them off); new ones pass unchecked")?;
        detach.signal(signal)?;
        ensure!(!detach.wait_end()?.success());
        let said = detach.stderr();
        ensure!(signal == Signal::KILL || said.contains("interrupted: 1 open"), "{said}");
        is_answered(&mut open)?;
        ensure!(
            attach(bed, &["status"])?
                .contains("port 80/tcp: detached, draining; open: 0 untouched, 1 translated")
        );
        let line = client::v1("203.0.113.2:1002", DESTINATION)?;
        ensure!(client::ask(&mut session(&line)?, b"")?.as_bytes() == line);
    }
    // After a new attachment, new connections are tracked again. Then the detachment finishes.
    start(bed, &[])?;
    is_answered(&mut session(&header("203.0.113.3:1003")?)?)?;
    ensure!(client::ask(&mut open, b"end")? == "end");
    attach(bed, &["detach"])?;
    nothing_is_left(bed)?;
    ensure!(echo.log().contains("203.0.113.3:1003") && !echo.log().contains("203.0.113.2"));
    Ok(())
}

/// Without the option, they pass unchecked (see above).
fn detach_refuse_new_refuses_new_connections(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = session(&longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let detach = command(bed, &["detach", "--refuse-new"])?.start(bed)?;
    detach.wait_for_log("waiting for 1 open connections")?;
    ensure!(detach.log().contains("new ones are refused"), "{}", detach.log());
    let refused = format!("{:#}", client::connect(LISTENER).err().context("a new connection")?);
    ensure!(refused.contains("refused"), "{refused}");
    ensure!(counter(bed, "refused_detaching")? == 1);
    ensure!(attach(bed, &["status"])?.contains("new connections are refused"));
    ensure!(client::ask(&mut open, b"end")? == "end");
    ensure!(detach.wait_end()?.success(), "{}", detach.log());
    nothing_is_left(bed)
}

fn nothing_is_left(bed: &Bed) -> Result<()> {
    ensure!(attach(bed, &["status"])?.contains("not attached"));
    ensure!(list(&bed.dir().join("bpf/truepeer"))?.is_empty(), "pins are left");
    Ok(())
}

/// As if it had been killed after this many pins. Nothing waits for connections that are open then.
fn an_interrupted_removal_can_be_resumed(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    for count in [1, 4, 9, 20] {
        start(bed, &["--port", "53/udp"])?;
        let mut open = session(&header("203.0.113.1:1001")?)?;
        is_answered(&mut open)?;
        for pin in pins_in_the_order_of_removal(bed)?.iter().take(count) {
            std::fs::remove_file(pin)?;
        }
        attach(bed, &["detach"])?;
        nothing_is_left(bed)?;
    }
    Ok(())
}

fn pins_in_the_order_of_removal(bed: &Bed) -> Result<Vec<PathBuf>> {
    let layout = attachments(bed)?.pop().context("what is attached")?;
    let mut links = list(&layout.join("links"))?;
    links.sort_by_key(|pin| !pin.ends_with("tcp_end"));
    Ok([links, list(&layout.join("maps"))?].concat())
}

fn an_upgrade_under_load_loses_nothing(bed: &Bed) -> Result<()> {
    let _digest = Behaviour::Digest.start(bed, &[BACKEND])?;
    start(bed, &[])?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| -> Result<u16> {
            let (bytes, expected) = (Pattern::bytes(200_000), Digest::of_pattern(200_000));
            let mut done = 0;
            while !stop.load(Relaxed) {
                let client = format!("203.0.113.1:{}", 2000 + done);
                let header = if done % 3 == 0 { longer_header(&client)? } else { header(&client)? };
                let answer = client::ask(&mut session(&header)?, &bytes)?;
                ensure!(answer.trim() == expected, "{client}: {answer:?}");
                done += 1;
            }
            Ok(done)
        });
        let upgrades = (0..5).try_for_each(|_| start(bed, &[]).map(drop));
        stop.store(true, Relaxed);
        let done = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        ensure!(done > 10, "only {done} connections met the upgrades");
        upgrades
    })
}

/// kill -9 of truepeer at random moments, while it replaces what is attached, under load. Each next one does
/// it completely: the kernel has the same pins and programs again. After the last detachment it has those
/// that it had before.
fn killed_half_way(bed: &Bed, times: u32) -> Result<()> {
    const SEED: u64 = 23;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _digest = backend_on(bed, host, Behaviour::Digest, &["0.0.0.0:80"])?;
    let pins = bed.dir().join("bpf/truepeer");
    let state = || host.run(|| KernelState::now(bed, Some(&pins)))?;
    // The kernel ends a link whose pin was removed a moment later.
    let becomes = |wanted: &KernelState| host.run(|| wanted.wait_until_again(bed, Some(&pins)))?;
    let at_devices = || -> Result<String> {
        Ok(state()?.programs.lines().filter(|line| line.contains("gress: ")).collect())
    };
    let none = at_devices()?;
    // Makes the directory of pins.
    attach_on(bed, host, &["--port", "80"])?;
    detach_on(bed, host)?;
    bed.wait_for("no program", || at_devices().is_ok_and(|programs| programs == none))?;
    let before = state()?;
    attach_on(bed, host, &["--port", "80"])?;
    // It is needed until the others are there.
    bed.wait_for("no witness", || at_devices().is_ok_and(|programs| !programs.contains("witness")))?;
    let attached = state()?;
    ensure!(attached.programs.matches("links/").count() > 5, "{attached:#?}");
    let begun = Instant::now();
    attach_on(bed, host, &["--port", "80"])?;
    let mut most = usize::try_from(begun.elapsed().as_millis())?.max(1);
    let mut chance = Chance::new(SEED);
    let stop = AtomicBool::new(false);
    let (bytes, expected) = (Pattern::bytes(200_000), Digest::of_pattern(200_000));
    let mut ended = 0;
    let done = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            lb.run(|| -> Result<usize> {
                let mut done = 0;
                while !stop.load(Relaxed) {
                    let client = format!("203.0.113.{}:{}", 1 + done / 50_000, 2000 + done % 50_000);
                    let header = if done % 3 == 0 { longer_header(&client)? } else { header(&client)? };
                    let answer = who(lb, host.at(false, 80), &[&header, bytes.as_slice()].concat())?;
                    ensure!(answer == expected, "{client}: {answer:?}");
                    done += 1;
                }
                Ok(done)
            })?
        });
        let kills = (0..times).try_for_each(|number| -> Result<()> {
            loop {
                let attaching =
                    command(bed, &["--allow", "any", "--port", "80"])?.in_netns(&host.netns).start(bed)?;
                // A sleep on purpose: the moment of the kill must vary.
                std::thread::sleep(Duration::from_millis(chance.below(most) as u64));
                let _ = attaching.signal(Signal::KILL); // it may have ended already
                let end = attaching.wait_end()?;
                if end.signal() == Some(Signal::KILL.as_raw()) {
                    most = (most * 21 / 20).min(10_000);
                    break;
                }
                ensure!(end.success(), "it ended by itself: {end}");
                // It was faster than those before.
                (most, ended) = ((most * 9 / 10).max(1), ended + 1);
            }
            if number % 5 == 4 {
                attach_on(bed, host, &["--port", "80"])?;
                becomes(&attached).with_context(|| format!("after kill {number}"))?;
            }
            Ok(())
        });
        let last = kills.and_then(|()| attach_on(bed, host, &["--port", "80"]));
        stop.store(true, Relaxed);
        let done = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))??;
        last.map(|_| done)
    })?;
    eprintln!("seed {SEED}: {times} killed half way, {ended} ended before; {done} connections");
    ensure!(done > 10, "only {done} connections met the kills");
    becomes(&attached).context("after the last one")?;
    for number in 0..times {
        let detaching = command(bed, &["detach", "--now"])?.in_netns(&host.netns).start(bed)?;
        std::thread::sleep(Duration::from_millis(chance.below(most) as u64));
        let _ = detaching.signal(Signal::KILL);
        detaching.wait_end()?;
        detach_on(bed, host)?;
        becomes(&before).with_context(|| format!("after killed detachment {number}"))?;
        attach_on(bed, host, &["--port", "80"])?;
    }
    detach_on(bed, host)?;
    becomes(&before)
}

fn detach_on(bed: &Bed, host: &Host) -> Result<()> {
    command(bed, &["detach", "--now"])?.in_netns(&host.netns).run(bed).map(drop)
}
