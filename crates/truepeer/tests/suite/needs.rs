//! Each way with exactly the capabilities that the doctor asks for, and with each of them taken away.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use serde_json::Value;
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, User, client, tests};

use crate::serve::{DNS, GATE, ask_by_udp};
use crate::stand::{BACKEND_V4, CLIENT_V4, TRUEPEER, classic_rules, header_of};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        servers_have_exactly_what_they_need,
        commands_have_exactly_what_they_need,
        every_need_is_among_the_tested_ones,
    ];
    all.into_iter().map(Test::needs_several_users).collect()
}

/// A way to start truepeer.
struct Way {
    arguments: &'static [&'static str],
    starts_as: User,
    /// Names of the doctor's needs.
    needs: &'static [&'static str],
    /// Where it listens; `None`: it ends.
    listener: Option<&'static str>,
    works: fn(&Running) -> anyhow::Result<()>,
    /// With one capability less.
    without: &'static [(&'static str, Without)],
}

enum Without {
    /// It ends, and says this.
    Ends(&'static str),
    /// It serves, but what should work fails, and the log says this.
    Fails(&'static str),
    /// What should work does.
    Works,
}

use Without::{Ends, Fails, Works};

const DOOR: &str = "127.0.0.1:8443";
const LOW_DOOR: &str = "127.0.0.1:843";
const LIST: &str = "./lists/allow";

const SERVERS: &[Way] = &[
    Way {
        arguments: &[
            "proxy",
            "-l",
            DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
        ],
        starts_as: User::TESTER,
        needs: &[],
        listener: Some(DOOR),
        works: |_| Ok(()),
        without: &[],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            LOW_DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
        ],
        starts_as: User::TESTER,
        needs: &["low-port"],
        listener: Some(LOW_DOOR),
        works: |_| Ok(()),
        without: &[("net_bind_service", Ends("ports below 1024 need CAP_NET_BIND_SERVICE"))],
    },
    Way {
        arguments: &["proxy", "-l", DOOR, "-4", BACKEND_V4, "-v", "2", "--routes", "manual"],
        starts_as: User::TESTER,
        needs: &["transparent", "client-low-port", "share-port", "pipes"],
        listener: Some(DOOR),
        works: |_| sees(CLIENT_V4).and_then(|()| sees("203.0.113.7:77")),
        without: &[
            ("net_raw+net_admin", Ends("give truepeer CAP_NET_RAW or CAP_NET_ADMIN")),
            ("net_raw", Works),
            ("net_bind_service", Fails("needs CAP_NET_BIND_SERVICE")),
            ("net_admin", Works),
            ("sys_resource", Works),
        ],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--mark",
            "7",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
        ],
        starts_as: User::TESTER,
        needs: &["mark"],
        listener: Some(DOOR),
        works: |_| sees("127.0.0.1:"),
        without: &[("net_raw", Fails("give truepeer CAP_NET_RAW or CAP_NET_ADMIN"))],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--listen-transparent",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
        ],
        starts_as: User::TESTER,
        needs: &["listen-transparent"],
        listener: Some(DOOR),
        works: |_| sees("127.0.0.1:"),
        without: &[("net_raw", Ends("a transparent listener needs CAP_NET_RAW or CAP_NET_ADMIN"))],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            GATE,
            "-4",
            DNS,
            "-v",
            "2",
            "--drain-timeout",
            "0s",
            "-p",
            "udp",
            "--routes",
            "manual",
        ],
        starts_as: User::TESTER,
        needs: &["transparent", "client-low-port", "buffers"],
        listener: None,
        works: |_| {
            ask_by_udp("203.0.113.7:4000", b"one").and_then(|()| ask_by_udp("203.0.113.7:123", b"two"))
        },
        without: &[
            ("net_raw+net_admin", Ends("give truepeer CAP_NET_RAW or CAP_NET_ADMIN")),
            ("net_admin", Works),
            ("net_bind_service", Fails("needs CAP_NET_BIND_SERVICE")),
        ],
    },
    Way {
        arguments: &["https", "-l", DOOR, "--tls-cert", "site.pem", "--origin", "http://127.0.0.1:8001"],
        starts_as: User::TESTER,
        needs: &[],
        listener: Some(DOOR),
        works: |_| Ok(()),
        without: &[],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--user",
            "tester",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
        ],
        starts_as: User::ROOT,
        needs: &["set-user", "set-group"],
        listener: Some(DOOR),
        works: |_| Ok(()),
        without: &[
            ("setuid", Ends("CAP_SETUID and CAP_SETGID")),
            ("setgid", Ends("CAP_SETUID and CAP_SETGID")),
        ],
    },
    Way {
        arguments: &[
            "proxy",
            "-l",
            DOOR,
            "-4",
            BACKEND_V4,
            "-v",
            "2",
            "--user",
            "tester",
            "--send-proxy",
            "v2",
            "--routes",
            "manual",
            "--allow",
            LIST,
        ],
        starts_as: User::ROOT,
        needs: &["set-user", "set-group", "read-again"],
        listener: Some(DOOR),
        works: reads_again,
        without: &[("dac_read_search", Fails("has no CAP_DAC_READ_SEARCH"))],
    },
];

