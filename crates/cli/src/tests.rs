use std::time::Duration;

use truepeer_policy::{Dialect, HeaderRule, Source};

use super::*;
use truepeer_config::plan::{EntryConfig, ListenerConfig, run_settings};
use truepeer_config::spec::{LogFormat, Protocol, RoutesMode, SendProxy, Stack, Verbosity};

fn invoke(line: &str) -> Result<Invocation, UsageError> {
    parse(line.split_whitespace().map(OsString::from))
}

fn config(line: &str) -> Config {
    match invoke(line) {
        Ok(Invocation::Proxy(config, _)) => *config,
        other => panic!("{line}: {other:?}"),
    }
}

fn listener(line: &str) -> ListenerConfig {
    config(line).listeners.remove(0)
}

fn error(line: &str) -> String {
    match invoke(line) {
        Ok(invocation) => panic!("{line}: {invocation:?}"),
        Err(UsageError::Clap(error)) => error.to_string(),
        Err(error) => format!("{:#}", anyhow::Error::new(error)),
    }
}

#[test]
fn without_options_the_defaults_hold() {
    assert_eq!(config("truepeer proxy"), Config::default());
    let listener = listener("truepeer proxy");
    assert_eq!(listener.bind.to_string(), "0.0.0.0:8443");
    assert_eq!(listener.backends.ipv4.as_ref().unwrap().to_string(), "127.0.0.1:443");
    assert_eq!(listener.backends.ipv6.as_ref().unwrap().to_string(), "[::1]:443");
    assert_eq!(listener.senders.allow.to_string(), "127.0.0.0/8 ::1/128");
}

/// Also towards backends alone.
#[test]
fn the_time_of_a_handshake_counts_wherever_there_is_one() {
    for options in ["--origin-tls", "--tls-cert a.pem", "--origin-tls --tls-cert a.pem"] {
        let listener = listener(&format!("truepeer proxy {options} --tls-timeout 3s"));
        assert_eq!(listener.tls_timeout, Duration::from_secs(3), "{options}");
    }
    let error = error("truepeer proxy --tls-timeout 3s");
    assert_eq!(error, "--tls-timeout: expected --tls-cert FILE with it");
}

#[test]
fn the_help_tells_the_defaults() {
    let help = error("truepeer proxy --help").split_whitespace().collect::<Vec<_>>().join(" ");
    for default in [
        "0.0.0.0:8443",
        "tcp",
        "1",
        "one for each core",
        "127.0.0.1:443",
        "[::1]:443",
        "5s",
        "loopback",
        "require",
        "16KiB",
        "none",
        "0",
        "ephemeral",
        "60",
        "auto if permitted",
        "123",
        "text",
    ] {
        assert!(help.contains(&format!("[default: {default}")), "{default}");
    }
}

#[test]
fn help_is_a_command_too() {
    assert_eq!(error("truepeer help"), error("truepeer --help"));
    assert_eq!(error("truepeer help attach"), error("truepeer attach --help"));
}

#[test]
fn the_examples_of_the_help_hold() {
    let examples: Vec<_> =
        proxy::PAGE.examples.iter().map(|example| example.lines.replace("\\\n", " ")).collect();
    assert_eq!(examples.len(), 7);
    for example in &examples {
        match config(example).check() {
            // The reader's own.
            Err(error) if example.contains("--tls-cert site.pem") => {
                assert!(error.to_string().contains("--tls-cert site.pem: "), "{error}");
            }
            checked => drop(checked.expect(example)),
        }
    }
}

