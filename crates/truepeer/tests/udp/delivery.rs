//! Which client the backend sees, and which path datagrams take: the rules of TCP, for datagrams.

use std::net::UdpSocket;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Program, Test, Topology, User, client, ip_here};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, ask, counted, proxy, receive, send, sender_towards,
    socket, start, start_proxy, v2, wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = truepeer_testbed::tests![
        senders_that_are_not_allowed_are_refused,
        a_senders_own_datagrams_keep_its_address,
        claims_of_special_addresses_are_refused,
        the_clients_family_chooses_the_backend,
        a_client_whose_tuple_is_in_use_keeps_its_address,
        backends_on_wildcard_addresses_answer_by_truepeers_routes,
        datagrams_longer_than_the_path_takes_are_fragmented,
        replies_leave_from_the_address_that_was_sent_to,
        a_second_instance_on_the_port_is_refused,
    ];
    tests.push(Test::new("a_redirected_range_of_ports_answers_from_each", tproxy).needs_program("nft"));
    tests.push(Test::new("the_mark_is_on_what_goes_to_the_backend", mark).needs_program("nft"));
    tests.push(Test::new("net_raw_is_privilege_enough", only_net_raw).needs_several_users());
    tests
}

fn senders_that_are_not_allowed_are_refused(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.8.7/32 dev lo"])?;
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start(bed, proxy("").ipv4(BACKENDS[0]), &["0.0.0.0:5300"])?;
    let sender = socket("10.9.8.7:0")?;
    sender.connect("10.9.8.7:5300")?;
    send(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"?"])?;
    wait_counted(&truepeer, "sender_not_allowed", 1)?;
    truepeer.wait_for_log("--allow 10.9.8.7")?;
    ensure!(backend.seen().is_empty());
    Ok(())
}

/// LOCAL, UNSPEC, and a header for another transport name no client.
fn a_senders_own_datagrams_keep_its_address(bed: &Bed) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    for at in LISTENERS {
        let sender = sender_towards(at)?;
        let me = sender.local_addr()?;
        let nobody = [
            client::v2_local(),
            client::v2_raw(0x21, 0x00, &[])?,
            client::v2_raw(0x20, 0x12, &[1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2])?,
            client::v2(CLIENTS[0], DESTINATIONS[0])?,
        ];
        for header in nobody {
            let answer = String::from_utf8(ask(&sender, &[&header, b"?"])?)?;
            let seen: std::net::SocketAddr = answer.trim_end_matches(" ?").parse()?;
            // On one machine the sender's own socket has the tuple: the port differs, but never the address.
            ensure!(seen.ip() == me.ip() && seen.port() != 0, "{answer}");
        }
    }
    ensure!(backend.seen().len() == 8);
    ensure!(counted(&truepeer, "flows_opened")? == 2);
    Ok(())
}

fn claims_of_special_addresses_are_refused(bed: &Bed) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    let sender = sender_towards(LISTENERS[0])?;
    let special = ["127.0.0.1:7", "0.0.0.0:7", "224.0.0.1:7", "255.255.255.255:7"];
    for client in special {
        send(&sender, &[&v2(client, DESTINATIONS[0])?, b"?"])?;
    }
    for client in ["[::1]:7", "[::]:7", "[ff02::1]:7", "[::ffff:127.0.0.1]:7"] {
        send(&sender, &[&v2(client, DESTINATIONS[1])?, b"?"])?;
    }
    wait_counted(&truepeer, "datagrams_refused", 8)?;
    ensure!(backend.seen().is_empty());
    truepeer.stop()?;
    let truepeer = start_proxy(bed, "--allow-claims loopback")?;
    let answer = ask(&sender, &[&v2("127.0.0.9:77", DESTINATIONS[0])?, b"?"])?;
    ensure!(answer == b"127.0.0.9:77 ?", "{answer:?}");
    truepeer.wait_for_log("the backend will believe it; --allow-claims lets it pass")
}

