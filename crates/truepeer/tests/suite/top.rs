//! `truepeer top` on a pseudo-terminal before a running truepeer: its screen is compared with what the test
//! has sent, opened and provoked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, client, tests};

use crate::serve::{DNS, GATE, ask_by_udp, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, TRUEPEER};
use crate::terminal::Terminal;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        top_shows_what_is_true_under_load,
        top_leaves_the_terminal_as_it_was,
        top_finds_a_truepeer_again_that_was_upgraded_or_restarted,
        top_survives_every_size_of_the_window,
        top_takes_a_key_that_comes_with_another_size,
        top_without_a_truepeer_or_a_terminal_says_so,
    ]
}

const FILE: &str = r#"
[admin]
listen = ["./admin.sock"]

[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "127.0.0.1:8000"
ipv6 = "[::1]:8000"
allow = ["127.0.0.1"]
routes = "auto"

[[proxy]]
protocol = "udp"
listen = ["127.0.0.1:5300"]
ipv4 = "127.0.0.1:53"
routes = "auto"
"#;

/// `truepeer serve` with an admin socket, TCP and UDP; only 127.0.0.1 may send headers by TCP.
pub(crate) fn serve(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    bed.write("truepeer.toml", FILE)?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).args(options).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    bed.wait_for("the admin socket", || {
        Program::new(TRUEPEER).args(["status", "-c", "truepeer.toml"]).run(bed).is_ok()
    })?;
    Ok(truepeer)
}

fn top(bed: &Bed) -> anyhow::Result<Terminal> {
    Terminal::start(bed, TRUEPEER, &["top", "-c", "truepeer.toml", "--interval", "500ms"])
}

/// A session on which bytes are sent at a steady pace and come back.
struct Load {
    echoed: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<anyhow::Result<()>>>,
}

