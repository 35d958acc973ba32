//! On VPP's stack: the loopback layout, and each program in a namespace of VPP's.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use truepeer_testbed::{Bed, Program, Running, find_program};

use super::ground::{Ground, Role};
use super::parties::{Addresses, Parties, announce, end};
use super::stop::Stop;

pub(crate) const ABSENT: &str = "VPP is not installed: no vpp in PATH, and neither --vpp nor TRUEPEER_VPP names one. It comes \
     in FD.io's packages vpp and vpp-plugin-core.";

/// What `truepeer vpp up --loopback` gives the namespaces.
pub(super) const AT: Addresses =
    Addresses { server: Ipv4Addr::new(172, 16, 1, 1), proxy: Ipv4Addr::new(172, 16, 2, 1) };
/// VPP takes its time on a busy machine, and more if it was built for debugging.
const PATIENCE: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_millis(100);

/// The VPP of this machine's, or the one that is named.
pub(crate) fn installation(named: Option<&Path>) -> Option<PathBuf> {
    let named = named.map(Path::to_owned).or_else(|| env::var_os("TRUEPEER_VPP").map(PathBuf::from));
    named.or_else(|| find_program("vpp"))
}

/// A VPP that is up; dropped, it is brought down.
pub(crate) struct Vpp<'a> {
    bed: &'a Bed,
    truepeer: PathBuf,
    dir: PathBuf,
    /// What `vpp up` has printed.
    pub(crate) said: String,
}

impl<'a> Vpp<'a> {
    /// Brings up `installation` with the loopback layout, by `truepeer`; with more options, if there are any.
    pub(crate) fn up(
        bed: &'a Bed,
        truepeer: &Path,
        installation: &Path,
        options: &[String],
    ) -> anyhow::Result<Self> {
        let mut vpp =
            Self { bed, truepeer: truepeer.to_owned(), dir: bed.dir().join("v"), said: String::new() };
        let up = vpp.command(&["up", "--loopback"]).arg("--vpp").arg(installation).args(options);
        vpp.said = up.run(bed)?;
        Ok(vpp)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// `truepeer vpp WORDS --dir …`.
    fn command(&self, words: &[&str]) -> Program {
        Program::new(&self.truepeer).arg("vpp").args(words).arg("--dir").arg(&self.dir)
    }

    /// `program`, started by `truepeer vpp run`.
    pub(super) fn put_on(&self, namespace: &str, program: Program) -> Program {
        let dir = self.dir.display().to_string();
        let words = ["vpp", "run", "--namespace", namespace, "--dir", &dir, "--"];
        program.launched_by(&self.truepeer, &words)
    }

    /// Waits until VPP shows a session that listens there.
    pub(super) fn wait_listening(
        &self,
        running: &Running,
        at: SocketAddr,
        stop: &Stop,
    ) -> anyhow::Result<()> {
        let (deadline, session) = (Instant::now() + PATIENCE, format!("{at}->"));
        loop {
            stop.heed()?;
            let status = self.command(&["status"]).start(self.bed)?;
            status.wait_end()?;
            if status.stdout().contains(&session) {
                return Ok(());
            }
            anyhow::ensure!(running.is_alive(), "{running:?} has ended: {}", running.log());
            anyhow::ensure!(Instant::now() < deadline, "nothing listens on {at}: {}", running.log());
            std::thread::sleep(PERIOD);
        }
    }

    /// Ends it; what was printed.
    fn down(&self) -> anyhow::Result<String> {
        self.command(&["down"]).run(self.bed)
    }
}

impl Drop for Vpp<'_> {
    fn drop(&mut self) {
        // Told apart from one that was never up by itself: that is no failure.
        if let Err(error) = self.down() {
            eprintln!("{error:#}");
        }
    }
}

pub(super) fn show(parties: &Parties<'_>, installation: &Path, stop: &Stop) -> anyhow::Result<()> {
    println!("\nOn VPP's stack: three loop interfaces, a table and a namespace for each");
    announce(["truepeer", "vpp", "up", "--loopback"]);
    let vpp = Vpp::up(parties.bed, &parties.truepeer, installation, &[])?;
    print!("{}", vpp.said);
    let ground = Ground::Vpp(vpp);
    let done = show_on(&ground, parties, stop);
    let Ground::Vpp(vpp) = &ground else { return done };
    print!("{}", vpp.down()?);
    done
}

fn show_on(ground: &Ground<'_>, parties: &Parties<'_>, stop: &Stop) -> anyhow::Result<()> {
    stop.heed()?;
    announce(["truepeer", "vpp", "run", "--namespace", "server", "--", "nginx", "-c", "nginx.conf"]);
    let origin = ground.put(Role::Server, parties.origin(&AT)?);
    let origin = ground.start(parties.bed, &origin, AT.origin(), stop)?;

    let words = parties.proxy_words(&AT);
    announce(["truepeer".to_owned()].iter().chain(&words).map(String::as_str).chain(["--stack=vpp"]));
    let truepeer = ground.put_truepeer(parties.proxy(&AT));
    let truepeer = ground.start(parties.bed, &truepeer, AT.entrance(), stop)?;

    announce(["truepeer", "vpp", "run", "--namespace", "client", "--", "the load"]);
    let measured = parties.measure(&ground.put(Role::Client, parties.load(&AT)?), stop);
    end("truepeer", truepeer);
    end("nginx", origin);
    measured
}
