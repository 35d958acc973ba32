use std::ffi::OsString;
use std::time::Duration;

use truepeer_policy::{HeaderRule, OnConflict};

use super::*;
use crate::{Invocation, parse};
use truepeer_config::plan::Config;
use truepeer_config::spec::{RoutesMode, Verbosity};

fn invoke(line: &str) -> Result<(Config, Option<Compat>), UsageError> {
    match parse(line.split_whitespace().map(OsString::from))? {
        Invocation::Proxy(config, compat) => Ok((*config, compat)),
        other => panic!("{line}: {other:?}"),
    }
}

fn config(line: &str) -> Config {
    invoke(line).map_err(|error| error.to_string()).expect(line).0
}

fn error(line: &str) -> String {
    invoke(line).expect_err(line).to_string()
}

#[test]
fn the_name_or_the_option_says_whose_place_is_taken() {
    for (line, compat) in [
        ("truepeer proxy", None),
        ("go-mmproxy", Some(Compat::GoMmproxy)),
        ("/usr/bin/go-mmproxy -l 0.0.0.0:1", Some(Compat::GoMmproxy)),
        ("./mmproxy", Some(Compat::MmproxyRs)),
        ("truepeer --compat go-mmproxy", Some(Compat::GoMmproxy)),
        ("truepeer proxy -l 0.0.0.0:1 --compat=mmproxy-rs", Some(Compat::MmproxyRs)),
        ("mmproxy --compat cloudflare -a f -4 127.0.0.1:1 -6 [::1]:1", Some(Compat::Cloudflare)),
    ] {
        assert_eq!(invoke(line).map_err(|error| error.to_string()).expect(line).1, compat, "{line}");
    }
}

/// The flags of its README and sources, once each.
#[test]
fn go_mmproxy_is_understood_as_it_documents_itself() {
    let line = "go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -p tcp -listeners=4 --mark 5 \
        -allowed-subnets ./path-prefixes.txt -dynamic-destination -listen-transparent -close-after 30 -v 2";
    let config = config(line);
    let listener = &config.listeners[0];
    assert_eq!((config.listeners.len(), listener.bind.to_string()), (1, "0.0.0.0:25577".to_owned()));
    assert_eq!(listener.backends.ipv4.as_ref().unwrap().to_string(), "127.0.0.1:25578");
    assert_eq!(listener.backends.ipv6.as_ref().unwrap().to_string(), "[::1]:25578");
    assert_eq!((listener.sockets.get(), listener.mark, listener.transparent), (4, 5, true));
    assert!(listener.senders.allow.is_empty() && listener.senders.allow_files.len() == 1);
    assert!(listener.dynamic.as_ref().unwrap().allow.contains("203.0.113.1:65535".parse().unwrap()));
    assert_eq!(listener.udp.close_after, Some(Duration::from_secs(30)));
    assert_eq!(config.log.verbosity, Verbosity::States);
}

#[test]
fn go_mmproxy_and_mmproxy_rs_let_everybody_send_and_say_so() {
    for line in ["go-mmproxy", "mmproxy"] {
        let config = config(line);
        let listener = &config.listeners[0];
        assert_eq!(listener.bind.to_string(), "0.0.0.0:8443");
        assert!(listener.senders.allow.has_everybody());
        assert_eq!(listener.senders.header, HeaderRule::Require);
        assert!(listener.claims.allow.contains("127.0.0.1".parse().unwrap()));
        assert!(!listener.claims.allow.contains("224.0.0.1".parse().unwrap()));
        assert_eq!((config.routes.mode, config.routes.table), (RoutesMode::Manual, 123));
        assert_eq!(config.check().unwrap().warnings().len(), 2);
    }
}

#[test]
fn mmproxy_rs_is_understood_as_it_documents_itself() {
    let line = "mmproxy -m 123 --listen-addr 127.0.0.1:8080 --ipv4 127.0.0.1:8081 --ipv6 [::1]:8081 -a f -c 1 --listeners 2 -p TCP";
    let listener = config(line).listeners.remove(0);
    assert_eq!((listener.mark, listener.bind.to_string()), (123, "127.0.0.1:8080".to_owned()));
    assert_eq!((listener.sockets.get(), listener.udp.close_after), (2, Some(Duration::from_secs(1))));
    assert_eq!(listener.senders.allow_files.len(), 1);
}

const CLOUDFLARE: &str = "truepeer --compat cloudflare";

