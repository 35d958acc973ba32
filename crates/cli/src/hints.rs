//! Hints of the policy and the engines, in the options of the command that was typed.

use truepeer_policy::Refusal;
use truepeer_session::Hint;

use crate::in_keys::in_keys;
use crate::table::{self, Commands};

/// For `truepeer proxy`.
pub fn of_proxy(hint: &Hint) -> Option<String> {
    advice(table::PROXY, hint)
}

/// For `truepeer https`.
pub fn of_https(hint: &Hint) -> Option<String> {
    advice(table::HTTPS, hint)
}

/// For `truepeer serve`: keys of the file.
pub fn of_file(hint: &Hint) -> Option<String> {
    of_proxy(hint).or_else(|| of_https(hint)).map(|text| in_keys(&text))
}

/// For `truepeer run`.
pub fn of_run(hint: &Hint) -> Option<String> {
    advice(table::RUN, hint)
}

/// The first text of which the command has all options.
fn advice(command: Commands, hint: &Hint) -> Option<String> {
    let texts = match hint {
        Hint::Refusal(refusal) => of_refusal(refusal),
        other => of_engine(other).iter().map(|&text| text.to_owned()).collect(),
    };
    texts.into_iter().find(|text| options(text).all(|name| table::find(command, name).is_some()))
}

/// The options that a text names, by their long names.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter_map(|word| match word {
        "-4" => Some("ipv4"),
        "-6" => Some("ipv6"),
        word => word.strip_prefix("--"),
    })
}

fn of_refusal(refusal: &Refusal) -> Vec<String> {
    let one = |text: String| vec![text];
    match refusal {
        Refusal::SenderNotAllowed { sender } => {
            one(format!("if it is your load balancer, add --allow {}", sender.ip()))
        }
        Refusal::HeaderMissing { sender } => {
            one(format!("if this sender is itself the client, add --header {}=forbid", sender.ip()))
        }
        Refusal::HeaderForbidden { sender } => one(format!("or add --header {}=require", sender.ip())),
        Refusal::ClaimRefused { client, .. } => {
            one(format!("if it is right, add --allow-claims {}", client.ip()))
        }
        Refusal::ClientDenied { .. } => one("--deny-clients lists it".to_owned()),
        Refusal::ClientBanned { client, .. } => one(format!("truepeer unban {} ends it", client.ip())),
        Refusal::ClientLinkLocal { .. } => {
            ["or use --send-proxy v2", "or use --client-address proxy"].map(str::to_owned).to_vec()
        }
        Refusal::NoBackend { client } => {
            let option = if client.ip().is_ipv4() { "-4" } else { "-6" };
            one(format!("if they should be served, add {option} HOST:PORT"))
        }
        Refusal::BackendIsIpv6 { .. } => {
            one("give IPv4 clients an IPv4 backend with -4, or map them with --nat64-prefix 64:ff9b::/96"
                .to_owned())
        }
        Refusal::BackendIsIpv4 { .. } => {
            one("give IPv6 clients an IPv6 backend with -6, or map them with --pseudo-ipv4".to_owned())
        }
        Refusal::DestinationNotAllowed { destination, .. } => {
            one(format!("if it should be, add --dynamic-allow {}", destination.get()))
        }
        Refusal::HeaderUnproved { .. }
        | Refusal::ClientIsBackend { .. }
        | Refusal::DestinationUnusable { .. }
        | Refusal::DestinationLoops { .. } => Vec::new(),
    }
}

