//! The doctor finds the fault, and the command that it prints fixes it.

mod ports;

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};
use serde_json::Value;
use truepeer_testbed::{
    Bed, Behaviour, Program, Running, Test, Topology, Truepeer, User, client, device_here, ip_here, tests,
    wait_for,
};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const BACKENDS: &str = "-4 127.0.0.1:80 -6 [::1]:80";

fn main() -> ExitCode {
    let mut all = tests![
        a_missing_route_is_fixed_by_the_doctors_command,
        trying_with_routes_proves_them_and_leaves_nothing,
        an_examination_changes_nothing,
        a_backend_that_is_down_is_told_from_a_lost_reply,
        another_rule_before_truepeers_is_fixed_by_the_doctors_command,
        clients_without_a_backend_are_named,
        json_has_the_same_verdicts,
        a_backend_on_a_local_address_is_tried_with_its_mark,
        a_source_check_that_breaks_tproxy_is_found,
        a_loopback_interface_that_is_down_is_found,
        a_backend_on_another_host_is_mended_without_another_default_route,
        a_running_truepeer_tells_how_many_sessions_stay_and_why,
    ];
    all.push(
        Test::new("a_firewalls_guard_of_loopback_is_mended_by_what_the_doctor_says", guarded_loopback)
            .needs_program("nft"),
    );
    all.push(
        Test::new(
            "settings_that_slow_or_drop_datagrams_of_attach_are_reported",
            settings_that_slow_or_drop_datagrams_of_attach_are_reported,
        )
        .needs_program("ethtool"),
    );
    all.push(Test::new("a_missing_capability_is_named", a_missing_capability_is_named).needs_several_users());
    all.extend(ports::tests());
    truepeer_testbed::main(all)
}

struct Diagnosis {
    healthy: bool,
    text: String,
}

impl Diagnosis {
    fn line(&self, with: &str) -> Result<&str> {
        self.text
            .lines()
            .find(|line| line.contains(with))
            .with_context(|| format!("no {with:?} in\n{}", self.text))
    }

    /// The command in the first line with FAIL.
    fn mend(&self) -> Result<&str> {
        let failed = self.text.lines().find(|line| line.starts_with("FAIL")).context("nothing failed")?;
        let (_, command) = failed.split_once("; type: ").with_context(|| format!("no command: {failed}"))?;
        Ok(command)
    }
}

fn doctor(options: &str) -> Program {
    Program::new(TRUEPEER).args(["doctor", "--timeout", "1s"]).args(options.split_whitespace())
}

fn ended(running: &Running) -> Result<Diagnosis> {
    let healthy = running.wait_end()?.success();
    Ok(Diagnosis { healthy, text: running.stdout() })
}

fn examine(bed: &Bed, options: &str) -> Result<Diagnosis> {
    ended(&doctor(options).start(bed)?)
}

/// Runs a command as an operator would, with truepeer in PATH.
fn type_in(bed: &Bed, command: &str) -> Result<()> {
    let script = command.replace("truepeer ", &format!("{TRUEPEER} "));
    Program::new("sh").args(["-e", "-c", &script]).run(bed).map(drop)
}

fn backends(bed: &Bed) -> Result<Running> {
    device_here()?;
    Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80", "10.9.0.1:80", "[fd00:9::1]:80"])
}

fn rules(bed: &Bed) -> Result<String> {
    let four = Program::new("ip").args(["rule"]).run(bed)?;
    Ok(four + &Program::new("ip").args(["-6", "rule"]).run(bed)?)
}

fn a_missing_route_is_fixed_by_the_doctors_command(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let ill = examine(bed, BACKENDS)?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("127.0.0.1:80 as 192.0.2.1")?.starts_with("FAIL"), "{}", ill.text);
    ensure!(ill.line("[::1]:80 as 2001:db8::1")?.starts_with("FAIL"), "{}", ill.text);
    ensure!(ill.mend()? == format!("truepeer routes apply {BACKENDS}"), "{}", ill.text);
    type_in(bed, ill.mend()?)?;
    let well = examine(bed, BACKENDS)?;
    ensure!(well.healthy, "{}", well.text);
    ensure!(well.line("127.0.0.1:80 as 192.0.2.1")?.starts_with("ok"), "{}", well.text);
    ensure!(well.line("[::1]:80 as 2001:db8::1")?.starts_with("ok"), "{}", well.text);
    Ok(())
}

