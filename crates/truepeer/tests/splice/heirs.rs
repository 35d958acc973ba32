//! Sessions that have left user space and their truepeer: the next one has them.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::stand::{BACKEND, DOOR, Stand, TRUEPEER, echo, is_reset, open, spliced};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        after_kill_9_the_next_truepeer_lists_the_sessions,
        a_stop_leaves_the_sessions_to_the_next_truepeer,
        a_client_that_is_denied_by_now_is_ended,
        an_upgrade_cuts_no_session_and_lists_them,
    ];
    all.push(
        Test::new("an_upgrade_cuts_none_of_a_thousand_sessions", |bed| upgrade_of(bed, 1000))
            .time_limit(Duration::from_secs(300))
            .long(),
    );
    all.push(
        Test::new("kill_9_cuts_none_of_a_thousand_sessions", |bed| kill_9_of(bed, 1000))
            .time_limit(Duration::from_secs(300))
            .long(),
    );
    all
}

/// Moves bytes in all sessions while `work` is done. Returns how many each has echoed besides. None may fail.
fn while_bytes_move<T>(
    streams: Vec<TcpStream>,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Vec<(TcpStream, usize)>, T)> {
    const THREADS: usize = 4;
    let is_over = AtomicBool::new(false);
    let rounds: [AtomicUsize; THREADS] = Default::default();
    let mut shares: [Vec<_>; THREADS] = Default::default();
    for (number, stream) in streams.into_iter().enumerate() {
        shares[number % THREADS].push((stream, 0));
    }
    let are_moving = |least: usize| rounds.iter().all(|round| round.load(Relaxed) >= least);
    thread::scope(|scope| {
        let movers: Vec<_> = shares
            .into_iter()
            .zip(&rounds)
            .map(|(mut share, round)| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<Vec<(TcpStream, usize)>> {
                    // The last round begins after the end of the work.
                    let mut is_last = false;
                    while !is_last {
                        is_last = is_over.load(Relaxed);
                        for (stream, echoed) in &mut share {
                            echo(stream, b"bytes move").context("while bytes move")?;
                            *echoed += 10;
                        }
                        round.fetch_add(1, Relaxed);
                    }
                    Ok(share)
                })
            })
            .collect();
        let done = truepeer_testbed::wait_for("bytes that move", || are_moving(1)).and_then(|()| work());
        is_over.store(true, Relaxed);
        let mut moved = Vec::new();
        for mover in movers {
            moved.extend(mover.join().expect("no panic")?);
        }
        Ok((moved, done?))
    })
}

/// Ends the session, and finds its line, with these bytes both ways, in the log.
fn end_with(truepeer: &Running, mut stream: TcpStream, port: u16, bytes: usize) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    truepeer.wait_for_log(&format!("client=203.0.113.7:{port} "))?;
    let log = truepeer.log();
    let line = log.lines().find(|line| line.contains(&format!("client=203.0.113.7:{port} ")));
    let line = line.context("no line")?;
    let expected = format!("bytes_up={bytes} bytes_down={bytes} ");
    ensure!(line.contains(&expected) && line.contains("close=\"finished\""), "{line} instead of {expected}");
    Ok(())
}

fn lists(stand: &Stand, bed: &Bed, count: usize) -> Result<()> {
    let listed =
        || stand.ask(bed, &["sessions"]).is_ok_and(|list| list.matches(" spliced ").count() == count);
    stand.truepeer.wait_state(&format!("{count} listed sessions"), listed)
}

fn sessions(stand: &Stand, bed: &Bed, count: u16) -> Result<(Vec<TcpStream>, usize)> {
    let mut streams = (0..count).map(open).collect::<Result<Vec<_>>>()?;
    let echoed = stand.wait_spliced(bed, &mut streams)? + 5;
    Ok((streams, echoed))
}

fn next(stand: Stand, bed: &Bed, options: &[&str]) -> Result<Stand> {
    let _ = std::fs::remove_file(&stand.admin);
    let truepeer = spliced(bed, options).start(bed)?;
    Ok(Stand { truepeer, ..stand })
}

fn after_kill_9_the_next_truepeer_lists_the_sessions(bed: &Bed) -> Result<()> {
    kill_9_of(bed, 50)
}

