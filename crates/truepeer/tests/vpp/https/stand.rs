//! truepeer https on VPP between two veth pairs. The other ends belong to the kernel: clients and origins run
//! there.
//!
//! ```text
//! clients 172.16.2.2 ──veth── 172.16.2.1 VPP: truepeer https 172.16.1.2 ──veth── 172.16.1.1 origins
//! ```

use std::fs;

use anyhow::{Context, Result};
use truepeer_testbed::{Bed, Program, Running, ip_here};

use crate::authority::Authority;
use crate::kit::{TRUEPEER, outcome, place, vpp};
use crate::real::up;

pub(super) const CLIENT: &str = "172.16.2.2";
pub(super) const CLIENT_V6: &str = "fd00:2::2";
pub(super) const DOOR: &str = "172.16.2.1:443";
pub(super) const DOOR_V6: &str = "[fd00:2::1]:443";
/// The address of origins on the kernel's stack.
pub(super) const ORIGIN: &str = "172.16.1.1";
pub(super) const ORIGIN_V6: &str = "fd00:1::1";

/// A running VPP; dropping it runs `vpp down`.
pub(super) struct OnVpp<'a> {
    pub(super) bed: &'a Bed,
    authority: Authority,
}

impl<'a> OnVpp<'a> {
    /// Starts the ethernet layout between two new pairs of devices, for both families.
    pub(super) fn ethernet(bed: &'a Bed) -> Result<Self> {
        ip_here(&["link add va type veth peer name pa", "link add vb type veth peer name pb"])?;
        ip_here(&["link set va up", "link set pa up", "link set vb up", "link set pb up"])?;
        ip_here(&["addr add 172.16.2.2/24 dev pa", "addr add 172.16.1.1/24 dev pb"])?;
        ip_here(&["addr add fd00:2::2/64 dev pa nodad", "addr add fd00:1::1/64 dev pb nodad"])?;
        Self::between_devices(bed)
    }

    /// Ends this VPP and starts another on the same devices.
    pub(super) fn up_again(self) -> Result<Self> {
        let bed = self.bed;
        drop(self);
        Self::between_devices(bed)
    }

    fn between_devices(bed: &'a Bed) -> Result<Self> {
        let on_vpp = Self::up(bed, "--ethernet va,vb")?;
        on_vpp.tell("set interface ip address host-va fd00:2::1/64")?;
        on_vpp.tell("set interface ip address host-vb fd00:1::2/64")?;
        Ok(on_vpp)
    }

    /// Starts the loopback layout.
    pub(super) fn loopback(bed: &'a Bed) -> Result<Self> {
        Self::up(bed, "--loopback")
    }

    fn up(bed: &'a Bed, layout: &str) -> Result<Self> {
        let up = up(bed, layout)?;
        let on_vpp = Self { bed, authority: Authority::new(bed, "authority")? };
        outcome(bed, &up)?.well()?;
        Ok(on_vpp)
    }

    /// Sends a command line to VPP and returns its answer.
    pub(super) fn tell(&self, line: &str) -> Result<String> {
        let state: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(place(self.bed).join("state.json"))?)?;
        let vppctl = state["vppctl"].as_str().context("no vppctl")?;
        let socket = place(self.bed).join("cli.sock");
        Program::new(vppctl).arg("-s").arg(socket).args(line.split(' ')).run(self.bed)
    }

    /// The process id of VPP.
    pub(super) fn process(&self) -> Result<i32> {
        let state: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(place(self.bed).join("state.json"))?)?;
        Ok(state["pid"].as_i64().context("no process number")?.try_into()?)
    }

    /// Starts `truepeer https --stack vpp` with additional options, and waits until it listens.
    pub(super) fn https(&self, listen: &str, origin: &str, options: &[&str]) -> Result<Running> {
        let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']);
        self.certify(&["site.test", host])?;
        let dir = self.bed.dir();
        let truepeer = Program::new(TRUEPEER)
            .args(["https", "--stack=vpp", "--vpp-dir"])
            .arg(place(self.bed))
            .args(["--listen", listen, "--origin", origin, "--log-format=text", "--cert"])
            .arg(dir.join("site.pem"))
            .arg("--key")
            .arg(dir.join("site.key"))
            .args(options)
            .start(self.bed)?;
        truepeer.wait_for_log("listening on")?;
        Ok(truepeer)
    }

    /// Writes a new certificate for these names, `site.pem` and `site.key`.
    pub(super) fn certify(&self, names: &[&str]) -> Result<()> {
        self.authority.certify(self.bed, "site", names)?;
        Ok(())
    }

    /// A program on VPP, in a namespace of the loopback layout.
    pub(super) fn put_on(&self, namespace: &str, program: Program) -> Program {
        let dir = place(self.bed).display().to_string();
        program.launched_by(TRUEPEER, &["vpp", "run", "--namespace", namespace, "--dir", &dir, "--"])
    }

    /// Waits until a program listens there on VPP.
    pub(super) fn wait_listening(&self, at: &str) -> Result<()> {
        let listens = format!("{at}->");
        self.bed.wait_for(&format!("{at} on VPP"), || {
            self.tell("show session verbose").is_ok_and(|sessions| sessions.contains(&listens))
        })
    }
}

impl Drop for OnVpp<'_> {
    fn drop(&mut self) {
        // It would keep a core busy until the last test has ended.
        let down = outcome(self.bed, &vpp(self.bed, "down"));
        if !down.as_ref().is_ok_and(|down| down.well) {
            eprintln!("truepeer vpp down: {down:?}");
        }
    }
}

/// curl, which accepts any certificate.
pub(super) fn curl(args: &[&str]) -> Program {
    Program::new("curl").args(["--silent", "--show-error", "--insecure", "--max-time", "120"]).args(args)
}

/// The start of clients in Python.
const PRELUDE: &str = include_str!("../programs/client.py");

/// A client in Python: `connect()` and `client()` of `programs/client.py` use `listener`.
pub(super) fn client(bed: &Bed, listener: &str, script: &str) -> Result<Running> {
    let (host, port) = listener.rsplit_once(':').context("no port")?;
    let words = [host.trim_matches(['[', ']']), port];
    Program::new("/usr/bin/python3").args(["-c", &format!("{PRELUDE}{script}")]).args(words).start(bed)
}

/// Runs one to its end, without a time limit: tests have their own.
pub(super) fn run_client(bed: &Bed, listener: &str, script: &str) -> Result<String> {
    succeed(&client(bed, listener, script)?)
}

/// Waits until it ends with success.
pub(super) fn succeed(client: &Running) -> Result<String> {
    while client.is_alive() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    anyhow::ensure!(client.wait_end()?.success(), "{}", client.log());
    Ok(client.stdout())
}

/// The origin in Python (`programs/origin.py`), on the kernel's stack.
pub(super) fn origin(bed: &Bed, port: u16) -> Result<Running> {
    let script = include_str!("../programs/origin.py");
    let origin =
        Program::new("/usr/bin/python3").args(["-c", script, ORIGIN, &port.to_string()]).start(bed)?;
    origin.wait_listening(format!("{ORIGIN}:{port}"))?;
    Ok(origin)
}
