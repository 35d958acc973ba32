//! Two truepeers: the near one originates TLS, the far one terminates it. The test is at one end and a
//! backend at the other, so everything that holds for a plain session can be checked.
//!
//! ```text
//! test ──header, data──▶ :9443 truepeer --origin-tls ──TLS, as the client──▶ :8443 truepeer --tls-cert ──as the client──▶ :8000
//! ```

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use anyhow::ensure;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Behaviour, Running, Test, client, tests};

use crate::stand::{DOOR_V4, DOOR_V6, Stand, bare_proxy};

const NEAR: &str = "127.0.0.1:9443";
const CLIENT: &str = "203.0.113.7:5000";
const LENGTH: usize = 32 << 20;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        both_ends_of_tls_show_the_client,
        all_bytes_go_up_and_the_answer_comes_back,
        all_bytes_come_down,
        a_slow_backend_gets_all_bytes,
        a_slow_source_and_a_slow_reader_lose_nothing,
        a_reset_of_the_backend_reaches_the_client,
        a_reset_of_the_client_reaches_the_backend,
        without_a_backend_the_client_sees_a_reset,
        open_sessions_are_reset_when_truepeer_ends,
        a_header_after_the_wait_never_reaches_the_backend,
    ]
}

struct Chain {
    near: Running,
    far: Stand,
}

fn chain(bed: &Bed, behaviour: Behaviour) -> anyhow::Result<Chain> {
    let far = Stand::new(bed, behaviour, &["--allow", "203.0.113.0/24", "--allow", "2001:db8::/32"])?;
    let near = bare_proxy().listen(NEAR).ipv4(DOOR_V4).ipv6(DOOR_V6);
    let near = near.args(&["--origin-tls", "--origin-ca", &far.authority.ca, "--origin-name", "site.test"]);
    Ok(Chain { near: near.start(bed)?, far })
}

/// The backend speaks first, and the header is optional: AWS NLB sends it with the client's first bytes.
fn a_header_after_the_wait_never_reaches_the_backend(bed: &Bed) -> anyhow::Result<()> {
    let far = Stand::new(bed, Behaviour::Banner, &[])?;
    let near = bare_proxy().listen(NEAR).ipv4(DOOR_V4).ipv6(DOOR_V6);
    let near = near.args(&["--origin-tls", "--origin-ca", &far.authority.ca, "--origin-name", "site.test"]);
    let near = near.args(&["--header", "optional", "--header-wait", "100ms"]).start(bed)?;
    let headers = [client::v1(CLIENT, "192.0.2.1:443")?, client::v2(CLIENT, "192.0.2.1:443")?];
    for bytes in [&headers[0][..], &headers[1], b"PROXIMITY"] {
        let mut stream = client::connect(NEAR)?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        ensure!(line.starts_with("SSH-2.0-testbed"), "{line:?}; {}", near.log());
        let (first, rest) = bytes.split_at(3);
        stream.write_all(first)?;
        wait_until_sent(&stream)?;
        stream.write_all(rest)?;
        let is_data = bytes == b"PROXIMITY";
        if is_data {
            stream.shutdown(Shutdown::Write)?;
        }
        let mut echoed = Vec::new();
        let end = stream.read_to_end(&mut echoed);
        ensure!(echoed == if is_data { bytes } else { b"" }, "{}; {}", echoed.escape_ascii(), near.log());
        ensure!(end.is_ok() == is_data, "{end:?}");
    }
    near.wait_for_log("header_placement must be on_first_ack")
}

fn open() -> anyhow::Result<TcpStream> {
    let mut stream = client::connect(NEAR)?;
    stream.write_all(&client::v2(CLIENT, "192.0.2.1:443")?)?;
    Ok(stream)
}

