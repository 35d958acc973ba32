//! Real programs as senders, clients and backends: DNS, QUIC, frp, iperf.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::servers;
use truepeer_testbed::servers::dns::{self, Dnsdist, Unbound};
use truepeer_testbed::{Bed, Host, Program, Running, Test, Topology, skip, wait_for, workspace_dir};

use crate::kit::{Backend, TRUEPEER, counted, proxy, socket, start, v2};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("unbound_sees_the_clients_of_dnsdist", dns)
            .needs_program("dnsdist")
            .needs_program("unbound")
            .time_limit(Duration::from_secs(120)),
        Test::new("a_quic_connection_survives_new_ports_of_sender_and_client", quic)
            .needs_program("gtlsclient")
            .needs_program("gtlsserver")
            .needs_program("openssl"),
        Test::new("clients_of_frp_are_seen_with_the_header_in_the_first_datagram", |bed| {
            frp(bed, "v0.67.0", "first")
        }),
        Test::new("clients_of_an_older_frp_are_seen_with_the_header_in_each_datagram", |bed| {
            frp(bed, "v0.66.0", "every")
        }),
        Test::new("clients_of_frp_are_seen_on_the_servers_own_port_by_attach", frp_by_attach),
        Test::new("iperf_through_both_ends_of_a_tunnel", iperf).needs_program("iperf").alone(),
    ]
}

/// truepeer on `host`, for backends on its loopback.
fn start_receiving(bed: &Bed, host: &Host, backends: [u16; 2], options: &str) -> Result<Running> {
    let options = format!("--allow 10.77.0.0/16 --allow fd77::/16 --routes auto -v 1 {options}");
    let proxy = proxy(&options)
        .ipv4(format!("127.0.0.1:{}", backends[0]))
        .ipv6(format!("[::1]:{}", backends[1]))
        .with(|program| program.in_netns(&host.netns));
    let listeners = [host.at(false, 5300).to_string(), host.at(true, 5300).to_string()];
    start(bed, proxy, &listeners.each_ref().map(String::as_str))
}

const QUERIES: u16 = 10_000;
/// Client addresses of each family.
const ADDRESSES: u16 = 10;

fn dns(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    for n in 0..ADDRESSES {
        client.ip(&[
            &format!("addr add 10.77.0.{}/24 dev lb", 100 + n),
            &format!("addr add fd77:0::{}/64 dev lb nodad", 100 + n),
        ])?;
    }
    let backends = ["127.0.0.1:53".parse()?, "[::1]:53".parse()?];
    let unbound = Unbound::start(bed, &backends, |program| program.in_netns(&host.netns))?;
    let truepeer = start_receiving(bed, host, [53, 53], "")?;
    let dnsdist = Dnsdist::default().relay(lb.at(false, 53), host.at(false, 5300), true).relay(
        lb.at(true, 54),
        host.at(true, 5300),
        true,
    );
    let _dnsdist = dnsdist.start(bed, |program| program.in_netns(&lb.netns))?;
    let (asked, answered) = client.run(|| ask_from_all_addresses(&[lb.at(false, 53), lb.at(true, 54)]))??;
    ensure!(answered == usize::from(QUERIES), "{answered} of {QUERIES} queries were answered");
    let seen = clients_by_name(&unbound.log());
    for (name, asker) in &asked {
        let who = seen.get(name).with_context(|| format!("Unbound did not see {name}"))?;
        ensure!(who == asker, "Unbound saw {name} from {who}, but {asker} had asked");
    }
    ensure!(asked.len() == usize::from(QUERIES));
    // dnsdist checks the backend with LOCAL headers: these are its own.
    ensure!(counted(&truepeer, "datagrams_refused")? == 0);
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0);
    Ok(())
}

/// Returns the client of each name's query, and the number of answers.
fn ask_from_all_addresses(servers: &[SocketAddr; 2]) -> Result<(HashMap<String, String>, usize)> {
    const IN_FLIGHT: usize = 8;
    let mut asked = HashMap::new();
    let mut answered = 0;
    for n in 0..2 * ADDRESSES {
        let (ip, server) = match n % 2 {
            0 => (format!("10.77.0.{}", 100 + n / 2), servers[0]),
            _ => (format!("fd77::{}", 100 + n / 2), servers[1]),
        };
        let socket = socket(if n % 2 == 0 { format!("{ip}:0") } else { format!("[{ip}]:0") })?;
        socket.connect(server)?;
        let mut outstanding = 0;
        let mine: Vec<u16> = (0..QUERIES).filter(|id| id % (2 * ADDRESSES) == n).collect();
        for (place, id) in mine.iter().enumerate() {
            let name = format!("q{id}.test");
            socket.send(&dns::query(*id, &name))?;
            asked.insert(name, ip.clone());
            outstanding += 1;
            while outstanding > IN_FLIGHT || (place + 1 == mine.len() && outstanding > 0) {
                let mut answer = [0; 512];
                let length = socket.recv(&mut answer).with_context(|| format!("{answered} answers"))?;
                let its_id = u16::from_be_bytes([answer[0], answer[1]]);
                ensure!(dns::is_answer(&answer[..length], its_id), "{:?}", &answer[..length]);
                outstanding -= 1;
                answered += 1;
            }
        }
    }
    Ok((asked, answered))
}

