//! Hosts in a line. Each is a network namespace; veth pairs connect them, or cards of this machine.
//!
//! ```text
//! client ──10.77.0.0/24── lb ──10.77.1.0/24── proxy ──10.77.2.0/24── backend
//!       .1  fd77:0::/64  .2 .1  fd77:1::/64  .2    .1  fd77:2::/64  .2
//! ```
//! Interfaces are named after the host at their other end. Inner hosts forward. The default route leads to
//! the left, towards the client, so a backend answers any client through the proxy beside it.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use anyhow::Context;
use truepeer_sys::CallError;
use truepeer_sys::netns::NetNs;
use truepeer_sys::process::with_child_signal;

use crate::wait::wait_for;
use crate::{cards, skip, whereabouts};

/// One host of a [`Topology`].
#[derive(Debug, Clone)]
pub struct Host {
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Its network namespace.
    pub netns: NetNs,
    /// Its IPv4 address towards the client (the client's own: towards the others).
    pub v4: Ipv4Addr,
    /// Its IPv6 address towards the client (the client's own: towards the others).
    pub v6: Ipv6Addr,
}

impl Host {
    /// Runs `work` in this host's network namespace, on a separate thread.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, CallError> {
        self.netns.run(work)
    }

    /// Configures this host by commands of `ip` (`route add …`, `-6 rule add …`).
    pub fn ip(&self, commands: &[&str]) -> anyhow::Result<()> {
        self.netns.run(|| ip_here(commands))?.with_context(|| format!("on {}", self.name))
    }

    /// Waits until a veth device of this host can send, once both ends are up. The end that came up first
    /// can when a work queue of the kernel has noticed (`linkwatch_do_dev`), on a busy machine seconds later.
    /// Then it gets its link-local address (`addrconf_link_ready`).
    pub(crate) fn await_device(&self, device: &str) -> anyhow::Result<()> {
        let is_its = |line: &str| line.starts_with("fe80") && line.split_whitespace().nth(5) == Some(device);
        let addresses = || std::fs::read_to_string("/proc/thread-self/net/if_inet6");
        self.run(|| {
            wait_for(&format!("{device} to be ready"), || {
                addresses().is_ok_and(|addresses| addresses.lines().any(is_its))
            })
        })?
    }

    /// Its address of this family, with a port.
    pub fn at(&self, v6: bool, port: u16) -> SocketAddr {
        let ip: IpAddr = if v6 { self.v6.into() } else { self.v4.into() };
        SocketAddr::new(ip, port)
    }
}

/// Hosts in a line.
#[derive(Debug, Clone)]
pub struct Topology {
    hosts: Vec<Host>,
}

impl Topology {
    /// Creates the hosts and connects neighbours, for example `["client", "lb", "proxy", "backend"]`.
    pub fn line(names: &[&str]) -> anyhow::Result<Topology> {
        Self::joined(names, false)
    }

    /// The same, with a VLAN on each link. Skips the test if the kernel has none.
    pub fn line_of_vlans(names: &[&str]) -> anyhow::Result<Topology> {
        Self::joined(names, true)
    }

