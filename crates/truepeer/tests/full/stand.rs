//! Sender, relay and backend, each a host.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Running, Topology, Truepeer, client, wait_for};

/// truepeer logs this once the programs know a listener. That is a moment after its socket is open, and they
/// learn nothing from a handshake in between.
pub(crate) const SERVED: &str = "the kernel accepts and connects by itself at";

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const DOOR: u16 = 8443;
const PORT: u16 = 80;
/// The longest time that a busy machine may take for anything.
const STALL: Duration = Duration::from_secs(60);

pub(crate) struct Stand<'b> {
    bed: &'b Bed,
    hosts: Topology,
    pub(crate) truepeer: Running,
    pub(crate) backend: Running,
    admin: PathBuf,
}

impl<'b> Stand<'b> {
    pub(crate) fn make(bed: &'b Bed, behaviour: Behaviour, options: &[&str]) -> Result<Stand<'b>> {
        Self::make_with(bed, behaviour, options, |program| program)
    }

    /// Likewise, with a change of how truepeer is run.
    pub(crate) fn make_with(
        bed: &'b Bed,
        behaviour: Behaviour,
        options: &[&str],
        adjust: impl FnOnce(Program) -> Program,
    ) -> Result<Stand<'b>> {
        Self::make_on(bed, Topology::line(&["sender", "relay", "backend"])?, behaviour, options, adjust)
    }

    /// Likewise, on these hosts.
    pub(crate) fn make_on(
        bed: &'b Bed,
        hosts: Topology,
        behaviour: Behaviour,
        options: &[&str],
        adjust: impl FnOnce(Program) -> Program,
    ) -> Result<Stand<'b>> {
        mount_bpf_in_place()?;
        let far = hosts.host("backend");
        let at = [far.at(false, PORT), far.at(true, PORT)];
        let backend = behaviour.start_program(bed, &at, |program| program.in_netns(&far.netns))?;
        let admin = bed.dir().join("admin");
        let own = admin.display().to_string();
        let always = ["--splice", "full", "--log-format", "text", "-v", "2", "--admin", &own];
        let routes: &[&str] = if options.contains(&"--routes") { &[] } else { &["--routes", "auto"] };
        let options = [&always[..], routes, options].concat();
        let truepeer = proxy(&hosts, &options).with(adjust).start(bed)?;
        Ok(Self { bed, hosts, truepeer, backend, admin })
    }

    /// Another truepeer with the same addresses, which `take_over` says how to start. Returns the one before.
    pub(crate) fn next(&mut self, take_over: &[&str]) -> Result<Running> {
        self.next_with("full", take_over)
    }

    /// Writes the configuration with this value of `--splice`, and returns its path.
    pub(crate) fn configure(&self, splice: &str) -> Result<String> {
        let own = self.admin.display().to_string();
        let always =
            ["--splice", splice, "--log-format", "text", "-v", "2", "--admin", &own, "--routes", "auto"];
        let file = proxy(&self.hosts, &[&always[..], &["--print-config"]].concat());
        let file = file.program().run(self.bed)?;
        Ok(self.bed.write("truepeer.toml", file)?.display().to_string())
    }

    /// As [`Self::next`], with this value of `--splice`.
    pub(crate) fn next_with(&mut self, splice: &str, take_over: &[&str]) -> Result<Running> {
        let file = self.configure(splice)?;
        let program = Program::new(TRUEPEER).args(["serve", "-c", &file]).args(take_over);
        let truepeer = program.in_netns(&self.host("relay").netns).start(self.bed)?;
        truepeer.wait_for_log("admin: listening on")?;
        Ok(std::mem::replace(&mut self.truepeer, truepeer))
    }

    pub(crate) fn host(&self, name: &str) -> &Host {
        self.hosts.host(name)
    }

    pub(crate) fn listener(&self, v6: bool) -> SocketAddr {
        self.host("relay").at(v6, DOOR)
    }

    pub(crate) fn backend_at(&self, v6: bool) -> SocketAddr {
        self.host("backend").at(v6, PORT)
    }

    /// A connection of the sender that has said nothing yet.
    pub(crate) fn connect(&self, v6: bool) -> Result<TcpStream> {
        let stream = self.host("sender").run(|| client::connect(self.listener(v6)))??;
        stream.set_read_timeout(Some(STALL))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// A session of this client, whose backend echoes.
    pub(crate) fn open(&self, v6: bool, port: u16) -> Result<TcpStream> {
        let mut stream = self.connect(v6)?;
        stream.write_all(&header(v6, port)?)?;
        echo(&mut stream, b"first")?;
        Ok(stream)
    }

    /// The kernel knows sender and backend, by a session that truepeer relayed.
    pub(crate) fn learn(&self, v6: bool) -> Result<()> {
        self.truepeer.wait_for_log(&format!("{SERVED} {}", self.listener(v6)))?;
        let before = self.made()?;
        let mut stream = self.connect(v6)?;
        stream.write_all(&header(v6, 4999)?)?;
        self.backend.wait_for_log(&format!("{} accepted", client(v6, 4999)))?;
        // The backend reads until then, whatever it does.
        stream.shutdown(std::net::Shutdown::Write)?;
        let _ = stream.read_to_end(&mut Vec::new());
        ensure!(self.made()? == before, "truepeer's own session is the kernel's");
        Ok(())
    }

    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String> {
        Program::new(TRUEPEER).args(arguments).arg("--admin").arg(&self.admin).run(self.bed)
    }

    /// What `truepeer doctor` finds on the relay, whatever the exit status.
    pub(crate) fn examine(&self) -> Result<String> {
        let backend = self.backend_at(false).to_string();
        let doctor = Program::new(TRUEPEER).args(["doctor", "-4", &backend, "--admin"]).arg(&self.admin);
        let doctor = doctor.in_netns(&self.host("relay").netns).start(self.bed)?;
        doctor.wait_end()?;
        Ok(doctor.stdout())
    }

    /// A counter that truepeer shows, of all listeners.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let curl = ["-sf", "--unix-socket", "admin", "http://truepeer/metrics"];
        let text = Program::new("curl").args(curl).dir(self.bed.dir()).run(self.bed)?;
        let lines = text.lines().filter(|line| line.starts_with(&format!("truepeer_{name}_total")));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok());
        let values: Vec<u64> = values.collect();
        ensure!(!values.is_empty(), "no {name} in\n{text}");
        Ok(values.iter().sum())
    }

    /// Reads the configuration again.
    pub(crate) fn reload(&self) -> Result<String> {
        self.ask(&["reload"])
    }

    /// How many sessions the kernel has made, as far as truepeer knows.
    pub(crate) fn made(&self) -> Result<u64> {
        self.counter("sessions_made_by_kernel")
    }

    pub(crate) fn wait_made(&self, count: u64) -> Result<()> {
        wait_for(&format!("{count} sessions of the kernel"), || self.made().is_ok_and(|made| made == count))
            .with_context(|| format!("{:?}\n{}", self.made(), self.truepeer.log()))
    }
}

