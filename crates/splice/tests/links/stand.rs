//! Sender, relay and backend, each a host, joined by two links.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use truepeer_bpf::{Device, Splices};
use truepeer_testbed::packets::{BadLink, Mischief};
use truepeer_testbed::{Bed, Host, skip, with_child_signal};

use crate::fates::Fates;
use crate::peers::Backend;
use crate::relay::Relay;

const PORT: u16 = 80;
const FLOWS: NonZeroU32 = NonZeroU32::new(4096).expect("not zero");

pub(crate) struct Stand {
    pub(crate) sender: Host,
    relay: Host,
    backend: Host,
    splices: Arc<Splices>,
    _links: [BadLink; 2],
}

pub(crate) struct Serving {
    pub(crate) relay_at: SocketAddr,
    pub(crate) relay: Relay,
    pub(crate) fates: Fates,
    backend: Backend,
}

/// A BPF file system of the test's own.
pub(crate) fn pins(bed: &Bed) -> Result<PathBuf> {
    if !truepeer_bpf::are_built_in() {
        return skip("built without clang: apt-get install clang libbpf-dev");
    }
    if !fs::read_to_string("/proc/self/uid_map")?.contains("4294967295") {
        return skip("needs CAP_BPF in the machine's own user namespace: run as root");
    }
    let pins = bed.dir().join("bpf");
    fs::create_dir_all(&pins)?;
    rustix::mount::mount("bpf", &pins, "bpf", rustix::mount::MountFlags::empty(), None)?;
    Ok(pins.join("splices"))
}

pub(crate) fn without_rp_filter(host: &Host) -> Result<()> {
    host.run(|| -> Result<()> {
        for device in fs::read_dir("/proc/sys/net/ipv4/conf")? {
            fs::write(device?.path().join("rp_filter"), "0")?;
        }
        Ok(())
    })?
}

/// The programs, on these devices of a host.
pub(crate) fn attach(host: &Host, pins: &Path, devices: &[&str]) -> Result<Arc<Splices>> {
    let device =
        |name: &&str| Device { name: (*name).to_owned(), has_ethernet: true, has_strict_rp_filter: false };
    let devices: Vec<Device> = devices.iter().map(device).collect();
    Ok(host.run(|| Splices::attach(pins, &devices, FLOWS))??)
}

impl Stand {
    pub(crate) fn make(bed: &Bed, mischief: Mischief) -> Result<Stand> {
        let pins = pins(bed)?;
        // Only one link damages: what both damage may look whole, since nobody but the peers looks at sums
        // then.
        let links =
            [BadLink::make(bed, mischief, 1)?, BadLink::make(bed, Mischief { damaged: 0, ..mischief }, 2)?];
        let (sender, relay) = (links[0].left.clone(), links[0].right.clone());
        let backend = links[1].right.clone();
        // The second link's near end becomes the relay's second device.
        let other = format!("/proc/{}/fd/{}", std::process::id(), relay.netns.as_fd().as_raw_fd());
        links[1].left.ip(&["link set wire down", &format!("link set wire netns {other} name back")])?;
        relay.ip(&[
            "link set back up",
            "addr add 10.78.0.1/32 dev back",
            "addr add fd78::1/128 dev back nodad",
            "neigh add 10.78.0.2 lladdr 02:00:00:00:00:02 dev back",
            "neigh add fd78::2 lladdr 02:00:00:00:00:02 dev back",
            "route add 10.78.0.2/32 dev back src 10.78.0.1",
            "route add fd78::2/128 dev back src fd78::1",
        ])?;
        backend.ip(&["addr add 10.78.0.2/32 dev wire", "addr add fd78::2/128 dev wire nodad"])?;
        without_rp_filter(&relay)?;
        let splices = attach(&relay, &pins, &["wire", "back"])?;
        Ok(Stand { sender, relay, backend, splices, _links: links })
    }

    /// From now on sockets of both peers have small receive buffers. They must be small before a connection
    /// begins: otherwise the kernel takes back windows that it has offered. Linux 6.18 drops every
    /// acknowledgement of a peer that has already sent more than that. If both ends do this, the connection
    /// stands still for ever.
    pub(crate) fn shrink_receive_buffers(&self) -> Result<()> {
        for host in [&self.sender, &self.backend] {
            host.run(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 16384 16384"))?.context("tcp_rmem")?;
        }
        Ok(())
    }

    pub(crate) fn serve(&self, v6: bool) -> Result<Serving> {
        let backend_at: SocketAddr = if v6 { "[fd78::2]:80".parse()? } else { "10.78.0.2:80".parse()? };
        let listener =
            self.backend.run(|| TcpListener::bind(backend_at))?.context("the backend's listener")?;
        let relay_at = self.relay.at(v6, PORT);
        let entrance = self.relay.run(|| TcpListener::bind(relay_at))?.context("the relay's listener")?;
        let fates = Fates::default();
        Ok(Serving {
            relay_at,
            relay: Relay::start(&self.relay.netns, entrance, backend_at, &self.splices, &fates)?,
            backend: Backend::start(listener, fates.clone())?,
            fates,
        })
    }

    pub(crate) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.splices.counters().unwrap_or_default().into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// The peers' sockets, as their kernels list them.
    pub(crate) fn peers_sockets(&self) -> Result<String> {
        let mut all = String::new();
        for host in [&self.sender, &self.backend] {
            let mut list = Command::new("ss");
            list.args(["--tcp", "-naemio", "exclude", "time-wait"]);
            let listed = host.run(|| with_child_signal(|| list.output()))?.context("ss")?;
            writeln!(all, "{}:\n{}", host.name, String::from_utf8_lossy(&listed.stdout))?;
        }
        Ok(all)
    }

    /// All that the backend's side has to complain about.
    pub(crate) fn backend_is_content(&self, serving: &Serving) -> Result<()> {
        serving.backend.outcome()
    }
}
