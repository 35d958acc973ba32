//! Whether `truepeer attach` could do the job here. Never a failure: `truepeer proxy` needs none of it.

use std::fs;
use std::path::Path;
use std::process::Command;

use rustix::system::uname;

use super::report::{Check, Report};

/// The oldest kernel whose socket hooks can tell network namespaces apart (bpf_get_netns_cookie in sock_ops).
const OLDEST: (u32, u32) = (5, 15);
const TRIED: &str = "truepeer attach (no proxy)";

pub(super) fn examine(report: &mut Report) {
    let obstacle = obstacle();
    if obstacle.is_none() {
        [reverse_path(), aggregation()].into_iter().flatten().for_each(|check| report.add(check));
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
        let found = "off: kernel programs are interpreted, which is slow";
        report.add(
            Check::note("bpf_jit", "the BPF compiler", found).mend("sysctl -w net.core.bpf_jit_enable=1"),
        );
    }
}

/// The network devices here but for loopback, by name.
fn devices() -> Vec<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
    names.map(|name| name.trim().to_owned()).filter(|name| name != "lo").collect()
}

/// A datagram has the client's address when the kernel looks where it may come from. The stricter of a device's and everybody's
/// setting holds (ip-sysctl.rst); 1 wants the way back to lead over the same device.
fn reverse_path() -> Option<Check> {
    let setting = |device: &str| -> u8 {
        let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    let all = setting("all");
    let strict: Vec<String> = devices().into_iter().filter(|device| all.max(setting(device)) == 1).collect();
    (!strict.is_empty()).then(|| {
        let found = format!(
            "rp_filter is 1 on {}: clients to whom no route leads over that device are dropped; 2 takes those to whom any does",
            strict.join(", ")
        );
        Check::note("attach_rp_filter", "truepeer attach of UDP ports", found)
            .mend("sysctl -w net.ipv4.conf.all.rp_filter=2")
    })
}

/// The offloads that put datagrams together which no socket has asked for; ethtool(8) knows, if it is there.
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
    let said =
        format!("{} put datagrams together, which are taken apart again: that costs", found.join(", "));
    Some(Check::note("attach_gro", "truepeer attach of UDP ports", said).mend(mend))
}

/// What is missing, and the command that mends it, if one does.
fn obstacle() -> Option<(String, &'static str)> {
    if !truepeer_bpf::are_built_in() {
        return Some((
            "this truepeer was built without clang".to_owned(),
            "apt-get install clang libbpf-dev",
        ));
    }
    let release = uname().release().to_string_lossy().into_owned();
    if version(&release).is_some_and(|version| version < OLDEST) {
        return Some((format!("Linux {release} is older than {}.{}", OLDEST.0, OLDEST.1), ""));
    }
    if !crate::attach::missing_capabilities().is_empty() {
        return Some(("it needs CAP_BPF and CAP_NET_ADMIN".to_owned(), "sudo truepeer doctor"));
    }
    if truepeer_bpf::cgroup_root().is_err() {
        return Some(("no cgroup v2 is mounted".to_owned(), "mount -t cgroup2 none /sys/fs/cgroup"));
    }
    let pins = Path::new(truepeer_bpf::DEFAULT_PINS);
    if !truepeer_bpf::Place::can_be_at(pins) {
        return Some(("no BPF file system is mounted".to_owned(), "mount -t bpf bpf /sys/fs/bpf"));
    }
    None
}

/// `6.1.0-18-amd64`: 6 and 1.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-']).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert!(version("5.4.0").is_some_and(|version| version < OLDEST));
        assert!(version("5.15-custom").is_some_and(|version| version >= OLDEST));
        assert_eq!(version("nonsense"), None);
    }
}
