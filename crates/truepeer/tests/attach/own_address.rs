//! `--destination header`: which connections' own address is the header's destination.

use std::io::Write;

use anyhow::{Result, ensure};
use truepeer_testbed::sockets::wait_until_read;
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::kit::{attach, command, status};

const CLIENT: &str = "203.0.113.7:5000";
const DESTINATION: &str = "192.0.2.1:443";
const CLIENT6: &str = "[2001:db8::7]:5000";
const DESTINATION6: &str = "[2001:db8::1]:443";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        getsockname_answers_with_the_headers_destination,
        who_names_no_destination_leaves_the_sockets_own_address,
        attachments_differ_in_the_destination,
        udp_ports_with_destinations_are_refused,
    ];
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

/// 80 serves both families, 81 IPv4 alone, 82 both. Each answers with its own address and the peer's.
fn server(bed: &Bed) -> Result<Running> {
    const SCRIPT: &str = "\
import socket, threading
def serve(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,)).start()
def answer(connection):
    before = connection.getsockname()[:2]
    while connection.recv(4096):
        pass
    own, peer = connection.getsockname()[:2], connection.getpeername()[:2]
    assert own == before
    connection.sendall(('%s %d %s %d' % (own + peer)).encode())
    connection.close()
dual = dict(family=socket.AF_INET6, dualstack_ipv6=True)
for listener in [
    socket.create_server(('::', 80), **dual),
    socket.create_server(('0.0.0.0', 81)),
    socket.create_server(('::', 82), **dual),
]:
    assert listener.getsockname()[1] in (80, 81, 82)
    threading.Thread(target=serve, args=(listener,)).start()
";
    let server = Program::new("python3").arg("-u").arg(bed.write("server.py", SCRIPT)?).start(bed)?;
    for address in ["[::]:80", "0.0.0.0:81", "[::]:82"] {
        server.wait_listening(address)?;
    }
    Ok(server)
}

fn saw(port: u16, header: &[u8]) -> Result<String> {
    client::ask(&mut client::connect(format!("127.0.0.1:{port}"))?, &[header, b"data"].concat())
}

fn getsockname_answers_with_the_headers_destination(bed: &Bed) -> Result<()> {
    let _server = server(bed)?;
    attach(bed, &["--port", "80,81", "--destination", "header"])?;
    let tlvs = [(4, &b"a length that nobody guesses"[..])];
    for (header, expected) in [
        (client::v2(CLIENT, DESTINATION)?, "::ffff:192.0.2.1 443 ::ffff:203.0.113.7 5000"),
        (client::v1(CLIENT, DESTINATION)?, "::ffff:192.0.2.1 443 ::ffff:203.0.113.7 5000"),
        (client::v2(CLIENT6, DESTINATION6)?, "2001:db8::1 443 2001:db8::7 5000"),
        (client::v1(CLIENT6, DESTINATION6)?, "2001:db8::1 443 2001:db8::7 5000"),
        (client::v2_with_tlvs(CLIENT, "192.0.2.2:25", &tlvs)?, "::ffff:192.0.2.2 25 ::ffff:203.0.113.7 5000"),
        // NGINX: the client's family is announced, and its own address is written as it is.
        (b"PROXY TCP6 2001:db8::7 192.0.2.1 5000 443\r\n".to_vec(), "::ffff:192.0.2.1 443 2001:db8::7 5000"),
    ] {
        let saw = saw(80, &header)?;
        ensure!(saw == expected, "{}: {saw}", header.escape_ascii());
    }
    let saw = saw(81, &client::v2(CLIENT, DESTINATION)?)?;
    ensure!(saw == "192.0.2.1 443 203.0.113.7 5000", "{saw}");
    // Byte by byte.
    let mut stream = client::connect("127.0.0.1:80")?;
    for byte in client::v2(CLIENT, DESTINATION)? {
        stream.write_all(&[byte])?;
        wait_until_read(&stream)?;
    }
    let saw = client::ask(&mut stream, b"data")?;
    ensure!(saw == "::ffff:192.0.2.1 443 ::ffff:203.0.113.7 5000", "{saw}");
    let rules = status(bed)?["attachments"][0]["rules"].clone();
    ensure!(rules["destination"] == "header", "{rules}");
    Ok(())
}

