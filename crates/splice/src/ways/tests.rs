use truepeer_sys::netlink::RawMessage;

use super::Changes;
use super::devices::Devices;
use super::rules::{Rules, decides_by_more};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Attributes of a rule: what it asks for.
type Selectors<'a> = &'a [(u16, &'a [u8])];

/// A rule as the kernel writes it: to the tables that all rules have, with these attributes.
fn rule(tos: u8, flags: u32, selectors: Selectors<'_>) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, tos, 254, 0, 0, 1];
    bytes.extend(flags.to_ne_bytes());
    // Table, suppressed prefix length, protocol, priority.
    let always: [(u16, &[u8]); 4] = [(15, &[254, 0, 0, 0]), (14, &[0xff; 4]), (21, &[2]), (6, &[1, 0, 0, 0])];
    for (kind, value) in always.iter().chain(selectors) {
        let length = u16::try_from(4 + value.len()).unwrap();
        bytes.extend([length.to_ne_bytes(), kind.to_ne_bytes()].concat());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes
}

#[test]
fn rules_by_addresses_decide_nothing_more() {
    let rows: [(&str, Selectors<'_>); 9] = [
        ("all", &[]),
        ("from", &[(2, &[10, 0, 0, 1])]),
        ("to", &[(1, &[10, 0, 0, 1])]),
        ("realm", &[(11, &[1, 0, 0, 0])]),
        ("goto", &[(4, &[1, 0, 0, 0])]),
        ("VRF", &[(19, &[1])]),
        ("what comes in", &[(3, b"eth0\0"), (23, &[80, 0, 80, 0])]),
        ("what this host sends", &[(3, b"lo\0")]),
        ("UDP", &[(22, &[17]), (23, &[53, 0, 53, 0])]),
    ];
    for (name, selectors) in rows {
        assert!(!decides_by_more(&rule(0, 0, selectors), TCP), "{name}");
    }
}

#[test]
fn rules_by_marks_ports_users_and_devices_decide_more() {
    let rows: [(&str, Selectors<'_>); 10] = [
        ("fwmark", &[(10, &[7, 0, 0, 0]), (16, &[0xff; 4])]),
        ("fwmark 0/0xff", &[(16, &[0xff, 0, 0, 0])]),
        ("sport", &[(23, &[80, 0, 80, 0])]),
        ("dport", &[(24, &[80, 0, 80, 0])]),
        ("uidrange", &[(20, &[0; 8])]),
        ("ipproto tcp", &[(22, &[6])]),
        ("oif", &[(17, b"eth0\0")]),
        ("dscp", &[(25, &[4])]),
        ("a selector of a later kernel", &[(77, &[1])]),
        ("from lo, with a port", &[(3, b"lo\0"), (23, &[80, 0, 80, 0])]),
    ];
    for (name, selectors) in rows {
        assert!(decides_by_more(&rule(0, 0, selectors), TCP), "{name}");
    }
    assert!(decides_by_more(&rule(4, 0, &[]), TCP), "tos");
    assert!(decides_by_more(&rule(0, 2, &[(3, b"eth0\0"), (23, &[80, 0, 80, 0])]), TCP), "not");
}

#[test]
fn truepeers_own_rules_decide_nothing() {
    let mut own = rule(0, 0, &[(3, b"lo\0"), (22, &[6]), (23, &[80, 0, 80, 0])]);
    let protocol = own.windows(4).position(|four| four == [5, 0, 21, 0]).unwrap() + 4;
    own[protocol] = 123;
    assert!(!decides_by_more(&own, TCP));
}

#[test]
fn a_broken_rule_counts_as_one_that_decides() {
    assert!(decides_by_more(&[], TCP) && decides_by_more(&[2, 0, 0], TCP));
}

#[test]
fn only_a_rule_that_is_new_is_one_more() {
    let of =
        |ports: &[u8]| Rules(ports.iter().map(|port| rule(0, 0, &[(24, &[*port, 0, *port, 0])])).collect());
    let before = of(&[80, 81]);
    assert!(!of(&[81, 80]).have_more_than(&before), "the same in another order");
    assert!(!of(&[80]).have_more_than(&before), "one went");
    assert!(of(&[80, 82]).have_more_than(&before), "one went, another came");
    assert!(of(&[80]).have_more_than(&Rules::default()) && !Rules::default().have_more_than(&before));
}

#[test]
fn a_rule_of_one_protocol_decides_nothing_for_the_other() {
    let of = |protocol| rule(0, 0, &[(22, &[protocol]), (24, &[53, 0, 53, 0])]);
    for (own, other) in [(TCP, UDP), (UDP, TCP)] {
        assert!(decides_by_more(&of(own), own) && !decides_by_more(&of(own), other));
    }
}

/// linux/rtnetlink.h: RTM_NEWLINK and RTM_DELLINK.
const NEW_LINK: u16 = 16;
const DELETED_LINK: u16 = 17;

/// The master of a device and the master's kind.
type Master = Option<(u32, &'static [u8])>;

/// A message about a device, as rtnetlink writes it.
fn link(kind: u16, family: i32, index: u32, is_up: bool, master: Master) -> Vec<u8> {
    let mut body = vec![u8::try_from(family).unwrap(), 0, 1, 0];
    body.extend(index.to_ne_bytes());
    body.extend(u32::from(is_up).to_ne_bytes());
    body.extend([0xff; 4]);
    let attribute = |kind: u16, value: &[u8]| {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [&length.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    if let Some((master, kind)) = master {
        body.extend(attribute(10, &master.to_ne_bytes()));
        body.extend(attribute(18, &attribute(4, kind)));
    }
    let length = u32::try_from(16 + body.len()).unwrap();
    [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &body].concat()
}

/// The devices after these messages, and whether the last one has changed the ways of sessions.
fn after(devices: &mut Devices, messages: &[Vec<u8>]) -> bool {
    let mut changes = Changes::default();
    for message in messages {
        changes = Changes::default();
        devices.note(&RawMessage::of(message).unwrap(), &mut changes);
    }
    !changes.are_none()
}

const BRIDGE: Master = Some((9, b"bridge\0"));

fn up(master: Master) -> Vec<u8> {
    link(NEW_LINK, 0, 5, true, master)
}

fn deleted() -> Vec<u8> {
    link(DELETED_LINK, 0, 5, false, None)
}

#[test]
fn a_device_that_comes_back_is_used_by_sessions_that_begin_after_it_was_lost() {
    let mut devices = Devices::default();
    assert!(devices.are_gone(5));
    assert!(!after(&mut devices, &[up(None)]) && !devices.are_gone(5));
    let before = devices.losses();
    assert!(!devices.were_lost_since(5, before));
    assert!(after(&mut devices, &[deleted()]) && devices.are_gone(5));
    assert!(!after(&mut devices, &[up(None)]) && !devices.are_gone(5));
    assert!(devices.were_lost_since(5, before) && !devices.were_lost_since(6, before));
    assert!(!devices.were_lost_since(5, devices.losses()));
}

#[test]
fn a_device_that_becomes_a_port_is_lost_until_it_is_none_any_more() {
    let mut devices = Devices::default();
    after(&mut devices, &[up(None)]);
    let before = devices.losses();
    assert!(after(&mut devices, &[up(BRIDGE)]) && devices.are_gone(5));
    assert!(devices.were_lost_since(5, before) && devices.new_ports().eq([5]));
    assert!(!after(&mut devices, &[up(BRIDGE)]), "once");
    // The bridge says so of its port.
    assert!(!after(&mut devices, &[link(DELETED_LINK, libc::AF_BRIDGE, 5, true, BRIDGE)]));
    assert!(devices.are_gone(5));
    assert!(!after(&mut devices, &[up(None)]) && !devices.are_gone(5));
}

#[test]
fn what_never_had_the_programs_is_no_loss() {
    let down = |master| link(NEW_LINK, 0, 5, false, master);
    // A container's device: it is a port before it is up.
    for messages in
        [vec![down(None), down(BRIDGE), up(BRIDGE), deleted()], vec![down(None), deleted()], vec![deleted()]]
    {
        let mut devices = Devices::default();
        for message in messages {
            assert!(!after(&mut devices, &[message]));
        }
        assert_eq!(devices.losses(), 0);
    }
    let vrf = Some((9, &b"vrf\0"[..]));
    let mut devices = Devices::default();
    assert!(!after(&mut devices, &[up(None), up(vrf)]) && !devices.are_gone(5), "routes lead by it");
}

#[test]
fn where_messages_were_lost_any_device_may_have_been() {
    let now = |messages: &[Vec<u8>]| {
        let mut devices = Devices::default();
        after(&mut devices, messages);
        devices
    };
    let mut devices = now(&[up(None)]);
    let before = devices.losses();
    devices.catch_up(now(&[up(None)]));
    assert!(!devices.are_gone(5) && devices.were_lost_since(5, before) && devices.were_lost_since(6, before));
    assert!(!devices.were_lost_since(5, devices.losses()));
    devices.catch_up(now(&[up(BRIDGE)]));
    assert!(devices.are_gone(5));
    devices.catch_up(now(&[up(BRIDGE)]));
    assert!(devices.are_gone(5));
    devices.catch_up(now(&[]));
    assert!(devices.are_gone(5) && devices.new_ports().next().is_none());
}
