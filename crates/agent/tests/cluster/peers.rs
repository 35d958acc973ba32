//! The server in a pod and the load balancer beside it: this program, started again in their network
//! namespaces.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, ExitCode};
use std::time::Duration;

const ROLE: &str = "TRUEPEER_AGENT_TEST_ROLE";
const SERVE: &str = "serve";
const ASK: &str = "ask";
const HEADER: &str = "PROXY TCP4 203.0.113.9 192.0.2.1 51000 80\r\n";

/// The client that the header names.
pub(crate) const CLIENT: &str = "203.0.113.9";

pub(crate) fn is_asked_for() -> bool {
    std::env::var_os(ROLE).is_some()
}

pub(crate) fn run() -> ExitCode {
    let role = std::env::var(ROLE).unwrap_or_default();
    let (what, argument) = role.split_once(' ').unwrap_or((&role, ""));
    let done = if what == SERVE { serve(argument) } else { ask(argument) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", error.kind());
            ExitCode::SUCCESS
        }
    }
}

/// Answers each connection with the peer's address and the first line.
fn serve(port: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(format!("[::]:{port}"))?;
    for stream in listener.incoming() {
        let stream = stream?;
        std::thread::spawn(move || {
            let peer = stream.peer_addr()?.ip().to_canonical();
            let mut line = String::new();
            let mut reader = BufReader::new(&stream);
            reader.read_line(&mut line)?;
            writeln!(&stream, "{peer} {}", line.trim().split(' ').next().unwrap_or_default())?;
            // Closed with bytes that were not read, it would be reset, and the answer lost.
            stream.shutdown(Shutdown::Write)?;
            std::io::copy(&mut reader, &mut std::io::sink()).map(drop)
        });
    }
    Ok(())
}

/// `ADDRESS header|plain`
fn ask(argument: &str) -> std::io::Result<()> {
    let (address, how) = argument.split_once(' ').unwrap_or((argument, ""));
    let address: SocketAddr = address.parse().map_err(std::io::Error::other)?;
    let limit = Duration::from_secs(3);
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_read_timeout(Some(limit))?;
    if how == "header" {
        stream.write_all(HEADER.as_bytes())?;
    }
    stream.write_all(b"hello\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    print!("{answer}");
    Ok(())
}

fn here(program: &str, launcher: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{program}/ns/net")).args(launcher);
    command.arg(std::env::current_exe().unwrap_or_default());
    command
}

/// A server in the network namespace of a process.
pub(crate) fn server(pid: u32, port: u16) -> Command {
    let mut command = here(&pid.to_string(), crate::confined::container());
    command.env(ROLE, format!("{SERVE} {port}"));
    command
}

/// Connects from the network namespace of a process. The server's answer, or the kind of the error.
pub(crate) fn answer(pid: u32, address: &str, has_header: bool) -> anyhow::Result<String> {
    let how = if has_header { "header" } else { "plain" };
    let output = here(&pid.to_string(), &[]).env(ROLE, format!("{ASK} {address} {how}")).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