fn of_engine(hint: &Hint) -> &'static [&'static str] {
    match hint {
        Hint::Refusal(_) => &[],
        Hint::HeaderTooLong => &["--header-max raises it"],
        Hint::SpecialClaimAllowed => &["--allow-claims lets it pass"],
        Hint::TupleInUse => &["--on-conflict ephemeral takes another port"],
        Hint::PortHeld => &["--on-conflict ephemeral takes another port"],
        Hint::PortReplaced => &["--on-conflict refuse ends such sessions instead"],
        Hint::Dialect => &["does --udp-dialect match the sender?"],
        Hint::FlowWithoutHeader => {
            &["with --udp-dialect first and standalone only a flow's first datagram has one"]
        }
        Hint::FlowForgotten => &["raise --close-after to just below the sender's own time-out"],
        Hint::FlowEvicted => &["raise --max-flows or the limit of open files (LimitNOFILE=, ulimit -n)"],
        Hint::MaxPerClient => &["--max-per-client sets how many"],
        Hint::MinRate => &["--min-rate sets how slow a client may be"],
        Hint::MaxBody => &["--max-body sets how long"],
        Hint::MaxHead => &["--max-head raises it"],
        Hint::MaxFields => &["--max-fields raises it"],
        Hint::Methods => &["--methods lists them"],
        Hint::HeaderBeforeTls => &["is --header require missing?"],
        Hint::ClientAuthority => &["--client-ca names the authorities of clients"],
        Hint::OriginAuthority => &["--origin-ca names the authorities of backends"],
        Hint::Suites => &["--tls-suite chooses them"],
        Hint::MinVersion => &["--tls-min names the oldest"],
        Hint::UnknownHost => &["--unknown-host first gives such clients to the first site"],
        Hint::OriginProtocols => {
            &["--origin-alpn names them", "--origin-protocol auto offers HTTP/2 and HTTP/1.1"]
        }
        Hint::OriginHttp2 => &["--origin-protocol auto speaks HTTP/1.1 with it"],
        Hint::OriginHttp1 => &["--origin-protocol h2 speaks HTTP/2 with it, but WebSockets need HTTP/1.1"],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use truepeer_policy::{BackendAddr, ClientAddr, SenderAddr, SpecialRange};

    use super::*;

    fn all() -> Vec<Hint> {
        let address = "192.0.2.1:80".parse().unwrap();
        let (sender, client) = (SenderAddr::new(address), ClientAddr::new(address));
        let backend = BackendAddr::new(address);
        let refusals = [
            Refusal::SenderNotAllowed { sender },
            Refusal::HeaderMissing { sender },
            Refusal::HeaderForbidden { sender },
            Refusal::ClientDenied { sender, client },
            Refusal::ClientLinkLocal { client },
            Refusal::NoBackend { client },
            Refusal::BackendIsIpv6 { client, backend },
            Refusal::BackendIsIpv4 { client, backend },
            Refusal::DestinationNotAllowed { client, destination: backend },
        ];
        let engines = [
            Hint::HeaderTooLong,
            Hint::SpecialClaimAllowed,
            Hint::TupleInUse,
            Hint::PortHeld,
            Hint::PortReplaced,
            Hint::Dialect,
            Hint::FlowWithoutHeader,
            Hint::FlowForgotten,
            Hint::FlowEvicted,
            Hint::MaxPerClient,
            Hint::MinRate,
            Hint::MaxBody,
            Hint::MaxHead,
            Hint::MaxFields,
            Hint::Methods,
            Hint::HeaderBeforeTls,
            Hint::ClientAuthority,
            Hint::OriginAuthority,
            Hint::Suites,
            Hint::MinVersion,
            Hint::UnknownHost,
            Hint::OriginProtocols,
            Hint::OriginHttp2,
            Hint::OriginHttp1,
        ];
        refusals.map(Hint::Refusal).into_iter().chain(engines).collect()
    }

    #[test]
    fn each_command_is_told_of_options_that_it_has() {
        let mut command = crate::command();
        command.build();
        for (name, of) in
            [("proxy", of_proxy as fn(&Hint) -> Option<String>), ("https", of_https), ("run", of_run)]
        {
            let command = command.find_subcommand(name).unwrap();
            for text in all().iter().filter_map(of) {
                let named: Vec<_> = options(&text).collect();
                assert!(!named.is_empty(), "{text}");
                for option in named {
                    let has = command.get_arguments().any(|arg| arg.get_long() == Some(option));
                    assert!(has, "{name}: there is no --{option}: {text}");
                }
            }
        }
    }

    #[test]
    fn the_advice_can_be_typed_as_it_stands() {
        let address = "192.0.2.1:80".parse().unwrap();
        let (sender, client) = (SenderAddr::new(address), ClientAddr::new(address));
        let backend = BackendAddr::new(address);
        for (refusal, typed) in [
            (
                Refusal::ClaimRefused { sender, client, range: SpecialRange::Loopback },
                "add --allow-claims 192.0.2.1",
            ),
            (Refusal::BackendIsIpv6 { client, backend }, "--nat64-prefix 64:ff9b::/96"),
            (Refusal::BackendIsIpv4 { client, backend }, "--pseudo-ipv4"),
            (
                Refusal::DestinationNotAllowed { client, destination: backend },
                "add --dynamic-allow 192.0.2.1:80",
            ),
        ] {
            let text = of_proxy(&Hint::Refusal(refusal)).unwrap();
            assert!(text.ends_with(typed), "{text}");
        }
    }

    #[test]
    fn in_a_file_the_advice_is_a_key() {
        let address = "192.0.2.1:80".parse().unwrap();
        let sender = SenderAddr::new(address);
        let refused = Hint::Refusal(Refusal::SenderNotAllowed { sender });
        assert_eq!(of_file(&refused).unwrap(), "if it is your load balancer, add allow = \"192.0.2.1\"");
        for hint in all() {
            let text = of_file(&hint).unwrap_or_default();
            assert!(options(&text).next().is_none(), "{text}");
        }
    }

    #[test]
    fn every_hint_is_put_into_words_by_some_command() {
        for hint in all() {
            assert!(of_proxy(&hint).or_else(|| of_https(&hint)).is_some(), "{hint:?}");
        }
    }

    #[test]
    fn a_command_without_the_option_gets_another_advice_or_none() {
        let client = ClientAddr::new("[fe80::1]:80".parse().unwrap());
        let link_local = Hint::Refusal(Refusal::ClientLinkLocal { client });
        assert_eq!(of_https(&link_local).unwrap(), "or use --client-address proxy");
        assert_eq!(of_run(&link_local), None);
        assert_eq!(of_https(&Hint::Refusal(Refusal::NoBackend { client })), None);
        assert_eq!(of_run(&Hint::TupleInUse), None);
    }

    /// Options have their names in this crate. The others are used by several commands, whose options differ.
    #[test]
    fn no_other_crate_names_an_option() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut found = Vec::new();
        for name in ["policy", "proto", "sys", "session", "relay", "http", "https", "handover", "bpf"] {
            walk(&crates.join(name).join("src"), &mut |path, text| {
                let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                found.extend(
                    code.filter(|line| names_option(line)).map(|line| format!("{}: {line}", path.display())),
                );
            });
        }
        assert!(found.is_empty(), "{found:#?}");
    }

    /// Within a string: two dashes and a letter, not after a letter (`a--b`) and not as in `-----BEGIN`.
    fn names_option(line: &str) -> bool {
        let literals = line.split('"').skip(1).step_by(2);
        literals.into_iter().any(|literal| {
            literal.match_indices("--").any(|(at, _)| {
                let before = literal[..at].chars().next_back();
                let after = literal[at + 2..].chars().next();
                before.is_none_or(|c| " (`;:,".contains(c)) && after.is_some_and(|c| c.is_ascii_lowercase())
            })
        })
    }

    #[test]
    fn a_named_option_is_found() {
        assert!(names_option(r#"#[error("no header; --header-max raises it")]"#));
        assert!(names_option(r#"x => "--origin-ca","#));
        assert!(!names_option(r#""a line -----BEGIN CERTIFICATE----- is expected""#));
        assert!(!names_option("let x = y; // --allow"));
    }

    fn walk(dir: &Path, see: &mut impl FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, see);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                see(&path, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }
}
