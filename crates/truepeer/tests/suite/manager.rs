//! What the service manager hears.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Test, tests};

use crate::stand::TRUEPEER;
use crate::upgrade::FILE;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_service_manager_hears_of_each_change,
        an_upgrade_takes_a_socket_without_a_listener_out_of_the_store,
        the_watchdog_is_fed,
        the_watchdog_is_fed_while_a_reload_waits,
    ]
}

/// What a program tells the service manager.
struct Manager(UnixDatagram);

impl Manager {
    fn new(bed: &Bed) -> anyhow::Result<Self> {
        let path = bed.dir().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        // As systemd's: services run as users of their own.
        fs::set_permissions(path, Permissions::from_mode(0o777))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self(socket))
    }

    /// Reads messages until one contains `text`, and returns all of them.
    fn hears(&self, text: &str) -> anyhow::Result<String> {
        let (mut all, mut message) = (String::new(), [0; 4096]);
        while !all.contains(text) {
            let length = self.0.recv(&mut message).with_context(|| format!("{text} after {all}"))?;
            all.push_str(&String::from_utf8_lossy(&message[..length]));
            all.push('\n');
        }
        Ok(all)
    }
}

fn the_service_manager_hears_of_each_change(bed: &Bed) -> anyhow::Result<()> {
    let manager = Manager::new(bed)?;
    bed.write("truepeer.toml", FILE)?;
    let notified = || Program::new(TRUEPEER).env("NOTIFY_SOCKET", bed.dir().join("notify"));
    let truepeer = notified().args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    let heard = manager.hears("READY=1")?;
    ensure!(heard.contains("FDSTORE=1\nFDNAME=tcp-127.0.0.1-8443"), "{heard}");
    ensure!(heard.contains("FDNAME=udp-127.0.0.1-5300"), "{heard}");
    ensure!(heard.contains("STATUS=serving 2 listeners"), "{heard}");
    ensure!(heard.contains(&format!("MAINPID={}", truepeer.pid())), "{heard}");

    bed.write("truepeer.toml", FILE.replace("127.0.0.1:8443", "127.0.0.1:8444"))?;
    truepeer.signal(Signal::HUP)?;
    let heard = manager.hears("READY=1")?;
    ensure!(heard.contains("RELOADING=1\nMONOTONIC_USEC="), "{heard}");
    ensure!(heard.contains("FDSTOREREMOVE=1\nFDNAME=tcp-127.0.0.1-8443"), "{heard}");
    ensure!(heard.contains("FDSTORE=1\nFDNAME=tcp-127.0.0.1-8444"), "{heard}");

    let new = notified().args(["serve", "--take-over", "-c", "truepeer.toml"]).start(bed)?;
    let heard = manager.hears("READY=1")?;
    ensure!(heard.contains(&format!("MAINPID={}", new.pid())), "{heard}");
    truepeer.wait_end()?;
    new.signal(Signal::TERM)?;
    manager.hears("STOPPING=1").map(drop)
}

/// Otherwise the service manager keeps it open for nobody, and whoever connects waits.
fn an_upgrade_takes_a_socket_without_a_listener_out_of_the_store(bed: &Bed) -> anyhow::Result<()> {
    let manager = Manager::new(bed)?;
    bed.write("truepeer.toml", FILE)?;
    let notified = || Program::new(TRUEPEER).env("NOTIFY_SOCKET", bed.dir().join("notify"));
    let old = notified().args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    manager.hears("READY=1")?;
    bed.write("truepeer.toml", FILE.replace("127.0.0.1:8443", "127.0.0.1:8444"))?;
    let new = notified().args(["serve", "--take-over", "-c", "truepeer.toml"]).start(bed)?;
    let heard = manager.hears("READY=1")?;
    ensure!(heard.contains("FDSTOREREMOVE=1\nFDNAME=tcp-127.0.0.1-8443"), "{heard}");
    ensure!(heard.contains("FDSTORE=1\nFDNAME=tcp-127.0.0.1-8444"), "{heard}");
    ensure!(heard.matches("FDSTOREREMOVE").count() == 1, "{heard}");
    ensure!(new.log().contains("had a socket on 127.0.0.1:8443"), "{}", new.log());
    ensure!(!new.log().contains("the service manager passed"), "{}", new.log());
    old.wait_end().map(drop)
}

fn the_watchdog_is_fed(bed: &Bed) -> anyhow::Result<()> {
    let manager = Manager::new(bed)?;
    bed.write("truepeer.toml", FILE)?;
    let program = Program::new(TRUEPEER).env("NOTIFY_SOCKET", bed.dir().join("notify"));
    let _truepeer =
        program.env("WATCHDOG_USEC", "200000").args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    manager.hears("READY=1")?;
    for _ in 0..3 {
        manager.hears("WATCHDOG=1")?;
    }
    Ok(())
}

/// For a list that nobody writes. It could also be a name server that does not answer.
fn the_watchdog_is_fed_while_a_reload_waits(bed: &Bed) -> anyhow::Result<()> {
    let manager = Manager::new(bed)?;
    let list = bed.write("deny", "198.51.100.1\n")?;
    bed.write("truepeer.toml", FILE.replacen("routes", "deny-clients = [\"./deny\"]\nroutes", 1))?;
    let program = Program::new(TRUEPEER).env("NOTIFY_SOCKET", bed.dir().join("notify"));
    let truepeer =
        program.env("WATCHDOG_USEC", "200000").args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    manager.hears("READY=1")?;
    fs::remove_file(&list)?;
    mkfifoat(CWD, &list, Mode::from_raw_mode(0o644))?;
    truepeer.signal(Signal::HUP)?;
    manager.hears("RELOADING=1")?;
    for _ in 0..3 {
        let heard = manager.hears("WATCHDOG=1")?;
        ensure!(!heard.contains("READY=1"), "{heard}");
    }
    fs::write(&list, "198.51.100.2\n")?;
    bed.wait_for("the end of the reload", || {
        // It may be read several times.
        let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let pipe = OpenOptions::new().write(true).custom_flags(nonblocking).open(&list);
        let _ = pipe.and_then(|mut pipe: File| pipe.write_all(b"198.51.100.2\n"));
        truepeer.log().contains("have new lists")
    })
}