fn the_clients_family_chooses_the_backend(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    for sender_family in [0, 1] {
        let sender = sender_towards(LISTENERS[sender_family])?;
        for client_family in [0, 1] {
            let answer = ask(&sender, &[&v2(CLIENTS[client_family], DESTINATIONS[client_family])?, b"?"])?;
            ensure!(answer == format!("{} ?", CLIENTS[client_family]).as_bytes(), "{answer:?}");
        }
    }
    ensure!(counted(&truepeer, "client_ports_replaced")? == 0, "one listener's flow was in the other's way");
    truepeer.stop()?;
    // A backend of only one family.
    let truepeer = start(bed, proxy("--pseudo-ipv4").ipv4(BACKENDS[0]).ipv6(BACKENDS[0]), &[LISTENERS[0]])?;
    let sender = sender_towards(LISTENERS[0])?;
    let answer = String::from_utf8(ask(&sender, &[&v2(CLIENTS[1], DESTINATIONS[1])?, b"?"])?)?;
    let seen: std::net::SocketAddrV4 = answer.trim_end_matches(" ?").parse()?;
    ensure!(seen.ip().octets()[0] >= 240, "{answer}");
    truepeer.stop()?;
    let truepeer = start(bed, proxy("").ipv4(BACKENDS[0]).ipv6(BACKENDS[0]), &[LISTENERS[0]])?;
    send(&sender, &[&v2(CLIENTS[1], DESTINATIONS[1])?, b"?"])?;
    wait_counted(&truepeer, "datagrams_refused", 1)
}

fn a_client_whose_tuple_is_in_use_keeps_its_address(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 192.0.2.7/32 dev lo"])?;
    let _backend = Backend::who(&BACKENDS)?;
    let _other_program = UdpSocket::bind(CLIENTS[0])?;
    let truepeer = start_proxy(bed, "--allow-claims 192.0.2.7")?;
    let sender = sender_towards(LISTENERS[0])?;
    for _ in 0..3 {
        let answer = String::from_utf8(ask(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"?"])?)?;
        ensure!(answer.starts_with("192.0.2.7:") && !answer.starts_with(CLIENTS[0]), "{answer}");
    }
    ensure!(counted(&truepeer, "client_ports_replaced")? == 1);
    truepeer.stop()?;
    let truepeer = start_proxy(bed, "--on-conflict refuse --allow-claims 192.0.2.7")?;
    send(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"?"])?;
    wait_counted(&truepeer, "client_port_held", 1)
}

/// Such a backend replies before it has chosen a source address, which the classic rules match.
fn backends_on_wildcard_addresses_answer_by_truepeers_routes(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, host) = (hosts.host("lb"), hosts.host("proxy"));
    let _backend = host.run(|| Backend::who(&["0.0.0.0:53"]))??;
    let _backend6 = host.run(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None)?;
        socket.set_only_v6(true)?;
        socket.bind(&socket2::SockAddr::from(std::net::SocketAddr::from(([0_u16; 8], 53))))?;
        Backend::who_with(socket.into())
    })??;
    let listeners = [host.at(false, 5300).to_string(), host.at(true, 5300).to_string()];
    let listeners = listeners.each_ref().map(String::as_str);
    let truepeer = proxy("--routes auto --allow 10.77.0.0/16 --allow fd77::/16")
        .ipv4(BACKENDS[0])
        .ipv6(BACKENDS[1])
        .with(|program| program.in_netns(&host.netns));
    let _truepeer = start(bed, truepeer, &listeners)?;
    lb.run(|| -> Result<()> {
        for family in [0, 1] {
            let sender = socket(["0.0.0.0:0", "[::]:0"][family])?;
            sender.connect(listeners[family])?;
            let answer = ask(&sender, &[&v2(CLIENTS[family], DESTINATIONS[family])?, b"?"])?;
            ensure!(answer == format!("{} ?", CLIENTS[family]).as_bytes(), "{answer:?}");
        }
        Ok(())
    })?
}