const COMMANDS: &[Way] = &[
    Way {
        arguments: &["proxy", "-l", DOOR, "-4", BACKEND_V4, "-v", "2", "--routes", "auto"],
        starts_as: User::TESTER,
        needs: &["transparent", "client-low-port", "routes"],
        listener: Some(DOOR),
        works: |_| sees(CLIENT_V4),
        without: &[("net_raw", Works), ("net_admin", Ends("CAP_NET_ADMIN")), ("net_bind_service", Works)],
    },
    Way {
        arguments: &["routes", "apply", "-4", BACKEND_V4],
        starts_as: User::TESTER,
        needs: &["routes"],
        listener: None,
        works: |routes| {
            ensure!(routes.wait_end()?.success(), "{}", routes.log());
            Ok(())
        },
        without: &[("net_admin", Ends("CAP_NET_ADMIN is needed"))],
    },
];

/// Those of other programs' tests.
const ELSEWHERE: [&str; 12] = [
    "attach-bpf",
    "attach-perfmon",
    "attach-net",
    "attach-netns",
    "attach-process",
    "attach-mount",
    "run-others",
    "run-suid",
    "splice-bpf",
    "splice-tables",
    "splice-perfmon",
    "splice-net",
];

/// The backend sees this client.
fn sees(client: &str) -> anyhow::Result<()> {
    let header = header_of(if client.ends_with(':') { CLIENT_V4 } else { client }.parse()?)?;
    let seen = client::ask(&mut client::connect(DOOR)?, &header)?;
    ensure!(seen.contains(client), "{seen:?} instead of {client}");
    Ok(())
}

fn reads_again(truepeer: &Running) -> anyhow::Result<()> {
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded")?;
    ensure!(truepeer.log().contains("reloaded: nothing has changed"), "{}", truepeer.log());
    Ok(())
}

/// The table, as the doctor prints it.
fn table(bed: &Bed) -> anyhow::Result<Vec<Value>> {
    let doctor = Program::new(TRUEPEER).args(["doctor", "--json", "--timeout", "1s"]).start(bed)?;
    doctor.wait_end()?;
    let report: Value = serde_json::from_str(&doctor.stdout())?;
    Ok(report["needs"].as_array().context("no needs")?.clone())
}

/// The capabilities that it asks for, as setpriv names them.
fn asked_for(table: &[Value], needs: &[&str]) -> anyhow::Result<BTreeSet<String>> {
    let one = |need: &&str| {
        let found = table.iter().find(|one| one["name"] == **need).with_context(|| format!("no {need}"))?;
        let name = found["any_of"][0].as_str().context("no capability")?;
        Ok(name.strip_prefix("cap_").unwrap_or(name).to_owned())
    };
    needs.iter().map(one).collect()
}

impl Way {
    fn start(&self, bed: &Bed, capabilities: &BTreeSet<String>) -> anyhow::Result<Running> {
        let names: Vec<&str> = capabilities.iter().map(String::as_str).collect();
        Program::new(TRUEPEER)
            .args(self.arguments)
            .as_user(self.starts_as)
            .with_capabilities(&names)
            .start(bed)
    }

    /// Waits until it serves.
    fn wait(&self, truepeer: &Running) -> anyhow::Result<()> {
        match self.listener {
            Some(listener) => truepeer.wait_listening(listener),
            None if self.arguments.contains(&"udp") => truepeer.wait_bound_udp(GATE),
            None => Ok(()),
        }
    }