#[test]
fn every_option_reaches_the_configuration() {
    let one = |options: &str| listener(&format!("truepeer proxy {options}"));
    assert_eq!(one("-l [::1]:1").bind.to_string(), "[::1]:1");
    assert_eq!(one("--listen-addr 127.0.0.1:1").bind, one("--listen 127.0.0.1:1").bind);
    assert_eq!(one("-4 192.0.2.1:1").backends.ipv4.as_ref().unwrap().to_string(), "192.0.2.1:1");
    assert_eq!(one("--ipv6 [2001:db8::1]:1").backends.ipv6.as_ref().unwrap().to_string(), "[2001:db8::1]:1");
    let alone = |options: &str| {
        let backends = one(options).backends;
        let text =
            |backend: Option<truepeer_config::spec::HostPort>| backend.map(|backend| backend.to_string());
        (text(backends.ipv4), text(backends.ipv6))
    };
    assert_eq!(alone("-l :443 -4 198.51.100.9:8443"), (Some("198.51.100.9:8443".to_owned()), None));
    assert_eq!(alone("-6 [2001:db8::1]:1"), (None, Some("[2001:db8::1]:1".to_owned())));
    assert_eq!(one("-p TCP").protocol, one("--protocol tcp").protocol);
    assert_eq!(one("--listeners 4").sockets.get(), 4);
    assert!(one("--listen-transparent").transparent);
    assert_eq!((one("-m 5").mark, one("--mark 0x10").mark), (5, 16));
    assert_eq!(one("--header-timeout 500ms").header.timeout, Duration::from_millis(500));
    assert_eq!(one("--header-max 4KiB").header.max_bytes, 4096);
    assert_eq!(one("--header-max 65551").header.max_bytes, 16 + 65535);
    assert_eq!(one("--connect-timeout 3").timeouts.connect, Duration::from_secs(3));
    assert_eq!(one("--idle-timeout 1h").timeouts.idle, Some(Duration::from_secs(3600)));
    assert_eq!(one("--idle-timeout none").timeouts.idle, None);
    assert_eq!(one("--idle-timeout 0").timeouts.idle, None);
    assert_eq!(one("-c 28").udp.close_after, Some(Duration::from_secs(28)));
    assert_eq!(one("-p udp").protocol, Protocol::Udp);
    assert_eq!(one("-p udp --udp-dialect standalone").udp.dialect, Dialect::Standalone);
    assert_eq!(one("-p udp --send-proxy spp").send_proxy, Some(SendProxy::Spp));
    assert_eq!(one("--on-conflict refuse").on_conflict.to_string(), "refuse");
    assert_eq!(one("--nat64-prefix 64:ff9b::/96").nat64_prefix.unwrap().to_string(), "64:ff9b::/96");
    assert!(one("--pseudo-ipv4").pseudo_ipv4);
    assert_eq!(one("--send-proxy v1").send_proxy, Some(SendProxy::V1));
    assert_eq!(
        one("--allow-claims loopback --allow-claims 0.0.0.0").claims.allow.to_string(),
        "0.0.0.0/32 127.0.0.0/8 ::1/128"
    );
    let claims =
        one("--deny-clients a --deny-clients 192.0.2.3 --deny-clients 2001:db8::/32 --deny-clients b").claims;
    assert_eq!(
        (claims.deny.to_string(), claims.deny_files.len()),
        ("192.0.2.3/32 2001:db8::/32".to_owned(), 2)
    );
    assert_eq!(config("truepeer proxy --workers 3").workers.unwrap().get(), 3);
}

#[test]
fn several_listeners_share_the_other_options() {
    let config = config("truepeer proxy -l 127.0.0.1:1 -m 7 --listen 127.0.0.1:2 --listen-addr [::1]:3");
    let binds: Vec<_> = config.listeners.iter().map(|listener| listener.bind.to_string()).collect();
    assert_eq!(binds, ["127.0.0.1:1", "127.0.0.1:2", "[::1]:3"]);
    assert!(config.listeners.iter().all(|listener| listener.mark == 7));
}

