//! `--watch` without a container: devices and addresses that come later. And the units of systemd, each with
//! its own ports.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, NetNs, Running, Test, Topology, client, ip_here, tests};

use crate::cgroups::Cgroup;
use crate::kit::{backend_on, command, header, who};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        attach_before_the_network_follows_devices_and_addresses,
        a_device_that_is_not_covered_is_named,
        a_watch_does_not_attach_again_what_was_taken_out,
        a_watch_attaches_to_a_device_when_it_can,
        ports_that_are_added_are_served_on_all_devices,
        each_unit_has_its_own_ports,
    ];
    all.into_iter().map(|test| test.of_group("following")).collect()
}

/// A host without a network yet, as at boot, and a sender.
struct Boot {
    host: NetNs,
    sender: NetNs,
    server: Running,
}

impl Boot {
    fn begin(bed: &Bed) -> Result<Self> {
        let (host, sender) = (NetNs::create()?, NetNs::create()?);
        let server = Behaviour::Who.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host))?;
        Ok(Self { host, sender, server })
    }

    /// A new device of the host with this address, and the sender at its other end.
    fn plug(&self, name: &str, net: &str) -> Result<()> {
        let host = self.server.pid().to_string();
        self.sender.run(|| {
            ip_here(&[
                &format!("link add far type veth peer name {name} netns {host}"),
                &format!("addr add {net}.1/24 dev far"),
                "link set far up",
            ])
        })??;
        self.host
            .run(|| ip_here(&[&format!("addr add {net}.2/24 dev {name}"), &format!("link set {name} up")]))?
    }

    fn unplug(&self) -> Result<()> {
        self.sender.run(|| ip_here(&["link del far"]))?
    }

    fn names_the_client(&self, net: &str) -> Result<()> {
        let to: SocketAddr = format!("{net}.2:80").parse()?;
        let header = header("203.0.113.1:1001")?;
        let seen = self.sender.run(|| client::ask(&mut client::connect(to)?, &header))??;
        ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
        Ok(())
    }
}

fn attach_before_the_network_follows_devices_and_addresses(bed: &Bed) -> Result<()> {
    let boot = Boot::begin(bed)?;
    let manager = UnixDatagram::bind(bed.dir().join("notify"))?;
    manager.set_read_timeout(Some(Duration::from_secs(60)))?;
    // Not even lo is up.
    let watch = command(bed, &["--port", "80", "--allow", "any", "--watch"])?
        .env("NOTIFY_SOCKET", bed.dir().join("notify"))
        .in_netns(&boot.host)
        .start(bed)?;
    let mut buffer = [0; 1000];
    let len = manager.recv(&mut buffer).context("READY=1")?;
    ensure!(String::from_utf8_lossy(&buffer[..len]).contains("READY=1"));
    let covers = |device: &str, times: usize| {
        bed.wait_for(&format!("{device} to be covered"), || watch.stdout().matches(device).count() >= times)
            .with_context(|| watch.log())
    };
    boot.plug("plug0", "10.1.0")?;
    covers("plug0", 1)?;
    boot.names_the_client("10.1.0")?;
    // Renamed: the programs stay.
    let rename = ["link set plug0 down", "link set plug0 name wan0", "link set wan0 up"];
    boot.host.run(|| ip_here(&rename))??;
    covers("wan0", 1)?;
    boot.names_the_client("10.1.0")?;
    // Made anew.
    boot.unplug()?;
    boot.plug("again0", "10.2.0")?;
    covers("again0", 1)?;
    boot.names_the_client("10.2.0")?;
    // A claim of this host's new address is refused, once truepeer knows of the address. No line of its log
    // says that: each address of again0 brings the same line.
    boot.host.run(|| ip_here(&["addr add 10.2.0.77/24 dev again0"]))??;
    let claims = || -> Result<String> {
        client::ask(&mut client::connect("10.2.0.2:80")?, &header("10.2.0.77:1001")?)
    };
    bed.wait_for("a claim of this host's new address to be refused", || {
        boot.sender.run(claims).is_ok_and(|asked| asked.is_err())
    })?;
    let status = command(bed, &["status"])?.in_netns(&boot.host).run(bed)?;
    ensure!(status.contains("(refused_claim)") && !status.contains("not covered"), "{status}");
    watch.signal(Signal::TERM)?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    boot.names_the_client("10.2.0")
}

fn a_device_that_is_not_covered_is_named(bed: &Bed) -> Result<()> {
    let boot = Boot::begin(bed)?;
    let attach = ["--port", "80", "--allow", "any"];
    let said = command(bed, &attach)?.in_netns(&boot.host).run(bed)?;
    ensure!(said.contains("interfaces that appear later are not covered"), "{said}");
    boot.plug("plug0", "10.1.0")?;
    let status = |more: &[&str]| command(bed, &[&["status"], more].concat())?.in_netns(&boot.host).run(bed);
    let said = status(&[])?;
    ensure!(said.contains("not covered: plug0"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])?)?;
    ensure!(json["uncovered"][0] == "plug0", "{json}");
    command(bed, &attach)?.in_netns(&boot.host).run(bed)?;
    ensure!(!status(&[])?.contains("not covered"));
    boot.names_the_client("10.1.0")
}

