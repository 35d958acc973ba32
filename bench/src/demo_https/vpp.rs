//! A VPP with the loopback layout, brought up and down by truepeer.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use truepeer_testbed::{Bed, Program, Running, find_program};

use super::parties::Addresses;
use super::stop::Stop;

pub(crate) const ABSENT: &str = "VPP is not installed: no vpp in PATH, and neither --vpp nor TRUEPEER_VPP names one. It comes \
     in FD.io's packages vpp and vpp-plugin-core.";

/// What `truepeer vpp up --loopback` gives the namespaces.
pub(super) const AT: Addresses =
    Addresses { server: Ipv4Addr::new(172, 16, 1, 1), proxy: Ipv4Addr::new(172, 16, 2, 1) };
/// VPP takes its time on a busy machine, and more if it was built for debugging.
const TIMEOUT: Duration = Duration::from_secs(60);
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
        let (deadline, session) = (Instant::now() + TIMEOUT, format!("{at}->"));
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
    pub(super) fn down(&self) -> anyhow::Result<String> {
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
