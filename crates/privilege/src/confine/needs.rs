//! What each way and option needs from the kernel, as data.
//!
//! `truepeer doctor` prints this table, docs/privileges.md contains it, a process keeps the capabilities that
//! it names for its job, and tests start each way with exactly these.
#![allow(missing_docs, reason = "a need explains itself by its fields, which the doctor prints")]

use rustix::thread::CapabilitySet;

use super::capability::{Capability, held};
use Capability::{
    Bpf, DacOverride, DacReadSearch, NetAdmin, NetBindService, NetRaw, Perfmon, SetGid, SetUid, SysAdmin,
    SysPtrace, SysResource,
};
use Grade::{Helps, Required};
use Moment::{End, Reload, Running, Start};

/// A kernel version: 5 and 17 of 5.17.
pub type Version = (u32, u32);

/// A need of some ways or options.
#[derive(Debug, PartialEq, Eq)]
pub struct Need {
    /// A stable name.
    pub name: &'static str,
    /// The ways and options that have it.
    pub of: &'static str,
    /// Any one of these is enough, the first one is asked for.
    pub(crate) any_of: &'static [Enough],
    pub when: &'static [Moment],
    pub grade: Grade,
    /// The operation, and the call that is refused without the capability.
    pub why: &'static str,
    /// From this kernel on, nobody needs a capability for it.
    pub(crate) until: Option<Version>,
}

/// A capability that is enough.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Enough {
    pub(crate) capability: Capability,
    /// Older kernels ask for another one.
    pub(crate) since: Option<Version>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grade {
    /// Without it, it fails.
    Required,
    /// Without it, it works with less.
    Helps,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    Start,
    Running,
    Reload,
    End,
}

const fn is(capability: Capability) -> Enough {
    Enough { capability, since: None }
}

const fn is_since(capability: Capability, since: Version) -> Enough {
    Enough { capability, since: Some(since) }
}

/// Connecting from the client's address.
pub const TRANSPARENT: Need = Need {
    name: "transparent",
    of: "`proxy`, `https --client-address transparent`",
    any_of: &[is(NetRaw), is(NetAdmin)],
    when: &[Start, Running],
    grade: Required,
    why: "binds sockets to the client's address (IP_TRANSPARENT)",
    until: None,
};

/// Some clients come from a low port: NTP and NFS.
pub(crate) const CLIENT_LOW_PORT: Need = Need {
    name: "client-low-port",
    of: "`proxy`, `https --client-address transparent`, for a client on a port below 1024",
    any_of: &[is(NetBindService)],
    when: &[Running],
    grade: Helps,
    why: "binds a socket to the client's port; without it, sessions of such clients fail",
    until: None,
};

pub(crate) const LISTEN_TRANSPARENT: Need = Need {
    name: "listen-transparent",
    of: "`--listen-transparent`",
    any_of: &[is(NetRaw), is(NetAdmin)],
    when: &[Start, Running, Reload],
    grade: Required,
    why: "listens for every address (IP_TRANSPARENT), and answers datagrams from the address they were sent to",
    until: None,
};

pub const MARK: Need = Need {
    name: "mark",
    of: "`--mark`, and rules that need a mark",
    any_of: &[is_since(NetRaw, (5, 17)), is(NetAdmin)],
    when: &[Running],
    grade: Required,
    why: "marks connections to backends (SO_MARK)",
    until: None,
};

pub const ROUTES: Need = Need {
    name: "routes",
    of: "`--routes auto` (the default, where a client's address is used), `routes apply`, `routes remove`",
    any_of: &[is(NetAdmin)],
    when: &[Start, Reload, End],
    grade: Required,
    why: "adds and removes rules and routes, and sets net.ipv4.tcp_fwmark_accept",
    until: None,
};

pub(crate) const LOW_PORT: Need = Need {
    name: "low-port",
    of: "`--listen` on a port below net.ipv4.ip_unprivileged_port_start (1024)",
    any_of: &[is(NetBindService)],
    when: &[Start, Reload],
    grade: Required,
    why: "binds the port",
    until: None,
};

pub(crate) const BUFFERS: Need = Need {
    name: "buffers",
    of: "`proxy --protocol udp`",
    any_of: &[is(NetAdmin)],
    when: &[Start, Running, Reload],
    grade: Helps,
    why: "buffers beyond net.core.rmem_max and wmem_max (SO_RCVBUFFORCE, SO_SNDBUFFORCE)",
    until: None,
};

