//! Destinations chosen by the header, and port ranges redirected by TPROXY.

use std::net::SocketAddr;

use anyhow::ensure;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Running, Test, Topology, client, tests};

use crate::stand::{
    CLIENT_V4, CLIENT_V6, DOOR_V4, TRUEPEER, ask, bare_proxy, proxy_without_routes, refused_from,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_header_leads_to_its_destination,
        a_refused_destination_names_the_flag,
        truepeers_own_listener_is_never_a_destination,
        headers_without_destination_go_to_the_configured_backend,
        a_dynamic_destination_needs_a_list,
    ];
    let tproxy = tests![
        tproxy_by_nftables_reaches_the_port_that_the_header_names,
        tproxy_by_truepeers_own_printout_works,
        tproxy_by_iptables_as_go_mmproxy_documents_it,
    ];
    let programs = ["nft", "nft", "iptables"];
    all.extend(tproxy.into_iter().zip(programs).map(|(test, program)| test.needs_program(program)));
    all
}

const DYNAMIC: &[&str] = &["--dynamic-destination", "--dynamic-allow"];

fn start(bed: &Bed, allow: &[&str]) -> anyhow::Result<Running> {
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4("127.0.0.1:9000").ipv6("[::1]:9000");
    truepeer.args(&[DYNAMIC, allow].concat()).start(bed)
}

fn a_header_leads_to_its_destination(bed: &Bed) -> anyhow::Result<()> {
    let backends = ["127.0.0.1:9001", "127.0.0.1:9002", "[::1]:9001"];
    let running = backends.map(|address| Behaviour::Who.start(bed, &[address]));
    let _truepeer = start(bed, &["127.0.0.0/8:9001-9010", "--dynamic-allow", "[::1]:9001"])?;
    for (backend, address) in running.into_iter().zip(backends) {
        let client = if address.starts_with('[') { CLIENT_V6 } else { CLIENT_V4 };
        for header in [client::v1(client, address)?, client::v2(client, address)?] {
            let seen = ask(&header)?;
            // The second time its port may still be in use.
            let seen: SocketAddr = seen.parse()?;
            ensure!(seen.ip() == client.parse::<SocketAddr>()?.ip(), "{seen}");
        }
        backend?.wait_for_log(&format!("{client} accepted"))?;
    }
    Ok(())
}

fn a_refused_destination_names_the_flag(bed: &Bed) -> anyhow::Result<()> {
    let who = Behaviour::Who.start(bed, &["127.0.0.1:9001", "127.0.0.2:9000"])?;
    let truepeer = start(bed, &["127.0.0.1:9000"])?;
    for (destination, from) in [("127.0.0.1:9001", "127.0.0.11:0"), ("127.0.0.2:9000", "127.0.0.12:0")] {
        refused_from(from, &client::v2(CLIENT_V4, destination)?)?;
        truepeer.wait_for_log(&format!("--dynamic-allow {destination}"))?;
    }
    ensure!(!who.log().contains("accepted"), "{}", who.log());
    Ok(())
}

fn truepeers_own_listener_is_never_a_destination(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = bare_proxy().listen(DOOR_V4).listen("0.0.0.0:8444");
    let truepeer = truepeer.args(&[DYNAMIC, &["loopback"]].concat()).start(bed)?;
    for (n, destination) in [DOOR_V4, "127.0.0.1:8444", "127.0.0.9:8444"].into_iter().enumerate() {
        refused_from(&format!("127.0.0.{}:0", 20 + n), &client::v2(CLIENT_V4, destination)?)?;
        truepeer.wait_for_log(&format!("leads to {destination}, where this program itself listens"))?;
    }
    Ok(())
}

fn headers_without_destination_go_to_the_configured_backend(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:9000"])?;
    let _truepeer = start(bed, &["127.0.0.1:9001"])?;
    for header in [client::v2_local(), client::v1_unknown()] {
        ensure!(ask(&header)?.starts_with("127.0.0.1:"));
    }
    Ok(())
}

fn a_dynamic_destination_needs_a_list(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = bare_proxy().listen(DOOR_V4).args(&["--dynamic-destination"]).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    ensure!(status.code() == Some(2) && truepeer.log().contains("--dynamic-allow"), "{}", truepeer.log());
    Ok(())
}

/// A sender's host, and the host whose port range truepeer takes, with backends on three ports of its
/// loopback.
struct Range {
    line: Topology,
    backend: Running,
}

const PORTS: [u16; 3] = [10_000, 15_555, 20_000];

