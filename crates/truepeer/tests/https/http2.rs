//! HTTP/2 with clients: responses, limits, and many at once.

use anyhow::{Context as _, ensure};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Test, skip, tests, workspace_dir};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{curl, https, origin, origin_in};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        clients_choose_the_version,
        an_early_answer_is_not_lost,
        heads_and_bodies_have_limits,
        what_h2spec_asks_is_done
    ];
    for origin in [Http1, Http2] {
        let named = |name: &str| format!("{name}{}", origin.suffix());
        all.push(Test::new(named("bodies_pass_both_ways"), move |bed| bodies_pass(bed, origin)));
        let early = named("an_origins_early_answer_is_not_lost");
        all.push(Test::new(early, move |bed| origins_early_answer(bed, origin)));
    }
    all.push(Test::new("many_streams_are_served_at_once", many_streams).needs_program("h2load"));
    all.push(Test::new("uploads_share_a_connection", uploads_share_a_connection).needs_program("h2load"));
    all.push(Test::new("nghttp_is_served", nghttp_is_served).needs_program("nghttp"));
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";

fn clients_choose_the_version(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let version =
        |option: &str| curl(&[option, "--write-out", " %{http_version}", "https://127.0.0.1/3"]).run(bed);
    ensure!(version("--http2")? == "xxx 2");
    ensure!(version("--http1.1")? == "xxx 1.1");
    drop(truepeer);
    let _truepeer = https(bed, HERE, ORIGIN)?.args(&["--no-http2"]).start(bed)?;
    ensure!(version("--http2")? == "xxx 1.1");
    Ok(())
}

fn bodies_pass(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let _origin = origin_in(bed, 8080, version)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
    let file = bed.write("body", "z".repeat(100_000).repeat(50))?;
    let up = |option: &str| {
        curl(&["--http2", option]).arg(format!("@{}", file.display())).arg("https://127.0.0.1/").run(bed)
    };
    let with_length = up("--data-binary")?;
    ensure!(with_length == DIGEST_OF_BODY, "{with_length}");
    let without = curl(&["--http2", "--request", "POST", "-H", "Content-Length:", "--upload-file"])
        .args([file.as_os_str(), "https://127.0.0.1/".as_ref()])
        .run(bed)?;
    ensure!(without == DIGEST_OF_BODY, "{without}");
    let down = curl(&["--http2", "https://127.0.0.1/20000000"]).run(bed)?;
    ensure!(down.len() == 20_000_000 && down.bytes().all(|byte| byte == b'x'), "{} bytes", down.len());
    Ok(())
}

/// SHA-256 of five million letters z.
const DIGEST_OF_BODY: &str = "eb3d0a99bd067397945e36e632ea8fdf5dab422face355422b13f6c3b3c2f0d1";

/// Each is answered before its body is complete. curl must receive the answer and reuse the connection.
fn an_early_answer_is_not_lost(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let file = bed.write("body", "z".repeat(3 << 20))?;
    let ask = |status: &str, upload: &[&str]| -> anyhow::Result<()> {
        let upload = curl(&["--http2", "--output", "/dev/null"])
            .args(["--write-out", "%{http_code} %{num_connects}\n", "https://127.0.0.1/1"])
            .args(upload)
            .arg(file.as_os_str())
            .args(["--next", "--insecure", "--silent", "--show-error", "--output", "/dev/null"])
            .args(["--write-out", "%{http_code} %{num_connects}\n", "https://127.0.0.1/1"]);
        for _ in 0..5 {
            let said = upload.run(bed)?;
            ensure!(said == format!("{status} 1\n200 0\n"), "{said}");
        }
        Ok(())
    };
    let methods = https(bed, HERE, ORIGIN)?.option("--methods", "GET").start(bed)?;
    ask("403", &["--upload-file"])?;
    drop(methods);
    let _size = https(bed, HERE, ORIGIN)?.option("--max-body", "100KiB").start(bed)?;
    ask("413", &["--upload-file"])?;
    ask("413", &["--request", "POST", "-H", "Content-Length:", "--upload-file"])
}

