//! Generates VPP's startup.conf. Pure: the machine's properties are parameters.

use std::fmt::Write as _;
use std::path::Path;

use super::layout::Layout;
use truepeer_config::spec::VppDevice;

/// The inputs of startup.conf.
#[derive(Debug)]
pub(super) struct Startup<'a> {
    /// The private directory, for sockets and VPP's other files.
    pub(super) dir: &'a Path,
    /// Separates VPP's shared memory from that of another VPP.
    pub(super) prefix: &'a str,
    pub(super) layout: &'a Layout,
    /// The core of the main thread; any core if `None`.
    pub(super) core: Option<u16>,
    /// Whether the machine has free huge pages.
    pub(super) huge_pages: bool,
}

impl Startup<'_> {
    /// Returns the text of the file.
    pub(super) fn text(&self) -> String {
        let dir = self.dir.display();
        let mut text = String::from("# Written by truepeer vpp up.\n");
        section(
            &mut text,
            "unix",
            &[
                "nodaemon".into(),
                "nosyslog".into(),
                "nocolor".into(),
                "nobanner".into(),
                format!("runtime-dir {dir}"),
                format!("cli-listen {dir}/cli.sock"),
            ],
        );
        section(&mut text, "api-segment", &[format!("prefix {}", self.prefix)]);
        section(&mut text, "statseg", &[format!("socket-name {dir}/stats.sock")]);
        if let Some(core) = self.core {
            section(&mut text, "cpu", &[format!("main-core {core}")]);
        }
        if !self.huge_pages {
            // By default VPP tries huge pages first, which takes time and fills its log with errors.
            section(&mut text, "memory", &["main-heap-page-size 4k".into()]);
            section(&mut text, "buffers", &["page-size 4k".into()]);
        }
        // By default VPP forgets a half-closed connection after 2 s, so late data of the other direction
        // would be lost. 104 s is the most that its timers can count.
        section(&mut text, "tcp", &["cc-algo cubic".into(), "closewait-time 60".into()]);
        // FD.io's packaged startup.conf lacks this section. Without it there are no sockets for programs.
        section(&mut text, "session", &["enable".into(), "use-app-socket-api".into()]);
        match self.dpdk_devices() {
            devices if devices.is_empty() => {
                // It would take every device without a kernel driver.
                section(&mut text, "plugins", &["plugin dpdk_plugin.so { disable }".into()]);
            }
            devices => section(&mut text, "dpdk", &devices),
        }
        text
    }

    fn dpdk_devices(&self) -> Vec<String> {
        let Layout::Ethernet(ports) = self.layout else { return Vec::new() };
        let named = ports.iter().enumerate().filter_map(|(place, port)| match &port.device {
            VppDevice::Pci(address) => Some(format!("dev {address} {{ name {} }}", port.interface(place))),
            VppDevice::Kernel(_) => None,
        });
        named.collect()
    }
}

fn section(text: &mut String, name: &str, lines: &[String]) {
    // Writing to a string can't fail.
    let _ = writeln!(text, "{name} {{");
    for line in lines {
        let _ = writeln!(text, "  {line}");
    }
    text.push_str("}\n");
}

/// Whether `/proc/meminfo` shows free huge pages.
pub(super) fn has_huge_pages(meminfo: &str) -> bool {
    let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    free.and_then(|number| number.trim().parse::<u64>().ok()).is_some_and(|pages| pages > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::VppPort;

    fn startup(layout: &Layout, core: Option<u16>, huge_pages: bool) -> String {
        Startup { dir: Path::new("/run/x"), prefix: "tp-1", layout, core, huge_pages }.text()
    }

    #[test]
    fn without_huge_pages_small_pages_are_configured() {
        let expected = "\
# Written by truepeer vpp up.
unix {
  nodaemon
  nosyslog
  nocolor
  nobanner
  runtime-dir /run/x
  cli-listen /run/x/cli.sock
}
api-segment {
  prefix tp-1
}
statseg {
  socket-name /run/x/stats.sock
}
memory {
  main-heap-page-size 4k
}
buffers {
  page-size 4k
}
tcp {
  cc-algo cubic
  closewait-time 60
}
session {
  enable
  use-app-socket-api
}
plugins {
  plugin dpdk_plugin.so { disable }
}
";
        assert_eq!(startup(&Layout::Loopback, None, false), expected);
        let large = startup(&Layout::Loopback, None, true);
        assert!(!large.contains("4k"), "{large}");
    }

    #[test]
    fn dpdk_gets_its_devices_and_a_core() {
        let port = |device: &str| VppPort {
            device: device.parse().unwrap(),
            address: "10.0.0.1/24".parse().unwrap(),
        };
        let text = startup(&Layout::Ethernet([port("0000:01:00.0"), port("0000:01:00.1")]), Some(3), true);
        let dpdk = "dpdk {\n  dev 0000:01:00.0 { name eth0 }\n  dev 0000:01:00.1 { name eth1 }\n}\n";
        assert!(text.contains(dpdk), "{text}");
        assert!(text.contains("cpu {\n  main-core 3\n}\n"), "{text}");
        assert!(!text.contains("plugins"), "{text}");

        let mixed = startup(&Layout::Ethernet([port("veth0"), port("0000:01:00.1")]), None, true);
        assert!(mixed.contains("dpdk {\n  dev 0000:01:00.1 { name eth1 }\n}\n"), "{mixed}");
    }

    #[test]
    fn huge_pages_are_counted() {
        assert!(has_huge_pages("MemTotal: 1 kB\nHugePages_Free:      12\n"));
        assert!(!has_huge_pages("HugePages_Total: 5\nHugePages_Free:       0\n"));
        assert!(!has_huge_pages(""));
    }
}