/// Merged datagrams must each fit the path (otherwise UDP_SEGMENT refuses); IP fragments single ones.
fn datagrams_longer_than_the_path_takes_are_fragmented(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy", "backend"])?;
    let (lb, host, far) = (hosts.host("lb"), hosts.host("proxy"), hosts.host("backend"));
    host.ip(&["link set backend mtu 1280", "link set lb mtu 1280"])?;
    lb.ip(&["link set proxy mtu 1280"])?;
    far.ip(&["link set proxy mtu 1280"])?;
    // A distant backend, for the way up. Answers in fragments would need a firewall that reassembles them,
    // because only the first fragment has the port that the routing rule matches.
    let _far = far.run(|| Backend::start(&["0.0.0.0:53"], |seen| vec![seen.payload[..1].to_vec()]))??;
    let _near = host.run(|| Backend::echo(&["127.0.0.1:54"]))??;
    let proxy = |backend: String| {
        let options = "--allow 10.77.0.0/16 --routes auto";
        proxy(options).ipv4(backend).with(|program| program.in_netns(&host.netns))
    };
    let at = [host.at(false, 5300).to_string(), host.at(false, 5301).to_string()];
    let to_far = start(bed, proxy(far.at(false, 53).to_string()), &[&at[0]])?;
    let to_near = start(bed, proxy("127.0.0.1:54".to_owned()), &[&at[1]])?;
    lb.run(|| -> Result<()> {
        for (number, at) in at.iter().enumerate() {
            for length in [100, 1252, 1253, 1400, 1472, 4000, 8000] {
                in_bursts(at, length, if number == 0 { 1 } else { length })?;
            }
        }
        Ok(())
    })??;
    for truepeer in [to_far, to_near] {
        ensure!(counted(&truepeer, "datagrams_dropped")? == 0);
        ensure!(counted(&truepeer, "datagrams_down")? == 7 * 8);
        ensure!(counted(&truepeer, "flows_opened")? == 1);
    }
    Ok(())
}

/// Several datagrams of one length at once, so that some are merged.
fn in_bursts(at: &str, length: usize, answered: usize) -> Result<()> {
    let sender = socket("0.0.0.0:0")?;
    sender.connect(at)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    for n in 0..8_u8 {
        send(&sender, &[&header, &vec![n; length]])?;
    }
    for _ in 0..8 {
        let answer = receive(&sender).with_context(|| format!("{length} bytes through {at}"))?;
        ensure!(answer.len() == answered && answer.iter().all(|&n| n == answer[0]));
    }
    Ok(())
}

fn replies_leave_from_the_address_that_was_sent_to(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, host) = (hosts.host("lb"), hosts.host("proxy"));
    host.ip(&["addr add 10.77.0.22/24 dev lb", "addr add fd77:0::22/64 dev lb nodad"])?;
    let _backend = host.run(|| Backend::who(&BACKENDS))??;
    for (run, listeners) in [["0.0.0.0:5300", "[::]:5301"], ["[::]:5300", "[::]:5301"]].iter().enumerate() {
        let truepeer = proxy("--allow 10.77.0.0/16 --allow fd77::/16")
            .ipv4(BACKENDS[0])
            .ipv6(BACKENDS[1])
            .with(|program| program.in_netns(&host.netns));
        let truepeer = start(bed, truepeer, listeners)?;
        lb.run(|| -> Result<()> {
            let sender = [socket("0.0.0.0:0")?, socket("[::]:0")?];
            let at = ["10.77.0.2:5300", "10.77.0.22:5300", "[fd77::2]:5301", "[fd77::22]:5301"];
            // One flow whose replies follow: there and back again.
            for address in at.iter().chain(at.iter().rev()) {
                let family = usize::from(address.starts_with('['));
                let client = CLIENTS[family].replace(":5000", &format!(":{}", 6000 + run));
                let header = v2(client, DESTINATIONS[family])?;
                sender[family].send_to(&[&header[..], b"?"].concat(), address)?;
                let (_, from) = sender[family].recv_from(&mut [0; 100])?;
                ensure!(from.to_string() == *address, "sent to {address}, answered by {from}");
            }
            Ok(())
        })??;
        ensure!(counted(&truepeer, "flows_opened")? == 2);
        truepeer.stop()?;
    }
    Ok(())
}

/// It would take a part of the datagrams, and neither instance would notice.
fn a_second_instance_on_the_port_is_refused(bed: &Bed) -> Result<()> {
    let _truepeer = start_proxy(bed, "--workers 2")?;
    let second = proxy("--workers 2").ipv4(BACKENDS[0]).option("-l", LISTENERS[0]).start_unready(bed)?;
    ensure!(!second.wait_end()?.success(), "{}", second.log());
    ensure!(second.log().contains("127.0.0.1:5300"), "{}", second.log());
    Ok(())
}