/// From Unbound's log: `info: 10.77.0.100 q1.test. A IN`.
fn clients_by_name(log: &str) -> HashMap<String, String> {
    let query = |line: &str| {
        let mut words = line.split("info: ").nth(1)?.split(' ');
        let (client, name) = (words.next()?.to_owned(), words.next()?.strip_suffix('.')?.to_owned());
        Some((name, client))
    };
    log.lines().filter_map(query).collect()
}

/// A load balancer with one listener, which changes its port towards the server after every few datagrams of
/// a client.
struct WanderingSender {
    stop: Arc<AtomicBool>,
    ports: Arc<AtomicUsize>,
    threads: Arc<Mutex<Vec<std::thread::JoinHandle<()>>>>,
}

impl WanderingSender {
    fn start(listen: SocketAddr, server: SocketAddr, datagrams_per_port: usize) -> Result<WanderingSender> {
        let front = UdpSocket::bind(listen)?;
        front.set_read_timeout(Some(Duration::from_millis(20)))?;
        let sender = WanderingSender { stop: Arc::default(), ports: Arc::default(), threads: Arc::default() };
        let (stop, ports, threads) =
            (Arc::clone(&sender.stop), Arc::clone(&sender.ports), Arc::clone(&sender.threads));
        let carry = move || {
            let mut upstream: HashMap<SocketAddr, (UdpSocket, usize)> = HashMap::new();
            let mut buffer = vec![0; 65_536];
            while !stop.load(Ordering::Relaxed) {
                let Ok((length, client)) = front.recv_from(&mut buffer) else { continue };
                let used = upstream.get(&client).map_or(usize::MAX, |(_, used)| *used);
                if used >= datagrams_per_port {
                    let Ok(socket) = answer_from_new_port(&front, server, client, &stop, &threads) else {
                        continue;
                    };
                    ports.fetch_add(1, Ordering::Relaxed);
                    upstream.insert(client, (socket, 0));
                }
                let (Some((socket, used)), Ok(header)) = (upstream.get_mut(&client), v2(client, listen))
                else {
                    continue;
                };
                *used += 1;
                // It may lose datagrams, like the network that it replaces.
                let _ = socket.send(&[&header, &buffer[..length]].concat());
            }
        };
        let thread = std::thread::spawn(carry);
        sender.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(sender)
    }
}

/// A new upstream socket. Its answers go to the client.
fn answer_from_new_port(
    front: &UdpSocket,
    server: SocketAddr,
    client: SocketAddr,
    stop: &Arc<AtomicBool>,
    threads: &Mutex<Vec<std::thread::JoinHandle<()>>>,
) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (answers, front, stop) = (socket.try_clone()?, front.try_clone()?, Arc::clone(stop));
    let thread = std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while !stop.load(Ordering::Relaxed) {
            let Ok(length) = answers.recv(&mut buffer) else { continue };
            let _ = front.send_to(&buffer[..length], client);
        }
    });
    threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    Ok(socket)
}

impl Drop for WanderingSender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn quic(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    let server = servers::quic::server(bed, host, "127.0.0.1")?;
    let truepeer = start_receiving(bed, host, [4433, 4433], "")?;
    let sender = lb.run(|| WanderingSender::start(lb.at(false, 4433), host.at(false, 5300), 20))??;
    servers::quic::downloads_arrive(bed, client, lb)?;
    let ports = sender.ports.load(Ordering::Relaxed);
    eprintln!("quic: {ports} sender ports, {} flows", counted(&truepeer, "flows_opened")?);
    ensure!(ports > 10, "the sender has used {ports} ports only");
    // Two connections; the second has moved to another port of the client.
    ensure!(counted(&truepeer, "flows_opened")? == 3);
    ensure!(counted(&truepeer, "datagrams_refused")? == 0);
    let seen = format!("{}", client.v4);
    wait_for("the client in the server's output", || server.log().contains(&seen))
}

fn frp(bed: &Bed, version: &str, dialect: &str) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let host = hosts.host("host");
    let backend = host.run(|| Backend::who(&["127.0.0.1:53"]))??;
    let options = format!("--udp-dialect {dialect} --routes auto");
    let truepeer = proxy(&options).ipv4("127.0.0.1:53").with(|program| program.in_netns(&host.netns));
    let truepeer = start(bed, truepeer, &["127.0.0.1:5300"])?;
    clients_of_frp_are_seen(bed, &hosts, version, 5300)?;
    ensure!(backend.seen().len() == 200);
    ensure!(counted(&truepeer, "flows_opened")? == 20);
    ensure!(counted(&truepeer, "datagrams_refused")? == 0);
    Ok(())
}

