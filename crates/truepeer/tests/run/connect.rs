//! The sending side: unchanged programs connect to a listener that reads the first bytes.

use std::io::Read;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::servers::{Postgres, curl};
use truepeer_testbed::{Bed, Behaviour, Program, Test, Truepeer, User, client, tests};

use crate::{PYTHON, listen, python};

const TO: &str = "127.0.0.1:9090";
const FROM: &str = "203.0.113.7:5000";

pub(crate) fn tests() -> Vec<Test> {
    let mut all: Vec<Test> = tests![
        a_blocking_program_sends_its_header_first,
        a_non_blocking_program_sends_its_header_first,
        a_non_blocking_program_sends_it_without_fast_open_too,
        only_the_named_destinations_get_a_header,
        without_from_the_connections_own_address_is_named,
        a_refused_connection_is_refused_as_without_truepeer,
        a_header_has_the_secret_and_the_environment_has_not,
    ]
    .into_iter()
    .map(|test| test.needs_program(PYTHON).needs_several_users())
    .collect();
    all.push(Test::new("curl_and_node_send_their_header_first", curl_and_node).needs_program("node"));
    all.push(Test::new("psql_names_its_client_to_postgres", psql_names_its_client).needs_several_users());
    all
}

/// A program started by `truepeer connect`.
fn telling(program: Program, options: &[&str]) -> Program {
    let launch = [&["connect"], options, &["--"]].concat();
    program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
}

/// Reads one connection to its end.
fn hear(bed: &Bed, address: &str) -> anyhow::Result<JoinHandle<std::io::Result<Vec<u8>>>> {
    let listener = listen(bed, address)?;
    Ok(thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        Ok(bytes)
    }))
}

fn heard(listening: JoinHandle<std::io::Result<Vec<u8>>>) -> anyhow::Result<Vec<u8>> {
    Ok(listening.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??)
}

fn says(bed: &Bed, script: &str, options: &[&str], to: &str, expected: &[u8]) -> anyhow::Result<()> {
    let listening = hear(bed, to)?;
    telling(python(bed, script)?, options).run(bed).with_context(|| format!("{options:?} to {to}"))?;
    let bytes = heard(listening)?;
    ensure!(bytes == expected, "{options:?} to {to}: {:?}", bytes.escape_ascii().to_string());
    Ok(())
}

/// Every version and family, in a blocking and in a non-blocking program.
fn says_all(bed: &Bed, script: &dyn Fn(&str, u16) -> String) -> anyhow::Result<()> {
    let v2_of = |from, to| client::v2(from, to);
    for (to, host, port, from) in
        [(TO, "127.0.0.1", 9090, FROM), ("[::1]:9091", "::1", 9091, "[2001:db8::7]:5000")]
    {
        let script = script(host, port);
        let data = b"hello".to_vec();
        let v1 = [client::v1(from, to)?, data.clone()].concat();
        says(bed, &script, &["--from", from, "--header", "v1"], to, &v1)?;
        let v2 = [v2_of(from, to)?, data].concat();
        says(bed, &script, &["--from", from], to, &v2)?;
    }
    Ok(())
}

fn blocking(host: &str, port: u16) -> String {
    format!(
        "import socket\nconnection = socket.create_connection(('{host}', {port}))\nconnection.sendall(b'hello')\n"
    )
}

/// An event loop that connects, waits until the socket is writable, and reads its error.
fn non_blocking(host: &str, port: u16) -> String {
    format!(
        "\
import asyncio
async def main():
    reader, writer = await asyncio.open_connection('{host}', {port})
    writer.write(b'hello')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
asyncio.run(main())
"
    )
}

fn a_blocking_program_sends_its_header_first(bed: &Bed) -> anyhow::Result<()> {
    says_all(bed, &blocking)
}

fn a_non_blocking_program_sends_its_header_first(bed: &Bed) -> anyhow::Result<()> {
    says_all(bed, &non_blocking)
}

/// On a machine whose administrator has disabled fast open.
fn a_non_blocking_program_sends_it_without_fast_open_too(bed: &Bed) -> anyhow::Result<()> {
    std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "0").context("tcp_fastopen")?;
    says_all(bed, &non_blocking)
}

fn only_the_named_destinations_get_a_header(bed: &Bed) -> anyhow::Result<()> {
    let told = [client::v2(FROM, TO)?, b"hello".to_vec()].concat();
    for (to, expected) in [
        ("127.0.0.0/8:9090", told.as_slice()),
        ("127.0.0.0/8", &told),
        ("127.0.0.0/8:80", b"hello"),
        ("10.0.0.0/8", b"hello"),
    ] {
        says(bed, &blocking("127.0.0.1", 9090), &["--from", FROM, "--to", to], TO, expected)?;
    }
    Ok(())
}

fn without_from_the_connections_own_address_is_named(bed: &Bed) -> anyhow::Result<()> {
    for script in [blocking("127.0.0.1", 9090), non_blocking("127.0.0.1", 9090)] {
        let listener = listen(bed, TO)?;
        let listening = thread::spawn(move || -> std::io::Result<_> {
            let (mut stream, sender) = listener.accept()?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok((text, sender))
        });
        telling(python(bed, &script)?, &["--header", "v1"]).run(bed)?;
        let (text, sender) = listening.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        let expected = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} 9090\r\nhello", sender.port());
        ensure!(text == expected, "{text:?}, not {expected:?}");
    }
    Ok(())
}