    fn joined(names: &[&str], by_vlans: bool) -> anyhow::Result<Topology> {
        let hosts = names.iter().enumerate().map(|(place, name)| Host::make(name, place));
        let topology = Topology { hosts: hosts.collect::<anyhow::Result<_>>()? };
        for (link, pair) in topology.hosts.windows(2).enumerate() {
            join(link, &pair[0], &pair[1])?;
            if by_vlans {
                tag(&pair[0], &pair[1].name)?;
                tag(&pair[1], &pair[0].name)?;
            }
            for (host, device, end) in [(&pair[0], &pair[1].name, 1), (&pair[1], &pair[0].name, 2)] {
                bring_up(host, device, link, end)?;
            }
        }
        for (link, pair) in topology.hosts.windows(2).enumerate() {
            pair[0].await_device(&pair[1].name).with_context(|| format!("link {link}"))?;
            pair[1].await_device(&pair[0].name).with_context(|| format!("link {link}"))?;
        }
        for (place, host) in topology.hosts.iter().enumerate() {
            let commands = routes(place, &topology.hosts);
            host.ip(&commands.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Ok(topology)
    }

    /// The host with this name.
    ///
    /// # Panics
    /// If there is none, which is a mistake in the test.
    pub fn host(&self, name: &str) -> &Host {
        self.hosts.iter().find(|host| host.name == name).unwrap_or_else(|| panic!("no host {name}"))
    }
}

impl Host {
    fn make(name: &str, place: usize) -> anyhow::Result<Host> {
        let netns = NetNs::create()?;
        let (link, end) = if place == 0 { (0, 1) } else { (place - 1, 2) };
        let host = Host { name: name.to_owned(), netns, v4: v4(link, end), v6: v6(link, end) };
        host.netns.run(|| {
            ip_here(&["link set lo up"])?;
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("ip_forward")?;
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").context("IPv6 forwarding")?;
            // Without a neighbour, duplicate address detection of link-local addresses would take two
            // seconds.
            std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").context("accept_dad")
        })??;
        Ok(host)
    }
}

fn join(link: usize, left: &Host, right: &Host) -> anyhow::Result<()> {
    let file_of = |host: &Host| format!("/proc/{}/fd/{}", std::process::id(), host.netns.as_fd().as_raw_fd());
    let (to_right, to_left) = (&right.name, &left.name);
    if let Some([left_card, right_card]) = cards::of_wire(link)? {
        left_card.move_to(&file_of(left), to_right)?;
        return right_card.move_to(&file_of(right), to_left);
    }
    // If both ends have the same index, the kernel doesn't recognise them as a pair and they come up a second
    // later (linkwatch_urgent_event in net/core/link_watch.c).
    let (index, peer_index) = (100 + 2 * link, 101 + 2 * link);
    let peer = format!("peer name {to_left} index {peer_index} netns {}", file_of(right));
    left.ip(&[&format!("link add {to_right} index {index} type veth {peer}")])
}

/// Puts a VLAN on a device, which gets the device's name.
fn tag(host: &Host, device: &str) -> anyhow::Result<()> {
    let below = format!("b-{device}");
    host.ip(&[
        &format!("link set {device} name {below}"),
        &format!("link set {below} addrgenmode none"),
        &format!("link set {below} up"),
    ])?;
    let vlan = host.ip(&[&format!("link add link {below} name {device} type vlan id 7")]);
    match vlan {
        Err(error) if format!("{error:#}").contains("Unknown device type") => {
            skip("this kernel has no VLANs (8021q)")
        }
        other => other,
    }
}

fn bring_up(host: &Host, device: &str, link: usize, end: u8) -> anyhow::Result<()> {
    host.ip(&[
        &format!("addr add {}/24 dev {device}", v4(link, end)),
        // Without duplicate address detection, which takes a second.
        &format!("addr add {}/64 dev {device} nodad", v6(link, end)),
        &format!("link set {device} up"),
    ])
}

/// The routes of the host at `place`: networks to the right go through the right neighbour, everything else
/// to the left. The leftmost host has only a right neighbour.
fn routes(place: usize, hosts: &[Host]) -> Vec<String> {
    let default = |link, end| {
        [
            format!("route add default via {}", v4(link, end)),
            format!("route add default via {}", v6(link, end)),
        ]
    };
    if place == 0 {
        return if hosts.len() > 1 { default(0, 2).into() } else { Vec::new() };
    }
    let mut commands: Vec<String> = default(place - 1, 1).into();
    for link in place + 1..hosts.len().saturating_sub(1) {
        commands.push(format!("route add 10.77.{link}.0/24 via {}", v4(place, 2)));
        commands.push(format!("route add fd77:{link}::/64 via {}", v6(place, 2)));
    }
    commands
}

fn v4(link: usize, end: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, u8::try_from(link).unwrap_or(u8::MAX), end)
}

fn v6(link: usize, end: u8) -> Ipv6Addr {
    let link = u16::try_from(link).unwrap_or(u16::MAX);
    Ipv6Addr::new(0xfd77, link, 0, 0, 0, 0, 0, u16::from(end))
}

/// Configures the calling thread's network namespace by commands of `ip` (`route add …`, `-6 rule add …`).
/// Returns the first error.
pub fn ip_here(commands: &[&str]) -> anyhow::Result<()> {
    if commands.iter().any(|command| command.starts_with('-')) {
        commands.iter().try_for_each(|command| ip(command.split_whitespace(), ""))?;
    } else {
        ip(["-batch", "-"].into_iter(), &(commands.join("\n") + "\n"))?; // one process for all commands; batch lines can't contain ip's options
    }
    commands.iter().filter_map(|command| added_to_loopback(command)).try_for_each(await_own)
}

/// The IPv6 address that a command adds to `lo`, which is always up here.
fn added_to_loopback(command: &str) -> Option<Ipv6Addr> {
    let rest = command.trim_start_matches("-6 ").strip_prefix("addr add ")?;
    let (address, device) = rest.split_once(" dev ")?;
    let is_loopback = device.split_whitespace().next() == Some("lo");
    is_loopback.then(|| address.split('/').next().unwrap_or_default().parse().ok()).flatten()
}

/// Gives the calling thread's network a device `here` with the addresses 10.9.0.1 and fd00:9::1, and default
/// routes through it: a way out, as every real machine has.
pub fn device_here() -> anyhow::Result<()> {
    ip_here(&[
        "link add here type veth peer name there",
        "addr add 10.9.0.1/24 dev here",
        "addr add fd00:9::1/64 dev here nodad",
        // Else their own addresses' routes come later, when a test has noted the state before.
        "link set here addrgenmode none",
        "link set there addrgenmode none",
        "link set there up",
        "link set here up",
        "route add default dev here",
        "route add ::/0 dev here metric 1",
    ])?;
    await_own("fd00:9::1".parse()?)?;
    // The end that came up first gets its route later (see `await_device`).
    let is_multicast_of_there =
        |line: &str| line.starts_with("ff00") && line.split_whitespace().next_back() == Some("there");
    wait_for("the other end to be ready", || {
        let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route");
        routes.is_ok_and(|routes| routes.lines().any(is_multicast_of_there))
    })
}

/// Waits until packets for an IPv6 address of the calling thread's network stay there. The kernel adds the
/// address's own route in a work queue (`addrconf_dad_work`), on a busy machine 100 ms later; until then
/// packets take the default route.
fn await_own(address: Ipv6Addr) -> anyhow::Result<()> {
    const RTF_LOCAL: u32 = 0x8000_0000;
    let start = format!("{:032x} 80 ", u128::from(address));
    let flags = |line: &str| u32::from_str_radix(line.split_whitespace().nth(8)?, 16).ok();
    let is_local =
        |line: &str| line.starts_with(&start) && flags(line).is_some_and(|flags| flags & RTF_LOCAL != 0);
    wait_for(&format!("the route of {address}"), || {
        std::fs::read_to_string("/proc/thread-self/net/ipv6_route")
            .is_ok_and(|routes| routes.lines().any(is_local))
    })
}

fn ip<'a>(args: impl Iterator<Item = &'a str> + Clone, input: &str) -> anyhow::Result<()> {
    let ip = whereabouts::find_program("ip").context("the command ip is missing (package iproute2)")?;
    let mut command = Command::new(&ip);
    command.envs(whereabouts::environment(&ip));
    command.args(args.clone()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = with_child_signal(|| command.spawn()).context("ip")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let command = args.collect::<Vec<_>>().join(" ");
    anyhow::ensure!(output.status.success(), "ip {command}: {} {input}", complaint.trim());
    Ok(())
}
