//! Port ranges with TPROXY: the README's examples for iptables and nftables, and dynamic destinations.

use std::io::{Read as _, Write as _};

use anyhow::{Result, ensure};
use truepeer_testbed::servers::Haproxy;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Running, Test, Topology, Truepeer, client};

use crate::support::{CLIENT_4, TRUEPEER, delivers, state};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("the_readmes_tproxy_example_works_literally", readme_by_iptables).needs_program("iptables"),
        Test::new("the_printed_nftables_redirect_a_port_range", printed_nftables).needs_program("nft"),
        Test::new("a_redirected_range_reaches_each_local_port_dynamically", dynamic).needs_program("nft"),
        Test::new("a_backend_without_a_port_keeps_that_of_each_connection", kept_ports)
            .needs_program("nft")
            .needs_program("haproxy"),
    ]
}

/// truepeer for a redirected range, on the host `proxy`.
fn truepeer(bed: &Bed, proxy: &Host, options: &str) -> Result<Running> {
    let options: Vec<&str> = options.split_whitespace().collect();
    Truepeer::proxy(TRUEPEER)
        .listen("0.0.0.0:25577")
        .allow("any")
        .args(&options)
        .with(|program| program.in_netns(&proxy.netns))
        .start(bed)
}

fn sh(bed: &Bed, host: &Host, script: &str) -> Result<String> {
    Program::new("sh").args(["-e", "-c", script]).in_netns(&host.netns).run(bed)
}

fn readme_by_iptables(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, proxy) = (hosts.host("lb"), hosts.host("proxy"));
    sh(
        bed,
        proxy,
        "ip rule add from 127.0.0.1/8 iif lo table 123
         ip route add local 0.0.0.0/0 dev lo table 123
         iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \
           --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1
         ip rule add fwmark 1 lookup 123",
    )?;
    let before = proxy.run(|| state(bed))??;
    let _backend = Behaviour::Who.start_program(bed, &["127.0.0.1:25578"], |p| p.in_netns(&proxy.netns))?;
    let truepeer = truepeer(bed, proxy, "-4 127.0.0.1:25578 -6 127.0.0.1:25578 -listen-transparent")?;
    for port in [10000, 12345, 20000] {
        let to = proxy.at(false, port).to_string();
        lb.run(|| delivers(&to, CLIENT_4, &to))??;
    }
    truepeer.stop()?;
    ensure!(proxy.run(|| state(bed))?? == before, "the operator's own were touched");
    Ok(())
}

fn printed_nftables(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, proxy) = (hosts.host("lb"), hosts.host("proxy"));
    let options = "-4 127.0.0.1:80 --listen-transparent 0.0.0.0:25577 --tproxy-ports 10000-20000 --print";
    let script = sh(bed, proxy, &format!("{TRUEPEER} routes apply {options}"))?;
    sh(bed, proxy, &script)?;
    let _backend = Behaviour::Who.start_program(bed, &["127.0.0.1:80"], |p| p.in_netns(&proxy.netns))?;
    let _truepeer =
        truepeer(bed, proxy, "-4 127.0.0.1:80 -6 127.0.0.1:80 --listen-transparent --routes manual")?;
    let to = proxy.at(false, 10080).to_string();
    lb.run(|| delivers(&to, CLIENT_4, &to))??;
    Ok(())
}

/// docs/proxy.md, with a real HAProxy for a range of ports: its headers name its own addresses.
fn kept_ports(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "proxy"])?;
    let (client_host, lb, proxy) = (hosts.host("client"), hosts.host("lb"), hosts.host("proxy"));
    sh(
        bed,
        proxy,
        "nft add table inet tp
         nft add chain inet tp pre '{ type filter hook prerouting priority mangle; }'
         nft add rule inet tp pre iifname != lo tcp dport 10000-20000 tproxy ip to 127.0.0.1:25577 meta mark set 1 accept",
    )?;
    let addresses = ["127.0.0.1:10001", "127.0.0.1:10002"];
    let backends = addresses.map(|address| {
        Behaviour::Who.start_program(bed, &[address], |program| program.in_netns(&proxy.netns))
    });
    let [first, second] = backends;
    let (first, second) = (first?, second?);
    let truepeer = truepeer(bed, proxy, "--listen-transparent -4 127.0.0.1 --routes auto")?;
    let listener = lb.at(false, 10001).to_string();
    let config =
        format!("listen games\n bind {}:10000-10010\n server host {} send-proxy-v2", lb.v4, proxy.v4);
    let haproxy = Haproxy::with_config(&config, &[&listener]);
    let _haproxy = haproxy.start_with(bed, |program| program.in_netns(&lb.netns))?;
    for (port, backend) in [(10001, &first), (10002, &second)] {
        let (own, answer) = client_host.run(|| -> Result<(String, String)> {
            let mut stream = client::connect(lb.at(false, port))?;
            let own = stream.local_addr()?.to_string();
            // HAProxy gives up if a client that has sent nothing ends before it has reached the server.
            Ok((own, client::ask(&mut stream, b"who?")?.trim().to_owned()))
        })??;
        ensure!(answer == own, "port {port}: {answer} instead of {own}");
        ensure!(backend.log().contains(&own), "port {port}: {}", backend.log());
    }
    // Who connects to the listener itself comes to no server's port.
    let to = proxy.at(false, 25577);
    let mut direct = lb.run(|| client::connect(to))??;
    direct.write_all(&client::v2(CLIENT_4, to)?)?;
    ensure!(direct.read(&mut [0]).is_ok_and(|length| length == 0), "it is served");
    truepeer.wait_for_log(&format!("leads to 127.0.0.1:{}, where this program itself listens", to.port()))?;
    truepeer.stop()?;
    Ok(())
}

/// The backends have the same ports as the range, on the address that senders connect to. truepeer's own
/// connection must not be redirected, and a backend's reply must not be taken for one to a sender.
fn dynamic(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, proxy) = (hosts.host("lb"), hosts.host("proxy"));
    let addresses = [proxy.at(false, 10001), proxy.at(false, 10002)];
    let backend = Behaviour::Who.start_program(bed, &addresses, |p| p.in_netns(&proxy.netns))?;
    let allow = format!("{}:10000-20000", proxy.v4);
    let options = format!("--listen-transparent --dynamic-destination --dynamic-allow {allow} --routes auto");
    let truepeer = truepeer(bed, proxy, &options)?;
    let print =
        format!("{TRUEPEER} routes apply --dynamic-allow {allow} --listen-transparent 0.0.0.0:25577 --print");
    let firewall = sh(bed, proxy, &print)?;
    let firewall = firewall.split_once("nft -f").map(|(_, rest)| format!("nft -f{rest}")).unwrap_or_default();
    sh(bed, proxy, &firewall)?;
    for (address, port) in addresses.iter().zip([5001, 5002]) {
        let claimed = format!("192.0.2.7:{port}");
        let to = address.to_string();
        lb.run(|| delivers(&to, &claimed, &to))??;
        ensure!(backend.log().contains(&claimed), "{}", backend.log());
    }
    // a sender's connection that is not redirected gets its answers, too
    let direct = proxy.at(false, 25577).to_string();
    lb.run(|| client::connect(&direct).map(drop))??;
    truepeer.stop()?;
    let left = proxy.run(|| state(bed))??;
    ensure!(!left.contains("proto 123"), "something is left:\n{left}");
    Ok(())
}