fn a_refused_connection_is_refused_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import errno, select, socket
blocking = socket.socket()
print(blocking.connect_ex(('127.0.0.1', 9)) == errno.ECONNREFUSED)
other = socket.socket()
other.setblocking(False)
begun = other.connect_ex(('127.0.0.1', 9))
if begun == errno.EINPROGRESS:
    select.select([], [other], [])
    begun = other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
print(begun == errno.ECONNREFUSED, begun)
unix = socket.socket(socket.AF_UNIX)
print(unix.connect_ex('/nowhere') == errno.ENOENT)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(udp.connect_ex(('127.0.0.1', 9)) == 0)
";
    let said = telling(python(bed, script)?, &["--from", FROM]).run(bed)?;
    ensure!(said.matches("True").count() == 4 && !said.contains("False"), "{said}");
    Ok(())
}

fn a_header_has_the_secret_and_the_environment_has_not(bed: &Bed) -> anyhow::Result<()> {
    const SECRET: &str = "a-secret-of-the-client-000001";
    let file = bed.write("secret", format!("{SECRET}\nan-older-secret-of-it-000001\n"))?;
    let script = blocking("127.0.0.1", 9090);
    let script = format!("{script}print(open('/proc/self/environ').read())\n");
    for via in ["preload", "notify"] {
        let options = ["--via", via, "--from", FROM, "--send-tlv", &format!("0xE5=@{}", file.display())];
        let listening = hear(bed, TO)?;
        let said = telling(python(bed, &script)?, &options).run(bed)?;
        ensure!(!said.contains(SECRET) && said.contains("PATH="), "{said}");
        let expected = client::v2_with_tlvs(FROM, TO, &[(0xE5, SECRET.as_bytes())])?;
        let bytes = heard(listening)?;
        ensure!(bytes == [expected, b"hello".to_vec()].concat(), "{via}: {}", bytes.escape_ascii());
        // A digest is one that truepeer itself believes.
        let required = format!("0xE5=hmac:@{}", file.display());
        let echo = Behaviour::Who.start(bed, &["127.0.0.1:9091"])?;
        let proxy = Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer")).listen(TO).ipv4("127.0.0.1:9091");
        let proxy = proxy.option("--require-tlv", &required).start(bed)?;
        let ask = "import socket\ns = socket.create_connection(('127.0.0.1', 9090))\n\
                   s.shutdown(socket.SHUT_WR)\nprint(s.recv(100))\n";
        let options = ["--via", via, "--from", FROM, "--send-tlv", &required];
        let saw = telling(python(bed, ask)?, &options).run(bed)?;
        ensure!(saw.contains(FROM), "{via}: {saw} {}", proxy.log());
        proxy.stop()?;
        echo.stop()?;
    }
    let options = ["--header", "v1", "--send-tlv", &format!("0xE5=@{}", file.display())];
    let refused = telling(python(bed, &script)?, &options).start(bed)?;
    ensure!(!refused.wait_end()?.success() && refused.log().contains("--send-proxy v2"), "{}", refused.log());
    Ok(())
}

/// To a program under `truepeer run`: truepeer is at both ends.
fn curl_and_node(bed: &Bed) -> anyhow::Result<()> {
    let node = "\
require('net').createServer({ allowHalfOpen: true }, socket => {
  socket.once('data', () => socket.end(`HTTP/1.0 200 OK\\r\\n\\r\\n${socket.remoteAddress} ${socket.remotePort}\\n`));
}).listen(9090, '127.0.0.1');
";
    let file = bed.write("server.js", node)?;
    let server = Program::new("node").arg(file).launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let server = server.start(bed)?;
    server.wait_listening(TO)?;
    let saw = telling(curl("http://127.0.0.1:9090/"), &["--from", FROM]).run(bed)?;
    ensure!(saw.trim() == "203.0.113.7 5000", "{saw:?}");
    let ask = "\
const socket = require('net').connect(9090, '127.0.0.1', () => socket.write('x'));
socket.on('data', data => process.stdout.write(data));
";
    let file = bed.write("client.js", ask)?;
    let saw = telling(Program::new("node").arg(file), &["--from", FROM, "--header", "v1"]).run(bed)?;
    ensure!(saw.ends_with("203.0.113.7 5000\n"), "{saw:?}");
    Ok(())
}

fn psql_names_its_client(bed: &Bed) -> anyhow::Result<()> {
    let run = |program: Program| program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]);
    let _postgres = Postgres::start_with(bed, &["127.0.0.1"], 5432, run)?;
    let question = "select host(inet_client_addr()) || ' ' || inet_client_port()";
    let psql = Postgres::psql("127.0.0.1", 5432, question);
    let saw = telling(psql.as_user(User::TESTER), &["--from", FROM]).run(bed)?;
    ensure!(saw.trim() == "203.0.113.7 5000", "{saw:?}");
    Ok(())
}