#[test]
fn cloudflare_mmproxy_is_understood_as_it_documents_itself() {
    let backends = "-4 127.0.0.1:22 -6 [::1]:22";
    let all = format!("{CLOUDFLARE} --allowed-networks f -l 0.0.0.0:2222 {backends} -v -m 5 -t 7 -N -P");
    let config_all = config(&all);
    let listener = &config_all.listeners[0];
    assert_eq!((listener.bind.to_string(), listener.mark), ("0.0.0.0:2222".to_owned(), 5));
    assert_eq!((config_all.routes.table, config_all.routes.mode), (7, RoutesMode::Manual));
    assert_eq!((config_all.log.verbosity, listener.on_conflict), (Verbosity::Sessions, OnConflict::Refuse));

    let few = config(&format!("{CLOUDFLARE} --allowed-n=f --target-v4 127.0.0.1:22 --target-v6=[::1]:22"));
    let listener = &few.listeners[0];
    assert_eq!(
        (listener.bind.to_string(), listener.mark, few.routes.table),
        ("[::]:8080".to_owned(), 123, 100)
    );
    assert!(listener.senders.allow.is_empty() && listener.senders.allow_files.len() == 1);
    assert_eq!((few.log.verbosity, listener.on_conflict), (Verbosity::Lifecycle, OnConflict::Ephemeral));
    assert_eq!(config(&format!("{CLOUDFLARE} -a f {backends} -qv")).log.verbosity, Verbosity::Sessions);
}

#[test]
fn cloudflare_mmproxy_needs_its_list_and_backends() {
    for (options, option) in [
        ("-4 127.0.0.1:1 -6 [::1]:1", "--allowed-networks FILE: expected"),
        ("-a f -6 [::1]:1", "-4, --target-v4 ADDR: expected"),
        ("-a f -4 127.0.0.1:1", "-6, --target-v6 ADDR: expected"),
    ] {
        assert!(error(&format!("{CLOUDFLARE} {options}")).contains(option), "{options}");
    }
}

#[test]
fn the_name_mmproxy_names_the_option_for_cloudflares_program() {
    for options in [
        "-l 0.0.0.0:2222 -4 127.0.0.1:22 -6 [::1]:22 --allowed-networks f",
        "--allowed-networks=f",
        "--allowed-net f",
        "-a f --target-v4 127.0.0.1:22",
        "-a f --target-v6=[::1]:22",
        "-a f -t 7",
        "-qN",
        "-P",
        "--force-real-client-port",
        "--do-not-sandbox",
    ] {
        for line in [format!("mmproxy {options}"), format!("truepeer --compat mmproxy-rs {options}")] {
            assert!(error(&line).contains("add --compat cloudflare"), "{line}: {}", error(&line));
        }
    }
    for line in ["mmproxy --allowed-subnet f", "mmproxy --nothing", "go-mmproxy --target-v4 127.0.0.1:22"] {
        assert!(!error(line).contains("cloudflare"), "{line}: {}", error(line));
    }
}

#[test]
fn the_last_of_several_holds_as_in_those_programs() {
    assert_eq!(config("go-mmproxy -mark 1 -mark 2").listeners[0].mark, 2);
    assert_eq!(config("mmproxy -m 1 --mark 2").listeners[0].mark, 2);
}

#[test]
fn what_a_warning_advises_can_be_done() {
    let listener =
        config("go-mmproxy --allow 10.0.0.7 --allow-claims 0.0.0.0 --routes auto").listeners.remove(0);
    assert_eq!(listener.senders.allow.to_string(), "10.0.0.7/32");
}

/// `--help` under a drop-in name says the defaults that are in force there.
#[test]
fn help_says_the_defaults_of_the_drop_in() {
    for (line, own, others) in [
        (
            "go-mmproxy --help",
            vec!["[default: manual]", "[default: any]", "[default: 0s]"],
            "[default: auto if permitted]",
        ),
        (
            "truepeer --compat cloudflare --help",
            vec!["[default: [::]:8080]", "[default: 123]", "[default: 100]"],
            "[default: 30s]",
        ),
    ] {
        let words = line.split(' ').map(std::ffi::OsString::from);
        let help = match parse(words) {
            Err(UsageError::Clap(error)) => {
                error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
            }
            other => panic!("{line}: {other:?}"),
        };
        for default in own {
            assert!(help.contains(default), "{line}: no {default} in {help}");
        }
        assert!(!help.contains(others), "{line}: {others}");
    }
}