fn trying_with_routes_proves_them_and_leaves_nothing(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let before = rules(bed)?;
    let well = examine(bed, &format!("{BACKENDS} --try"))?;
    ensure!(well.healthy, "{}", well.text);
    ensure!(rules(bed)? == before, "something is left:\n{}", rules(bed)?);
    Ok(())
}

fn an_examination_changes_nothing(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let before = rules(bed)?;
    examine(bed, "-4 10.9.0.1:80 -6 [fd00:9::1]:80")?;
    ensure!(rules(bed)? == before, "changed:\n{}", rules(bed)?);
    Ok(())
}

fn a_backend_that_is_down_is_told_from_a_lost_reply(bed: &Bed) -> Result<()> {
    let ill = examine(bed, "-4 127.0.0.1:81 --try")?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("connection to 127.0.0.1:81:")?.contains("nothing listens"), "{}", ill.text);
    ensure!(ill.line("127.0.0.1:81 as 192.0.2.1")?.starts_with("skip"), "{}", ill.text);
    Ok(())
}

fn another_rule_before_truepeers_is_fixed_by_the_doctors_command(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    type_in(bed, &format!("truepeer routes apply {BACKENDS}"))?;
    ip_here(&["rule add priority 100 from all lookup main"])?;
    let ill = examine(bed, BACKENDS)?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("the kernel's route from 127.0.0.1")?.contains("another rule"), "{}", ill.text);
    type_in(bed, ill.mend()?)?;
    let well = examine(bed, BACKENDS)?;
    ensure!(well.healthy, "{}", well.text);
    Ok(())
}

fn guarded_loopback(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    type_in(bed, &format!("truepeer routes apply {BACKENDS}"))?;
    let guard = "add table ip filter
        add chain ip filter INPUT { type filter hook input priority filter ; }
        add chain ip filter KUBE-FIREWALL
        add rule ip filter INPUT jump KUBE-FIREWALL
        add rule ip filter KUBE-FIREWALL ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 counter drop";
    Program::new("nft").args(["-f", "-"]).input(guard).run(bed)?;
    let ill = examine(bed, BACKENDS)?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("firewall rules")?.contains("KUBE-FIREWALL"), "{}", ill.text);
    type_in(bed, ill.mend()?)?;
    let well = examine(bed, BACKENDS)?;
    ensure!(well.healthy, "{}", well.text);
    Ok(())
}

/// As `proxy` says it at its start.
fn clients_without_a_backend_are_named(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let report = examine(bed, "-4 127.0.0.1:80")?;
    ensure!(report.line("IPv6 clients")?.ends_with("add -6 HOST:PORT"), "{}", report.text);
    ensure!(report.line("IPv4 clients").is_err(), "{}", report.text);
    ensure!(examine(bed, BACKENDS)?.line("IPv6 clients").is_err(), "both have one");
    Ok(())
}

fn json_has_the_same_verdicts(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let ill = examine(bed, &format!("{BACKENDS} --json"))?;
    let report: Value = serde_json::from_str(&ill.text).with_context(|| ill.text.clone())?;
    ensure!(report["ok"] == false, "{}", ill.text);
    let checks = report["checks"].as_array().context("no checks")?;
    let needs = report["needs"].as_array().context("no needs")?;
    let kernels = report["kernels"].as_array().context("no kernels")?;
    let auto = kernels.iter().find(|kernel| kernel["of"] == "`proxy --splice auto`").context("no auto")?;
    ensure!(auto["since"] == "6.1" && auto["held"].is_boolean(), "{auto}");
    let low_port = needs.iter().find(|need| need["name"] == "low-port").context("no low-port")?;
    ensure!(low_port["any_of"] == serde_json::json!(["cap_net_bind_service"]), "{low_port}");
    let spoofed: Vec<_> = checks.iter().filter(|check| check["name"] == "backend_spoofed").collect();
    ensure!(spoofed.len() == 2 && spoofed.iter().all(|check| check["verdict"] == "fail"), "{}", ill.text);
    ensure!(spoofed[0]["mend"] == format!("truepeer routes apply {BACKENDS}"), "{}", ill.text);
    Ok(())
}

