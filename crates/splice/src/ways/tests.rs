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
