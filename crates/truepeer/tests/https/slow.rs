//! Clients that read their responses slowly, or not at all.

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Running, Test};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{CONNECT, curl, https, origin_in};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for origin in [Http1, Http2] {
        let named = |name: &str| format!("{name}{}", origin.suffix());
        let (too_slowly, nothing) = (
            "a_client_that_reads_too_slowly_is_ended_and_counted",
            "a_client_that_reads_nothing_is_ended_and_counted",
        );
        all.push(Test::new(named(too_slowly), move |bed| reads_too_slowly(bed, origin)));
        all.push(Test::new(named(nothing), move |bed| reads_nothing(bed, origin)));
        let patient = "a_slow_reader_is_served_without_a_minimum_rate";
        all.push(Test::new(named(patient), move |bed| is_served_without_a_minimum_rate(bed, origin)));
    }
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";
/// Far more than both kernels buffer for a connection.
const BYTES: usize = 40_000_000;

/// Requests much, and reads little at a time with pauses, by HTTP/1.1 and with a small window.
fn reader(bed: &Bed, pause: &str) -> anyhow::Result<Running> {
    let script = format!(
        r"{CONNECT}
import time
plain = socket.socket()
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
plain.settimeout(60)
plain.connect(('127.0.0.1', 443))
stream = context.wrap_socket(plain, server_hostname='site', suppress_ragged_eofs=False)
stream.sendall(b'GET /{BYTES} HTTP/1.1\r\nHost: site\r\n\r\n')
print('asked', flush=True)
got, how = 0, 'in order'
try:
    while got < {BYTES}:
        {pause}
        data = stream.recv(16384)
        if not data: break
        got += len(data)
except (ConnectionResetError, ssl.SSLEOFError): how = 'reset'
print('ended', how, 'whole' if got >= {BYTES} else 'not whole', flush=True)
"
    );
    Program::new("python3").args(["-c", &script]).start(bed)
}

/// Waits until the reason is counted. Meanwhile other clients are served.
fn ended(bed: &Bed, truepeer: &Running, reason: &str) -> anyhow::Result<()> {
    truepeer.wait_state(reason, || {
        let is_served = curl(&["https://127.0.0.1/3"]).run(bed).is_ok_and(|answer| answer == "xxx");
        assert!(is_served, "somebody else was not served");
        truepeer.signal(Signal::USR1).is_ok() && truepeer.log().split([' ', '"']).any(|word| word == reason)
    })
}

/// A little at a time, so that it always makes some progress.
fn reads_too_slowly(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let options = ["--send-timeout", "3s", "--min-rate", "1GiB", "--access-log"];
    let truepeer =
        https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).args(&options).start(bed)?;
    let slow = reader(bed, "time.sleep(.02)")?;
    ended(bed, &truepeer, "client_too_slow=1")?;
    ensure!(slow.wait_end()?.success(), "{}", slow.log());
    ensure!(slow.stdout().contains("ended reset not whole"), "{}", slow.log());
    truepeer.wait_for_log("client_too_slow")
}

fn reads_nothing(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let truepeer = https(bed, HERE, ORIGIN)?
        .option("--origin-protocol", version.option())
        .args(&["--send-timeout", "1s"])
        .start(bed)?;
    let wait = "while not __import__('os').path.exists('go'): time.sleep(.02)";
    let slow = reader(bed, wait)?;
    slow.wait_for_log("asked")?;
    ended(bed, &truepeer, "client_stalled=1")?;
    bed.write("go", "")?;
    ensure!(slow.wait_end()?.success(), "{}", slow.log());
    ensure!(slow.stdout().contains("ended reset not whole"), "{}", slow.log());
    Ok(())
}

fn is_served_without_a_minimum_rate(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let truepeer = https(bed, HERE, ORIGIN)?
        .option("--origin-protocol", version.option())
        .args(&["--send-timeout", "20s", "--min-rate", "0"])
        .start(bed)?;
    // Stops in the middle, and continues on order.
    let wait = "
        if got > 1000000:
            print('stopped', flush=True)
            while not __import__('os').path.exists('go'): time.sleep(.02)";
    let slow = reader(bed, wait)?;
    slow.wait_for_log("stopped")?;
    ensure!(curl(&["https://127.0.0.1/3"]).run(bed)? == "xxx");
    bed.write("go", "")?;
    ensure!(slow.wait_end()?.success(), "{}; {}", slow.log(), truepeer.log());
    ensure!(slow.stdout().contains("ended in order whole"), "{}", slow.log());
    Ok(())
}