#[test]
fn an_address_may_carry_both_protocols() {
    let carried = |line: &str| {
        let listeners = config(line).listeners;
        listeners.iter().map(|one| (one.bind.port(), one.protocol)).collect::<Vec<_>>()
    };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    assert_eq!(
        carried("truepeer proxy -l :1 -l :2 -p both --udp-dialect first"),
        [(1, tcp), (1, udp), (2, tcp), (2, udp)]
    );
    for (options, expected) in [
        ("--tls-cert Cargo.toml", "--tls-cert: TLS is for TCP only"),
        ("--send-proxy v1", "--send-proxy v1: version 1"),
        ("--send-proxy spp", "--send-proxy spp: Simple Proxy Protocol is for UDP only"),
    ] {
        let said = config(&format!("truepeer proxy -p both {options}")).check().unwrap_err().to_string();
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn a_list_of_senders_takes_the_place_of_the_default() {
    let senders = |options: &str| listener(&format!("truepeer proxy {options}")).senders;
    assert_eq!(senders("--allow 10.0.0.0/8 --allow ::1").allow.to_string(), "10.0.0.0/8 ::1/128");
    let file = senders("-a /etc/a --allow ./b");
    assert!(file.allow.is_empty());
    let files = file.allow_files.iter().map(|file| format!("{} {}", file.place, file.path.display()));
    assert_eq!(files.collect::<Vec<_>>(), ["--allow ./b", "--allowed-subnets /etc/a"]);
    let rules = senders("--header 10.0.0.0/8=optional --header forbid --header private=require");
    assert_eq!((rules.header.to_string(), rules.rules.len()), ("forbid".to_owned(), 2));
}

#[test]
fn a_dynamic_destination_must_be_allowed() {
    let dynamic = |line: &str| listener(line).dynamic.unwrap().allow.to_string();
    let line = "truepeer proxy --dynamic-destination --dynamic-allow 10.0.0.0/8:80 --dynamic-allow [2001:db8::/32]:1-9,443";
    assert_eq!(dynamic(line), "10.0.0.0/8:80 [2001:db8::/32]:1-9,443");
    assert_eq!(dynamic("go-mmproxy -dynamic-destination"), "0.0.0.0/0 ::/0");
    assert!(
        error("truepeer proxy --dynamic-destination")
            .starts_with("--dynamic-destination: expected --dynamic-allow")
    );
    assert!(
        error("truepeer proxy --dynamic-allow any")
            .starts_with("--dynamic-allow: expected --dynamic-destination")
    );
}

#[test]
fn the_log_has_levels() {
    for (options, verbosity) in [
        ("", Verbosity::Lifecycle),
        ("-v 0", Verbosity::Lifecycle),
        ("-v 1", Verbosity::Sessions),
        ("-v2", Verbosity::States),
        ("-v=2", Verbosity::States),
        ("-vv", Verbosity::States),
        ("-v", Verbosity::Sessions),
        ("--verbose", Verbosity::Sessions),
        ("--verbose -v 2", Verbosity::States),
        ("--quiet", Verbosity::Quiet),
    ] {
        assert_eq!(config(&format!("truepeer proxy {options}")).log.verbosity, verbosity, "{options}");
    }
    assert_eq!(config("truepeer proxy --log-format json").log.format, Some(LogFormat::Json));
    assert_eq!(config("truepeer proxy").log.format, None);
}

#[test]
fn routes_and_doctor_have_their_options() {
    assert!(matches!(
        invoke("truepeer routes show -table 7 --print"),
        Ok(Invocation::Routes(RoutesArgs { print: true, .. }))
    ));
    assert!(matches!(
        invoke("truepeer doctor -4 127.0.0.1:1 --json"),
        Ok(Invocation::Doctor(DoctorArgs { json: true, .. }))
    ));
    assert_eq!(config("truepeer proxy --routes manual --table 9").routes.mode, RoutesMode::Manual);
    assert_eq!(config("truepeer proxy --routes auto").routes.mode, RoutesMode::Auto);
    assert_eq!(config("truepeer proxy").routes.mode, RoutesMode::AutoIfAllowed);
}

/// Each line is wrong; the error names the option and what was expected.
#[test]
fn errors_name_the_option_and_what_was_expected() {
    for (options, option, expected) in [
        ("-l 8443", "--listen", "expected [ADDR]:PORT"),
        ("-l nobody.invalid:1", "--listen", "can't resolve the host name"),
        ("-4 80", "--ipv4", "expected HOST:PORT"),
        ("-6 ::1:443", "--ipv6", "expected HOST:PORT"),
        (
            "--udp-dialect guess",
            "--udp-dialect",
            "expected every (dnsdist, udppp), first (frp since 0.67, NGINX), standalone (Cloudflare Spectrum) or spp (Simple Proxy Protocol)",
        ),
        ("--max-flows 0", "--max-flows", "expected a number from 1"),
        ("-p sctp", "--protocol", "expected tcp, udp or both"),
        ("--listeners 0", "--listeners", "expected a number from 1"),
        ("--listeners 65536", "--listeners", "expected a number from 1"),
        ("--workers x", "--workers", "expected a number from 1"),
        ("--mark 4294967296", "--mark", "expected a number from 0 to 4294967295"),
        ("--mark 0x1/0x1", "--mark", "expected a number from 0"),
        ("--table 254", "--table", "not 253 to 255"),
        ("--table 0", "--table", "from 1"),
        ("--routes off", "--routes", "expected auto"),
        ("--allow lan", "--allow", "expected loopback, private, any"),
        ("--allow-claims x", "--allow-claims", "expected loopback, private, any"),
        ("--header maybe", "--header", "expected require, optional or forbid"),
        ("--header 10.0.0.0/8=maybe", "--header", "PREFIX=RULE"),
        ("--header forbid --header require", "--header", "expected one rule for all senders"),
        ("--header-timeout 5d", "--header-timeout", "expected seconds"),
        ("--header-timeout 0", "--header-timeout", "expected more than 0"),
        ("--header-max 106", "--header-max", "expected 107 to 65551 bytes"),
        ("--header-max 64KiB8", "--header-max", "expected 107 to 65551 bytes"),
        ("--connect-timeout soon", "--connect-timeout", "expected seconds"),
        ("--idle-timeout never", "--idle-timeout", "or none"),
        ("-c x", "--close-after", "expected seconds"),
        ("--on-conflict retry", "--on-conflict", "expected ephemeral or refuse"),
        ("--nat64-prefix 10.0.0.0/8", "--nat64-prefix", "such as 64:ff9b::/96"),
        ("--send-proxy v3", "--send-proxy", "expected v1, v2 or spp"),
        ("--dynamic-allow 10.0.0.0/8:http", "--dynamic-allow", "expected N, N-M"),
        ("--dynamic-allow lan:80", "--dynamic-allow", "expected loopback, private, any"),
        ("-v 3", "-v", "expected 0 (start, stop, warnings)"),
        ("--quiet --verbose", "--quiet", "expected no -v"),
        ("--log-format xml", "--log-format", "expected text or json"),
        ("--deny-clients", "--deny-clients", "a value is required"),
        ("--deny-clients 192.0.2.300", "--deny-clients", "expected loopback, private, any"),
        ("-m 1 -m 2", "--mark", "cannot be used multiple times"),
        ("--no-such-option", "--no-such-option", "expected --listen, --ipv4"),
        ("backend:80", "backend:80", "type: truepeer proxy -l backend:80"),
    ] {
        let said = error(&format!("truepeer proxy {options}"));
        assert!(said.contains(option) && said.contains(expected), "{options}: {said}");
    }
    assert!(
        error("truepeer --compat nginx proxy")
            .contains("--compat nginx: expected go-mmproxy, mmproxy-rs or cloudflare")
    );
    assert!(error("truepeer proxy --compat").contains("expected go-mmproxy"));
}

#[test]
fn https_is_a_listener_that_takes_tls_off_and_knows_one_origin() {
    let config = |options: &str| match invoke(&format!("truepeer https --tls-cert c.pem {options}")) {
        Ok(Invocation::Https(config, _)) => config.listeners[0].clone(),
        other => panic!("{options}: {other:?}"),
    };
    let plain = config("--origin http://127.0.0.1:8080");
    assert_eq!(plain.backends.ipv6.as_ref().unwrap().to_string(), "127.0.0.1:8080");
    assert!(plain.senders.allow.has_everybody() && plain.senders.header == HeaderRule::Forbid);
    assert!(
        plain.source() == Source::Any
            && plain.send_proxy.is_none()
            && plain.origin_tls.is_none()
            && plain.tls.is_some()
    );
    let all = config(
        "--origin https://app.internal --methods GET,PUT --client-address transparent --header require",
    );
    assert!(all.source() == Source::Client && all.send_proxy.is_none() && !all.senders.allow.has_everybody());
    assert_eq!(all.origin_tls.map(|tls| tls.name).as_deref(), Some("app.internal"));
    assert_eq!(all.http.map(|http| http.methods), Some(vec!["GET".to_owned(), "PUT".to_owned()]));
}

#[test]
fn https_may_stand_on_another_stack() {
    let stack = |options: &str| match invoke(&format!(
        "truepeer https --tls-cert c.pem --origin http://a:1 {options}"
    )) {
        Ok(Invocation::Https(_, stack)) => stack,
        other => panic!("{options}: {other:?}"),
    };
    assert_eq!(stack("").stack, None);
    let workers = |options: &str| match invoke(&format!(
        "truepeer https --tls-cert c.pem --origin http://a:1 {options}"
    )) {
        Ok(Invocation::Https(config, _)) => config.workers.map(std::num::NonZeroUsize::get),
        other => panic!("{options}: {other:?}"),
    };
    assert_eq!(workers(""), None);
    assert_eq!(workers("--stack vpp"), Some(1));
    assert_eq!(workers("--stack vpp --workers 2"), Some(2));
    let routes = |options: &str| match invoke(&format!(
        "truepeer https --tls-cert c.pem --origin http://a:1 --client-address transparent {options}"
    )) {
        Ok(Invocation::Https(config, _)) => Ok(config.routes.mode),
        Err(error) => Err(error.to_string()),
        other => panic!("{options}: {other:?}"),
    };
    assert_eq!(routes(""), Ok(RoutesMode::AutoIfAllowed));
    assert_eq!(routes("--stack vpp"), Ok(RoutesMode::Manual));
    assert!(routes("--stack vpp --routes auto").unwrap_err().contains("via local"));
    let vpp = stack("--stack vpp --vpp-namespace client");
    assert_eq!((vpp.stack, vpp.vpp_namespace.as_deref()), (Some(Stack::Vpp), Some("client")));
}

#[test]
fn https_says_what_it_lacks() {
    for (options, expected) in [
        ("--origin http://a", "--tls-cert FILE: expected"),
        ("--tls-cert c.pem", "--origin"),
        ("--tls-cert c.pem --origin a:80", "https://HOST"),
        ("--tls-cert c.pem --tls-key a --tls-key b --origin http://a", "--tls-key: expected one for each"),
        (
            "--tls-cert c.pem --origin http://a --origin-insecure",
            "--origin-insecure: expected --origin https://",
        ),
        ("--tls-cert c.pem --origin http://a --methods get", "upper case"),
        ("--tls-cert c.pem --origin http://a --client-address no", "forwarded, transparent or proxy"),
    ] {
        let said = error(&format!("truepeer https {options}"));
        assert!(said.contains(expected), "{options}: {said}");
    }
}

fn run(line: &str) -> RunArgs {
    match invoke(line) {
        Ok(Invocation::Run(args)) => *args,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn what_comes_after_the_dashes_is_the_command_as_it_stands() {
    let args = run("truepeer run -port 80 --allow 10.0.0.0/8 -v -- nginx -port --allow -g x");
    assert_eq!(args.how.command, ["nginx", "-port", "--allow", "-g", "x"]);
    let (settings, _) = run_settings(&args).unwrap();
    assert_eq!(settings.listeners.ports, [80]);
    assert_eq!(settings.allow.to_string(), "10.0.0.0/8");
    assert!(settings.verbose);
    assert!(error("truepeer run").contains("COMMAND"));
}

/// As env and nice do: the first word that is no option, nor an option's value, begins the command.
#[test]
fn a_command_needs_no_dashes_before_it() {
    for (line, command) in [
        ("run nginx", &["nginx"][..]),
        ("run --allow 10.0.0.0/8 -v nginx -port --allow -g x", &["nginx", "-port", "--allow", "-g", "x"]),
        (
            "run -allow=10.0.0.0/8 -v python3 -m http.server --help",
            &["python3", "-m", "http.server", "--help"],
        ),
        ("run --port 80 nginx -- -v", &["nginx", "--", "-v"]),
        ("run --port 80 -- -v", &["-v"]),
    ] {
        let args = run(&format!("truepeer {line}"));
        assert_eq!(args.how.command, command, "{line}");
    }
    assert!(error("truepeer run --alow 10.0.0.0/8 nginx").contains("--alow: not a word"));
    let connect = invoke("truepeer connect --from 203.0.113.7:5000 curl -v http://a").unwrap();
    let Invocation::Connect(args) = connect else { panic!("{connect:?}") };
    assert_eq!(args.how.command, ["curl", "-v", "http://a"]);
}

#[test]
fn run_has_the_rules_of_proxy() {
    let (settings, _) = run_settings(&run("truepeer run -- x")).unwrap();
    let listener = ListenerConfig::default();
    assert_eq!(settings.allow, listener.senders.allow);
    assert_eq!(settings.header, listener.senders.header);
    assert_eq!(settings.header_times.timeout, listener.header.timeout);
    assert_eq!(settings.header_times.wait, listener.header.wait);
    let line = "truepeer run --header forbid --header 10.0.0.0/8=optional --versions 2 --listen [::1]:80 --destination header -- x";
    let (settings, _) = run_settings(&run(line)).unwrap();
    let read: truepeer_handover::RunSettings = settings.to_string().parse().unwrap();
    assert_eq!(read.to_string(), settings.to_string());
    assert_eq!(read.exceptions.len(), 1);
    assert_eq!(read.listeners.addresses.len(), 1);
    let refused = run_settings(&run("truepeer run --header optional --allow any -- x")).unwrap_err();
    assert!(refused.to_string().starts_with("--header optional"));
}

#[test]
fn run_says_what_has_no_effect() {
    let warnings = |options: &str| run_settings(&run(&format!("truepeer run {options} -- x"))).unwrap().1;
    let of_headers =
        "--versions 1 --header-timeout 5s --header-max 16KiB --destination header --allow-claims loopback";
    let said = warnings(&format!("--header forbid {of_headers}"));
    for option in ["--versions", "--header-timeout", "--header-max", "--destination header", "--allow-claims"]
    {
        let expected = format!("{option} has no effect: no sender's header is taken (--header forbid)");
        assert!(said.contains(&expected), "{option}: {said:?}");
    }
    assert_eq!(warnings("--header forbid"), [""; 0]);
    let of_some = warnings("--header forbid --header 10.0.0.0/8=require --versions 1 --header-timeout 9s");
    assert_eq!(of_some, [""; 0], "it has: for some");
    assert_eq!(warnings("--versions 1 --header-max 1KiB"), [""; 0]);
}

#[test]
fn a_container_may_have_the_name_of_a_protocol() {
    let invoked = invoke("truepeer attach --container udp --port 53/udp --allow 10.0.0.7");
    assert!(matches!(invoked, Ok(Invocation::Attach(_))));
}

#[test]
fn connect_says_whom_to_name_and_where() {
    let Ok(Invocation::Connect(args)) =
        invoke("truepeer connect --from 203.0.113.7:5000 --header v1 --to 10.0.0.0/8:443 -- curl -v x")
    else {
        panic!("connect")
    };
    let sending = truepeer_config::plan::connect_settings(&args).unwrap();
    assert_eq!(sending.from, "203.0.113.7:5000".parse().ok());
    assert!(sending.is_told("10.1.1.1:443".parse().unwrap()));
    assert!(!sending.is_told("10.1.1.1:80".parse().unwrap()));
    assert!(error("truepeer connect --from nowhere -- x").contains("--from"));
}

#[test]
fn a_certificate_makes_clients_speak_tls_and_headers_unlooked_for() {
    let one = listener(
        "truepeer proxy --tls-cert a.pem --tls-key a.key --tls-cert b.pem --tls-key b.key --tls-min 1.3",
    );
    let tls = one.tls.unwrap();
    assert_eq!(tls.certs.len(), 2);
    assert_eq!(tls.certs[1].key.as_deref(), Some(std::path::Path::new("b.key")));
    assert_eq!(one.senders.header, HeaderRule::Forbid);
    assert_eq!(
        listener("truepeer proxy --tls-cert a.pem --header require").senders.header,
        HeaderRule::Require
    );
    assert_eq!(listener("truepeer proxy --origin-tls").senders.header, HeaderRule::Require);
}

#[test]
fn a_backends_certificate_has_the_name_that_the_backend_is_given() {
    let name = |line: &str| listener(&format!("truepeer proxy {line}")).origin_tls.unwrap().name;
    assert_eq!(name("--origin-tls -4 localhost:443"), "localhost");
    assert_eq!(name("--origin-tls -4 127.0.0.1:443 -6 [::1]:443 --origin-name site.test"), "site.test");
}

#[test]
fn options_of_tls_that_lack_or_contradict_another_say_so() {
    for (line, expected) in [
        ("--tls-key a.key", "--tls-key: expected --tls-cert FILE with it"),
        ("--client-ca ca.pem", "--client-ca: expected --tls-cert FILE with it"),
        ("--tls-cert a --tls-cert b --tls-key a", "--tls-key: expected one for each --tls-cert (2), got 1"),
        ("--tls-cert a --client-cert optional", "--client-cert: expected --client-ca FILE with it"),
        ("--origin-insecure", "--origin-insecure: expected --origin-tls with it"),
        (
            "--origin-tls --origin-insecure --origin-ca ca",
            "--origin-insecure: expected no --origin-ca with it",
        ),
        ("--origin-tls -4 127.0.0.1:443 -6 [::1]:443", "--origin-tls: -4 and -6 name different hosts"),
        ("--tls-cert a --tls-suite RC4", "expected one of TLS_"),
        ("--tls-cert a --tls-min 1.1", "expected 1.2 or 1.3"),
    ] {
        let said = error(&format!("truepeer proxy {line}"));
        assert!(said.contains(expected), "{line}: {said}");
    }
}

#[test]
fn the_name_of_a_sender_stands_for_options() {
    let frp = listener("truepeer proxy -p udp --sender frp");
    assert_eq!((frp.udp.dialect, frp.senders.header), (Dialect::First, HeaderRule::Require));
    let own = listener("truepeer proxy -p udp --sender frp --udp-dialect every --header forbid");
    assert_eq!((own.udp.dialect, own.senders.header), (Dialect::Every, HeaderRule::Forbid));
    let nlb = listener("truepeer proxy --tls-cert a.pem --sender aws-nlb");
    let only_v2 = "Versions { v1: false, v2: true }";
    assert_eq!(nlb.senders.header, HeaderRule::Require);
    assert_eq!(format!("{:?}", nlb.senders.versions()), only_v2);
    let https = "truepeer https --tls-cert a.pem --origin http://a:1 --sender haproxy";
    let Ok(Invocation::Https(config, _)) = invoke(https) else { panic!("{https}") };
    let senders = &config.listeners[0].senders;
    assert_eq!(senders.header, HeaderRule::Require);
    assert!(!senders.allow.has_everybody(), "anybody could write a header");
    let notes = EntryConfig::Https(config).notes_of_senders();
    let [note] = &notes[..] else { panic!("{notes:?}") };
    assert!(note.starts_with("--sender haproxy means --header require (version 1 or 2); its health checks"));
    let (run, _) = run_settings(&run("truepeer run --sender aws-nlb -- x")).unwrap();
    assert_eq!(format!("{:?}", run.limits.versions), only_v2);
}

#[test]
fn a_backend_without_a_port_has_the_listeners() {
    let backend = |line: &str| listener(line).backends.ipv4.map(|backend| backend.to_string());
    assert_eq!(backend("truepeer proxy -l :25565 -4 192.0.2.1").as_deref(), Some("192.0.2.1:25565"));
    assert_eq!(
        backend("truepeer proxy -l :25577 -4 localhost --listen-transparent").as_deref(),
        Some("localhost:0")
    );
    assert_eq!(backend("truepeer proxy -l :1 -4 192.0.2.1:2").as_deref(), Some("192.0.2.1:2"));
}
