//! Requests while the origin restarts: all idempotent ones are answered, whichever version of HTTP the origin
//! speaks.

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{Certificate, https};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for origin in [Http1, Http2] {
        let named = |name: &str| format!("{name}_loses_no_request{}", origin.suffix());
        all.push(Test::new(named("a_restart_of_the_origin"), move |bed| restart(bed, origin)));
        all.push(Test::new(named("a_reload_of_the_origin"), move |bed| reload(bed, origin)));
        let name = format!("nobody_notices_over_http2_either{}", origin.suffix());
        let over_http2 = Test::new(name, move |bed| nobody_notices_over_http2_either(bed, origin));
        all.push(over_http2.needs_program("h2load"));
        all.push(Test::new(named("a_reload_of_truepeer"), move |bed| own_reload(bed, origin)));
        all.push(Test::new(named("a_replacement_of_the_origin"), move |bed| replacement(bed, origin)));
    }
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8080";
const FINE: &str = "location / { return 200 \"fine\\n\"; }";

fn truepeer(bed: &Bed, origin: OriginVersion) -> anyhow::Result<Running> {
    https(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--origin-patience", "50s")
        .option("--origin-protocol", origin.option())
        .start(bed)
}

fn nginx(origin: OriginVersion, listen_options: &str) -> Nginx {
    Nginx::default().server(ORIGIN, &format!("{listen_options} {}", origin.nginx()), FINE)
}

/// Eight clients that send requests continuously, each on its own connection.
struct Load<'a> {
    bed: &'a Bed,
    clients: Running,
}

impl<'a> Load<'a> {
    fn start(bed: &'a Bed) -> anyhow::Result<Self> {
        const SCRIPT: &str = r"
import http.client, os, ssl, threading
context = ssl._create_unverified_context()
failures, served = [], [0] * 8
def ask(number):
    client = http.client.HTTPSConnection('127.0.0.1', 443, timeout=60, context=context)
    while not os.path.exists('enough'):
        try:
            client.request('GET', '/')
            response = client.getresponse()
            body = response.read()
            if (response.status, body) != (200, b'fine\n'): failures.append((response.status, body))
        except Exception as error:
            failures.append(repr(error))
            client.close()
        served[number] += 1
        if served[number] % 20 == 0: open('progress-%d' % number, 'w').write(str(served[number]))
threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(failures), failures[:3])
";
        let clients = Program::new("python3").args(["-c", SCRIPT]).start(bed)?;
        Ok(Self { bed, clients })
    }

    fn progress(&self) -> usize {
        let of = |number: usize| {
            let text = std::fs::read_to_string(self.bed.dir().join(format!("progress-{number}")));
            text.ok().and_then(|text| text.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        (0..8).map(of).sum()
    }

    /// Waits until some more have been answered.
    fn goes_on(&self) -> anyhow::Result<()> {
        let before = self.progress();
        self.bed.wait_for("some more requests", || self.progress() > before + 400)
    }

    /// Ends it. Every request must have got its answer.
    fn end(self) -> anyhow::Result<()> {
        self.bed.write("enough", "")?;
        ensure!(self.clients.wait_end()?.success(), "{}", self.clients.log());
        ensure!(self.clients.stdout().starts_with("0 "), "failed: {}", self.clients.stdout());
        Ok(())
    }
}

/// It is stopped in the middle, and for a moment nothing listens.
fn restart(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let nginx = nginx(origin, "");
    let _truepeer = truepeer(bed, origin)?;
    let mut origin = Some(nginx.start(bed)?);
    let load = Load::start(bed)?;
    for _ in 0..3 {
        load.goes_on()?;
        drop(origin.take());
        origin = Some(nginx.start(bed)?);
    }
    load.goes_on()?;
    load.end()
}

/// `nginx -s reload`: new workers take over, and the old ones close kept connections.
fn reload(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let _truepeer = truepeer(bed, origin)?;
    let origin = nginx(origin, "").workers(2).start(bed)?;
    let load = Load::start(bed)?;
    for round in 1..=5 {
        load.goes_on()?;
        origin.signal(Signal::HUP)?;
        reloaded(&origin, round)?;
    }
    load.goes_on()?;
    load.end()
}

/// Waits for the start of this many reloads. The line about the signal itself ends in ", reconfiguring".
fn reloaded(origin: &Running, times: usize) -> anyhow::Result<()> {
    origin.wait_state("a reload", || origin.stderr().matches(": reconfiguring").count() >= times)
}

/// With another certificate each time, so new rules with pools of their own.
fn own_reload(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let truepeer = truepeer(bed, origin)?;
    let _origin = nginx(origin, "").start(bed)?;
    let load = Load::start(bed)?;
    for round in 1..=3 {
        load.goes_on()?;
        Certificate::make(bed)?;
        truepeer.signal(Signal::HUP)?;
        truepeer.wait_state("a reload", || truepeer.log().matches("reloaded: ").count() >= round)?;
    }
    load.goes_on()?;
    load.end()
}

/// A second NGINX listens on the same port (SO_REUSEPORT) before the first one leaves.
fn replacement(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let nginx = nginx(origin, "reuseport");
    let _truepeer = truepeer(bed, origin)?;
    let mut origin = nginx.start(bed)?;
    let load = Load::start(bed)?;
    for _ in 0..3 {
        load.goes_on()?;
        let next = nginx.start(bed)?;
        next.wait_state("its workers", || next.stderr().contains("start worker process "))?;
        origin.signal(Signal::QUIT)?;
        ensure!(origin.wait_end()?.success(), "{}", origin.log());
        origin = next;
    }
    load.goes_on()?;
    load.end()
}

fn nobody_notices_over_http2_either(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let _truepeer = truepeer(bed, origin)?;
    let origin = nginx(origin, "").workers(2).start(bed)?;
    // NGINX acts on a signal that comes before its workers only when the next signal comes.
    origin.wait_for_log("start worker process ")?;
    let load = Program::new("h2load").args(["-n6000", "-c4", "-m8", "https://127.0.0.1/"]).start(bed)?;
    let mut reloads = 0;
    while load.is_alive() {
        origin.signal(Signal::HUP)?;
        reloads += 1;
        reloaded(&origin, reloads)?;
    }
    ensure!(load.wait_end()?.success(), "{}", load.log());
    ensure!(reloads > 0, "all was over before the first reload");
    ensure!(load.stdout().contains("6000 succeeded, 0 failed, 0 errored"), "{}", load.stdout());
    Ok(())
}