/// No confined process keeps the capability for this alone: it permits far more. A keeper does it.
pub(crate) const SHARE_PORT: Need = Need {
    name: "share-port",
    of: "`proxy`, `https --client-address transparent`, where a program of this machine listens on a client's port",
    any_of: &[is(NetAdmin)],
    when: &[Running],
    grade: Helps,
    why: "shares a TCP port with a program that listens on it at every address; without it, the backend sees another port",
    until: None,
};

pub(crate) const PIPES: Need = Need {
    name: "pipes",
    of: "`proxy` with TCP",
    any_of: &[is(SysResource)],
    when: &[Start, Running],
    grade: Helps,
    why: "splices more bulk sessions at a time than fs.pipe-user-pages-soft permits; further ones copy",
    until: None,
};

pub(crate) const READ_AGAIN: Need = Need {
    name: "read-again",
    of: "files that only root may read, such as keys, where root starts `proxy`, `https` or `serve`",
    any_of: &[is(DacReadSearch), is(DacOverride)],
    when: &[Reload],
    grade: Required,
    why: "reads them again as the other user; kept only where Landlock limits it to the directories of these files",
    until: None,
};

pub(crate) const SET_USER: Need = Need {
    name: "set-user",
    of: "`--user`, and the start by root",
    any_of: &[is(SetUid)],
    when: &[Start],
    grade: Required,
    why: "becomes the other user",
    until: None,
};

pub(crate) const SET_GROUP: Need = Need {
    name: "set-group",
    of: "`--user`, and the start by root",
    any_of: &[is(SetGid)],
    when: &[Start],
    grade: Required,
    why: "becomes the other group, and leaves root's",
    until: None,
};

pub const ATTACH_BPF: Need = Need {
    name: "attach-bpf",
    of: "`attach`, `detach`, `[[attach]]`",
    any_of: &[is_since(Bpf, (5, 8)), is(SysAdmin)],
    when: &[Start, Reload, End],
    grade: Required,
    why: "loads kernel programs",
    until: None,
};

pub const ATTACH_PERFMON: Need = Need {
    name: "attach-perfmon",
    of: "`attach`, `[[attach]]`",
    any_of: &[is_since(Perfmon, (5, 8)), is(SysAdmin)],
    when: &[Start, Reload],
    grade: Required,
    why: "without it the verifier refuses the arithmetic that the programs do with pointers to packets",
    until: None,
};

pub const ATTACH_NET: Need = Need {
    name: "attach-net",
    of: "`attach`, `detach`, `[[attach]]`",
    any_of: &[is(NetAdmin)],
    when: &[Start, Reload, End],
    grade: Required,
    why: "attaches them to devices and to the cgroup",
    until: None,
};

pub const SPLICE_BPF: Need = Need {
    name: "splice-bpf",
    of: "`proxy --splice auto`",
    any_of: &[is(Bpf)],
    when: &[Start],
    grade: Helps,
    why: "loads the programs that translate packets; without it, sessions are relayed",
    until: None,
};

/// Since then the kernel asks for it only to create tables and programs (`__sys_bpf`), not to use a table
/// that is open.
pub(crate) const SPLICE_TABLES: Need = Need {
    name: "splice-tables",
    of: "`proxy --splice auto`",
    any_of: &[is(Bpf)],
    when: &[Running],
    grade: Helps,
    why: "reads and writes the tables of the programs; without it, sessions are relayed",
    until: Some((6, 0)),
};

pub const SPLICE_PERFMON: Need = Need {
    name: "splice-perfmon",
    of: "`proxy --splice auto`",
    any_of: &[is(Perfmon)],
    when: &[Start],
    grade: Helps,
    why: "loads programs that compare pointers to packets; without it, sessions are relayed",
    until: None,
};

pub const SPLICE_NET: Need = Need {
    name: "splice-net",
    of: "`proxy --splice auto`",
    any_of: &[is(NetAdmin)],
    when: &[Start, Running],
    grade: Helps,
    why: "attaches the programs to devices, reads where connections stand, and closes them silently (TCP_REPAIR); without it, sessions are relayed",
    until: None,
};

pub(crate) const ATTACH_NETNS: Need = Need {
    name: "attach-netns",
    of: "`attach --netns`, `--pid`, `--container`, `detach --all`",
    any_of: &[is(SysAdmin)],
    when: &[Start, Reload, End],
    grade: Required,
    why: "enters the network namespace (setns)",
    until: None,
};

pub(crate) const ATTACH_PROCESS: Need = Need {
    name: "attach-process",
    of: "`attach --pid`, `--container`, `detach --all`",
    any_of: &[is(SysPtrace)],
    when: &[Start, Reload, End],
    grade: Required,
    why: "opens the namespaces of another process (/proc/PID/ns)",
    until: None,
};