impl Range {
    fn lay(bed: &Bed) -> anyhow::Result<Range> {
        let line = Topology::line(&["lb", "host"])?;
        let addresses = PORTS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let in_host = |program: Program| program.in_netns(&line.host("host").netns);
        let backend = Behaviour::Who.start_program(bed, &addresses, in_host)?;
        Ok(Range { line, backend })
    }

    fn host(&self) -> &Host {
        self.line.host("host")
    }

    fn start(&self, bed: &Bed, routes: &str) -> anyhow::Result<Running> {
        let truepeer = proxy_without_routes().listen("0.0.0.0:25577").allow("10.77.0.0/24");
        let truepeer = truepeer.args(&["--listen-transparent", "--routes", routes]).args(NAMED);
        truepeer.with(|program| program.in_netns(&self.host().netns)).start(bed)
    }

    /// Each port of the range, from outside. The header names the backend's address with the same port.
    fn each_port_reaches_its_backend(&self) -> anyhow::Result<()> {
        for (port, number) in PORTS.into_iter().zip(1..) {
            let client = format!("203.0.113.{number}:5000");
            let header = client::v2(&client, format!("127.0.0.1:{port}"))?;
            let ask = || client::ask(&mut client::connect(self.host().at(false, port))?, &header);
            let seen = self.line.host("lb").run(ask)??;
            ensure!(seen.trim() == client, "at port {port} {client} was seen as {seen:?}");
            let sockets = self.backend.log();
            ensure!(sockets.contains(&client), "{sockets}");
        }
        Ok(())
    }
}

const NAMED: &[&str] = &["--dynamic-destination", "--dynamic-allow", "loopback:10000-20000"];

fn tproxy_by_nftables_reaches_the_port_that_the_header_names(bed: &Bed) -> anyhow::Result<()> {
    let range = Range::lay(bed)?;
    let rules = "table inet t {\n chain to_truepeer {\n  type filter hook prerouting priority mangle\n  \
                 iifname != \"lo\" tcp dport 10000-20000 tproxy ip to 127.0.0.1:25577 meta mark set 1 accept\n }\n}\n";
    Program::new("nft").args(["-f", "-"]).input(rules).in_netns(&range.host().netns).run(bed)?;
    let _truepeer = range.start(bed, "auto")?;
    range.each_port_reaches_its_backend()
}

fn tproxy_by_truepeers_own_printout_works(bed: &Bed) -> anyhow::Result<()> {
    let range = Range::lay(bed)?;
    let print = ["routes", "apply", "--print", "--listen-transparent", "0.0.0.0:25577"];
    let ports = ["--tproxy-ports", "10000-20000", "-4", "127.0.0.1:80"];
    let script = Program::new(TRUEPEER).args(print).args(ports).run(bed)?;
    Program::new("sh").args(["-e"]).input(script).in_netns(&range.host().netns).run(bed)?;
    let _truepeer = range.start(bed, "manual")?;
    range.each_port_reaches_its_backend()
}

/// Literally. All ports go to one backend, because the example lacks `-dynamic-destination`.
fn tproxy_by_iptables_as_go_mmproxy_documents_it(bed: &Bed) -> anyhow::Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let host = line.host("host");
    let _backend =
        Behaviour::Who.start_program(bed, &["127.0.0.1:25578"], |who| who.in_netns(&host.netns))?;
    std::os::unix::fs::symlink(TRUEPEER, bed.dir().join("go-mmproxy"))?;
    let set_up = "\
        ip rule add from 127.0.0.1/8 iif lo table 123\n\
        ip route add local 0.0.0.0/0 dev lo table 123\n\
        iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \\\n  \
          --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1\n\
        ip rule add fwmark 1 lookup 123\n";
    Program::new("sh").arg("-e").input(set_up).in_netns(&host.netns).run(bed)?;
    let start = "PATH=.:$PATH; exec go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -listen-transparent";
    let go_mmproxy = Program::new("sh").args(["-c", start]).in_netns(&host.netns).start(bed)?;
    go_mmproxy.wait_listening("127.0.0.1:25577")?;
    for (port, number) in PORTS.into_iter().zip(1..) {
        let client = format!("203.0.113.{number}:5000");
        let header = client::v1(&client, host.at(false, port))?;
        let ask = || client::ask(&mut client::connect(host.at(false, port))?, &header);
        let seen = line.host("lb").run(ask)??;
        ensure!(seen.trim() == client, "at port {port} {client} was seen as {seen:?}");
    }
    Ok(())
}
