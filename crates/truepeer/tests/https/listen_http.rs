//! HTTP without TLS towards clients: redirected to https, or served.

use std::io::Write as _;

use anyhow::{Context as _, ensure};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Test, client, tests};

use crate::kit::{OriginVersion, curl, https};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        clients_without_tls_are_sent_to_https,
        the_redirect_names_the_port,
        the_redirect_may_name_another_port,
        requests_with_bodies_are_redirected_whole,
        clients_without_tls_are_served_where_that_is_wanted,
        what_comes_with_the_header_is_read,
        no_byte_behind_the_header_is_lost,
        the_options_are_explained,
    ]
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "http://127.0.0.1:8080";
const SEEN: &str =
    "location / { return 200 \"$http_x_forwarded_proto $http_x_forwarded_for $request_method $uri\"; }";

fn clients_without_tls_are_sent_to_https(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server("127.0.0.1:8080", "", SEEN).start(bed)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.listen_http("127.0.0.1:80").start(bed)?;
    let report = "%{http_code} %{redirect_url} %{num_connects}\\n";
    let answers =
        curl(&["--write-out", report, "http://127.0.0.1/a/b?c=d", "http://127.0.0.1:80/"]).run(bed)?;
    // Both over one connection.
    ensure!(answers == "308 https://127.0.0.1/a/b?c=d 1\n308 https://127.0.0.1/ 0\n", "{answers}");
    let followed = curl(&["--location", "http://127.0.0.1/a/b"]).run(bed)?;
    ensure!(followed == "https 127.0.0.1 GET /a/b", "{followed}");
    let head = curl(&["--head", "http://127.0.0.1/x"]).run(bed)?;
    ensure!(head.contains("HTTP/1.1 308 Permanent Redirect\r\nLocation: https://127.0.0.1/x\r\n"), "{head}");
    Ok(())
}

fn the_redirect_names_the_port(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server("127.0.0.1:8080", "", SEEN).start(bed)?;
    let _truepeer = https(bed, "127.0.0.1:8443", ORIGIN)?.listen_http("127.0.0.1:8000").start(bed)?;
    let followed = curl(&["--location", "http://127.0.0.1:8000/a"]).run(bed)?;
    ensure!(followed == "https 127.0.0.1 GET /a", "{followed}");
    // No host, no URL.
    let bare = curl(&["--http1.0", "-H", "Host:", "--write-out", "%{http_code}", "http://127.0.0.1:8000/"]);
    let bare = bare.run(bed)?;
    ensure!(bare.ends_with("400"), "{bare}");
    Ok(())
}

/// 308 makes clients repeat method and body.
fn requests_with_bodies_are_redirected_whole(bed: &Bed) -> anyhow::Result<()> {
    let _origin = crate::kit::origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, ORIGIN)?.listen_http("127.0.0.1:80").start(bed)?;
    let body = bed.write("body", "z".repeat(100_000))?;
    let digest = curl(&["--location", "http://127.0.0.1/", "--data-binary"])
        .arg(format!("@{}", body.display()))
        .run(bed)?;
    ensure!(digest == "7e9470bdc2048db4667681aed70b1dd034b5310feac2f34e96220565d47638b2", "{digest}");
    Ok(())
}

fn clients_without_tls_are_served_where_that_is_wanted(bed: &Bed) -> anyhow::Result<()> {
    for version in [OriginVersion::Http1, OriginVersion::Http2] {
        let _origin = Nginx::default().server("127.0.0.1:8080", version.nginx(), SEEN).start(bed)?;
        let _truepeer = https(bed, HERE, ORIGIN)?
            .listen_http("127.0.0.1:80")
            .option("--on-http", "serve")
            .option("--origin-protocol", version.option())
            .option("--methods", "GET,POST")
            .start(bed)?;
        let answer = curl(&["--interface", "127.0.0.9", "http://127.0.0.1/a"]).run(bed)?;
        ensure!(answer == "http 127.0.0.9 GET /a", "{version:?}: {answer}");
        let answer = curl(&["https://127.0.0.1/a"]).run(bed)?;
        ensure!(answer == "https 127.0.0.1 GET /a", "{version:?}: {answer}");
        let status =
            curl(&["-XDELETE", "--output", "/dev/null", "--write-out", "%{http_code}", "http://127.0.0.1/"]);
        ensure!(status.run(bed)? == "403", "{version:?}");
    }
    Ok(())
}

