//! Several origins, by host and path, and their health checks.

use anyhow::ensure;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Host, Program, Running, Test, Topology, Truepeer, tests};

use crate::kit::OriginVersion::{self, Http1, Http2};
use crate::kit::{curl, https_by};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        each_origin_learns_the_client,
        an_origin_that_refuses_connections_is_down_until_it_is_back,
        an_origin_that_answers_its_check_with_an_error_is_down,
        the_options_are_explained_by_what_was_typed,
        names_below_a_host_have_an_origin,
        another_origin_on_another_host_sees_the_client,
        another_origin_of_one_family_is_named,
    ];
    for origin in [Http1, Http2] {
        let name = format!("requests_go_by_host_and_path{}", origin.suffix());
        all.push(Test::new(name, move |bed| by_host_and_path(bed, origin)));
    }
    all
}

const HERE: &str = "127.0.0.1:443";
const USUAL: &str = "127.0.0.1:8080";
const API: &str = "127.0.0.1:8081";
const FILES: &str = "127.0.0.1:8082";

/// One worker: curl's next connection meets the same pool.
fn site(bed: &Bed) -> anyhow::Result<Truepeer> {
    let site = https_by(bed, HERE, &format!("http://{USUAL}"))?.option("--workers", 1);
    Ok(site.option("--origin-retry-timeout", 0))
}

fn server(at: &str, options: &str, says: &str) -> Nginx {
    Nginx::default().server(at, options, &format!("location / {{ return 200 \"{says}\"; }}"))
}

/// curl's answer to a URL of any host here, and its status.
fn get(bed: &Bed, version: &str, host: &str, path: &str) -> anyhow::Result<String> {
    let status = "-w %{http_code}";
    let to = format!("{host}:443:127.0.0.1");
    curl(&[version, "--resolve", &to, status, "--path-as-is", &format!("https://{host}{path}")]).run(bed)
}

fn by_host_and_path(bed: &Bed, origin: OriginVersion) -> anyhow::Result<()> {
    let says = |name: &str| format!("{name} $server_protocol $request_uri");
    let _all = [
        server(USUAL, origin.nginx(), &says("usual")).start(bed)?,
        server(API, origin.nginx(), &says("api")).start(bed)?,
        server(FILES, origin.nginx(), &says("files")).start(bed)?,
    ];
    let truepeer = site(bed)?
        .option("--origin-protocol", origin.option())
        .option("--origin", format!("api.test=http://{API}"))
        .option("--origin", format!("/static=http://{FILES}"))
        .start(bed)?;
    let protocol = if origin == Http2 { "HTTP/2.0" } else { "HTTP/1.1" };
    for (host, path, expected) in [
        ("site.test", "/", "usual"),
        ("API.test", "/", "api"),
        ("api.test", "/static/x", "api"),
        ("site.test", "/static", "files"),
        ("site.test", "/static/a?b", "files"),
        ("site.test", "/statics", "usual"),
        ("site.test", "/?/static/", "usual"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let answer = get(bed, version, host, path)?;
            let expected = format!("{expected} {protocol} {path} 200");
            ensure!(answer == expected, "{host}{path}: {answer}; {}", truepeer.log());
        }
    }
    // All over one client connection, and each origin is reached over its own.
    for version in ["--http1.1", "--http2"] {
        let urls = ["https://127.0.0.1/", "https://127.0.0.1/static/", "https://127.0.0.1/"];
        let connects = "-w %{num_connects};";
        let answer = curl(&[version, connects]).args(urls).run(bed)?;
        let expected = format!("usual {protocol} / 1;files {protocol} /static/ 0;usual {protocol} / 0;");
        ensure!(answer == expected, "{answer}");
    }
    Ok(())
}

fn each_origin_learns_the_client(bed: &Bed) -> anyhow::Result<()> {
    for (mode, listen, variable) in [
        ("forwarded", "", "$http_x_forwarded_for"),
        ("transparent", "", "$remote_addr"),
        ("proxy", "proxy_protocol", "$proxy_protocol_addr"),
    ] {
        let _usual = server(USUAL, listen, &format!("usual {variable}")).start(bed)?;
        let _api = server(API, listen, &format!("api {variable}")).start(bed)?;
        let truepeer = site(bed)?
            .option("--client-address", mode)
            .option("--origin", format!("/api=http://{API}"))
            .option("--origin-health", "/,1s")
            .start(bed)?;
        for (path, expected) in [("/", "usual 127.0.0.9"), ("/api", "api 127.0.0.9")] {
            let answer = curl(&["--interface", "127.0.0.9", &format!("https://127.0.0.1{path}")]).run(bed)?;
            ensure!(answer == expected, "{mode}: {answer}; {}", truepeer.log());
        }
    }
    Ok(())
}

