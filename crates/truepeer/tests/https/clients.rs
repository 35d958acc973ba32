//! Real clients and real origins: each client sends the same requests to each origin and checks the answers.
//!
//! | path | the origin's answer |
//! |---|---|
//! | `/N` | N bytes; `/204` and `/304`: that status |
//! | `/chunked` | `onetwothree` in chunks, with a trailer |
//! | `/digest` | SHA-256 of the request's body; the received trailer, in a field |
//! | `/refuse` | 422, before the body |
//! | `/echo` | 101, then an echo |
//! | others | the request as JSON; and a line on the origin's output |

use std::time::Duration;

use anyhow::{Context as _, ensure};
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::authority::Authority;
use crate::kit::{PlainOrigin, curl, https, origin, start_site};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        curl_asks_in_many_ways,
        curl_uploads_in_chunks,
        an_old_client_gets_no_chunks,
        pipelined_requests_are_answered_in_order,
        a_ban_ends_responses_and_refuses_requests,
    ];
    for (client, needs) in [(Client::Go, "go"), (Client::Node, "node")] {
        for (origin, origin_needs) in [(PlainOrigin::Go, "go"), (PlainOrigin::Node, "node")] {
            let name = format!("a_client_of_{needs}_and_an_origin_of_{origin_needs}");
            let test = Test::new(name, move |bed| all_is_well(bed, client, origin));
            let test = test.needs_program(needs).needs_program(origin_needs);
            // Go compiles its standard library first.
            all.push(if [needs, origin_needs].contains(&"go") {
                test.long().time_limit(Duration::from_secs(360))
            } else {
                test
            });
        }
    }
    all.push(Test::new("wrk_finds_no_fault", wrk_finds_no_fault).needs_program("wrk"));
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8080";

/// A slow download by each version; another client has one, too.
fn a_ban_ends_responses_and_refuses_requests(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let _truepeer = https(bed, HERE, &format!("http://{ORIGIN}"))?.args(&["--admin", &admin]).start(bed)?;
    let operate = |arguments: &[&str]| {
        Program::new(env!("CARGO_BIN_EXE_truepeer")).args(arguments).args(["--admin", &admin]).run(bed)
    };
    let slow = |version: &str, client: &str| {
        let slow = curl(&[version, "--interface", client, "--limit-rate", "100k", "--output", "/dev/null"]);
        slow.arg("https://127.0.0.1/30000000").start(bed)
    };
    let banned = [slow("--http1.1", "127.0.0.2")?, slow("--http2", "127.0.0.2")?];
    let kept = slow("--http2", "127.0.0.3")?;
    bed.wait_for("three downloads", || {
        operate(&["sessions"]).is_ok_and(|list| list.matches(" tls-").count() == 3)
    })?;
    operate(&["ban", "127.0.0.2", "--for", "1h"])?;
    for download in banned {
        ensure!(!download.wait_end()?.success(), "{}", download.log());
    }
    let ask = |client: &str| curl(&["--interface", client, "https://127.0.0.1/3"]).run(bed);
    ensure!(ask("127.0.0.2").is_err());
    ensure!(ask("127.0.0.3")? == "xxx");
    let listed = operate(&["sessions"])?;
    ensure!(listed.contains("127.0.0.3:") && !listed.contains("127.0.0.2:"), "{listed}");
    drop(kept);
    operate(&["unban", "127.0.0.2"])?;
    ensure!(ask("127.0.0.2")? == "xxx");
    Ok(())
}

#[derive(Clone, Copy)]
enum Client {
    Go,
    Node,
}

fn all_is_well(bed: &Bed, client: Client, origin: PlainOrigin) -> anyhow::Result<()> {
    let _origin = origin.start(bed, 8080)?;
    let authority = Authority::new(bed, "authority")?;
    let truepeer = start_site(bed, &authority, HERE, &format!("http://{ORIGIN}"), &[])?;
    let client = match client {
        Client::Go => {
            let program = truepeer_testbed::go::build(bed, "client", include_str!("programs/client.go"))?;
            Program::new(program).args(["https://127.0.0.1", &authority.ca])
        }
        Client::Node => {
            let script = bed.write("client.js", include_str!("programs/client.js"))?;
            Program::new("node").arg(script).args(["127.0.0.1", "443", &authority.ca])
        }
    };
    let said = client.run(bed).with_context(|| truepeer.log())?;
    ensure!(said.trim() == "all well", "{said}; {}", truepeer.log());
    Ok(())
}

/// NGINX with files, and truepeer before it.
fn files(bed: &Bed, directives: &str) -> anyhow::Result<(Running, Running)> {
    bed.write("www/page", "0123456789".repeat(10_000))?;
    let root = format!("root {}; {directives}", bed.dir().join("www").display());
    let origin = Nginx::default().server(ORIGIN, "", &root).start(bed)?;
    Ok((origin, https(bed, HERE, &format!("http://{ORIGIN}"))?.start(bed)?))
}