    fn hold(&self, bed: &Bed, table: &[Value]) -> anyhow::Result<()> {
        let possible = possible()?;
        let mut capabilities = asked_for(table, self.needs)?;
        // This machine may lack one that only helps.
        capabilities.retain(|one| possible.contains(one));
        let truepeer = self.start(bed, &capabilities)?;
        self.wait(&truepeer).with_context(|| format!("with {capabilities:?}: {}", truepeer.log()))?;
        (self.works)(&truepeer).with_context(|| format!("with {capabilities:?}: {}", truepeer.log()))?;
        stop(&truepeer)?;
        self.clean(bed)?;
        let tried: BTreeSet<String> = self
            .without
            .iter()
            .flat_map(|(less, _)| less.split('+'))
            .map(str::to_owned)
            .filter(|one| possible.contains(one))
            .collect();
        let declared = if self.starts_as == User::ROOT { tried.clone() } else { capabilities.clone() };
        ensure!(tried == declared, "each one is taken away: {tried:?} of {declared:?}");
        for (less, without) in self.without {
            let less: Vec<&str> = less.split('+').collect();
            let fewer = capabilities.iter().filter(|one| !less.contains(&one.as_str())).cloned().collect();
            self.fall_short(bed, &fewer, without).with_context(|| format!("with {fewer:?}"))?;
            self.clean(bed)?;
        }
        Ok(())
    }

    fn fall_short(&self, bed: &Bed, fewer: &BTreeSet<String>, without: &Without) -> anyhow::Result<()> {
        let truepeer = self.start(bed, fewer)?;
        match without {
            Ends(says) => {
                let status = truepeer.wait_end()?;
                let log = truepeer.log() + &truepeer.stdout();
                ensure!(!status.success() && log.contains(says), "{status}: {log}");
                return Ok(());
            }
            Fails(says) => {
                self.wait(&truepeer)?;
                ensure!((self.works)(&truepeer).is_err(), "works: {}", truepeer.log());
                truepeer.wait_for_log(says)?;
            }
            Works => {
                self.wait(&truepeer)?;
                (self.works)(&truepeer).with_context(|| truepeer.log())?;
            }
        }
        stop(&truepeer)
    }

    /// Takes away what `routes apply` has added.
    fn clean(&self, bed: &Bed) -> anyhow::Result<()> {
        if self.arguments[0] == "routes" {
            Program::new(TRUEPEER).args(["routes", "remove"]).run(bed)?;
        }
        Ok(())
    }
}

fn stop(truepeer: &Running) -> anyhow::Result<()> {
    if truepeer.is_alive() {
        truepeer.stop()?;
    }
    Ok(())
}

/// The capabilities that this machine gives to its root, of those that ways may be without.
fn possible() -> anyhow::Result<BTreeSet<String>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).context("no CapBnd")?;
    let has_sys_resource = u64::from_str_radix(line, 16)? & 1 << 24 != 0;
    let mut all: BTreeSet<String> =
        ["net_raw", "net_admin", "net_bind_service", "setuid", "setgid", "dac_read_search"]
            .map(str::to_owned)
            .into();
    all.extend(has_sys_resource.then(|| "sys_resource".to_owned()));
    Ok(all)
}

/// With the rules of others, so that only sockets need something.
fn servers_have_exactly_what_they_need(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let _dns = Backend::echo(&[DNS])?;
    classic_rules(bed)?;
    let certificate = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
    bed.write("site.pem", certificate.cert.pem() + &certificate.signing_key.serialize_pem())?;
    let list = bed.write("lists/allow", "127.0.0.0/8\n")?;
    fs::set_permissions(&list, fs::Permissions::from_mode(0o600))?;
    hold(bed, SERVERS)
}

fn commands_have_exactly_what_they_need(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    hold(bed, COMMANDS)
}

fn hold(bed: &Bed, ways: &[Way]) -> anyhow::Result<()> {
    let table = table(bed)?;
    for way in ways {
        way.hold(bed, &table).with_context(|| way.arguments.join(" "))?;
    }
    Ok(())
}

fn every_need_is_among_the_tested_ones(bed: &Bed) -> anyhow::Result<()> {
    let tested: Vec<&str> = SERVERS.iter().chain(COMMANDS).flat_map(|way| way.needs).copied().collect();
    for need in table(bed)? {
        let name = need["name"].as_str().context("no name")?;
        ensure!(tested.contains(&name) || ELSEWHERE.contains(&name), "no way here needs {name}");
    }
    Ok(())
}
