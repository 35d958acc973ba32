//! Senders on another host: its TCP options, its link's offloads, a VLAN, and a listener that nftables
//! redirects to.
//!
//! ```text
//! sender ── wire ═══ near ── truepeer ── backend on loopback
//! ```

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, ip_here, skip, tests};

use crate::family::Family;
use crate::stand::{Stand, echo, is_reset, open_at, spliced_at};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_sender_without_timestamps_stays,
        a_sender_without_selective_acknowledgements_stays,
        a_sender_with_ecn_stays,
        a_session_over_a_vlan_leaves,
    ];
    for (kind, size) in [("received", "gro_max_size"), ("sent", "gso_max_size")] {
        let name = format!("sessions_stay_where_big_packets_are_{kind}");
        all.push(Test::new(name, move |bed: &Bed| beside_big_packets(bed, size)));
    }
    all.push(
        Test::new("a_session_that_nftables_redirects_stays", a_session_that_nftables_redirects_stays)
            .needs_program("nft"),
    );
    all.extend(
        tests![bulk_arrives_with_all_offloads, bulk_arrives_without_offloads]
            .into_iter()
            .map(|test| test.needs_program("ethtool")),
    );
    all
}

pub(crate) const DOOR: &str = "10.78.9.1:8443";

/// The sender's host.
pub(crate) fn far() -> Result<NetNs> {
    mount_bpf_in_place()?;
    linked()
}

/// The same, where the BPF file system is mounted already.
pub(crate) fn linked() -> Result<NetNs> {
    let far = NetNs::create()?;
    link(&far)?;
    far.run(|| ip_here(&["link set lo up"]))??;
    Ok(far)
}

/// The wire between this host and the sender's.
pub(crate) fn link(far: &NetNs) -> Result<()> {
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    far.run(|| {
        // As a source of its own address is elsewhere, it asks for neighbours by its link-local address: not
        // before that is checked, and three questions later there is "no route to host".
        fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").context("accept_dad")
    })??;
    ip_here(&[
        &format!("link add near type veth peer name wire netns {there}"),
        "addr add 10.78.9.1/24 dev near",
        "addr add fd78:9::1/64 dev near nodad",
        "link set near up",
    ])?;
    far.run(|| {
        ip_here(&[
            "addr add 10.78.9.2/24 dev wire",
            "addr add fd78:9::2/64 dev wire nodad",
            "link set wire up",
        ])
    })?
}

/// Another link to the sender's host: `second` here, `wire2` there.
pub(crate) fn second_link(far: &NetNs) -> Result<()> {
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    ip_here(&[
        &format!("link add second type veth peer name wire2 netns {there}"),
        "addr add 10.78.7.1/24 dev second",
        "addr add fd78:7::1/64 dev second nodad",
        "link set second up",
    ])?;
    far.run(|| {
        ip_here(&[
            "addr add 10.78.7.2/24 dev wire2",
            "addr add fd78:7::2/64 dev wire2 nodad",
            "link set wire2 up",
        ])
    })?
}

pub(crate) fn stand(bed: &Bed, listener: &str) -> Result<Stand> {
    let backend = Behaviour::Echo.start(bed, &[Family::of(listener).backend()])?;
    let truepeer = spliced_at(bed, listener, &["--allow", "10.0.0.0/8,fd00::/8"]).start(bed)?;
    Ok(Stand { truepeer, backend, admin: bed.dir().join("admin") })
}

/// Whether `truepeer status` has counted one session that stays for this reason.
pub(crate) fn counts_one(status: &str, reason: &str) -> bool {
    let code = format!(" ({reason})");
    status.lines().any(|line| line.trim_start().starts_with("1  ") && line.ends_with(&code))
}

/// The session works in user space, and this is the counted reason.
pub(crate) fn stays(bed: &Bed, stand: &Stand, mut stream: TcpStream, reason: &str) -> Result<()> {
    stand.truepeer.wait_state(&format!("{reason} to be counted"), || {
        // Bytes move.
        echo(&mut stream, &[3; 3000]).is_ok()
            && stand.ask(bed, &["status"]).is_ok_and(|status| counts_one(&status, reason))
    })?;
    let listed = stand.ask(bed, &["sessions"])?;
    ensure!(listed.contains(" relaying "), "{listed}");
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "no end");
    Ok(())
}