fn both_ends_of_tls_show_the_client(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Who)?;
    for (client, site) in [(CLIENT, "192.0.2.1:443"), ("[2001:db8::7]:5000", "[2001:db8::1]:443")] {
        let seen = client::ask(&mut client::connect(NEAR)?, &client::v2(client, site)?)?;
        let host = client.rsplit_once(':').map_or(client, |(host, _)| host);
        ensure!(seen.starts_with(host), "{client} was seen as {seen}; {}", chain.far.truepeer.log());
    }
    Ok(())
}

fn all_bytes_go_up_and_the_answer_comes_back(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Digest)?;
    let mut stream = open()?;
    let answer = client::ask(&mut stream, &Pattern::bytes(LENGTH))?;
    ensure!(answer.trim() == Digest::of_pattern(LENGTH as u64), "{answer}; {}", chain.near.log());
    chain.near.wait_for_log("close=\"finished\"")?;
    chain.far.truepeer.wait_for_log(&format!("bytes_up={LENGTH} "))
}

fn download(stream: &mut TcpStream, length: usize, pause: bool) -> anyhow::Result<String> {
    stream.write_all(format!("{length}\n").as_bytes())?;
    let (mut digest, mut buffer) = (Digest::default(), vec![0; 64 << 10]);
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(digest.report());
        }
        digest.update(&buffer[..length]);
        if pause {
            // This makes the reader slower than the others; it waits for nothing.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

fn all_bytes_come_down(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Source)?;
    let report = download(&mut open()?, LENGTH, false)?;
    ensure!(report == Digest::of_pattern(LENGTH as u64), "{report}; {}", chain.near.log());
    Ok(())
}

fn a_slow_backend_gets_all_bytes(bed: &Bed) -> anyhow::Result<()> {
    const LENGTH: usize = 8 << 20;
    let chain = chain(bed, Behaviour::SlowDigest)?;
    let answer = client::ask(&mut open()?, &Pattern::bytes(LENGTH))?;
    ensure!(answer.trim() == Digest::of_pattern(LENGTH as u64), "{answer}; {}", chain.near.log());
    Ok(())
}

fn a_slow_source_and_a_slow_reader_lose_nothing(bed: &Bed) -> anyhow::Result<()> {
    const LENGTH: usize = 8 << 20;
    for behaviour in [Behaviour::SlowSource, Behaviour::Source] {
        let chain = chain(bed, behaviour)?;
        let report = download(&mut open()?, LENGTH, behaviour == Behaviour::Source)?;
        ensure!(report == Digest::of_pattern(LENGTH as u64), "{report}; {}", chain.near.log());
    }
    Ok(())
}

fn a_reset_of_the_backend_reaches_the_client(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Reset)?;
    let mut stream = open()?;
    stream.write_all(b"x")?;
    ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", chain.near.log());
    chain.far.truepeer.wait_for_log("close=\"reset_by_backend\"")
}

fn a_reset_of_the_client_reaches_the_backend(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Echo)?;
    let mut stream = open()?;
    stream.write_all(b"four")?;
    stream.read_exact(&mut [0; 4])?;
    client::reset(stream)?;
    chain.near.wait_for_log("close=\"reset_by_client\"")?;
    chain.far.backend.wait_for_log(" reset 4")
}

/// The far truepeer finds no backend after TLS was established: it must send a reset, not an end.
fn without_a_backend_the_client_sees_a_reset(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Echo)?;
    chain.far.backend.stop()?;
    let mut stream = open()?;
    stream.shutdown(Shutdown::Write)?;
    ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", chain.near.log());
    chain.far.truepeer.wait_for_log("reason=\"connect_failed\"")
}

fn open_sessions_are_reset_when_truepeer_ends(bed: &Bed) -> anyhow::Result<()> {
    let chain = chain(bed, Behaviour::Echo)?;
    let mut stream = open()?;
    stream.write_all(b"four")?;
    stream.read_exact(&mut [0; 4])?;
    ensure!(chain.far.truepeer.stop()?.success(), "{}", chain.far.truepeer.log());
    chain.far.truepeer.wait_for_log("close=\"stopping\"")?;
    ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", chain.near.log());
    chain.far.backend.wait_for_log(" reset 4")
}