pub const ATTACH_MOUNT: Need = Need {
    name: "attach-mount",
    of: "`attach` where no BPF file system or no cgroup v2 is mounted",
    any_of: &[is(SysAdmin)],
    when: &[Start],
    grade: Required,
    why: "mounts its own",
    until: None,
};

pub(crate) const RUN_OTHERS: Need = Need {
    name: "run-others",
    of: "`run`, `connect` by notify, for a program that changes its user",
    any_of: &[is(SysPtrace)],
    when: &[Running],
    grade: Helps,
    why: "reads the memory of another user's process, its descriptors and `/proc/PID/fd`; a program of the same user needs nothing",
    until: None,
};

pub(crate) const RUN_SUID: Need = Need {
    name: "run-suid",
    of: "`run`, `connect`, for a program that starts set-user-ID helpers",
    any_of: &[is(SysAdmin)],
    when: &[Start],
    grade: Helps,
    why: "installs the filter without no_new_privs",
    until: None,
};

/// Every need, in the order of the documentation.
pub const NEEDS: &[Need] = &[
    TRANSPARENT,
    CLIENT_LOW_PORT,
    LISTEN_TRANSPARENT,
    MARK,
    ROUTES,
    LOW_PORT,
    BUFFERS,
    SHARE_PORT,
    PIPES,
    READ_AGAIN,
    SET_USER,
    SET_GROUP,
    ATTACH_BPF,
    ATTACH_PERFMON,
    ATTACH_NET,
    SPLICE_BPF,
    SPLICE_TABLES,
    SPLICE_PERFMON,
    SPLICE_NET,
    ATTACH_NETNS,
    ATTACH_PROCESS,
    ATTACH_MOUNT,
    RUN_OTHERS,
    RUN_SUID,
];

/// `proxy --splice auto` uses nothing newer than 5.14, but the verifiers of older kernels than this one have
/// not seen its programs.
pub const SPLICE_TESTED: Version = (6, 1);

/// The oldest kernel of each way that has one, with the reason.
pub const KERNELS: &[(&str, Version, &str)] = &[
    ("rules on a port (backends on other machines)", (4, 17), "FRA_SPORT_RANGE"),
    ("`attach`", (5, 15), "bpf_get_netns_cookie in sock_ops programs"),
    (
        "`proxy --splice auto`",
        SPLICE_TESTED,
        "the oldest kernel that its programs are tested on; truepeer tries from 5.14 on (SO_NETNS_COOKIE), and relays if the kernel refuses them",
    ),
    ("`run`, `connect` by notify", (5, 19), "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"),
    ("Landlock", (5, 13), "landlock_create_ruleset; where it is off, a process does without it"),
];

impl Moment {
    pub fn name(self) -> &'static str {
        match self {
            Start => "start",
            Running => "running",
            Reload => "reload",
            End => "end",
        }
    }
}

impl Need {
    /// The capabilities that are enough on `kernel`, the preferred one first. None if nothing is needed
    /// there.
    pub fn enough_on(&self, kernel: Version) -> impl Iterator<Item = Capability> {
        let is_needed = self.until.is_none_or(|until| kernel < until);
        let known = move |enough: &&Enough| is_needed && enough.since.is_none_or(|since| kernel >= since);
        self.any_of.iter().filter(known).map(|enough| enough.capability)
    }

    /// Whether `set` satisfies it on `kernel`.
    pub(crate) fn is_in(&self, set: CapabilitySet, kernel: Version) -> bool {
        self.until.is_some_and(|until| kernel >= until)
            || self.enough_on(kernel).any(|capability| capability.is_in(set))
    }

    /// Whether this thread satisfies it.
    pub fn is_held(&self) -> bool {
        self.is_in(held(), kernel())
    }

    /// The capability to ask for.
    pub fn first(&self) -> Capability {
        // The table has no need without a capability; a test sees to it.
        self.enough_on(kernel()).next().unwrap_or(SysAdmin)
    }

    /// `CAP_NET_RAW (since Linux 5.17) or CAP_NET_ADMIN`.
    pub fn capabilities(&self) -> String {
        let one = |enough: &Enough| match enough.since {
            Some((major, minor)) => format!("{} (since Linux {major}.{minor})", enough.capability),
            None => enough.capability.to_string(),
        };
        let all = self.any_of.iter().map(one).collect::<Vec<_>>().join(" or ");
        match self.until {
            Some((major, minor)) => format!("{all} (before Linux {major}.{minor})"),
            None => all,
        }
    }

    /// `start, reload`.
    pub fn moments(&self) -> String {
        self.when.iter().map(|moment| moment.name()).collect::<Vec<_>>().join(", ")
    }
}