impl Load {
    fn start(mut session: TcpStream) -> Self {
        let (echoed, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counter, stop) = (Arc::clone(&echoed), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let mut piece = vec![7; 50_000];
            while !stop.load(Ordering::Relaxed) {
                session.write_all(&piece)?;
                session.read_exact(&mut piece)?;
                counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        Self { echoed, is_over, thread: Some(thread) }
    }

    fn echoed(&self) -> u64 {
        self.echoed.load(Ordering::Relaxed)
    }

    fn stop(mut self) -> anyhow::Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().map_err(|_| anyhow::anyhow!("the load has panicked"))??;
        Ok(self.echoed())
    }
}

/// Bytes a second behind a name on the screen, such as `up 1.2 MiB/s`.
fn rate(text: &str, name: &str) -> Option<f64> {
    let (_, rest) = text.split_once(&format!("{name} "))?;
    let (number, unit) = rest.split_once("/s")?.0.split_once(' ')?;
    let factor = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

fn top_shows_what_is_true_under_load(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let truepeer = serve(bed, &[])?;
    let mut quiet = session_at(DOOR_V4, CLIENT_V4)?;
    quiet.write_all(&[1; 5119])?;
    quiet.read_exact(&mut [0; 5119])?;
    for port in 4000..4005 {
        ask_by_udp(&format!("203.0.113.9:{port}"), b"question")?;
    }
    for _ in 0..7 {
        client::read_end(&mut client::connect_from("127.0.0.9:0", DOOR_V4)?)?;
    }
    let mut top = top(bed)?;
    let process = format!("process {}", truepeer.pid());
    top.wait_for(&["serving", "6 open of 13 taken", &process, "6 sessions by rate", CLIENT_V4])?;
    top.wait_for(&["7           the sender is not on the allow-list (sender_not_allowed)"])?;
    // What happens while top runs is counted as new.
    for _ in 0..3 {
        client::read_end(&mut client::connect_from("127.0.0.9:0", DOOR_V4)?)?;
    }
    top.wait_for(&[
        "10       +3  the sender is not on the allow-list (sender_not_allowed)",
        "6 open of 16 taken",
    ])?;

    let load = Load::start(session_at(DOOR_V4, "203.0.113.8:5000")?);
    let (mut at, mut before) = (Instant::now(), 0);
    // The rates are those of the test's own count.
    bed.wait_for("the true rates", || {
        let (second, echoed) = (at.elapsed().as_secs_f64(), load.echoed());
        if second < 1.0 {
            return false;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate is compared with a tolerance")]
        let truth = (echoed - before) as f64 / second;
        (at, before) = (Instant::now(), echoed);
        let text = top.text();
        ["up", "down"].iter().all(|name| {
            rate(&text, name).is_some_and(|shown| truth > 0.0 && (shown / truth - 1.0).abs() < 0.25)
        })
    })
    .with_context(|| top.text())?;
    let first = |text: &str| text.find("203.0.113.8:5000") < text.find(CLIENT_V4);
    bed.wait_for("the fast session to stand first", || first(&top.text()))?;

    // Its own details, of the one that the filter finds.
    top.type_keys("/203.0.113.7:5000\r\r")?;
    top.wait_for(&[
        "1 sessions by rate, filter: 203.0.113.7:5000",
        "id  tcp-",
        "up  5.0 KiB, 0 B/s",
        "down  5.0 KiB, 0 B/s",
    ])?;
    drop(quiet);
    top.wait_for(&["It has ended"])?;
    top.type_keys("\x1b")?;
    bed.wait_for("the details to close", || !top.text().contains("It has ended"))?;
    top.type_keys("\x1b")?;
    top.wait_for(&["6 sessions by rate"])?;
    top.type_keys("\t")?;
    let echoed = load.stop()?;
    top.wait_for(&["tcp 127.0.0.1:8443", &format!("udp {GATE}"), "2 listeners"])?;
    bed.wait_for("the listeners' own counts", || {
        let text = top.text();
        let open = |name: &str| {
            text.lines().find(|line| line.contains(name))?.split_whitespace().nth(3)?.parse().ok()
        };
        open("127.0.0.1:8443") == Some(0) && open(GATE) == Some(5)
    })
    .with_context(|| top.text())?;
    top.wait_for(&["up 0 B/s", "down 0 B/s"])?;
    let status = Program::new(TRUEPEER).args(["status", "-c", "truepeer.toml", "--json"]).run(bed)?;
    ensure!(status.contains(&format!("\"bytes_up\":{}", echoed + 5120 + 1)), "{echoed}: {status}");
    top.type_keys("q")?;
    ensure!(top.wait_end()?.success(), "{}", top.text());
    // The thread that reads its output may still have some to draw.
    bed.wait_for("the usual screen", || top.is_restored().is_ok_and(|is| is))?;
    Ok(())
}

fn top_leaves_the_terminal_as_it_was(bed: &Bed) -> anyhow::Result<()> {
    let _truepeer = serve(bed, &[])?;
    for end in ["q", "\x03", "SIGTERM", "SIGHUP", "SIGINT"] {
        let mut top = top(bed)?;
        top.wait_for(&["0 sessions by rate"])?;
        ensure!(!top.is_restored()?, "top has changed nothing");
        match end {
            "SIGTERM" => top.signal(Signal::TERM)?,
            "SIGHUP" => top.signal(Signal::HUP)?,
            "SIGINT" => top.signal(Signal::INT)?,
            keys => top.type_keys(keys)?,
        }
        ensure!(top.wait_end()?.success(), "{end:?}");
        bed.wait_for("the usual screen", || top.is_restored().is_ok_and(|is| is)).context(end)?;
    }
    Ok(())
}

fn top_finds_a_truepeer_again_that_was_upgraded_or_restarted(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let old = serve(bed, &[])?;
    let mut top = top(bed)?;
    top.wait_for(&["serving", &format!("process {}", old.pid())])?;
    let new = serve(bed, &["--take-over"])?;
    ensure!(old.wait_end()?.success(), "{}", old.log());
    top.wait_for(&[&format!("process {} instead of {}", new.pid(), old.pid())])?;
    new.stop()?;
    top.wait_for(&["No answer for", "asking again"])?;
    top.type_keys("?")?;
    top.wait_for(&["this help"])?;
    let third = serve(bed, &[])?;
    let _session = session_at(DOOR_V4, CLIENT_V4)?;
    top.type_keys("\x1b")?;
    top.wait_for(&["serving", &format!("process {}", third.pid()), CLIENT_V4])?;
    top.type_keys("q")?;
    ensure!(top.wait_end()?.success(), "{}", top.text());
    Ok(())
}

fn top_survives_every_size_of_the_window(bed: &Bed) -> anyhow::Result<()> {
    let _truepeer = serve(bed, &[])?;
    let mut top = top(bed)?;
    top.wait_for(&["0 sessions by rate"])?;
    for (columns, lines) in [(1, 1), (2, 1), (1, 40), (7, 3), (200, 2), (13, 13), (300, 120)] {
        top.resize(columns, lines)?;
        top.type_keys("??\t")?;
        thread::sleep(Duration::from_millis(50));
        ensure!(top.is_alive(), "{columns} columns, {lines} lines: {}", top.text());
    }
    top.resize(80, 24)?;
    top.type_keys("\t")?;
    top.wait_for(&["serving", "q quit", "0 sessions by rate"])?;
    Ok(())
}

/// The key and the signal of the new size may be found by the same look for events.
fn top_takes_a_key_that_comes_with_another_size(bed: &Bed) -> anyhow::Result<()> {
    let _truepeer = serve(bed, &[])?;
    let mut top = top(bed)?;
    top.wait_for(&["0 sessions by rate"])?;
    for round in 0..100 {
        top.resize(80, 24 + round % 3)?;
        top.type_keys("\t")?;
        top.wait_for(&["Tab sessions"]).with_context(|| format!("round {round}"))?;
        top.type_keys("\t")?;
        top.wait_for(&["0 sessions by rate"]).with_context(|| format!("round {round}, back"))?;
    }
    Ok(())
}

fn top_without_a_truepeer_or_a_terminal_says_so(bed: &Bed) -> anyhow::Result<()> {
    let mut top = Terminal::start(bed, TRUEPEER, &["top", "--admin", "./nobody.sock"])?;
    ensure!(top.wait_end()?.code() == Some(1));
    top.wait_for(&["error: no truepeer answers at ./nobody.sock"])?;
    let _truepeer = serve(bed, &[])?;
    let error =
        Program::new(TRUEPEER).args(["top", "-c", "truepeer.toml"]).run(bed).expect_err("no terminal");
    ensure!(format!("{error:#}").contains("top needs a terminal"), "{error:#}");
    Ok(())
}
