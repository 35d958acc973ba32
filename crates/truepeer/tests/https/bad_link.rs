//! Clients behind a link that damages, reorders, duplicates and loses packets: each request and response
//! arrives as it was sent, and the origin sees its own client.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Result, ensure};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::packets::{BadLink, Mischief};
use truepeer_testbed::{Bed, Program, Test};

use crate::kit::{curl, https};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("a_bad_link_changes_no_request_and_no_response", over_a_bad_link)
            .needs_program("ethtool")
            .needs_program("curl")
            .needs_program("python3"),
    ]
}

/// Of 1000 packets, so many are damaged, as many delayed, as many doubled, and as many lost.
const SHARE: usize = 50;
const CLIENTS: u8 = 16;
/// Connections with [`EACH`] requests.
const CONNECTIONS: usize = 40;
const EACH: usize = 3;

/// Sends each body back, and says whose it was.
const ORIGIN: &str = r"
import http.server, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        answer = self.headers['X-Forwarded-For'].encode() + b'\n' + body
        self.send_response(200)
        self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, request_queue_size = True, 128
Server(('127.0.0.1', 8080), Handler).serve_forever()
";

fn over_a_bad_link(bed: &Bed) -> Result<()> {
    let link = BadLink::make(bed, Mischief::of_each(SHARE), 4)?;
    let clients: Vec<Ipv4Addr> = (0..CLIENTS).map(|number| Ipv4Addr::new(10, 77, 0, 100 + number)).collect();
    let added: Vec<String> = clients.iter().map(|ip| format!("addr add {ip}/32 dev wire")).collect();
    link.left.ip(&added.iter().map(String::as_str).collect::<Vec<_>>())?;
    let listener = link.right.at(false, 443).to_string();
    let (_origin, truepeer) = link.right.run(|| -> Result<_> {
        let origin = Program::new("python3").args(["-c", ORIGIN]).start(bed)?;
        origin.wait_listening("127.0.0.1:8080")?;
        Ok((origin, https(bed, &listener, "http://127.0.0.1:8080")?.start(bed)?))
    })??;
    link.left.run(|| {
        in_parallel(10, CONNECTIONS, |number| {
            converse(bed, &listener, clients[number % clients.len()], number)
        })
    })??;
    ensure!(truepeer.is_alive());
    let deeds = &link.deeds;
    let hit = [&deeds.damaged, &deeds.late, &deeds.doubled, &deeds.lost].map(|deed| deed.load(Relaxed));
    eprintln!("{} packets; damaged, late, doubled, lost: {hit:?}", deeds.carried.load(Relaxed));
    ensure!(hit.iter().all(|deed| *deed > 10), "the link was too good: {hit:?}");
    Ok(())
}

/// Requests of one connection, one after the other.
fn converse(bed: &Bed, listener: &str, client: Ipv4Addr, number: usize) -> Result<()> {
    let version = if number.is_multiple_of(2) { "--http1.1" } else { "--http2" };
    let url = format!("https://{listener}/");
    let from = client.to_string();
    let mut program = curl(&[version, "--interface", &from, "--no-progress-meter", "--max-time", "100"]);
    let mut expected = Vec::new();
    for request in 0..EACH {
        let body = format!("{number}.{request} ").repeat(1 + number * 37 % 2000);
        let file = bed.write(&format!("body-{number}-{request}"), &body)?;
        if request > 0 {
            program = program.arg("--next").args([
                version,
                "--insecure",
                "--interface",
                &from,
                "--silent",
                "--show-error",
            ]);
        }
        program = program.arg("--data-binary").arg(format!("@{}", file.display())).arg(&url);
        expected.push(format!("{from}\n{body}"));
    }
    let running = program.start(bed)?;
    let status = running.wait_end_within(std::time::Duration::from_secs(110))?;
    ensure!(status.success(), "connection {number}: {status}: {}", running.stderr());
    ensure!(running.stdout() == expected.concat(), "connection {number} of {from}: other bytes came back");
    Ok(())
}