fn frp_by_attach(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let host = hosts.host("host");
    let backend = host.run(|| Backend::who(&["127.0.0.1:53"]))??;
    let attach = |args: &[&str]| -> Result<String> {
        ByAttach::new(TRUEPEER).command(bed, args)?.in_netns(&host.netns).run(bed)
    };
    attach(&["--port", "53/udp", "--sender", "frp", "--allow", "loopback"])?;
    clients_of_frp_are_seen(bed, &hosts, "v0.67.0", 53)?;
    ensure!(backend.seen().len() == 200);
    let status: serde_json::Value = serde_json::from_str(&attach(&["status", "--json"])?)?;
    let counters = &status["ports"][0]["counters"];
    ensure!(counters["header_v2"] == 20 && counters["datagrams"] == 200, "{status}");
    Ok(())
}

/// 20 clients of a frps on `lb`, whose frpc on `host` sends to this port.
fn clients_of_frp_are_seen(bed: &Bed, hosts: &Topology, version: &str, port: u16) -> Result<()> {
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    let frps = frp_program("v0.67.0", "frps")?;
    let frpc = frp_program(version, "frpc")?;
    let file = bed.write("frps.toml", "bindPort = 7000\n")?;
    let frps = Program::new(frps).arg("-c").arg(file).in_netns(&lb.netns).start(bed)?;
    frps.wait_listening("0.0.0.0:7000")?;
    let config = format!(
        "serverAddr = \"{}\"\nserverPort = 7000\n\n[[proxies]]\nname = \"dns\"\ntype = \"udp\"\n\
         localIP = \"127.0.0.1\"\nlocalPort = {port}\nremotePort = 5353\ntransport.proxyProtocolVersion = \"v2\"\n",
        lb.at(false, 0).ip()
    );
    let file = bed.write("frpc.toml", config)?;
    let frpc = Program::new(frpc).arg("-c").arg(file).in_netns(&host.netns).start(bed)?;
    frpc.wait_for_log("start proxy success")?;
    client.run(|| -> Result<()> {
        let clients: Vec<UdpSocket> = (0..20).map(|_| socket("10.77.0.1:0")).collect::<Result<_>>()?;
        for round in 0..10 {
            for client in &clients {
                client.connect(lb.at(false, 5353))?;
                let payload = format!("round {round}");
                let answer = String::from_utf8(crate::kit::ask(client, &[payload.as_bytes()])?)?;
                ensure!(answer == format!("{} {payload}", client.local_addr()?), "{answer}");
            }
        }
        Ok(())
    })?
}

fn frp_program(version: &str, name: &str) -> Result<PathBuf> {
    let path = workspace_dir().join("target/tools/frp").join(version).join(name);
    if path.exists() {
        return Ok(path);
    }
    skip(format!("{name} {version} has not been built (make frp, which needs Go)"))
}

/// As in go-mmproxy's table for UDP: the server sends to the client as fast as it can.
fn iperf(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["client", "lb", "host"])?;
    let (client, lb, host) = (hosts.host("client"), hosts.host("lb"), hosts.host("host"));
    let server = Program::new("iperf").args(["-s", "-u", "-p", "1122"]).in_netns(&host.netns).start(bed)?;
    server.wait_bound_udp("0.0.0.0:1122")?;
    let receiving = start_receiving(bed, host, [1122, 1122], "")?;
    let at = lb.at(false, 25578).to_string();
    let sending = proxy("--allow 10.77.0.0/16 --header forbid --send-proxy v2")
        .ipv4(host.at(false, 5300))
        .with(|program| program.in_netns(&lb.netns));
    let sending = start(bed, sending, &[&at])?;
    for direction in ["-Rub", "-ub"] {
        let rate = if direction == "-Rub" { "10G" } else { "100M" };
        let report = Program::new("iperf")
            .args(["-c", &lb.v4.to_string(), "-p", "25578", "-t", "2", direction, rate])
            .in_netns(&client.netns)
            .run(bed)?;
        ensure!(report.contains("bits/sec"), "{report}");
        eprintln!("iperf {direction}: {}", report.lines().last().unwrap_or_default());
    }
    let (down, up) = (counted(&receiving, "datagrams_down")?, counted(&receiving, "datagrams_up")?);
    ensure!(down > 1000 && up > 1000, "{up} up, {down} down");
    ensure!(counted(&sending, "datagrams_down")? > 1000);
    ensure!(counted(&receiving, "datagrams_refused")? == 0);
    let seen = format!("connected with {} port", client.v4);
    ensure!(server.log().contains(&seen), "{}", server.log());
    Ok(())
}