/// The running kernel's version; the oldest one if it can't be read.
pub fn kernel() -> Version {
    version(&rustix::system::uname().release().to_string_lossy()).unwrap_or_default()
}

/// Parses a release: `6.1.0-18-amd64` gives 6 and 1.
pub fn version(release: &str) -> Option<Version> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_need_has_a_name_a_moment_and_a_capability_that_every_kernel_knows() {
        for need in NEEDS {
            assert!(need.any_of.iter().any(|enough| enough.since.is_none()), "{}", need.name);
            assert!(!need.when.is_empty(), "{}", need.name);
            assert_eq!(NEEDS.iter().filter(|other| other.name == need.name).count(), 1, "{}", need.name);
        }
    }

    #[test]
    fn an_older_kernel_asks_for_more() {
        let raw = CapabilitySet::NET_RAW;
        assert!(MARK.is_in(raw, (5, 17)) && MARK.is_in(raw, (6, 1)));
        assert!(!MARK.is_in(raw, (5, 16)) && MARK.is_in(CapabilitySet::NET_ADMIN, (5, 4)));
        assert!(ATTACH_BPF.is_in(CapabilitySet::SYS_ADMIN, (5, 4)));
        let none = CapabilitySet::empty();
        assert!(SPLICE_TABLES.is_in(none, (6, 0)) && SPLICE_TABLES.enough_on((6, 0)).count() == 0);
        assert!(!SPLICE_TABLES.is_in(none, (5, 18)) && SPLICE_TABLES.is_in(CapabilitySet::BPF, (5, 18)));
    }

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(version("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version("5.15-custom"), Some((5, 15)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version("nonsense"), None);
    }

    /// The needs of the units in deploy/systemd. CAP_SYS_RESOURCE, which helps with pipes, permits too much
    /// else.
    const UNITS: [(&str, &[&Need]); 2] = [
        (
            "truepeer.service",
            &[
                &TRANSPARENT,
                &CLIENT_LOW_PORT,
                &LISTEN_TRANSPARENT,
                &MARK,
                &ROUTES,
                &LOW_PORT,
                &BUFFERS,
                &SHARE_PORT,
                &READ_AGAIN,
                &SET_USER,
                &SET_GROUP,
                &ATTACH_BPF,
                &ATTACH_PERFMON,
                &ATTACH_NET,
            ],
        ),
        ("truepeer-attach@.service", &[&ATTACH_BPF, &ATTACH_PERFMON, &ATTACH_NET]),
    ];

    #[test]
    fn units_have_exactly_what_this_table_asks_for() {
        for (unit, needs) in UNITS {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd").join(unit);
            let text = std::fs::read_to_string(&file).unwrap();
            let wanted: BTreeSet<String> =
                needs.iter().map(|need| need.any_of[0].capability.to_string()).collect();
            let words = |setting: &str| -> BTreeSet<String> {
                let lines = text.lines().filter_map(|line| line.strip_prefix(setting));
                lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
            };
            assert_eq!(words("CapabilityBoundingSet="), wanted, "{unit}");
            // Root's programs get what the bounding set permits.
            assert!(text.contains("\nExecStart=!/") || !text.contains("DynamicUser="), "{unit}");
            assert_eq!(words("AmbientCapabilities="), BTreeSet::new(), "{unit}");
        }
    }

    /// The tables of docs/privileges.md.
    fn page() -> String {
        let mut page =
            "| option or way | needs | when | without it | why |\n|---|---|---|---|---|\n".to_owned();
        for need in NEEDS {
            let without = match need.grade {
                Required => "fails",
                Helps => "works with less",
            };
            let cells = [need.of, &need.capabilities(), &need.moments(), without, need.why];
            let _ = writeln!(page, "| {} |", cells.join(" | "));
        }
        page.push_str("\n| what | Linux since | because of |\n|---|---|---|\n");
        for (what, (major, minor), why) in KERNELS {
            let _ = writeln!(page, "| {what} | {major}.{minor} | {why} |");
        }
        page
    }

    /// `TRUEPEER_WRITE=1` writes them.
    #[test]
    fn the_documentation_has_this_table() {
        const MARKS: (&str, &str) = ("<!-- table of needs -->\n", "<!-- end of the table -->");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/privileges.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let (head, rest) = text.split_once(MARKS.0).expect("the mark of the table's begin");
        let (_, tail) = rest.split_once(MARKS.1).expect("the mark of the table's end");
        let wanted = format!("{head}{}{}{}{tail}", MARKS.0, page(), MARKS.1);
        if std::env::var_os("TRUEPEER_WRITE").is_some() {
            std::fs::write(&file, &wanted).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            wanted,
            "TRUEPEER_WRITE=1 cargo test -p truepeer needs"
        );
    }
}
