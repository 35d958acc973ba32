//! Changes under load: origins, certificates, truepeer itself, VPP; and several workers.

use std::cell::Cell;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use super::stand::{DOOR, ORIGIN, OnVpp, client, curl, origin, run_client, succeed};

pub(super) fn tests() -> Vec<Test> {
    let mut all = tests![
        connections_are_kept_and_their_ends_are_noticed,
        a_restart_of_the_origin_loses_no_request,
        an_unreachable_origin_has_its_own_status,
        certificates_change_under_load,
        open_requests_are_answered_before_the_end,
        several_workers_share_the_clients,
        vpps_end_ends_truepeer_with_a_reason,
        a_new_start_is_reached_at_once,
        a_signal_that_ends_truepeer_is_told,
    ];
    let soak = Test::new("restarts_lose_no_request_of_two_workers", restarts_lose_no_request_of_two_workers);
    all.push(soak.time_limit(length() + Duration::from_secs(300)));
    all.push(Test::new("reloads_leave_no_descriptors", reloads_leave_no_descriptors));
    let again = Test::new("two_workers_serve_after_others_have", two_workers_serve_after_others_have);
    all.push(again.needs_program("h2load").time_limit(Duration::from_secs(120 + 12 * runs())));
    all
}

/// How long requests and restarts go on: `SOAK_SECONDS`, or long enough for a few.
fn length() -> Duration {
    Duration::from_secs(number("SOAK_SECONDS").unwrap_or(8))
}

/// How many truepeers serve one after another on one VPP: `RUNS`, or so many that VPP would hang if each left
/// two sockets behind.
fn runs() -> u64 {
    number("RUNS").unwrap_or(9)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Eight clients that send requests continuously, each on its own connection, or on one for each request.
struct Load<'a> {
    bed: &'a Bed,
    clients: Running,
    seen: Cell<usize>,
}

impl<'a> Load<'a> {
    fn start(bed: &'a Bed, keep: bool) -> Result<Self> {
        let again = if keep { "" } else { "; connection.close()" };
        let script = format!(
            r"
def ask(number):
    connection, served = client(), 0
    while not os.path.exists('enough'):
        connection.request('GET', '/echo/fine')
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b'fine'), response.status
        served += 1
        if served % 10 == 0: sys.stdout.write('ten\n'); sys.stdout.flush(){again}
on_threads(8, ask)
print('over')
"
        );
        Ok(Self { bed, clients: client(bed, DOOR, &script)?, seen: Cell::new(0) })
    }

    /// Waits until some more have been answered.
    fn goes_on(&self) -> Result<()> {
        let enough = self.seen.get() + 20;
        let tens = || self.clients.stdout().matches("ten").count();
        self.clients.wait_state("some more answers", || tens() >= enough)?;
        self.seen.set(tens());
        Ok(())
    }

    /// Ends it. Every request must have got its answer. Returns how many did, to within the last nine of each
    /// client.
    fn end(self) -> Result<usize> {
        self.bed.write("enough", "")?;
        let said = succeed(&self.clients)?;
        ensure!(said.contains("over"), "{}", self.clients.log());
        Ok(10 * said.matches("ten").count())
    }
}

/// One worker and one client: all its requests use one connection to the origin. Once either side closes its
/// end, VPP has removed it.
fn connections_are_kept_and_their_ends_are_noticed(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let server = "keepalive_timeout 2s; location / { return 200 \"$connection $connection_requests\\n\"; }";
    let _origin = Nginx::default().server(format!("{ORIGIN}:8080"), "", server).start(bed)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--keepalive-timeout", "1h"])?;
    let url = "https://172.16.2.1/";
    let said = curl(&[url, url, url]).run(bed)?;
    let lines: Vec<_> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(lines.len() == 3 && lines.iter().all(|(connection, _)| *connection == lines[0].0), "{said}");
    ensure!(lines[2].1 == "3", "{said}; {}", truepeer.log());
    bed.wait_for("the end of both", || {
        let sessions = on_vpp.tell("show session verbose").unwrap_or_default();
        sessions.contains("LISTEN") && !sessions.contains("ESTABLISHED") && !sessions.contains("_WAIT ")
    })
}

