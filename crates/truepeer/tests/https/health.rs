//! Health checks: their requests, and the answers that count against an origin.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::kit::{Certificate, curl, https_by, python_client};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_check_asks_as_a_client_does,
        a_check_may_ask_for_another_host,
        listeners_share_their_checks,
        each_address_is_checked,
        a_reload_keeps_what_is_known,
    ];
    let python = tests![kept_connections_survive_a_lack_of_descriptors];
    all.extend(python.into_iter().map(|test| test.needs_program("python3")));
    all.push(
        Test::new("a_stopped_process_does_not_blame_the_origin", a_stopped_process)
            .needs_program("python3")
            .long(),
    );
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8080";

/// The status that curl gets.
fn status(bed: &Bed, url: &str) -> anyhow::Result<String> {
    curl(&["-o", "/dev/null", "-w", "%{http_code}", url]).run(bed)
}

fn becomes(bed: &Bed, truepeer: &Running, url: &str, expected: &str) -> anyhow::Result<()> {
    truepeer
        .wait_state(&format!("{url} {expected}"), || status(bed, url).is_ok_and(|status| status == expected))
}

/// NGINX's default server is another site, and both refuse what no client of truepeer sends.
fn sites(bed: &Bed, name: &str) -> anyhow::Result<Running> {
    let log = bed.dir().join("checks");
    let ready = format!(
        "location / {{ return 200 site; }} location /ready {{ access_log {}; \
         if ($http_x_forwarded_proto != https) {{ return 500; }} if ($http_x_forwarded_for) {{ return 500; }} \
         if ($http_forwarded) {{ return 500; }} return 204; }}",
        log.display()
    );
    Nginx::default()
        .server(ORIGIN, "default_server", "location / { return 421; }")
        .server(ORIGIN, "", &format!("server_name {name}; {ready}"))
        .start(bed)
}

/// How many checks have come.
fn checks(bed: &Bed) -> usize {
    std::fs::read_to_string(bed.dir().join("checks")).map_or(0, |text| text.lines().count())
}

fn a_check_asks_as_a_client_does(bed: &Bed) -> anyhow::Result<()> {
    for (name, origin, match_of, version) in [
        ("localhost", "http://localhost:8080".to_owned(), "", "http1"),
        ("api.test", format!("http://{ORIGIN}"), "api.test=", "http1"),
        ("api.test", format!("http://{ORIGIN}"), "api.test=", "h2"),
    ] {
        let nginx = sites(bed, name)?;
        if version == "h2" {
            drop(nginx);
            return http2_check(bed);
        }
        let mut truepeer = https_by(bed, HERE, &origin)?.option("--workers", 1);
        if !match_of.is_empty() {
            truepeer = truepeer.option("--origin", format!("{match_of}{origin}"));
        }
        let truepeer = truepeer.option("--origin-health", format!("{match_of}/ready,100ms")).start(bed)?;
        let before = checks(bed);
        truepeer.wait_state("ten checks", || checks(bed) > before + 10)?;
        ensure!(!truepeer.log().contains("is down"), "{name}: {}", truepeer.log());
        let to = format!("{name}:443:127.0.0.1");
        let answer = curl(&["--resolve", &to, &format!("https://{name}/")]).run(bed)?;
        ensure!(answer == "site", "{name}: {answer}");
    }
    Ok(())
}