fn sh(script: &str) -> Program {
    Program::new("sh").args(["-e", "-c", script])
}

fn tproxy(bed: &Bed) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy"])?;
    let (lb, host) = (hosts.host("lb"), hosts.host("proxy"));
    let redirect = "nft -f - <<'END'
table inet t { chain c { type filter hook prerouting priority mangle
  iifname \"lb\" meta nfproto ipv4 udp dport 10000-20000 tproxy ip to 127.0.0.1:25577 meta mark set 1 accept
  iifname \"lb\" meta nfproto ipv6 udp dport 10000-20000 tproxy ip6 to [::1]:25578 meta mark set 1 accept
  }
}
END";
    sh(redirect).in_netns(&host.netns).run(bed)?;
    let ports = [10_001_u16, 12_345, 20_000];
    let addresses: Vec<String> = ports
        .iter()
        .flat_map(|port| BACKENDS.map(|at| at.replace(":53", &format!(":{}", port + 20_000))))
        .collect();
    let backend = host.run(|| Backend::who(&addresses))??;
    let options = "--listen-transparent --dynamic-destination --dynamic-allow 127.0.0.1:30000-40000 \
                   --dynamic-allow [::1]:30000-40000 --allow any --routes auto";
    let truepeer = proxy(options).with(|program| program.in_netns(&host.netns));
    let truepeer = start(bed, truepeer, &["0.0.0.0:25577", "[::]:25578"])?;
    lb.run(|| -> Result<()> {
        for family in [false, true] {
            let sender = socket(if family { "[::]:0" } else { "0.0.0.0:0" })?;
            for port in ports.iter().chain(&ports) {
                let (client, loopback) = (CLIENTS[usize::from(family)], BACKENDS[usize::from(family)]);
                let destination = loopback.replace(":53", &format!(":{}", port + 20_000));
                let to = host.at(family, *port);
                sender.send_to(&[&v2(client, destination)?[..], b"?"].concat(), to)?;
                let mut answer = [0; 100];
                let (length, from) = sender.recv_from(&mut answer).with_context(|| {
                    let _ = counted(&truepeer, "x"); // its log shows how far the datagram got
                    format!("no answer from {to}")
                })?;
                ensure!(from == to, "sent to {to}, answered by {from}");
                ensure!(answer[..length] == *format!("{client} ?").as_bytes());
            }
        }
        Ok(())
    })??;
    ensure!(backend.seen().len() == 12);
    ensure!(counted(&truepeer, "flows_opened")? == 6);
    Ok(())
}

fn mark(bed: &Bed) -> Result<()> {
    let count = "nft -f - <<'END'
table inet t { chain c { type filter hook output priority 0; meta mark 77 udp dport 53 counter; }; }
END";
    sh(count).run(bed)?;
    let _backend = Backend::who(&BACKENDS)?;
    let _truepeer = start_proxy(bed, "--mark 77")?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        ask(&sender, &[&v2(CLIENTS[family], DESTINATIONS[family])?, b"?"])?;
    }
    let rules = Program::new("nft").args(["list", "table", "inet", "t"]).run(bed)?;
    ensure!(rules.contains("counter packets 2"), "{rules}");
    Ok(())
}

/// The routes of go-mmproxy's documentation, and truepeer with one capability.
fn only_net_raw(bed: &Bed) -> Result<()> {
    ip_here(&["rule add from 127.0.0.1/8 iif lo table 123", "route add local 0.0.0.0/0 dev lo table 123"])?;
    ip_here(&["-6 rule add from ::1/128 iif lo table 123", "-6 route add local ::/0 dev lo table 123"])?;
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = proxy("--mark 5 --listen-transparent")
        .ipv4(BACKENDS[0])
        .ipv6(BACKENDS[1])
        .with(|program| program.as_user(User::TESTER).with_capabilities(&["net_raw"]));
    let _truepeer = start(bed, truepeer, &LISTENERS)?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        let answer = ask(&sender, &[&v2(CLIENTS[family], DESTINATIONS[family])?, b"?"])?;
        ensure!(answer == format!("{} ?", CLIENTS[family]).as_bytes(), "{answer:?}");
    }
    Ok(())
}