fn curl_asks_in_many_ways(bed: &Bed) -> anyhow::Result<()> {
    let (_origin, truepeer) = files(bed, "if_modified_since before; location /nothing { return 204; }")?;
    let page = "https://127.0.0.1/page";
    let one = |args: &[&str]| -> anyhow::Result<String> { curl(&["--http1.1"]).args(args).run(bed) };
    ensure!(one(&[page])?.len() == 100_000);
    ensure!(one(&["--range", "10-19", page])? == "0123456789");
    let head = one(&["--head", page])?.to_ascii_lowercase();
    ensure!(head.starts_with("http/1.1 200") && head.contains("content-length: 100000\r"), "{head}");
    // Not modified or not found: no body, and the connection stays open.
    let code = ["--write-out", "%{http_code} %{size_download} %{num_connects}\n", "--output", "/dev/null"];
    let several = [
        &code[..],
        &["--header", "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", page],
        &["--next", "--http1.1", "--insecure"],
        &code[..],
        &["https://127.0.0.1/nothing", "--next", "--http1.1", "--insecure"],
        &code[..],
        &["https://127.0.0.1/not-there"],
    ]
    .concat();
    let said = one(&several)?;
    let lines: Vec<_> = said.lines().collect();
    ensure!(
        lines.len() == 3 && lines[..2] == ["304 0 1", "204 0 0"] && lines[2].starts_with("404 "),
        "{said}; {}",
        truepeer.log()
    );
    Ok(())
}

fn curl_uploads_in_chunks(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, &format!("http://{ORIGIN}"))?.start(bed)?;
    // 1,000,000 equal letters each; their digests were computed with sha256sum.
    for (letter, digest) in [
        ("a", "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ("z", "9b7ae5acf75b8cc3ad48b20a87297aa1a38210489505d87abd1123ef96afee27"),
    ] {
        let file = bed.write("body", letter.repeat(1_000_000))?;
        let body = format!("@{}", file.display());
        for framing in [&[][..], &["--header", "Transfer-Encoding: chunked"]] {
            let upload = curl(&["--http1.1", "https://127.0.0.1/", "--data-binary", &body]).args(framing);
            let said = upload.run(bed)?;
            ensure!(said.trim() == digest, "{letter} {framing:?}: {said}");
        }
    }
    Ok(())
}

/// HTTP/1.0 has no chunks: the end of the connection is the end of the body.
fn an_old_client_gets_no_chunks(bed: &Bed) -> anyhow::Result<()> {
    let chunked = "gzip on; gzip_min_length 1; gzip_types *; gzip_http_version 1.0;";
    let (_origin, truepeer) = files(bed, chunked)?;
    let shown = curl(&["--http1.0", "--include", "--compressed", "https://127.0.0.1/page"]).run(bed)?;
    let (head, body) = shown.split_once("\r\n\r\n").context("a head")?;
    let head = head.to_ascii_lowercase();
    ensure!(!head.contains("transfer-encoding") && head.contains("content-encoding: gzip"), "{head}");
    ensure!(body.len() == 100_000, "{} bytes; {}", body.len(), truepeer.log());
    Ok(())
}

fn pipelined_requests_are_answered_in_order(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let _truepeer = https(bed, HERE, &format!("http://{ORIGIN}"))?.start(bed)?;
    let said = crate::kit::python_client(
        bed,
        r"
import asyncio, hashlib, http.client, io
COUNT = 100
async def write(stream):
    for n in range(COUNT):
        body = b'%d' % n * 500
        stream.write(b'POST / HTTP/1.1\r\nHost: site\r\nContent-Length: %d\r\n\r\n' % len(body) + body
            + b'GET /%d HTTP/1.1\r\nHost: site\r\n\r\n' % n + b'HEAD /%d HTTP/1.1\r\nHost: site\r\n\r\n' % n)
        await stream.drain()
async def answer(stream, body=True):
    head = io.BytesIO(await stream.readuntil(b'\r\n\r\n'))
    status = head.readline()
    assert status.startswith(b'HTTP/1.1 200 '), status
    fields = http.client.parse_headers(head)
    return await stream.readexactly(int(fields['Content-Length'])) if body else fields['Content-Length']
async def ask():
    # One thread: Python's TLS sockets may not be read and written at the same time.
    reader, writer = await asyncio.open_connection('127.0.0.1', 443, ssl=context, server_hostname='site')
    writing = asyncio.create_task(write(writer))
    for n in range(COUNT):
        assert await answer(reader) == hashlib.sha256(b'%d' % n * 500).hexdigest().encode(), n
        assert await answer(reader) == b'x' * n, n
        assert await answer(reader, False) == str(n), n
    await writing
asyncio.run(ask())
print('in a row')
",
    )?;
    ensure!(said.trim() == "in a row", "{said}");
    Ok(())
}

fn wrk_finds_no_fault(bed: &Bed) -> anyhow::Result<()> {
    let (_origin, truepeer) = files(bed, "keepalive_requests 1000000;")?;
    // On a busy machine the handshakes may take the first seconds.
    for seconds in ["1s", "5s", "25s"] {
        let load = ["--threads", "2", "--connections", "32", "--duration", seconds, "https://127.0.0.1/page"];
        let said = Program::new("wrk").args(load).run(bed)?;
        // It mentions errors and other statuses only if there were some.
        ensure!(!said.contains("rror") && !said.contains("Non-2xx"), "{said}; {}", truepeer.log());
        let (before, _) = said.split_once(" requests in ").with_context(|| said.clone())?;
        if before.split_whitespace().last() != Some("0") {
            return Ok(());
        }
    }
    anyhow::bail!("no request was answered; {}", truepeer.log())
}