fn a_backend_on_a_local_address_is_tried_with_its_mark(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    let options = "-4 10.9.0.1:80 -6 [fd00:9::1]:80";
    let ill = examine(bed, options)?;
    ensure!(!ill.healthy, "{}", ill.text);
    type_in(bed, ill.mend()?)?;
    let well = examine(bed, options)?;
    ensure!(well.healthy, "{}", well.text);
    Ok(())
}

/// The backend's host reaches clients by a router of its own. What the doctor says is typed there, and leaves
/// that route alone.
fn a_backend_on_another_host_is_mended_without_another_default_route(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["router", "backend", "host"])?;
    let (host, backend) = (line.host("host"), line.host("backend"));
    let here = &host.netns;
    for (v6, option, ip) in [(false, "-4", "ip"), (true, "-6", "ip -6")] {
        let address = backend.at(v6, 80);
        let _who = Behaviour::Who.start_program(bed, &[address], |who| who.in_netns(&backend.netns))?;
        let options = format!("--try {option} {address}");
        let ask = || ended(&doctor(&options).in_netns(here).start(bed)?);
        let routes = || {
            let show = format!("{ip} route");
            Program::new("sh").args(["-c", &show]).in_netns(&backend.netns).run(bed)
        };
        let before = routes()?;
        let ill = ask()?;
        ensure!(!ill.healthy, "{}", ill.text);
        let mend = ill.line(&format!("connection to {address} as"))?;
        let (_, mend) = mend.split_once("; type: ").context("no command")?;
        let (command, remark) = mend.split_once(" (on the backend's host, ").context("no remark")?;
        ensure!(remark.starts_with(&address.ip().to_string()), "{remark}");
        Program::new("sh").args(["-e", "-c", command]).in_netns(&backend.netns).run(bed)?;
        ensure!(routes()? == before, "the main table has changed: {}", routes()?);
        let well = ask()?;
        ensure!(well.healthy, "{}", well.text);
    }
    Ok(())
}

fn a_source_check_that_breaks_tproxy_is_found(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    std::fs::write("/proc/sys/net/ipv4/conf/all/src_valid_mark", "1")?;
    let options = format!("{BACKENDS} --try --listen-transparent 0.0.0.0:8443");
    let ill = examine(bed, &options)?;
    ensure!(ill.line("src_valid_mark")?.starts_with("FAIL"), "{}", ill.text);
    ensure!(ill.mend()?.ends_with("net.ipv4.conf.all.src_valid_mark=0"), "{}", ill.text);
    std::fs::write("/proc/sys/net/ipv4/conf/all/src_valid_mark", "0")?;
    ensure!(examine(bed, &options)?.healthy, "{}", examine(bed, &options)?.text);
    Ok(())
}

fn a_loopback_interface_that_is_down_is_found(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo down"])?;
    let ill = examine(bed, BACKENDS)?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.mend()? == "ip link set lo up", "{}", ill.text);
    Ok(())
}