/// It is stopped in the middle, and for a moment nothing listens.
fn a_restart_of_the_origin_loses_no_request(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let nginx = Nginx::default().server(format!("{ORIGIN}:8080"), "", "location / { return 200 fine; }");
    let mut origin = Some(nginx.start(bed)?);
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--origin-patience", "50s"])?;
    let load = Load::start(bed, true)?;
    for _ in 0..3 {
        load.goes_on()?;
        drop(origin.take());
        origin = Some(nginx.start(bed)?);
    }
    load.goes_on()?;
    load.end().with_context(|| truepeer.log())?;
    Ok(())
}

/// VPP reports a refused connection only by an event, without the reason.
fn an_unreachable_origin_has_its_own_status(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let truepeer =
        on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--origin-patience", "0", "--access-log"])?;
    let status = curl(&["--output", "/dev/null", "--write-out", "%{http_code}", "https://172.16.2.1/"]);
    let status = status.run(bed)?;
    ensure!(status == "502", "{status}");
    truepeer.wait_for_log("can't connect to the origin")?;
    truepeer.wait_for_log("origin_unreachable")
}

fn certificates_change_under_load(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &[])?;
    let load = Load::start(bed, false)?;
    for round in 1..=3 {
        load.goes_on()?;
        let name = format!("site-{round}.test");
        on_vpp.certify(&[&name])?;
        truepeer.signal(Signal::HUP)?;
        truepeer.wait_state("the certificates", || {
            truepeer.log().matches("have new certificates").count() == round
        })?;
        let verified = curl(&["--cacert"])
            .arg(bed.dir().join("authority.pem"))
            .args(["--no-insecure", "--resolve", &format!("{name}:443:172.16.2.1")])
            .arg(format!("https://{name}/echo/{round}"))
            .run(bed)?;
        ensure!(verified == round.to_string(), "{verified}; {}", truepeer.log());
    }
    load.goes_on()?;
    load.end().with_context(|| truepeer.log())?;
    Ok(())
}

/// An idle connection is closed, a started request is answered, and then truepeer ends with success.
fn open_requests_are_answered_before_the_end(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let origin = origin(bed, 8080)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &[])?;
    let busy = client(
        bed,
        DOOR,
        r"
idle, busy = connect(), connect()
for stream in idle, busy:
    stream.sendall(b'GET /echo/x HTTP/1.1\r\nHost: site.test\r\n\r\n')
    head_of(stream)
    assert stream.recv(1) == b'x'
busy.sendall(b'POST /digest HTTP/1.1\r\nHost: site.test\r\nContent-Length: 2\r\n\r\na')
print('ready', flush=True)
assert idle.recv(1) == b''
print('idle ended', flush=True)
while not os.path.exists('go'): time.sleep(.02)
busy.sendall(b'b')
answer = b''
while piece := busy.recv(4096): answer += piece
print(answer.decode(), flush=True)
",
    )?;
    busy.wait_for_log("ready")?;
    origin.wait_for_log("request /digest")?;
    truepeer.signal(Signal::TERM)?;
    truepeer.wait_for_log("stopping: nothing new is taken")?;
    busy.wait_for_log("idle ended")?;
    bed.write("go", "")?;
    let answer = succeed(&busy)?.to_lowercase();
    // SHA-256 of "ab".
    let digest = "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603";
    for part in ["http/1.1 200 ok", "connection: close", digest] {
        ensure!(answer.contains(part), "no {part:?} in {answer}");
    }
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    // Nothing is asked of VPP's stack that it can't do.
    ensure!(!truepeer.log().contains("WARN"), "{}", truepeer.log());
    Ok(())
}

/// Each worker opens its own listener, and VPP distributes connections. Kept connections to the origin belong
/// to a worker: NGINX counts at most as many as there are workers.
fn several_workers_share_the_clients(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let server = "location / { return 200 \"$connection\\n\"; }";
    let _origin = Nginx::default().server(format!("{ORIGIN}:8080"), "", server).start(bed)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--workers", "2"])?;
    let said = run_client(
        bed,
        DOOR,
        r"
seen = set()
for _ in range(24):
    connection = client()
    for _ in range(3):
        connection.request('GET', '/')
        seen.add(connection.getresponse().read())
    connection.close()
print(len(seen))
",
    )?;
    ensure!(said.trim() == "2", "{said} connections; {}", truepeer.log());
    truepeer.signal(Signal::TERM)?;
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    Ok(())
}