fn a_watch_does_not_attach_again_what_was_taken_out(bed: &Bed) -> Result<()> {
    let boot = Boot::begin(bed)?;
    let watch =
        command(bed, &["--port", "80", "--allow", "any", "--watch"])?.in_netns(&boot.host).start(bed)?;
    watch.wait_for_log("attached to")?;
    command(bed, &["detach", "--now"])?.in_netns(&boot.host).run(bed)?;
    boot.plug("plug0", "10.1.0")?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    let status = command(bed, &["status"])?.in_netns(&boot.host).run(bed)?;
    ensure!(status.contains("not attached"), "{status}");
    Ok(())
}

/// Its cgroup is gone when the device appears, as that of a unit that is stopped.
fn a_watch_attaches_to_a_device_when_it_can(bed: &Bed) -> Result<()> {
    let boot = Boot::begin(bed)?;
    let above = Cgroup::make("watched")?;
    let cgroup = above.below("server")?;
    let path = cgroup.0.to_string_lossy().into_owned();
    let args = ["--port", "80", "--allow", "any", "--watch", "--cgroup", &path];
    let watch = command(bed, &args)?.in_netns(&boot.host).start(bed)?;
    watch.wait_for_log("attached to")?;
    drop(cgroup);
    // Down and without addresses: nothing changes any more.
    boot.host.run(|| ip_here(&["link add plug0 type veth peer name plug1"]))??;
    watch.wait_for_log("not a cgroup v2 directory")?;
    let _cgroup = above.below("server")?;
    bed.wait_for("plug0 to be covered", || watch.stdout().contains("plug0")).with_context(|| watch.log())?;
    watch.signal(Signal::TERM)?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    Ok(())
}

/// Also on those that the words which add them leave out.
fn ports_that_are_added_are_served_on_all_devices(bed: &Bed) -> Result<()> {
    let boot = Boot::begin(bed)?;
    let _second =
        Behaviour::Who.start_program(bed, &["0.0.0.0:81"], |program| program.in_netns(&boot.host))?;
    boot.plug("plug0", "10.1.0")?;
    let run = |args: &[&str]| command(bed, args)?.in_netns(&boot.host).run(bed);
    run(&["--port", "80", "--allow", "any", "--dev", "plug0"])?;
    let said = run(&["add", "--port", "81", "--allow", "10.1.0.1", "--header", "optional", "--dev", "lo"])?;
    let header = header("203.0.113.1:1001")?;
    let seen = boot.sender.run(|| client::ask(&mut client::connect("10.1.0.2:81")?, &header))??;
    ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
    ensure!(said.contains("attached to lo, plug0"), "{said}");
    boot.names_the_client("10.1.0")
}

/// The unit's own lines, for the words of two files.
fn each_unit_has_its_own_ports(bed: &Bed) -> Result<()> {
    let unit = include_str!("../../../../deploy/systemd/truepeer-attach@.service");
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80", "0.0.0.0:81"])?;
    let of_unit = |key: &str, words: &str| {
        let mut lines = unit.lines().filter(|line| line.starts_with(key));
        let (_, found) = lines
            .find_map(|line| line.split_once("/usr/bin/truepeer attach "))
            .with_context(|| format!("no {key}="))?;
        let found = found.trim_end_matches('\'').replace("$ATTACH", words);
        let words: Vec<String> = found.split_whitespace().map(str::to_owned).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        anyhow::Ok(command(bed, &words)?.in_netns(&host.netns))
    };
    let (one, two) = ("--port 80 --allow any", "--port 81 --allow any --header-timeout 4s");
    let first = of_unit("ExecStart", one)?.start(bed)?;
    first.wait_for_log("attached to")?;
    let second = of_unit("ExecStart", two)?.start(bed)?;
    second.wait_for_log("attached to")?;
    let names = |port: u16| -> Result<()> {
        let seen = who(lb, host.at(false, port), &header("203.0.113.1:1001")?)?;
        ensure!(seen == "203.0.113.1:1001", "{seen}");
        Ok(())
    };
    names(80)?;
    names(81)?;
    of_unit("ExecReload", one)?.run(bed)?;
    of_unit("ExecStop", two)?.run(bed)?;
    names(80)?;
    let status = command(bed, &["status"])?.in_netns(&host.netns).run(bed)?;
    ensure!(
        status.contains("port 80/tcp: attached") && !status.contains("port 81/tcp: attached"),
        "{status}"
    );
    // Beside other words, `remove` takes the ports only.
    command(bed, &["add", "--port", "81", "--allow", "any"])?.in_netns(&host.netns).run(bed)?;
    of_unit("ExecStop", one)?.run(bed)?;
    names(81)
}