/// Behind a published port, the listener's own port is not the clients'.
fn the_redirect_may_name_another_port(bed: &Bed) -> anyhow::Result<()> {
    for (to, url) in [("redirect:443", "https://127.0.0.1/a"), ("redirect:9443", "https://127.0.0.1:9443/a")]
    {
        let _truepeer = https(bed, "127.0.0.1:8443", ORIGIN)?
            .listen_http("127.0.0.1:8000")
            .option("--on-http", to)
            .start(bed)?;
        let told = curl(&["--write-out", "%{redirect_url}", "http://127.0.0.1:8000/a"]).run(bed)?;
        ensure!(told == url, "{told}");
    }
    Ok(())
}

/// A request in the same segment as the PROXY header, and one instead of an optional header.
fn what_comes_with_the_header_is_read(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server("127.0.0.1:8080", "", SEEN).start(bed)?;
    for on_http in ["serve", "redirect"] {
        let truepeer = https(bed, HERE, ORIGIN)?
            .listen_http("127.0.0.1:80")
            .option("--on-http", on_http)
            .option("--header", "optional")
            .start(bed)?;
        let header = client::v2("203.0.113.7:5000", "192.0.2.1:80")?;
        for (header, whom) in [(&header[..], "203.0.113.7"), (b"", "127.0.0.1")] {
            let mut stream = client::connect("127.0.0.1:80")?;
            stream.write_all(
                &[header, b"GET /a HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n"].concat(),
            )?;
            let answer = std::io::read_to_string(&stream)?;
            let expected = match on_http {
                "serve" => format!("\r\n\r\nhttp {whom} GET /a"),
                _ => "\r\nLocation: https://site/a\r\n".to_owned(),
            };
            ensure!(answer.contains(&expected), "{on_http}: {answer}; {}", truepeer.log());
        }
    }
    Ok(())
}

/// The body looks like another request at the place where the first read ends.
fn no_byte_behind_the_header_is_lost(bed: &Bed) -> anyhow::Result<()> {
    const FIRST_READ: usize = 4096;
    let origin = crate::kit::origin(bed, 8080)?;
    let truepeer = https(bed, HERE, ORIGIN)?
        .listen_http("127.0.0.1:80")
        .option("--on-http", "serve")
        .option("--header", "require")
        .start(bed)?;
    let mut bytes = client::v2("203.0.113.7:5000", "192.0.2.1:80")?;
    let head = "POST / HTTP/1.1\r\nHost: site\r\nContent-Length: 6000\r\nConnection: close\r\n\r\n";
    bytes.extend_from_slice(head.as_bytes());
    let body_at = bytes.len();
    bytes.resize(FIRST_READ, b'z');
    bytes.extend_from_slice(b"GET /7 HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n");
    bytes.resize(body_at + 6000, b'z');
    let body = bed.write("body", &bytes[body_at..])?;
    let digest = Program::new("sha256sum").arg(body).run(bed)?;
    let digest = digest.split(' ').next().context("a digest")?;
    let mut stream = client::connect("127.0.0.1:80")?;
    stream.write_all(&bytes)?;
    let answer = std::io::read_to_string(&stream)?;
    ensure!(answer.ends_with(digest), "{answer}; {}", truepeer.log());
    ensure!(origin.stdout() == "request /\n", "{}", origin.stdout());
    Ok(())
}

fn the_options_are_explained(bed: &Bed) -> anyhow::Result<()> {
    for (args, expected) in [
        (&["--on-http", "redirect:443"][..], "--on-http: expected --listen-http [ADDR]:PORT with it"),
        (&["--listen-http", ":80", "--on-http", "redirect:0"], "expected redirect, redirect:PORT or serve"),
        (&["--on-http", "serve"], "--on-http: expected --listen-http [ADDR]:PORT with it"),
        (&["--listen-http", ":80", "--on-http", "both"], "expected redirect, redirect:PORT or serve"),
        (
            &["--listen-http", ":80", "--on-http", "serve", "--client-ca", "/etc/hosts"],
            "expected --on-http redirect, or --client-cert optional",
        ),
        (&["--listen-http", "80"], "expected [ADDR]:PORT"),
        (
            &["--listen-http", ":80", "--listen", "127.0.0.1:0"],
            "--listen-http: it redirects to the port of --listen",
        ),
    ] {
        let usual = ["https", "--cert", "x.pem", "--origin", ORIGIN];
        let truepeer = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(usual).args(args).start(bed)?;
        ensure!(!truepeer.wait_end()?.success());
        ensure!(truepeer.stderr().contains(expected), "{args:?}: {}", truepeer.log());
    }
    Ok(())
}