fn origins_early_answer(bed: &Bed, version: OriginVersion) -> anyhow::Result<()> {
    let nginx = "client_max_body_size 1k; location / { return 200 fine; } location /up { proxy_pass http://127.0.0.1:1; }";
    let _origin = Nginx::default().server("127.0.0.1:8080", version.nginx(), nginx).start(bed)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.option("--origin-protocol", version.option()).start(bed)?;
    let file = bed.write("body", "z".repeat(3 << 20))?;
    for _ in 0..5 {
        let said = curl(&[
            "--http2",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            "https://127.0.0.1/up",
        ])
        .args(["--upload-file".as_ref(), file.as_os_str()])
        .run(bed)?;
        ensure!(said == "413", "{said}");
    }
    Ok(())
}

fn heads_and_bodies_have_limits(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.option("--max-head", "4KiB").start(bed)?;
    let status = |args: &[&str]| {
        curl(&["--http2", "--output", "/dev/null", "--write-out", "%{http_code}"]).args(args).run(bed)
    };
    let (long, path) =
        (format!("X-Long: {}", "y".repeat(5000)), format!("https://127.0.0.1/{}", "1".repeat(5000)));
    ensure!(status(&["-H", &long, "https://127.0.0.1/1"])? == "431");
    let said = status(&[&path])?;
    ensure!(["414", "431"].contains(&said.as_str()), "{said}");
    ensure!(status(&["-H", "Expect: miracles", "https://127.0.0.1/1"])? == "417");
    ensure!(status(&["https://127.0.0.1/1"])? == "200");
    Ok(())
}

/// h2load's counts: successful requests, and 2xx statuses.
fn succeeded(report: &str) -> anyhow::Result<usize> {
    let line = report.lines().find(|line| line.starts_with("status codes:")).context(report.to_owned())?;
    let count =
        line.trim_start_matches("status codes:").split_whitespace().next().context(line.to_owned())?;
    Ok(count.parse()?)
}

fn many_streams(bed: &Bed) -> anyhow::Result<()> {
    let _origin =
        Nginx::default().server("127.0.0.1:8080", "", "location / { return 200 \"fine\\n\"; }").start(bed)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let report = Program::new("h2load").args(["-n3000", "-c4", "-m64", "https://127.0.0.1/"]).run(bed)?;
    ensure!(succeeded(&report)? == 3000, "{report}");
    Ok(())
}

fn uploads_share_a_connection(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let file = bed.write("body", "z".repeat(1 << 20))?;
    let report = Program::new("h2load")
        .args(["-n60", "-c2", "-m10", "-d"])
        .args([file.as_os_str(), "https://127.0.0.1/".as_ref()])
        .run(bed)?;
    ensure!(succeeded(&report)? == 60, "{report}");
    Ok(())
}

fn nghttp_is_served(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let answer = Program::new("nghttp")
        .args(["-n", "-s", "https://127.0.0.1/70000", "https://127.0.0.1/5"])
        .run(bed)?;
    ensure!(answer.matches(" 200 ").count() == 2, "{answer}");
    Ok(())
}

fn what_h2spec_asks_is_done(bed: &Bed) -> anyhow::Result<()> {
    let program = workspace_dir().join("target/tools/h2spec/h2spec");
    if !program.exists() {
        return skip("h2spec has not been built (make h2spec, which needs Go)");
    }
    let _origin = origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?.start(bed)?;
    let report = Program::new(program)
        .args([
            "--tls",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            "443",
            "--path",
            "/1",
            "--timeout",
            "10",
        ])
        .start(bed)?;
    let status = report.wait_end()?;
    ensure!(status.success(), "{}\n{}", report.stdout(), truepeer.log());
    Ok(())
}
