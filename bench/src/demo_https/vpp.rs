//! On VPP's stack: the loopback layout, and each program in a namespace of VPP's.

use std::env;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use truepeer_testbed::{Program, Running, find_program};

use super::args::Args;
use super::parties::{Addresses, Parties, announce, end};
use super::stop::Stop;

pub(super) const ABSENT: &str = "VPP is not installed: no vpp in PATH, and neither --vpp nor TRUEPEER_VPP names one. It comes \
     in FD.io's packages vpp and vpp-plugin-core.";

/// What `truepeer vpp up --loopback` gives the namespaces.
const AT: Addresses = Addresses { server: Ipv4Addr::new(172, 16, 1, 1), proxy: Ipv4Addr::new(172, 16, 2, 1) };
/// VPP takes its time on a busy machine, and more if it was built for debugging.
const PATIENCE: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_millis(100);

/// The VPP of this machine's.
pub(super) fn installation(args: &Args) -> Option<PathBuf> {
    let named = args.vpp.clone().or_else(|| env::var_os("TRUEPEER_VPP").map(PathBuf::from));
    named.or_else(|| find_program("vpp"))
}

/// A VPP that is up; dropped, it is brought down.
struct Vpp<'a> {
    parties: &'a Parties<'a>,
    dir: PathBuf,
}

impl Vpp<'_> {
    /// `truepeer vpp WORDS --dir …`.
    fn command(&self, words: &[&str]) -> Program {
        Program::new(&self.parties.truepeer).arg("vpp").args(words).arg("--dir").arg(&self.dir)
    }

    /// `program`, started by `truepeer vpp run`.
    fn put_on(&self, namespace: &str, program: Program) -> Program {
        let dir = self.dir.display().to_string();
        let words = ["vpp", "run", "--namespace", namespace, "--dir", &dir, "--"];
        program.launched_by(&self.parties.truepeer, &words)
    }

    /// Waits until VPP shows a session that listens there.
    fn wait_listening(&self, running: &Running, at: std::net::SocketAddr, stop: &Stop) -> anyhow::Result<()> {
        let (deadline, session) = (Instant::now() + PATIENCE, format!("{at}->"));
        loop {
            stop.heed()?;
            let status = self.command(&["status"]).start(self.parties.bed)?;
            status.wait_end()?;
            if status.stdout().contains(&session) {
                return Ok(());
            }
            anyhow::ensure!(running.is_alive(), "{running:?} has ended: {}", running.log());
            anyhow::ensure!(Instant::now() < deadline, "nothing listens on {at}: {}", running.log());
            std::thread::sleep(PERIOD);
        }
    }
}

impl Drop for Vpp<'_> {
    fn drop(&mut self) {
        match self.command(&["down"]).run(self.parties.bed) {
            Ok(said) => print!("{said}"),
            Err(error) => eprintln!("demo-https: {error:#}"),
        }
    }
}

pub(super) fn show(parties: &Parties<'_>, vpp: &Path, stop: &Stop) -> anyhow::Result<()> {
    println!("\nOn VPP's stack: three loop interfaces, a table and a namespace for each");
    let up = Vpp { parties, dir: parties.bed.dir().join("v") };
    announce(["truepeer", "vpp", "up", "--loopback"]);
    print!("{}", up.command(&["up", "--loopback", "--vpp"]).arg(vpp).run(parties.bed)?);
    stop.heed()?;

    announce(["truepeer", "vpp", "run", "--namespace", "server", "--", "nginx", "-c", "nginx.conf"]);
    let origin = up.put_on("server", parties.origin(&AT)?).start(parties.bed)?;
    up.wait_listening(&origin, AT.origin(), stop)?;

    let words = parties.proxy_words(&AT);
    announce(["truepeer".to_owned()].iter().chain(&words).map(String::as_str).chain(["--stack=vpp"]));
    let proxy = Program::new(&parties.truepeer).args(&words).args(["--stack=vpp", "--vpp-dir"]).arg(&up.dir);
    let truepeer = proxy.start(parties.bed)?;
    up.wait_listening(&truepeer, AT.entrance(), stop)?;

    announce(["truepeer", "vpp", "run", "--namespace", "client", "--", "the load"]);
    let measured = parties.measure(&up.put_on("client", parties.load(&AT)?), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
