//! Checks whether `truepeer attach` works here. A failure is only a note, because `truepeer proxy` needs none
//! of it.

use std::fs;
use std::process::Command;

use rustix::system::uname;

use super::report::{Check, Report};
use truepeer_privilege::confine::needs;

/// The oldest kernel on which sock_ops programs can distinguish network namespaces (bpf_get_netns_cookie).
const OLDEST: needs::Version = (5, 15);
const TRIED: &str = "truepeer attach (no proxy)";

pub(super) fn examine(report: &mut Report) {
    let obstacle = obstacle();
    if obstacle.is_none() {
        [given_up(), reverse_path(), aggregation()].into_iter().flatten().for_each(|check| report.add(check));
    }
    report.add(match obstacle {
        None => Check::ok("attach", TRIED),
        Some((found, mend)) => {
            let check =
                Check::note("attach", TRIED, format!("can't be used here: {found}; truepeer proxy can"));
            if mend.is_empty() { check } else { check.mend(mend) }
        }
    });
    let is_interpreted =
        fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").is_ok_and(|value| value.trim() == "0");
    if is_interpreted {
        let found = "the BPF JIT is off: the kernel interprets BPF programs, which is slow";
        report.add(
            Check::note("bpf_jit", "the BPF compiler", found).mend("sysctl -w net.core.bpf_jit_enable=1"),
        );
    }
}

/// The network devices of this namespace, without loopback.
fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
    names.map(|name| name.trim().to_owned()).filter(|name| name != "lo").collect()
}

/// Whether a connection survives that the kernel forgets while it waits for its header.
fn given_up() -> Option<Check> {
    const TRIED: &str = "truepeer attach, headers that come after the kernel gave their handshake up";
    if truepeer_bpf::can_begin_again() {
        return Some(Check::ok("attach_again", TRIED));
    }
    let found = "they are refused (accepting them needs Linux 6.9 and net.ipv4.tcp_syncookies)";
    let note = Check::note("attach_again", TRIED, found);
    let cookies = fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies").unwrap_or_default();
    Some(if cookies.trim() == "0" { note.mend("sysctl -w net.ipv4.tcp_syncookies=1") } else { note })
}

/// Checks rp_filter. The kernel applies it to UDP datagrams after `attach` has put in the client's address.
/// The kernel uses the larger of the device's setting and `all` (ip-sysctl.rst). With 1, the route back to
/// the client must lead over the same device.
fn reverse_path() -> Option<Check> {
    let setting = |device: &str| -> u8 {
        let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let all = setting("all");
    let strict: Vec<String> = devices().into_iter().filter(|device| all.max(setting(device)) == 1).collect();
    (!strict.is_empty()).then(|| {
        let found = format!(
            "rp_filter is 1 on {}: datagrams of clients whose route leads over another device are dropped; 2 accepts any route",
            strict.join(", ")
        );
        Check::note("attach_rp_filter", "truepeer attach of UDP ports", found)
            .mend("sysctl -w net.ipv4.conf.all.rp_filter=2")
    })
}

/// Offloads that merge datagrams for sockets that did not ask for it. ethtool(8) lists them, if it is
/// installed.
const AGGREGATING: [&str; 2] = ["rx-udp-gro-forwarding", "rx-gro-list"];

fn aggregation() -> Option<Check> {
    let is_on = |device: &String| {
        let output = Command::new("ethtool").args(["-k", device]).output();
        let text =
            output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        AGGREGATING.iter().any(|name| text.contains(&format!("{name}: on")))
    };
    let found: Vec<String> = devices().into_iter().filter(is_on).collect();
    let first = found.first()?;
    let mend = format!("ethtool -K {first} {} off {} off", AGGREGATING[0], AGGREGATING[1]);
    let said = format!(
        "{} merge datagrams, and the kernel must split them again, which costs CPU time",
        found.join(", ")
    );
    Some(Check::note("attach_gro", "truepeer attach of UDP ports", said).mend(mend))
}

/// The first missing requirement, and the command that provides it, if there is one.
fn obstacle() -> Option<(String, &'static str)> {
    if !truepeer_bpf::are_built_in() {
        return Some((
            "this truepeer was built without clang and has no kernel programs".to_owned(),
            "apt-get install clang libbpf-dev",
        ));
    }
    let release = uname().release().to_string_lossy().into_owned();
    if needs::version(&release).is_some_and(|version| version < OLDEST) {
        return Some((format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1), ""));
    }
    let missing: Vec<_> = truepeer_attach::missing_capabilities().iter().map(ToString::to_string).collect();
    if !missing.is_empty() {
        return Some((format!("missing: {}", missing.join(", ")), "sudo truepeer doctor"));
    }
    match truepeer_bpf::cgroup_root() {
        Ok(_) => {}
        Err(error) => return Some((error.to_string(), "")),
    }
    let may_mount = needs::ATTACH_MOUNT.is_held();
    if !truepeer_bpf::Place::can_be_at(&truepeer_bpf::find_pins()) && !may_mount {
        return Some(("no BPF file system is mounted".to_owned(), "sudo truepeer attach"));
    }
    None
}