/// Only the sender's host has this setting.
fn with_setting(bed: &Bed, name: &str, value: &str, reason: &str) -> Result<()> {
    let far = far()?;
    far.run(|| fs::write(format!("/proc/sys/net/ipv4/{name}"), value))?.with_context(|| name.to_owned())?;
    let stand = stand(bed, DOOR)?;
    let stream = far.run(|| open_at(DOOR, 0))??;
    stays(bed, &stand, stream, reason)
}

fn a_sender_without_timestamps_stays(bed: &Bed) -> Result<()> {
    with_setting(bed, "tcp_timestamps", "0", "timestamps")
}

fn a_sender_without_selective_acknowledgements_stays(bed: &Bed) -> Result<()> {
    with_setting(bed, "tcp_sack", "0", "sack")
}

/// truepeer's host agrees to ECN, but does not ask its backend for it (net.ipv4.tcp_ecn is 2 by default).
fn a_sender_with_ecn_stays(bed: &Bed) -> Result<()> {
    with_setting(bed, "tcp_ecn", "1", "ecn")
}

/// The device carries the port that the sender connects to, the socket has another one.
fn a_session_that_nftables_redirects_stays(bed: &Bed) -> Result<()> {
    let far = far()?;
    let redirect = "table ip nat {\n chain to_truepeer {\n type nat hook prerouting priority dstnat\n \
                    tcp dport 443 redirect to :8443\n }\n }\n";
    Program::new("nft").args(["-f", "-"]).input(redirect).run(bed)?;
    let stand = stand(bed, DOOR)?;
    let stream = far.run(|| open_at("10.78.9.1:443", 0))??;
    stays(bed, &stand, stream, "packets_not_seen")
}

fn a_session_over_a_vlan_leaves(bed: &Bed) -> Result<()> {
    let far = far()?;
    if ip_here(&["link add link near name vlan7 type vlan id 7"]).is_err() {
        return skip("this kernel knows no VLANs (8021q)");
    }
    ip_here(&["addr add 10.99.0.1/24 dev vlan7", "link set vlan7 up"])?;
    far.run(|| {
        ip_here(&[
            "link add link wire name vlan7 type vlan id 7",
            "addr add 10.99.0.2/24 dev vlan7",
            "link set vlan7 up",
        ])
    })??;
    let listener = "10.99.0.1:8443";
    let stand = stand(bed, listener)?;
    let mut stream = far.run(|| open_at(listener, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    for len in [1, 3000, 200_000] {
        echo(&mut stream, &vec![4; len]).with_context(|| format!("{len} bytes"))?;
    }
    Ok(())
}

/// Packets of more than 64 KiB (BIG TCP). If the device gets them later, its sessions that have left are
/// reset within a second.
fn beside_big_packets(bed: &Bed, size: &str) -> Result<()> {
    let far = far()?;
    let set = |bytes: u32| ip_here(&[&format!("link set dev near {size} {bytes}")]);
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    set(131_072)?;
    is_reset(&mut stream)?;
    stand.truepeer.wait_for_log("close=\"way_lost\"")?;
    let stream = far.run(|| open_at(DOOR, 1))??;
    stays(bed, &stand, stream, "big_tcp")
}

fn bulk_arrives_with_all_offloads(bed: &Bed) -> Result<()> {
    bulk(bed, "on")
}

/// Each packet as on a wire.
fn bulk_arrives_without_offloads(bed: &Bed) -> Result<()> {
    bulk(bed, "off")
}

fn bulk(bed: &Bed, state: &str) -> Result<()> {
    const LEN: usize = 16 << 20;
    let far = far()?;
    let set = |device| {
        let set = ["-K", device, "gro", state, "tso", state, "gso", state, "tx", state];
        Program::new("ethtool").args(set)
    };
    set("near").run(bed)?;
    set("wire").in_netns(&far).run(bed)?;
    let stand = stand(bed, DOOR)?;
    let mut stream = far.run(|| open_at(DOOR, 0))??;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let mut writer = stream.try_clone()?;
    let sending = thread::spawn(move || -> Result<()> {
        writer.write_all(&Pattern::bytes(LEN))?;
        Ok(writer.shutdown(Shutdown::Write)?)
    });
    let mut back = Vec::with_capacity(LEN);
    stream.read_to_end(&mut back)?;
    sending.join().expect("no panic")?;
    ensure!(back == Pattern::bytes(LEN), "{} bytes came back, or others", back.len());
    stand.truepeer.wait_for_log("close=\"finished\"")
}