fn who_names_no_destination_leaves_the_sockets_own_address(bed: &Bed) -> Result<()> {
    let _server = server(bed)?;
    let optional = "127.0.0.9=optional";
    let options =
        ["--allow", "127.0.0.1", "--allow", "127.0.0.9", "--header", "require", "--header", optional];
    attach(bed, &[&["--port", "80,81", "--destination", "header"], &options[..]].concat())?;
    let local = saw(80, &client::v2_local())?;
    ensure!(local.starts_with("::ffff:127.0.0.1 80 ::ffff:127.0.0.1 "), "{local}");
    let unknown = saw(80, &client::v1_unknown())?;
    ensure!(unknown.starts_with("::ffff:127.0.0.1 80 ::ffff:127.0.0.1 "), "{unknown}");
    // Programs fail on an address of another family than their socket's.
    let v6 = saw(81, &client::v2(CLIENT6, DESTINATION6)?)?;
    ensure!(v6.starts_with("127.0.0.1 81 127.0.0.1 "), "{v6}");
    let v6 = saw(81, b"PROXY TCP4 203.0.113.7 2001:db8::1 5000 443\r\n")?;
    ensure!(v6 == "127.0.0.1 81 203.0.113.7 5000", "{v6}");
    for from in ["127.0.0.9:4001", "127.0.0.10:4002"] {
        let saw = client::ask(&mut client::connect_from(from, "127.0.0.1:80")?, b"data")?;
        let from = from.replace(':', " ");
        ensure!(saw == format!("::ffff:127.0.0.1 80 ::ffff:{from}"), "{saw}");
    }
    let other = saw(82, b"")?;
    ensure!(other.starts_with("::ffff:127.0.0.1 82 ::ffff:127.0.0.1 "), "{other}");
    Ok(())
}

fn attachments_differ_in_the_destination(bed: &Bed) -> Result<()> {
    let _server = server(bed)?;
    let header = client::v2(CLIENT, DESTINATION)?;
    attach(bed, &["--port", "80"])?;
    attach(bed, &["add", "--port", "81", "--destination", "header"])?;
    let usual = saw(80, &header)?;
    ensure!(usual == "::ffff:127.0.0.1 80 ::ffff:203.0.113.7 5000", "{usual}");
    let shown = saw(81, &header)?;
    ensure!(shown == "192.0.2.1 443 203.0.113.7 5000", "{shown}");
    let mut open = client::connect("127.0.0.1:81")?;
    open.write_all(&header)?;
    wait_until_read(&open)?;
    attach(bed, &["add", "--replace", "--port", "81"])?;
    let usual = saw(81, &header)?;
    ensure!(usual == "127.0.0.1 81 203.0.113.7 5000", "{usual}");
    let shown = client::ask(&mut open, b"")?;
    ensure!(shown == "192.0.2.1 443 203.0.113.7 5000", "an open connection: {shown}");
    attach(bed, &["add", "--replace", "--port", "80", "--destination", "header"])?;
    let shown = saw(80, &header)?;
    ensure!(shown == "::ffff:192.0.2.1 443 ::ffff:203.0.113.7 5000", "{shown}");
    attach(bed, &["detach", "--now"])?;
    ensure!(
        !bed.dir().join("bpf/truepeer").exists() || attach(bed, &["status", "--json"])?.contains("false")
    );
    Ok(())
}

fn udp_ports_with_destinations_are_refused(bed: &Bed) -> Result<()> {
    let attach = command(bed, &["--port", "5060,5060/udp", "--destination", "header"])?.start(bed)?;
    ensure!(!attach.wait_end()?.success(), "{}", attach.log());
    let expected = "--destination header: a server gets a datagram's destination from the packet";
    ensure!(attach.log().contains(expected), "{}", attach.log());
    Ok(())
}