fn proxy(hosts: &Topology, options: &[&str]) -> Truepeer {
    let (relay, far) = (hosts.host("relay"), hosts.host("backend"));
    Truepeer::proxy(TRUEPEER)
        .listen(relay.at(false, DOOR))
        .listen(relay.at(true, DOOR))
        .ipv4(far.at(false, PORT))
        .ipv6(far.at(true, PORT))
        .allow(hosts.host("sender").v4)
        .allow(hosts.host("sender").v6)
        .args(options)
        .with(|program| program.in_netns(&relay.netns))
}

pub(crate) fn client(v6: bool, port: u16) -> SocketAddr {
    let ip = if v6 { "2001:db8::7" } else { "203.0.113.7" };
    SocketAddr::new(ip.parse().expect("an address"), port)
}

fn site(v6: bool) -> SocketAddr {
    let ip = if v6 { "2001:db8::1" } else { "192.0.2.1" };
    SocketAddr::new(ip.parse().expect("an address"), 443)
}

pub(crate) fn header(v6: bool, port: u16) -> Result<Vec<u8>> {
    client::v2(client(v6, port), site(v6))
}

pub(crate) fn header_v1(v6: bool, port: u16) -> Result<Vec<u8>> {
    client::v1(client(v6, port), site(v6))
}

pub(crate) fn echo(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes)?;
    stream.read_exact(&mut back).context("the echo")?;
    ensure!(back == bytes, "other bytes came back");
    Ok(())
}