/// The same over HTTP/2: the host is its :authority.
fn http2_check(bed: &Bed) -> anyhow::Result<()> {
    let _sites = Nginx::default()
        .server(ORIGIN, "default_server http2", "location / { return 421; }")
        .server(
            ORIGIN,
            "http2",
            &format!(
                "server_name api.test; location / {{ access_log {}; return 200; }}",
                bed.dir().join("checks").display()
            ),
        )
        .start(bed)?;
    let truepeer = https_by(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--origin-protocol", "h2")
        .option("--origin", format!("api.test=http://{ORIGIN}"))
        .option("--origin-health", "connect,100ms")
        .option("--origin-health", "api.test=/ready,100ms")
        .start(bed)?;
    let before = checks(bed);
    truepeer.wait_state("ten checks", || checks(bed) > before + 10)?;
    ensure!(!truepeer.log().contains("is down"), "{}", truepeer.log());
    Ok(())
}

fn a_check_may_ask_for_another_host(bed: &Bed) -> anyhow::Result<()> {
    let _sites = sites(bed, "site.test")?;
    let truepeer = https_by(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--origin-health", "/ready,100ms")
        .start(bed)?;
    // By the URL's host, this is the default server's page.
    becomes(bed, &truepeer, "https://127.0.0.1/", "503")?;
    truepeer.wait_for_log("it answers /ready with status 421")?;
    truepeer.wait_for_log("requests=default")?;
    drop(truepeer);
    let truepeer = https_by(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--origin-health", "site.test/ready,100ms")
        .start(bed)?;
    truepeer.wait_state("ten checks", || checks(bed) > 10)?;
    ensure!(!truepeer.log().contains("is down"), "{}", truepeer.log());
    Ok(())
}

/// Three listeners with two workers each, one of which only redirects.
fn listeners_share_their_checks(bed: &Bed) -> anyhow::Result<()> {
    let nginx = sites(bed, "localhost")?;
    let truepeer = https_by(bed, HERE, "http://localhost:8080")?
        .option("--workers", 2)
        .option("-l", "127.0.0.1:8443")
        .listen_http("127.0.0.1:80")
        .option("--origin-health", "/ready,200ms")
        .start(bed)?;
    truepeer.wait_state("the first check", || checks(bed) > 0)?;
    let (began, before) = (Instant::now(), checks(bed));
    truepeer.wait_state("ten more checks", || checks(bed) > before + 10)?;
    let count = (checks(bed) - before) as u128;
    // One of them may have begun before.
    let most = began.elapsed().as_millis() / 200 + 2;
    ensure!(count <= most, "{count} checks in {:?}", began.elapsed());
    drop(nginx);
    for url in ["https://127.0.0.1/", "https://127.0.0.1:8443/"] {
        becomes(bed, &truepeer, url, "503")?;
    }
    let said = truepeer.log().matches("an origin is down").count();
    ensure!(said == 1, "said {said} times: {}", truepeer.log());
    Ok(())
}

/// Its own /etc/hosts, because not every machine's has an IPv6 address for localhost.
fn with_both_addresses(bed: &Bed, program: Program) -> anyhow::Result<Program> {
    let hosts = bed.write("hosts", "127.0.0.1 both.test\n::1 both.test\n")?;
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    Ok(program.launched_by("unshare", &["-m", "sh", "-c", &script, "sh"]))
}

fn each_address_is_checked(bed: &Bed) -> anyhow::Result<()> {
    let (four, six) = (("127.0.0.1:8080", "https://127.0.0.1/"), ("[::1]:8080", "https://[::1]/"));
    for (up, down) in [(four, six), (six, four)] {
        let _origin = Nginx::default().server(up.0, "", "location / { return 200; }").start(bed)?;
        let truepeer =
            https_by(bed, "[::]:443", "http://both.test:8080")?.option("--origin-health", "connect,100ms");
        let program = with_both_addresses(bed, truepeer.program().clone())?;
        let truepeer = truepeer.with(|_| program).start(bed)?;
        becomes(bed, &truepeer, down.1, "503")?;
        for _ in 0..5 {
            ensure!(status(bed, up.1)? == "200", "{}: {}", up.1, truepeer.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// A renewed certificate brings new rules. The origin is down for them, too.
fn a_reload_keeps_what_is_known(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = https_by(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--workers", 2)
        .option("--origin-retry-timeout", 0)
        .option("--origin-health", "connect,500ms")
        .start(bed)?;
    becomes(bed, &truepeer, "https://127.0.0.1/", "503")?;
    Certificate::make(bed)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("certificates")?;
    let now = status(bed, "https://127.0.0.1/")?;
    ensure!(now == "503", "{now}: {}", truepeer.log());
    let _origin = Nginx::default().server(ORIGIN, "", "location / { return 200; }").start(bed)?;
    becomes(bed, &truepeer, "https://127.0.0.1/", "200")?;
    let log = truepeer.log();
    ensure!(log.matches("an origin is down").count() == 1, "{log}");
    ensure!(log.matches("an origin is up again").count() == 1, "{log}");
    Ok(())
}

/// With its connection to the origin, a client's goes on although truepeer can open no other for a check.
fn kept_connections_survive_a_lack_of_descriptors(bed: &Bed) -> anyhow::Result<()> {
    let _sites = sites(bed, "localhost")?;
    for rule in ["connect,100ms", "/ready,100ms"] {
        let truepeer = https_by(bed, HERE, "http://localhost:8080")?
            .option("--workers", 1)
            .option("--user", "root")
            .option("--origin-health", rule)
            .start(bed)?;
        std::fs::remove_file(bed.dir().join("lacking")).ok();
        std::fs::remove_file(bed.dir().join("asked")).ok();
        let limit = {
            let (pid, dir) = (truepeer.pid(), bed.dir().to_owned());
            std::thread::spawn(move || {
                while !dir.join("asked").exists() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let none = Rlimit { current: Some(0), maximum: Some(4096) };
                let set = prlimit(Pid::from_raw(pid), Resource::Nofile, none);
                std::fs::write(dir.join("lacking"), "").and_then(|()| set.map(|_| ()).map_err(Into::into))
            })
        };
        let said = python_client(
            bed,
            r"
import http.client, os, time
client = http.client.HTTPSConnection('127.0.0.1', 443, timeout=60, context=ssl._create_unverified_context())
def ask():
    client.request('GET', '/', headers={'Host': 'localhost'})
    response = client.getresponse()
    return response.status, response.read()
first = ask()
open('asked', 'w')
while not os.path.exists('lacking'): time.sleep(.01)
for _ in range(20):
    time.sleep(.1)
    answer = ask()
    if answer != first: print(answer)
print('done')
",
        )?;
        limit.join().expect("the thread")?;
        ensure!(said.trim() == "done", "{rule}: {said}; {}", truepeer.log());
        ensure!(!truepeer.log().contains("is down"), "{rule}: {}", truepeer.log());
    }
    Ok(())
}

/// The process is stopped, as a virtual machine may be, in the middle of two checks in a row: their time is
/// over when it goes on.
fn a_stopped_process(bed: &Bed) -> anyhow::Result<()> {
    const SLOW: &str = r"
import http.server, socketserver, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == '/ready': time.sleep(1)
        self.send_response(200)
        self.send_header('Content-Length', '0')
        self.end_headers()
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
Server(('127.0.0.1', 8080), Handler).serve_forever()
";
    let origin = Program::new("python3").args(["-c", SLOW]).start(bed)?;
    origin.wait_listening(ORIGIN)?;
    let truepeer = https_by(bed, HERE, &format!("http://{ORIGIN}"))?
        .option("--origin-health", "/ready,100ms")
        .option("--workers", 1)
        .start(bed)?;
    std::thread::sleep(Duration::from_millis(1500));
    for _ in 0..3 {
        truepeer.signal(Signal::STOP)?;
        std::thread::sleep(Duration::from_millis(5500));
        truepeer.signal(Signal::CONT)?;
        std::thread::sleep(Duration::from_millis(600));
    }
    ensure!(status(bed, "https://127.0.0.1/")? == "200", "{}", truepeer.log());
    ensure!(!truepeer.log().contains("is down"), "{}", truepeer.log());
    Ok(())
}
