//! A VPP, started and stopped by truepeer.

use std::env;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use truepeer_sys::netns::NetNs;
use truepeer_testbed::{Bed, Program, Running, find_program};

use super::parties::Addresses;
use super::stop::Stop;

pub(crate) const ABSENT: &str = "VPP is not installed: no vpp in PATH, and neither --vpp nor TRUEPEER_VPP names one. It comes \
     in FD.io's packages vpp and vpp-plugin-core.";

/// The option for the loopback layout, and its addresses.
pub(crate) const LOOPBACK: &str = "--loopback";
pub(super) const AT: Addresses =
    Addresses { server: Ipv4Addr::new(172, 16, 1, 1), proxy: Ipv4Addr::new(172, 16, 2, 1) };
/// VPP is slow on a busy machine, and slower if built for debugging.
const TIMEOUT: Duration = Duration::from_secs(60);
const PERIOD: Duration = Duration::from_millis(100);

/// This machine's VPP, or the one that is named.
pub(crate) fn installation(named: Option<&Path>) -> Option<PathBuf> {
    let named = named.map(Path::to_owned).or_else(|| env::var_os("TRUEPEER_VPP").map(PathBuf::from));
    named.or_else(|| find_program("vpp"))
}

/// A running VPP; dropping it runs `vpp down`.
pub(crate) struct Vpp<'a> {
    bed: &'a Bed,
    truepeer: PathBuf,
    dir: PathBuf,
    /// The output of `vpp up`.
    pub(crate) said: String,
}

impl<'a> Vpp<'a> {
    /// Starts `installation` by `truepeer`, with these options, in a network namespace if one is named.
    pub(crate) fn up(
        bed: &'a Bed,
        truepeer: &Path,
        installation: &Path,
        options: &[&str],
        netns: Option<&NetNs>,
    ) -> anyhow::Result<Self> {
        let mut vpp =
            Self { bed, truepeer: truepeer.to_owned(), dir: bed.dir().join("v"), said: String::new() };
        let up = vpp.command(&["up"]).args(options).arg("--vpp").arg(installation);
        vpp.said = netns.into_iter().fold(up, Program::in_netns).run(bed)?;
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

    /// Waits until VPP shows a listening session there.
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

    /// Stops it. Returns the output.
    pub(super) fn down(&self) -> anyhow::Result<String> {
        self.command(&["down"]).run(self.bed)
    }
}

impl Drop for Vpp<'_> {
    fn drop(&mut self) {
        // A VPP that never ran is no failure.
        if let Err(error) = self.down() {
            eprintln!("{error:#}");
        }
    }
}
