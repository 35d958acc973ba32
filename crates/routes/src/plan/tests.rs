use super::*;

const LOCAL: [&str; 4] = ["127.0.0.1", "::1", "10.9.0.1", "fd00:9::1"];

fn local() -> Vec<IpAddr> {
    LOCAL.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn setup(backends: &[(&str, IpTransport)]) -> Setup {
    let mut setup = Setup::new(DEFAULT_TABLE, 0);
    for (address, transport) in backends {
        setup.backend(address.parse().unwrap(), *transport, &local());
    }
    setup
}

fn plan(backends: &[(&str, IpTransport)]) -> RoutePlan {
    RoutePlan::for_setup(&setup(backends))
}

fn rules(plan: &RoutePlan) -> Vec<&Rule> {
    plan.items.iter().filter_map(|i| if let Need::Rule(rule) = &i.need { Some(rule) } else { None }).collect()
}

fn switches(plan: &RoutePlan) -> Vec<Switch> {
    plan.items.iter().filter_map(|i| if let Need::Switch(s) = &i.need { Some(*s) } else { None }).collect()
}

#[test]
fn nothing_is_needed_where_nothing_is_delivered() {
    assert_eq!(plan(&[]).items, []);
}

#[test]
fn two_loopback_backends_share_one_rule_and_one_route() {
    let plan = plan(&[("127.0.0.1:80", IpTransport::Tcp), ("127.0.0.2:81", IpTransport::Tcp)]);
    assert_eq!(plan.items.len(), 2);
    assert_eq!(plan.upstream_mark, None);
    assert_eq!(switches(&plan), []);
}

#[test]
fn a_family_without_a_backend_is_left_alone() {
    let plan = plan(&[("[::1]:80", IpTransport::Tcp)]);
    assert!(plan.items.iter().all(|item| item.need.family() == IpFamily::V6));
}

#[test]
fn a_local_backend_off_loopback_needs_a_mark_which_is_the_tables_number_by_default() {
    let plan = plan(&[("10.9.0.1:80", IpTransport::Tcp), ("127.0.0.1:80", IpTransport::Tcp)]);
    assert_eq!(plan.upstream_mark, Some(DEFAULT_TABLE));
    let marked: Vec<_> = rules(&plan).into_iter().filter(|rule| rule.mark.is_some()).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0].from, Some("10.9.0.1/32".parse().unwrap()));
    assert_eq!(switches(&plan), [Switch::TcpFwmarkAccept, Switch::FwmarkReflect4]);
}

#[test]
fn the_operators_mark_is_the_one_that_rules_look_for() {
    let mut setup = setup(&[("[fd00:9::1]:80", IpTransport::Tcp)]);
    setup.mark = Some(77);
    let plan = RoutePlan::for_setup(&setup);
    assert_eq!(plan.upstream_mark, Some(77));
    assert_eq!(rules(&plan)[0].mark, Some(77));
    assert_eq!(switches(&plan), [Switch::TcpFwmarkAccept, Switch::FwmarkReflect6]);
}

#[test]
fn a_mark_is_never_looked_for_on_packets_that_leave_for_another_host() {
    let mut setup = setup(&[("10.5.5.2:9000", IpTransport::Tcp)]);
    setup.mark = Some(77);
    let plan = RoutePlan::for_setup(&setup);
    assert_eq!(plan.upstream_mark, None);
    assert!(rules(&plan).iter().all(|rule| rule.mark.is_none() && !rule.sent_here));
}

#[test]
fn udp_on_loopback_replies_from_loopback_even_from_a_wildcard_socket() {
    let plan = plan(&[("127.0.0.1:53", IpTransport::Udp), ("[::1]:53", IpTransport::Udp)]);
    let sources: Vec<_> = plan
        .items
        .iter()
        .filter_map(|i| if let Need::LocalRoute(route) = &i.need { Some(route.source) } else { None })
        .collect();
    assert_eq!(sources, [Some(IpFamily::V4.loopback()), Some(IpFamily::V6.loopback())]);
    let by_port: Vec<_> = rules(&plan).into_iter().filter(|rule| rule.source_ports.is_some()).collect();
    assert_eq!(by_port.len(), 2);
    assert_eq!(by_port[0].from, Some("0.0.0.0/32".parse().unwrap()));
    assert_eq!(by_port[1].from, None);
}

#[test]
fn redirected_packets_are_delivered_in_each_family_that_the_listener_serves() {
    for (listen, families) in [
        ("0.0.0.0:8443", &[IpFamily::V4][..]),
        ("[::]:8443", &IpFamily::ALL),
        ("[fd00::1]:8443", &[IpFamily::V6]),
        ("[::ffff:10.0.0.1]:8443", &[IpFamily::V4]),
    ] {
        let mut setup = setup(&[]);
        let tproxy = Tproxy { mark: 1, ports: None, listen: listen.parse().unwrap() };
        setup.tproxy.push(tproxy);
        let plan = RoutePlan::for_setup(&setup);
        let found: Vec<_> = rules(&plan).iter().map(|rule| rule.family).collect();
        assert_eq!(found, families, "{listen}");
    }
}

#[test]
fn accepting_marks_must_not_turn_the_replies_to_a_redirected_sender_around() {
    let mut setup = setup(&[("10.9.0.1:80", IpTransport::Tcp)]);
    setup.tproxy.push(Tproxy { mark: 1, ports: None, listen: "0.0.0.0:8443".parse().unwrap() });
    let plan = RoutePlan::for_setup(&setup);
    let last = rules(&plan).into_iter().next_back().unwrap();
    assert_eq!((last.table, last.mark, last.sent_here), (TABLE_MAIN, Some(1), true));
}

#[test]
fn a_dynamic_prefix_stands_for_our_addresses_in_it_or_for_the_hosts_behind_it() {
    let mut setup = setup(&[]);
    setup.dynamic("0.0.0.0/0".parse().unwrap(), 1000..=2000, IpTransport::Tcp, &local());
    let places: Vec<_> = setup.backends.iter().map(|b| b.place).collect();
    assert_eq!(places, [BackendPlace::Loopback, BackendPlace::Local]);

    let mut setup = Setup::new(DEFAULT_TABLE, 0);
    setup.dynamic("10.5.0.0/16".parse().unwrap(), 0..=65535, IpTransport::Tcp, &local());
    let plan = RoutePlan::for_setup(&setup);
    assert_eq!(rules(&plan)[0].from, Some("10.5.0.0/16".parse().unwrap()));
    assert_eq!(rules(&plan)[0].source_ports, None);
}

#[test]
fn a_plan_never_needs_the_same_thing_twice() {
    let plan = plan(&[
        ("127.0.0.1:53", IpTransport::Udp),
        ("127.0.0.1:53", IpTransport::Tcp),
        ("10.9.0.1:80", IpTransport::Tcp),
        ("10.9.0.1:81", IpTransport::Tcp),
        ("10.9.0.1:81", IpTransport::Udp),
    ]);
    for (i, item) in plan.items.iter().enumerate() {
        assert!(plan.items[..i].iter().all(|earlier| earlier.need != item.need), "{item:?}");
    }
}