fn kill_9_of(bed: &Bed, count: u16) -> Result<()> {
    let stand = Stand::make(bed, &[])?;
    let (mut streams, echoed) = sessions(&stand, bed, count)?;
    // Not among those whose bytes move: it shows that each of its bytes is counted once.
    let mut last = streams.pop().context("none")?;
    let (streams, stand) = while_bytes_move(streams, || {
        stand.truepeer.signal(Signal::KILL)?;
        stand.truepeer.wait_end()?;
        echo(&mut last, b"nobody is there")?;
        let stand = next(stand, bed, &[])?;
        lists(&stand, bed, usize::from(count))?;
        Ok(stand)
    })?;
    echo(&mut last, b"goes on")?;
    end_with(&stand.truepeer, last, 5000 + count - 1, echoed + 15 + 7)?;
    let mut streams = streams.into_iter();
    let (first, moved) = streams.next().context("none")?;
    end_with(&stand.truepeer, first, 5000, echoed + moved)?;
    stand.ask(bed, &["sessions", "--client", "203.0.113.7", "--kill"])?;
    streams.try_for_each(|(mut stream, _)| is_reset(&mut stream))
}

fn a_stop_leaves_the_sessions_to_the_next_truepeer(bed: &Bed) -> Result<()> {
    let options = ["--splice-linger", "leave"];
    let stand = Stand::make(bed, &options)?;
    let (mut streams, echoed) = sessions(&stand, bed, 20)?;
    stand.truepeer.signal(Signal::TERM)?;
    let status = stand.truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}");
    streams.iter_mut().try_for_each(|stream| echo(stream, b"nobody is there"))?;
    let stand = next(stand, bed, &options)?;
    lists(&stand, bed, 20)?;
    end_with(&stand.truepeer, streams.swap_remove(3), 5003, echoed + 15)?;
    lists(&stand, bed, 19)
}

fn a_client_that_is_denied_by_now_is_ended(bed: &Bed) -> Result<()> {
    let list = bed.write("deny", "198.51.100.0/24\n")?.display().to_string();
    let stand = Stand::make(bed, &["--deny-clients", &list])?;
    let (mut streams, _) = sessions(&stand, bed, 2)?;
    bed.write("deny", "203.0.113.7\n")?;
    stand.truepeer.signal(Signal::HUP)?;
    streams.iter_mut().try_for_each(is_reset)?;
    stand.backend.wait_for_log("203.0.113.7:5001 reset")
}

fn an_upgrade_cuts_no_session_and_lists_them(bed: &Bed) -> Result<()> {
    upgrade_of(bed, 50)
}

/// The same command line as a file, which an upgrade reads.
fn serve(bed: &Bed, options: &[&str]) -> Result<Running> {
    let admin = bed.dir().join("admin").display().to_string();
    let line = ["--routes", "auto", "--log-format", "text", "-v", "2", "--admin", &admin, "--print-config"];
    let splice = ["--splice", "auto", "--splice-after", "0", "--drain-timeout", "2s", "--allow", "loopback"];
    let proxy = ["proxy", "-l", DOOR, "-4", BACKEND];
    let file = Program::new(TRUEPEER).args([&proxy[..], &splice, &line].concat()).run(bed)?;
    let file = bed.write("truepeer.toml", file)?.display().to_string();
    let program = Program::new(TRUEPEER).args(["serve", "-c", &file]).args(options);
    let truepeer = program.start(bed)?;
    truepeer.wait_for_log("admin: listening on")?;
    Ok(truepeer)
}

fn upgrade_of(bed: &Bed, count: u16) -> Result<()> {
    mount_bpf_in_place()?;
    let backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let old = serve(bed, &[])?;
    let stand = Stand { truepeer: old, backend, admin: bed.dir().join("admin") };
    let (mut streams, echoed) = sessions(&stand, bed, count)?;
    let mut last = streams.pop().context("none")?;
    let (mut streams, stand) = while_bytes_move(streams, || {
        let new = serve(bed, &["--take-over"])?;
        let Stand { truepeer: old, backend, admin } = stand;
        let stand = Stand { truepeer: new, backend, admin };
        stand.truepeer.wait_for_log("upgrade: serves in place of process")?;
        lists(&stand, bed, usize::from(count))?;
        echo(&mut last, b"two processes")?;
        ensure!(old.wait_end()?.code() == Some(0), "the old process: {}", old.log());
        ensure!(!old.log().contains("INFO session client"), "ended by the old process: {}", old.log());
        Ok(stand)
    })?;
    echo(&mut last, b"one process")?;
    let mut later = [open(count)?];
    for _ in 0..40 {
        echo(&mut later[0], b"bytes move")?;
        thread::sleep(Duration::from_millis(20));
    }
    lists(&stand, bed, usize::from(count) + 1)?;
    end_with(&stand.truepeer, last, 5000 + count - 1, echoed + 13 + 11)?;
    let (first, moved) = streams.swap_remove(0);
    end_with(&stand.truepeer, first, 5000, echoed + moved)
}