/// Waits until a path has this status.
fn becomes(bed: &Bed, truepeer: &Running, path: &str, status: &str) -> anyhow::Result<()> {
    truepeer.wait_state(&format!("{path} {status}"), || {
        get(bed, "--http1.1", "site.test", path).is_ok_and(|answer| answer.ends_with(status))
    })
}

fn an_origin_that_refuses_connections_is_down_until_it_is_back(bed: &Bed) -> anyhow::Result<()> {
    let _usual = server(USUAL, "", "usual").start(bed)?;
    let api = server(API, "", "api");
    let mut running = Some(api.start(bed)?);
    let truepeer = site(bed)?
        .option("--origin", format!("/api=http://{API}"))
        .option("--origin-health", "/api=connect,200ms")
        .args(&["--access-log"])
        .start(bed)?;
    for _ in 0..2 {
        becomes(bed, &truepeer, "/api", "200")?;
        drop(running.take());
        becomes(bed, &truepeer, "/api", "503")?;
        ensure!(get(bed, "--http2", "site.test", "/")? == "usual 200");
        running = Some(api.start(bed)?);
    }
    becomes(bed, &truepeer, "/api", "200")?;
    for text in ["an origin is down: ", "an origin is up again", "reason=\"origin_down\"", API] {
        truepeer.wait_for_log(text)?;
    }
    Ok(())
}

fn an_origin_that_answers_its_check_with_an_error_is_down(bed: &Bed) -> anyhow::Result<()> {
    let usual = format!(
        "location / {{ return 200 usual; }} location /ready {{ if (-f {}) {{ return 500; }} return 204; }}",
        bed.dir().join("ill").display()
    );
    let _usual = Nginx::default().server(USUAL, "", &usual).start(bed)?;
    let _api = server(API, "", "api").start(bed)?;
    let truepeer = site(bed)?
        .option("--origin", format!("/api=http://{API}"))
        .option("--origin-health", "/ready,200ms")
        .start(bed)?;
    becomes(bed, &truepeer, "/", "200")?;
    bed.write("ill", "")?;
    becomes(bed, &truepeer, "/", "503")?;
    truepeer.wait_for_log("it answers /ready with status 500")?;
    // The other origin is asked for the same path, and is healthy.
    ensure!(get(bed, "--http1.1", "site.test", "/api")? == "api 200");
    std::fs::remove_file(bed.dir().join("ill"))?;
    becomes(bed, &truepeer, "/", "200")
}

fn names_below_a_host_have_an_origin(bed: &Bed) -> anyhow::Result<()> {
    let _all = [
        server(USUAL, "", "usual").start(bed)?,
        server(API, "", "below").start(bed)?,
        server(FILES, "", "exact").start(bed)?,
    ];
    let _truepeer = site(bed)?
        .option("--origin", format!("*.site.test=http://{API}"))
        .option("--origin", format!("a.site.test=http://{FILES}"))
        .start(bed)?;
    for (host, expected) in [
        ("site.test", "usual"),
        ("b.site.test", "below"),
        ("c.b.SITE.test", "below"),
        ("a.site.test", "exact"),
        ("a.site.test.", "exact"),
        ("asite.test", "usual"),
    ] {
        for version in ["--http1.1", "--http2"] {
            let answer = get(bed, version, host, "/")?;
            ensure!(answer == format!("{expected} 200"), "{host}: {answer}");
        }
    }
    Ok(())
}

