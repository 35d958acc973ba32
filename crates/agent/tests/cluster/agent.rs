//! The agent under test.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, Killed, NODE};
use crate::confined;
use crate::wait::until;

/// A running agent.
pub(crate) struct Agent {
    process: Killed,
    address: SocketAddr,
    log: PathBuf,
    /// Ends after it.
    _copying: Option<Killed>,
}

/// The program truepeer.
pub(crate) fn truepeer() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TRUEPEER") {
        return Ok(path.into());
    }
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_truepeer-agent")).with_file_name("truepeer");
    ensure!(beside.is_file(), "no {}: cargo build, or name the program by TRUEPEER", beside.display());
    Ok(beside)
}

/// The agent's command line.
pub(crate) fn command_line(address: SocketAddr, more: &[&str]) -> Result<Vec<String>> {
    let mut line: Vec<String> = ["kubernetes", "--node", NODE].map(str::to_owned).into();
    line.extend(["--truepeer".to_owned(), truepeer()?.display().to_string()]);
    let pins = if confined::is_on() { confined::PINS } else { crate::mounts::PINS };
    line.extend(["--pins".to_owned(), pins.to_owned()]);
    if !more.contains(&"--listen") {
        line.extend(["--listen".to_owned(), address.to_string()]);
    }
    line.extend(["--probes".to_owned(), probes(address)]);
    line.extend(more.iter().map(|word| (*word).to_owned()));
    Ok(line)
}

/// An agent in a pod has a network namespace of its own; here they share one.
fn probes(address: SocketAddr) -> String {
    format!("@truepeer-agent-test-{}", address.port())
}

impl Agent {
    pub(crate) fn start(bed: &Bed, more: &[&str]) -> Result<Self> {
        Self::start_by(bed, &confined::launcher(), more)
    }

    /// `launcher`: a program that executes the agent, and its options.
    pub(crate) fn start_by(bed: &Bed, launcher: &[String], more: &[&str]) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = bed.cluster.directory().join(format!("agent-{}.log", address.port()));
        let line = command_line(address, more)?;
        let program = env!("CARGO_BIN_EXE_truepeer-agent");
        let mut command = launched(launcher, program);
        command.args(line).env("KUBECONFIG", bed.cluster.kubeconfig());
        let (output, errors, copying) = confined::output(File::create(&log)?)?;
        let mut process = Killed(command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn()?);
        drop(command);
        let is_ready = until("the agent", || {
            let has_ended = process.0.try_wait()?.is_some();
            Ok(if has_ended { Some(false) } else { probe(address, "ready")?.0.then_some(true) })
        });
        let agent = Self { process, address, log, _copying: copying.map(Killed) };
        ensure!(is_ready.with_context(|| agent.log())?, "the agent has ended: {}", agent.log());
        if confined::is_on() {
            confined::check(agent.process.0.id())?;
        }
        Ok(agent)
    }

    /// As the kubelet asks: whether the answer is yes, and what was printed.
    pub(crate) fn probe(&self, question: &str) -> Result<(bool, String)> {
        probe(self.address, question)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Status and body.
    pub(crate) fn page(&self, path: &str) -> Result<(u16, String)> {
        page(self.address, path)
    }

    /// The value of a metric by its whole name with labels; 0 if it is absent.
    pub(crate) fn metric(&self, name: &str) -> Result<u64> {
        let (_, text) = self.page("/metrics")?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?.unwrap_or(0))
    }

    /// Of steps, how many ended so.
    pub(crate) fn steps(&self, step: &str, result: &str) -> Result<u64> {
        self.metric(&format!("truepeer_agent_steps_total{{step=\"{step}\",result=\"{result}\"}}"))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Killed, as by a lack of memory.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Ended, as by kubelet.
    pub(crate) fn terminate(mut self) -> Result<()> {
        let pid = self.process.0.id().to_string();
        ensure!(Command::new("kill").args(["-TERM", &pid]).status()?.success(), "kill");
        let status = self.process.0.wait()?;
        ensure!(status.success(), "{status}: {}", self.log());
        Ok(())
    }
}

fn launched(launcher: &[String], program: &str) -> Command {
    match launcher {
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
        [] => Command::new(program),
    }
}

fn probe(address: SocketAddr, question: &str) -> Result<(bool, String)> {
    let mut command = launched(&confined::launcher(), env!("CARGO_BIN_EXE_truepeer-agent"));
    let output = command.args(["probe", question, "--probes", &probes(address)]).output()?;
    Ok((output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

fn page(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(3))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("no status")?.parse()?;
    let body = answer.split_once("\r\n\r\n").context("no end of the head")?.1;
    Ok((status, body.to_owned()))
}
