//! Helpers of several files: attaching, and talking to a backend, in the test's own network namespace or on a
//! host.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Running, client};

pub(crate) const BACKEND: &str = "[::ffff:127.0.0.1]:80";
pub(crate) const LISTENER: &str = "127.0.0.1:80";
pub(crate) const DESTINATION: &str = "192.0.2.1:443";

pub(crate) fn attach(bed: &Bed, args: &[&str]) -> Result<String> {
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, args)?.run(bed)
}

pub(crate) fn start(bed: &Bed, args: &[&str]) -> Result<String> {
    attach(bed, &[&["--port", "80"], args].concat())
}

/// Starts it, and attaches to these ports with `--destination header`.
pub(crate) fn with_destinations(
    bed: &Bed,
    program: Program,
    ports: &str,
    addresses: &[&str],
) -> Result<Running> {
    let running = program.start(bed)?;
    addresses.iter().try_for_each(|address| running.wait_listening(address))?;
    attach(bed, &["--port", ports, "--destination", "header"])?;
    Ok(running)
}

pub(crate) fn status(bed: &Bed) -> Result<Value> {
    Ok(serde_json::from_str(&attach(bed, &["status", "--json"])?)?)
}

pub(crate) fn counter(bed: &Bed, name: &str) -> Result<u64> {
    let status = status(bed)?;
    status["ports"][0]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

pub(crate) fn open(bed: &Bed, kind: &str) -> Result<u64> {
    status(bed)?["ports"][0][kind].as_u64().context("a port's state")
}

pub(crate) fn header(client: &str) -> Result<Vec<u8>> {
    client::v2(client, DESTINATION)
}

/// A header of another length than the previous one, so that the guess is wrong.
pub(crate) fn longer_header(client: &str) -> Result<Vec<u8>> {
    client::v2_with_tlvs(client, DESTINATION, &[(4, b"a few bytes more")])
}

pub(crate) fn session(header: &[u8]) -> Result<TcpStream> {
    let mut stream = client::connect(LISTENER)?;
    stream.write_all(header)?;
    Ok(stream)
}

/// Sends a byte and receives it back: the session works.
pub(crate) fn is_answered(stream: &mut TcpStream) -> Result<()> {
    let mut byte = [0];
    stream.write_all(b"x")?;
    stream.read_exact(&mut byte).context("the echo")?;
    ensure!(&byte == b"x");
    Ok(())
}

/// Writes while it reads, ends its direction, and returns everything that it received.
pub(crate) fn converse(stream: TcpStream, bytes: &[u8]) -> Result<Vec<u8>> {
    converse_until(stream, bytes, |writer| writer.shutdown(Shutdown::Write))
}

/// The same, with another way of ending its direction.
pub(crate) fn converse_until(
    mut stream: TcpStream,
    bytes: &[u8],
    end: fn(&TcpStream) -> std::io::Result<()>,
) -> Result<Vec<u8>> {
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> std::io::Result<()> {
            writer.write_all(bytes)?;
            end(&writer)
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).context("read to the end")?;
        sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))?.context("write")?;
        Ok(back)
    })
}

pub(crate) fn echo(bed: &Bed) -> Result<Running> {
    Behaviour::Echo.start(bed, &[BACKEND])
}

pub(crate) fn all_flows_end(bed: &Bed) -> Result<()> {
    bed.wait_for("all flows forgotten", || {
        open(bed, "translated").is_ok_and(|count| count == 0)
            && open(bed, "untouched").is_ok_and(|count| count == 0)
    })
}

pub(crate) fn command(bed: &Bed, args: &[&str]) -> Result<Program> {
    ByAttach::new(env!("CARGO_BIN_EXE_truepeer")).command(bed, args)
}

/// Attaches on a host, with all senders admitted.
pub(crate) fn attach_on(bed: &Bed, host: &Host, args: &[&str]) -> Result<String> {
    command(bed, &[&["--allow", "any"], args].concat())?.in_netns(&host.netns).run(bed)
}

pub(crate) fn counter_on(bed: &Bed, host: &Host, name: &str) -> Result<u64> {
    counter_of(bed, host, 0, name)
}

/// The counter of the `index`th port in numerical order.
pub(crate) fn counter_of(bed: &Bed, host: &Host, index: usize, name: &str) -> Result<u64> {
    let text = command(bed, &["status", "--json"])?.in_netns(&host.netns).run(bed)?;
    let status: Value = serde_json::from_str(&text)?;
    status["ports"][index]["counters"][name].as_u64().with_context(|| format!("{name} in {status}"))
}

pub(crate) fn backend_on(
    bed: &Bed,
    host: &Host,
    behaviour: Behaviour,
    addresses: &[&str],
) -> Result<Running> {
    behaviour.start_program(bed, addresses, |program| program.in_netns(&host.netns))
}

/// The client that the backend saw.
pub(crate) fn who(host: &Host, to: SocketAddr, header: &[u8]) -> Result<String> {
    let seen = host.run(|| client::ask(&mut client::connect(to)?, header))??;
    Ok(seen.trim().to_owned())
}

/// A client in Python, for socket options that Rust's library lacks. It prepares `s` and sends the header in
/// `h`.
pub(crate) fn python(bed: &Bed, host: &Host, to: SocketAddr, client: &str, script: &str) -> Result<String> {
    let bytes: String = header(client)?.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let source = format!(
        "import socket\ns = socket.socket()\ns.settimeout(20)\nto = ('{}', {})\nh = b'{bytes}'\n{script}\n",
        to.ip(),
        to.port()
    );
    Program::new("python3").args(["-c", &source]).in_netns(&host.netns).run(bed)
}

/// The paths in a directory.
pub(crate) fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?)
}

/// The directories of pins, one for each network namespace (and layout) with an attachment.
pub(crate) fn attachments(bed: &Bed) -> Result<Vec<PathBuf>> {
    let pins = bed.dir().join("bpf/truepeer");
    Ok(list(&pins)?.iter().map(|netns| list(netns)).collect::<Result<Vec<_>>>()?.concat())
}