/// The default origin is on truepeer's host, the other one beyond it: its answers come back by rules that are
/// for it alone.
fn another_origin_on_another_host_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    let hosts = Topology::line(&["client", "proxy", "backend"])?;
    let (client, proxy, backend) = (hosts.host("client"), hosts.host("proxy"), hosts.host("backend"));
    let at = |host: &Host, v6| host.at(v6, 8080).to_string();
    let says = |name: &str| format!("location / {{ return 200 \"{name} $remote_addr\"; }}");
    let of = |addresses: [String; 2], name: &str| {
        addresses.iter().fold(Nginx::default(), |nginx, address| nginx.server(address, "", &says(name)))
    };
    let _here = of([at(proxy, false), at(proxy, true)], "here")
        .start_with(bed, |program| program.in_netns(&proxy.netns))?;
    let _there = of([at(backend, false), at(backend, true)], "there")
        .start_with(bed, |program| program.in_netns(&backend.netns))?;
    for v6 in [false, true] {
        let listen = proxy.at(v6, 443).to_string();
        let truepeer = https_by(bed, &listen, &format!("http://{}", at(proxy, v6)))?
            .option("--client-address", "transparent")
            .option("--origin", format!("/x=http://{}", at(backend, v6)))
            .option("--origin-health", "/,200ms")
            .option("--connect-timeout", "2s")
            .with(|program| program.in_netns(&proxy.netns))
            .start(bed)?;
        let ip = client.at(v6, 0).ip();
        for (path, expected) in [("/", format!("here {ip}")), ("/x", format!("there {ip}"))] {
            let answer = curl(&[&format!("https://{listen}{path}")]).in_netns(&client.netns).run(bed)?;
            ensure!(answer == expected, "{path}: {answer}; {}", truepeer.log());
        }
    }
    Ok(())
}

/// An IPv6 client's address can't be shown to an IPv4 origin.
fn another_origin_of_one_family_is_named(bed: &Bed) -> anyhow::Result<()> {
    let _usual =
        server(USUAL, "", "usual").server("[::1]:8080", "", "location / { return 200 six; }").start(bed)?;
    let _api = server(API, "", "api").start(bed)?;
    let hosts = bed.write("hosts", "127.0.0.1 both.test\n::1 both.test\n")?;
    let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", hosts.display());
    let truepeer = https_by(bed, "[::]:443", "http://both.test:8080")?
        .option("--client-address", "transparent")
        .option("--origin", format!("/api=http://{API}"))
        .args(&["--access-log"])
        .with(|program| program.launched_by("unshare", &["-m", "sh", "-c", &script, "sh"]))
        .start(bed)?;
    truepeer
        .wait_for_log("IPv6 clients get 502 for /api: --origin /api=127.0.0.1:8081 has no IPv6 address")?;
    let ask = |url: &str| curl(&["-w", " %{http_code}", url]).run(bed);
    ensure!(ask("https://127.0.0.1/api")? == "api 200");
    ensure!(ask("https://[::1]/")? == "six 200", "{}", truepeer.log());
    ensure!(ask("https://[::1]/api")?.ends_with(" 502"), "{}", truepeer.log());
    truepeer.wait_for_log("reason=\"origin_family\"")
}

fn the_options_are_explained_by_what_was_typed(bed: &Bed) -> anyhow::Result<()> {
    let usual = ["--origin", "http://127.0.0.1:8080"];
    for (args, expected) in [
        (
            &["--origin", "/api=http://a"][..],
            "--origin /api=http://a: it gets some requests only; expected --origin URL as well, for all others",
        ),
        (
            &[usual[0], usual[1], usual[0], "http://b"],
            "--origin http://b: http://127.0.0.1:8080 gets all other requests already; expected MATCH=URL",
        ),
        (
            &[usual[0], usual[1], "--origin", "A.test/x=http://a", "--origin", "a.test./x=http://b"],
            "--origin a.test/x=http://b: http://a gets the requests for a.test/x already",
        ),
        (&[usual[0], usual[1], "--origin", "a:80=http://a"], "expected [HOST][/PATH]=URL"),
        (&[usual[0], usual[1], "--origin-health", "ready"], "expected [HOST]/PATH[,TIME] or connect[,TIME]"),
        (&[usual[0], usual[1], "--origin-health", "/ready,1ms"], "expected a time of at least 100ms"),
        (
            &[usual[0], usual[1], "--origin-health", "/a", "--origin-health", "/b"],
            "--origin-health: given twice without a match",
        ),
        (
            &[
                usual[0],
                usual[1],
                "--origin",
                "/x=http://a",
                "--origin-health",
                "/x=/a",
                "--origin-health",
                "/x=/b",
            ],
            "--origin-health /x=…: given twice",
        ),
        (
            &[usual[0], usual[1], "--origin-health", "api.test=/ready"],
            "--origin-health api.test=…: expected --origin api.test=URL with it",
        ),
    ] {
        let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["https", "--cert", "x.pem"]);
        let truepeer = program.args(args).start(bed)?;
        ensure!(!truepeer.wait_end()?.success());
        ensure!(truepeer.stderr().contains(expected), "{args:?}: {}", truepeer.log());
    }
    Ok(())
}
