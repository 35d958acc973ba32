use std::net::IpAddr;

use super::*;
use crate::plan::DEFAULT_TABLE;

fn commands(setup: &Setup) -> Vec<String> {
    RoutePlan::for_setup(setup).items.iter().map(|item| command(&item.need)).collect()
}

fn setup(mark: u32, backends: &[(&str, IpTransport)]) -> Setup {
    let local: Vec<IpAddr> = ["10.9.0.1".parse().unwrap(), "fd00:9::1".parse().unwrap()].into();
    let mut setup = Setup::new(DEFAULT_TABLE, mark);
    for (address, transport) in backends {
        setup.backend(address.parse().unwrap(), *transport, &local);
    }
    setup
}

#[test]
fn loopback_backends_print_the_four_commands_of_go_mmproxys_readme() {
    let setup = setup(0, &[("127.0.0.1:25578", IpTransport::Tcp), ("[::1]:25578", IpTransport::Tcp)]);
    assert_eq!(
        commands(&setup),
        [
            "ip route add local 0.0.0.0/0 dev lo table 123",
            "ip rule add from 127.0.0.1/8 iif lo table 123",
            "ip -6 route add local ::/0 dev lo table 123",
            "ip -6 rule add from ::1/128 iif lo table 123",
        ]
    );
}

#[test]
fn other_local_backends_print_a_mark_and_the_sysctls_that_carry_it() {
    let setup = setup(5, &[("10.9.0.1:80", IpTransport::Tcp), ("[fd00:9::1]:80", IpTransport::Tcp)]);
    assert_eq!(
        commands(&setup),
        [
            "ip route add local 0.0.0.0/0 dev lo table 123",
            "ip rule add from 10.9.0.1 fwmark 5 iif lo lookup 123",
            "sysctl -w net.ipv4.tcp_fwmark_accept=1",
            "sysctl -w net.ipv4.fwmark_reflect=1",
            "ip -6 route add local ::/0 dev lo table 123",
            "ip -6 rule add from fd00:9::1 fwmark 5 iif lo lookup 123",
            "sysctl -w net.ipv6.fwmark_reflect=1",
        ]
    );
    let plan = RoutePlan::for_setup(&setup);
    assert!(script(&plan, &setup).contains("--mark 5\n"));
}

#[test]
fn a_backend_elsewhere_prints_a_rule_on_its_port_and_the_precise_way() {
    let setup = setup(0, &[("10.5.5.2:9000", IpTransport::Tcp)]);
    assert_eq!(
        commands(&setup),
        [
            "ip route add local 0.0.0.0/0 dev lo table 123",
            "ip rule add from 10.5.5.2 ipproto tcp sport 9000 lookup 123",
        ]
    );
    let script = script(&RoutePlan::for_setup(&setup), &setup);
    assert!(script.contains("socket transparent 1 meta mark set 123 accept"), "{script}");
    assert!(script.contains("#   ip rule add fwmark 123 lookup 123"), "{script}");
}

#[test]
fn udp_backends_print_the_source_of_their_replies() {
    let setup = setup(0, &[("127.0.0.1:53", IpTransport::Udp), ("[::1]:53", IpTransport::Udp)]);
    assert_eq!(
        commands(&setup),
        [
            "ip route add local 0.0.0.0/0 dev lo table 123 src 127.0.0.1",
            "ip rule add from 127.0.0.1/8 iif lo table 123",
            "ip rule add from 0.0.0.0/32 iif lo ipproto udp sport 53 lookup 123",
            "ip -6 route add local ::/0 dev lo table 123 src ::1",
            "ip -6 rule add from ::1/128 iif lo table 123",
            "ip -6 rule add iif lo ipproto udp sport 53 lookup 123",
        ]
    );
}

#[test]
fn redirected_ports_print_the_readmes_rule_and_a_firewall_that_spares_our_own_connections() {
    let mut setup = setup(0, &[("127.0.0.1:25578", IpTransport::Tcp)]);
    setup.tproxy.push(Tproxy {
        mark: 1,
        ports: Some(10000..=20000),
        listen: "0.0.0.0:25577".parse().unwrap(),
    });
    let script = script(&RoutePlan::for_setup(&setup), &setup);
    assert!(script.contains("\nip rule add fwmark 1 lookup 123\n"), "{script}");
    assert!(
        script.contains(
            "iifname != \"lo\" meta nfproto ipv4 tcp dport 10000-20000 tproxy ip to 127.0.0.1:25577 meta mark set 1 accept"
        ),
        "{script}"
    );
    assert!(!script.contains("ipv6"), "{script}");
}
