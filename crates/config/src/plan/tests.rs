use std::path::PathBuf;

use truepeer_policy::PrefixSet;

use super::listener::DynamicConfig;
use super::*;
use crate::spec::{HostPort, Protocol, SendProxy};

fn said(error: Problems) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

fn listening(binds: &[&str]) -> Config {
    let listeners = binds
        .iter()
        .map(|bind| ListenerConfig { bind: bind.parse().unwrap(), ..ListenerConfig::default() })
        .collect();
    Config { listeners, ..Config::default() }
}

fn check_of(change: impl FnOnce(&mut ListenerConfig)) -> String {
    let mut config = Config::default();
    change(&mut config.listeners[0]);
    config.check().map_or_else(said, |_| "fine".to_owned())
}

#[test]
fn the_defaults_hold() {
    assert_eq!(Config::default().check().unwrap().warnings(), [""; 0]);
}

#[test]
fn a_configuration_survives_being_written_and_read() {
    let mut config = listening(&["0.0.0.0:8443", "[::1]:1"]);
    let full = &mut config.listeners[1];
    full.senders.allow = "private".parse().unwrap();
    full.senders.rules = vec!["10.0.0.0/8=optional".parse().unwrap(), "::1=forbid".parse().unwrap()];
    full.dynamic = Some(DynamicConfig { allow: "[2001:db8::/32]:80,443-445".parse().unwrap() });
    full.claims.allow = "loopback".parse().unwrap();
    full.nat64_prefix = Some("64:ff9b::/96".parse().unwrap());
    full.send_proxy = Some(SendProxy::V1);
    full.timeouts.idle = Some(Duration::from_millis(1500));
    let written = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&written).unwrap(), config, "{written}");
    assert_eq!(serde_json::from_str::<Config>("{}").unwrap(), Config::default());
    assert!(serde_json::from_str::<Config>(r#"{"listener": []}"#).is_err());
}

#[test]
fn a_backend_that_is_the_listener_is_refused() {
    for (listen, backend, is_loop) in [
        ("0.0.0.0:443", "127.0.0.1:443", true),
        ("[::]:443", "127.0.0.1:443", true),
        ("127.0.0.1:443", "127.0.0.1:443", true),
        ("127.0.0.1:443", "[::ffff:127.0.0.1]:443", true),
        ("0.0.0.0:443", "0.0.0.0:443", true),
        ("0.0.0.0:443", "127.0.0.1:444", false),
        ("127.0.0.1:443", "127.0.0.2:443", false),
        ("0.0.0.0:443", "192.0.2.1:443", false), // no interface of this machine has it
        ("0.0.0.0:0", "127.0.0.1:444", false),
    ] {
        let mut config = listening(&[listen]);
        config.listeners[0].backends.ipv4 = backend.parse().ok();
        config.listeners[0].backends.ipv6 = "[::1]:9".parse().ok();
        let error = config.check().err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(
            error.starts_with("-4 ") && error.contains("itself listens"),
            is_loop,
            "{listen} {backend}: {error}"
        );
    }
}

#[test]
fn what_cannot_be_carried_out_names_its_option() {
    let nowhere = || PathBuf::from("/nonexistent/list");
    for (said, begins) in [
        (
            check_of(|l| l.senders.allow_files = vec![nowhere().into()]),
            "--allow /nonexistent/list: can't read the file",
        ),
        (
            check_of(|l| l.claims.deny_files = vec![nowhere()]),
            "--deny-clients /nonexistent/list: can't read the file",
        ),
        (check_of(|l| (l.protocol, l.send_proxy) = (Protocol::Udp, Some(SendProxy::V1))), "--send-proxy v1"),
        (check_of(|l| l.send_proxy = Some(SendProxy::Spp)), "--send-proxy spp"),
        (
            check_of(|l| l.backends.ipv6 = Some(HostPort::new("nobody.invalid", 1))),
            "-6 nobody.invalid:1: can't resolve",
        ),
        (
            check_of(|l| {
                l.senders.allow = "any".parse().unwrap();
                l.senders.header = "optional".parse().unwrap();
            }),
            "--header optional: a header is optional for",
        ),
        (
            listening(&["0.0.0.0:1", "0.0.0.0:1"]).check().map_err(said).unwrap_err(),
            "--listen 0.0.0.0:1 is given twice",
        ),
        (
            listening(&["[::ffff:127.0.0.1]:1", "127.0.0.1:1"]).check().map_err(said).unwrap_err(),
            "--listen 127.0.0.1:1 is given twice",
        ),
        (
            listening(&["127.0.0.1:1", "0.0.0.0:1"]).check().map_err(said).unwrap_err(),
            "--listen 127.0.0.1:1: --listen 0.0.0.0:1 has this port of all addresses",
        ),
        (
            listening(&["[::]:1", "0.0.0.0:1", "[::1]:1"]).check().map_err(said).unwrap_err(),
            "--listen [::1]:1: --listen [::]:1 has this port of all addresses",
        ),
        (listening(&[]).check().map_err(said).unwrap_err(), "no listener: expected at least one --listen"),
    ] {
        assert!(said.starts_with(begins), "{said}");
    }
}

#[test]
fn the_wildcard_of_ipv6_leaves_ipv4_to_a_listener_that_has_the_port_for_it() {
    for (binds, v6_only) in [
        (&["0.0.0.0:1", "[::]:1"][..], &[false, true][..]),
        (&["[::]:1", "127.0.0.1:1"], &[true, false]),
        (&["[::]:1", "127.0.0.1:2", "[::1]:3"], &[false, false, false]),
        (&["[::]:0", "0.0.0.0:0"], &[false, false]),
    ] {
        let checked = listening(binds).check().unwrap();
        let found: Vec<_> = checked.listeners.iter().map(|listener| listener.v6_only).collect();
        assert_eq!(found, v6_only, "{binds:?}");
    }
    let mut config = listening(&["0.0.0.0:1", "[::]:1"]);
    config.listeners[0].protocol = Protocol::Udp;
    assert!(!config.check().unwrap().listeners[1].v6_only, "UDP and TCP don't share ports");
}

#[test]
fn lists_in_files_are_read_and_a_broken_line_is_named() {
    let dir = std::env::temp_dir().join(format!("truepeer-lists-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("allowed");
    std::fs::write(&path, "# ours\n192.0.2.0/24 # lb\n").unwrap();
    let mut config = Config::default();
    config.listeners[0].senders.allow_files = vec![path.clone().into()];
    let checked = config.check().unwrap();
    let allow = &checked.listeners[0].policy.senders.allow;
    assert!(allow.contains("192.0.2.7".parse().unwrap()) && allow.contains("127.0.0.1".parse().unwrap()));
    std::fs::write(&path, "192.0.2.0/24\n192.0.2.0/99\n").unwrap();
    let error = said(config.check().unwrap_err());
    assert!(error.contains("allowed: line 2: \"192.0.2.0/99\" is not a prefix"), "{error}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_is_dangerous_is_said_once() {
    let mut config = listening(&["0.0.0.0:1", "0.0.0.0:2"]);
    for listener in &mut config.listeners {
        listener.senders.allow = PrefixSet::any();
        listener.claims.allow = PrefixSet::loopback();
    }
    let warnings = config.check().unwrap().warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("127.0.0.0/8 ::1/128") && warnings[1].contains("every host may connect"));
}

#[test]
fn a_time_of_the_other_transport_is_warned_of() {
    let said = |protocol: Protocol| {
        let mut config = listening(&["127.0.0.1:1"]);
        let listener = &mut config.listeners[0];
        listener.protocol = protocol;
        listener.udp.close_after = Some(Duration::from_secs(30));
        listener.timeouts.idle = Some(Duration::from_secs(30));
        let both = ListenerConfig { protocol: Protocol::Tcp, ..listener.clone() };
        let alone = config.check().unwrap().warnings().join("\n");
        config.listeners.push(both);
        (alone, config.check().map(|checked| checked.warnings()).unwrap_or_default())
    };
    assert!(said(Protocol::Tcp).0.starts_with("--close-after has no effect: no listener takes UDP"));
    let (alone, both) = said(Protocol::Udp);
    assert!(alone.starts_with("--idle-timeout has no effect: no listener takes TCP"), "{alone}");
    assert_eq!(both, [""; 0]);
}

/// Replies of each origin have to come back.
#[test]
fn rules_are_made_for_all_origins() {
    let config = listening(&["127.0.0.1:8443"]);
    let mut checked = config.check().unwrap();
    let other: SocketAddr = "192.0.2.7:80".parse().unwrap();
    let mut listener = std::sync::Arc::into_inner(checked.listeners.remove(0)).unwrap();
    listener.read.origins = vec![truepeer_policy::Backends {
        ipv4: Some(truepeer_policy::BackendAddr::new(other)),
        ..listener.read.backends
    }];
    checked.listeners.push(listener.into());
    let backends = setup_of(&config, &checked).backends;
    assert!(backends.iter().any(|(address, _)| *address == other), "{backends:?}");
}