/// Kept connections and new ones at the same time, while the origin restarts and the certificate changes.
fn restarts_lose_no_request_of_two_workers(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let nginx = Nginx::default().server(format!("{ORIGIN}:8080"), "", "location / { return 200 fine; }");
    let mut origin = Some(nginx.start(bed)?);
    // On a busy machine VPP has the processor late.
    let options = ["--workers", "2", "--origin-patience", "50s", "--connect-timeout", "30s"];
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &options)?;
    let (kept, new) = (Load::start(bed, true)?, Load::start(bed, false)?);
    let (begin, mut rounds) = (Instant::now(), 0);
    while begin.elapsed() < length() {
        rounds += 1;
        drop(origin.take());
        origin = Some(nginx.start(bed)?);
        kept.goes_on().and_then(|()| new.goes_on()).with_context(|| truepeer.log())?;
        on_vpp.certify(&[&format!("site-{rounds}.test")])?;
        truepeer.signal(Signal::HUP)?;
        truepeer.wait_state("the certificates", || {
            truepeer.log().matches("have new certificates").count() == rounds
        })?;
        kept.goes_on().and_then(|()| new.goes_on()).with_context(|| truepeer.log())?;
    }
    for load in [kept, new] {
        let answered = load.end().with_context(|| truepeer.log())?;
        println!("{answered} answered, {rounds} restarts of the origin and certificates");
    }
    truepeer.signal(Signal::TERM)?;
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    Ok(())
}

/// VPP's library keeps two descriptors of each datagram socket that was bound.
fn reloads_leave_no_descriptors(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--workers", "2"])?;
    let before = truepeer.descriptors()?;
    for round in 1..=10 {
        on_vpp.certify(&[&format!("site-{round}.test")])?;
        truepeer.signal(Signal::HUP)?;
        truepeer.wait_state("the certificates", || {
            truepeer.log().matches("have new certificates").count() == round
        })?;
    }
    truepeer
        .wait_state("as few descriptors as before", || truepeer.descriptors().is_ok_and(|now| now <= before))
}

/// On one VPP, one after another.
fn two_workers_serve_after_others_have(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    for _ in 0..runs() {
        let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--workers", "2"])?;
        let words = ["-n2000", "-c24", "-m8", "https://172.16.2.1/echo/word"];
        let said = succeed(&Program::new("h2load").args(words).start(bed)?)?;
        ensure!(said.contains("2000 succeeded, 0 failed, 0 errored"), "{said}; {}", truepeer.log());
        truepeer.signal(Signal::TERM)?;
        let status = truepeer.wait_end()?;
        ensure!(status.code() == Some(0), "{status}: {}", truepeer.log());
    }
    Ok(())
}

/// Neighbours still have the link-layer address of the VPP before.
fn a_new_start_is_reached_at_once(bed: &Bed) -> Result<()> {
    let mut on_vpp = OnVpp::ethernet(bed)?;
    let _origin = origin(bed, 8080)?;
    for again in [false, true] {
        if again {
            on_vpp = on_vpp.up_again()?;
        }
        let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &[])?;
        let said = curl(&["--connect-timeout", "4", "https://172.16.2.1/echo/word"]).run(bed)?;
        ensure!(said == "word", "{said}; {}", truepeer.log());
    }
    Ok(())
}

/// VPP's library runs in every thread of truepeer.
fn a_signal_that_ends_truepeer_is_told(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--workers", "2"])?;
    truepeer.signal(Signal::SEGV)?;
    let status = truepeer.wait_end()?;
    ensure!(status.signal() == Some(Signal::SEGV.as_raw()), "{status}: {}", truepeer.log());
    truepeer.wait_for_log(" was ended by SIGSEGV")
}

/// When VPP is killed, its descriptors report nothing any more.
fn vpps_end_ends_truepeer_with_a_reason(bed: &Bed) -> Result<()> {
    for workers in ["1", "2"] {
        let on_vpp = OnVpp::ethernet(bed)?;
        let _origin = origin(bed, 8080)?;
        let truepeer = on_vpp.https(DOOR, "http://172.16.1.1:8080", &["--workers", workers])?;
        let load = Load::start(bed, true)?;
        load.goes_on()?;
        kill_process(Pid::from_raw(on_vpp.process()?).context("a number")?, Signal::KILL)?;
        let status = truepeer.wait_end()?;
        ensure!(status.code() == Some(1), "{status}: {}", truepeer.log());
        truepeer.wait_for_log("VPP has ended")?;
        drop(on_vpp);
        truepeer_testbed::ip_here(&["link del va", "link del vb"])?;
    }
    Ok(())
}