/// Without a BPF file system, and without CAP_SYS_ADMIN to mount one, truepeer can't load the programs.
fn a_running_truepeer_tells_how_many_sessions_stay_and_why(bed: &Bed) -> Result<()> {
    const DOOR: &str = "127.0.0.1:8443";
    const BACKEND: &str = "127.0.0.1:80";
    if Path::new("/sys/fs/bpf").exists() {
        mount("none", "/sys/fs/bpf", "tmpfs", MountFlags::empty(), None)?;
    }
    let _backend = Behaviour::Echo.start(bed, &[BACKEND])?;
    let admin = bed.dir().join("admin").display().to_string();
    let options = ["--routes", "auto", "--splice", "auto", "--splice-after", "0", "--admin", &admin];
    let truepeer = Truepeer::proxy(TRUEPEER).listen(DOOR).ipv4(BACKEND).args(&options);
    let capabilities = ["net_raw", "net_admin", "bpf", "perfmon"];
    let truepeer = truepeer.with(|program| program.as_user(User::ROOT).with_capabilities(&capabilities));
    let truepeer = truepeer.start(bed)?;
    let ask = || examine(bed, &format!("-4 {BACKEND} --admin {admin}"));
    ensure!(ask()?.line(DOOR).is_err(), "no session has come: {}", ask()?.text);
    let mut streams = Vec::new();
    for port in 5000..5003 {
        let mut stream = client::connect(DOOR)?;
        stream.write_all(&client::v2(format!("203.0.113.7:{port}"), "192.0.2.1:443")?)?;
        stream.write_all(b"echo")?;
        stream.read_exact(&mut [0; 4])?;
        streams.push(stream);
    }
    let wanted = format!(
        "note  sessions of {DOOR} (0 have left user space): stayed: 3 times: \
         no BPF file system was mounted when truepeer started (no_bpf_filesystem)"
    );
    wait_for("three sessions that stay", || ask().is_ok_and(|report| report.text.contains(&wanted)))
        .with_context(|| ask().map(|report| report.text).unwrap_or_default())?;
    drop(streams);
    truepeer.stop()?;
    let after = ask()?;
    ensure!(after.line(&format!("the truepeer at {admin}"))?.starts_with("skip"), "{}", after.text);
    Ok(())
}

fn a_missing_capability_is_named(bed: &Bed) -> Result<()> {
    let _backend = backends(bed)?;
    type_in(bed, &format!("truepeer routes apply {BACKENDS}"))?;
    let as_user = |capabilities: &[&str]| {
        ended(&doctor(BACKENDS).as_user(User::TESTER).with_capabilities(capabilities).start(bed)?)
    };
    let ill = as_user(&[])?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("IP_TRANSPARENT on an IPv4")?.contains("CAP_NET_RAW"), "{}", ill.text);
    if truepeer_bpf::are_built_in() {
        let attach = ill.line("truepeer attach")?;
        ensure!(
            attach.contains("missing: CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN; truepeer proxy can"),
            "{attach}"
        );
    }
    ensure!(ill.line("proxy, https --client-address")?.starts_with("lack"), "{}", ill.text);
    let well = as_user(&["net_raw"])?;
    ensure!(well.healthy, "with CAP_NET_RAW alone:\n{}", well.text);
    ensure!(well.line("proxy, https --client-address")?.starts_with("have"), "{}", well.text);
    ensure!(well.line("--routes auto (the default")?.starts_with("lack"), "{}", well.text);
    Ok(())
}

fn first_line(error: &anyhow::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn settings_that_slow_or_drop_datagrams_of_attach_are_reported(bed: &Bed) -> Result<()> {
    ip_here(&["link add there type veth peer name here", "link set there up", "link set here up"])?;
    let examine = || ended(&doctor(BACKENDS).start(bed)?);
    if let Some((_, mend)) = examine()?.line("truepeer attach")?.split_once("; type: mount ") {
        // In a user namespace the kernel mounts no BPF file system.
        if let Err(error) = Program::new("mount").args(mend.split_whitespace()).run(bed) {
            return truepeer_testbed::skip(format!(
                "needs a BPF file system: run as root ({})",
                first_line(&error)
            ));
        }
    }
    let found = examine()?;
    if !found.text.contains("ok    truepeer attach") {
        return truepeer_testbed::skip(found.line("truepeer attach")?);
    }
    std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?;
    std::fs::write("/proc/sys/net/ipv4/conf/here/rp_filter", "1")?;
    Program::new("ethtool").args(["-K", "here", "rx-udp-gro-forwarding", "on"]).run(bed)?;
    let before = examine()?;
    for words in ["rp_filter is 1 on here", "here merge datagrams"] {
        let (_, mend) = before.line(words)?.split_once("; type: ").context("no command")?;
        Program::new("/bin/sh").args(["-c", mend]).run(bed)?;
    }
    let after = examine()?.text;
    ensure!(!after.contains("rp_filter is 1") && !after.contains("merge datagrams"), "{after}");
    Ok(())
}
