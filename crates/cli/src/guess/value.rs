//! Reads a value that an option refuses in other notations, and keeps those that the option's parser accepts.

use std::error::Error as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use clap::{Arg, ArgAction, Command, error::ErrorKind};

use super::address::{MOST_LISTENERS, addresses, ports, range};
use super::amount::{size, time};
use super::named::nearest;
use truepeer_policy::prefixes_meant;

/// The words that the option takes instead: one, or several for an option that may be repeated. `name` is the
/// option's long name, or the id of an argument without one.
pub(crate) fn meant(command: &Command, name: &str, typed: &str) -> Option<Vec<String>> {
    let is_repeatable = matches!(named(command, name)?.get_action(), ArgAction::Append);
    // attach knows no such rule.
    let is_other = |word: &str| word.ends_with("forbid") && command.get_name() == "attach";
    let takes = |word: &str| takes(command, name, word) && !is_other(word);
    let clean = typed.trim().trim_matches(|c| "\"'`“”„‘’".contains(c));
    let several: Vec<String> = match range(clean).filter(|_| name == "listen") {
        Some((host, ports)) if ports.len() <= MOST_LISTENERS => {
            ports.map(|port| format!("{host}:{port}")).collect()
        }
        _ => inner(clean).split(SEPARATORS).filter(|part| !part.is_empty()).map(str::to_owned).collect(),
    };
    let is_list = is_repeatable && several.len() > 1 && several.iter().all(|word| takes(word));
    let one = notations(clean, name).into_iter().find(|word| word != typed && takes(word));
    if let Some(one) = one.filter(|_| !(is_list && name == "listen")) {
        return Some(vec![one]);
    }
    // `preloud`, `10.0.0.7=optonal`
    let possible = named(command, name)?.get_possible_values();
    let expected = refusal(command, name, clean).unwrap_or_default();
    let expected = expected.split(|c: char| !(c.is_ascii_lowercase() || c == '-'));
    let (start, word) = clean.split_at(clean.rfind('=').map_or(0, |equals| equals + 1));
    let near = nearest(&word.to_lowercase(), possible.iter().map(|value| value.get_name()).chain(expected));
    let near = near.map(|near| format!("{start}{near}"));
    if let Some(near) = near.filter(|near| !is_list && word.len() > 3 && takes(near)) {
        return Some(vec![near]);
    }
    let for_all = several.iter().filter(|word| !word.contains('=')).count();
    match name {
        // Of several rules for everybody, optional has what the others allow.
        "header" if is_list && for_all > 1 => Some(vec!["optional".to_owned()]),
        "origin" if for_all > 1 => None,
        _ => is_list.then_some(several),
    }
}

fn named<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()) == name)
}

/// A value that the option takes: its default, or an example.
pub(crate) fn any_value(command: &Command, name: &str) -> Option<String> {
    let arg = named(command, name)?;
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let default = help.rsplit_once("[default: ").map_or("", |(_, default)| default.trim_end_matches(']'));
    // `127.0.0.1:443 if -6 is not given either`, but not `this one`
    let default =
        default.split(' ').next().filter(|word| word.contains(|c: char| c == '/' || c.is_numeric()));
    let form = arg.get_value_names()?.first()?.as_str();
    let words = form.split('|').filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    let examples = [("TIME", "5s"), ("SIZE", "16KiB"), ("N", "4"), ("PREFIX", "10.0.0.7")];
    let example = examples.into_iter().find(|(start, _)| form.split(['|', '[']).next() == Some(*start));
    let site = ["acme", "host"].contains(&name).then_some("www.site.example");
    let all = default.into_iter().chain(words).chain(example.map(|(_, example)| example)).chain(site);
    all.map(str::to_owned).find(|word| takes(command, name, word))
}

/// Whether the option or argument takes this value.
pub(crate) fn takes(command: &Command, name: &str, word: &str) -> bool {
    refusal(command, name, word).is_none()
}

/// The message of the option's parser if it refuses this value.
fn refusal(command: &Command, name: &str, word: &str) -> Option<String> {
    let is_option = named(command, name).is_some_and(|arg| arg.get_long().is_some());
    let word = if is_option { format!("--{name}={word}") } else { word.to_owned() };
    let alone = command.clone().no_binary_name(true).mut_args(|arg| arg.required(false));
    let alone = alone.args_override_self(true).subcommand_required(false);
    let refused = [ErrorKind::ValueValidation, ErrorKind::InvalidValue, ErrorKind::InvalidSubcommand];
    let error = { alone }.try_get_matches_from([word]).err()?;
    refused.contains(&error.kind()).then(|| error.source().map(ToString::to_string).unwrap_or_default())
}

const SEPARATORS: [char; 5] = [',', ';', ' ', '\t', '|'];

/// `[a, b]` without its brackets.
fn inner(text: &str) -> &str {
    let pairs = [('[', ']'), ('(', ')'), ('{', '}')];
    pairs
        .iter()
        .find_map(|&(open, close)| text.strip_prefix(open)?.strip_suffix(close))
        .unwrap_or(text)
        .trim()
}

/// Other notations, the likeliest first.
fn notations(text: &str, option: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let list = inner(text).split(SEPARATORS).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
    let mut all = vec![text.to_owned(), lower.replace('_', "-")];
    all.extend(prefixes_meant(text));
    all.push(list);
    let pair = ["->", "=>", " = ", ": "].iter().find_map(|between| text.split_once(between));
    all.extend(pair.map(|(left, right)| format!("{}={}", left.trim(), right.trim())));
    all.extend(text.strip_suffix(['/', ',', ';', '.', '-']).map(str::to_owned));
    match option {
        "allow" | "allow-claims" | "deny-clients" | "clients" => {
            all.extend(text.rsplit_once('@').map(|(_, host)| host.to_owned()));
            // `fe80::1%eth0`, `NAME=10.0.0.7`, `10.0.0.0/24/32`
            let (zone, named) = (text.split_once('%'), text.split_once('='));
            let twice = text.rsplit_once('/').filter(|(prefix, _)| prefix.contains('/'));
            let parts = [zone.map(|(ip, _)| ip), named.map(|(_, ip)| ip), twice.map(|(prefix, _)| prefix)];
            all.extend(parts.into_iter().flatten().map(str::to_owned));
            all.extend(Path::new(text).exists().then(|| format!("./{text}")));
        }
        // What a client has: any port of its own.
        "from" => all.extend(text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 5000).to_string())),
        // `10.0.0.7:optional`, `optional=10.0.0.7`
        "header" => all.extend(
            text.rsplit_once([':', '=', ' '])
                .into_iter()
                .flat_map(|(left, right)| [format!("{left}={right}"), format!("{right}={left}")]),
        ),
        _ => {}
    }
    all.extend(words(&lower, option).iter().map(|&word| word.to_owned()));
    all.extend(["file://", "file:", "unix://", "unix:", "@"].iter().find_map(|start| {
        let path = text.strip_prefix(start)?;
        Some(if path.contains('/') { path.to_owned() } else { format!("./{path}") })
    }));
    all.extend([time(&lower), size(&lower)].into_iter().flatten());
    all.extend(lower.strip_suffix('k').map(|thousands| format!("{thousands}000")));
    if option == "port" {
        all.extend(ports(&lower));
    }
    // `MATCH=URL`
    let (serves, url) = text.split_once('=').filter(|_| option == "origin").unwrap_or(("", text));
    let equals = if serves.is_empty() { "" } else { "=" };
    if option != "dev" {
        all.extend(addresses(url, option).iter().map(|address| format!("{serves}{equals}{address}")));
    }
    // `/=URL` is every request.
    all.extend((option == "origin" && ["/", "*"].contains(&serves)).then(|| url.to_owned()));
    // `proxy-v2`, `TLSv1.2`, `2`.
    let version = lower.trim_start_matches(|c: char| !c.is_ascii_digit()).trim_end_matches(".0");
    if ["send-proxy", "tls-min"].contains(&option) && (1..=3).contains(&version.len()) {
        all.extend([version.to_owned(), format!("v{version}")]);
    }
    all
}

/// Words for everybody, for this machine, for yes and for no.
fn words(lower: &str, option: &str) -> &'static [&'static str] {
    match lower {
        "x-forwarded-for" | "xff" | "header" | "x-real-ip" | "real-ip" if option == "client-address" => {
            &["forwarded"]
        }
        "proxy-protocol" | "haproxy" | "pp" if option == "client-address" => &["proxy"],
        "tproxy" | "spoof" | "client" if option == "client-address" => &["transparent"],
        "dns" | "v2" | "default" | "all" if option == "udp-dialect" => &["every"],
        "cloudflare" => &["spectrum", "standalone"],
        "aws" | "nlb" | "elb" if option == "sender" => &["aws-nlb"],
        "simple" | "simple-proxy-protocol" | "edgeone" if option == "udp-dialect" => &["spp"],
        "quic" | "http3" | "h3" | "dtls" | "udp4" | "udp6" if option == "protocol" => &["udp"],
        "http" | "https" | "http2" | "tls" | "ssl" | "tcp4" | "tcp6" if option == "protocol" => &["tcp"],
        "dns" | "sip" | "any" | "all" | "*" if option == "protocol" => &["both"],
        "error" | "err" | "crit" | "critical" | "fatal" | "quiet" | "warning" if option == "level" => {
            &["warn"]
        }
        "notice" | "normal" | "default" if option == "level" => &["info"],
        "trace" | "verbose" | "all" if option == "level" => &["debug"],
        "*" | "any" | "every" if option == "dev" => &["all"],
        "*" | "all" | "everyone" | "everybody" | "anyone" | "world" | "0/0" | "0.0.0.0" | "::" => &["any"],
        "localhost" | "local" | "lo" | "self" => &["loopback"],
        "lan" | "internal" | "rfc1918" | "intranet" => &["private"],
        "ld-preload" | "ld_preload" | "library" | "lib" if option == "via" => &["preload"],
        "seccomp" | "supervisor" | "user-notify" | "ptrace" if option == "via" => &["notify"],
        "true" | "yes" | "on" | "enabled" | "always" | "required" | "mandatory" => {
            &["require", "required", "auto", "v2"]
        }
        "false" | "no" | "off" | "disabled" | "never" | "infinite" | "unlimited" => {
            &["forbid", "none", "off", "manual"]
        }
        "udp,tcp" | "tcp,udp" | "tcp/udp" | "tcp+udp" | "udp/tcp" => &["both"],
        "maybe" | "both" | "any" | "allow" | "permit" => &["optional", "auto"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn values_in_another_notation_are_understood() {
        for (command, option, typed, expected) in [
            ("attach", "allow", "10.0.0.7 10.0.0.8", "10.0.0.7,10.0.0.8"),
            ("attach", "allow", "[10.0.0.7, 10.0.0.8]", "10.0.0.7,10.0.0.8"),
            ("attach", "allow", "10.0.0.0/255.255.252.0", "10.0.0.0/22"),
            ("attach", "allow", "10.0.0.0-10.0.0.255", "10.0.0.0/24"),
            ("attach", "allow", "10.0.0.1-10.0.0.9", "10.0.0.1,10.0.0.2/31,10.0.0.4/30,10.0.0.8/31"),
            ("attach", "allow", "0.0.0.0-255.255.255.255", "0.0.0.0/0"),
            ("attach", "allow", "10.0.*.*", "10.0.0.0/16"),
            ("attach", "allow", "192.168.1", "192.168.1.0/24"),
            ("attach", "allow", "10/8", "10.0.0.0/8"),
            ("attach", "allow", "10.0.0.7:5000", "10.0.0.7"),
            ("attach", "allow", "[2001:db8::7]:5000", "2001:db8::7"),
            ("attach", "allow", "http://10.0.0.7:80/", "10.0.0.7"),
            ("attach", "allow", "*", "any"),
            ("attach", "allow", "0.0.0.0", "any"),
            ("attach", "port", "80 443", "80,443"),
            ("attach", "port", ":443", "443"),
            ("attach", "port", "0.0.0.0:443", "443"),
            ("attach", "port", "udp/53", "53/udp"),
            ("attach", "port", "53udp", "53/udp"),
            ("attach", "port", "8000..8010", "8000-8010"),
            ("proxy", "protocol", "tcp,udp", "both"),
            ("attach", "header", "true", "require"),
            ("attach", "header", "Optional", "optional"),
            ("attach", "header", "require,optional", "optional"),
            ("attach", "header", "optional=10.0.0.7", "10.0.0.7=optional"),
            ("attach", "header", "10.0.0.7:optional", "10.0.0.7=optional"),
            ("attach", "allow", "fe80::1%eth0", "fe80::1"),
            ("attach", "allow", "lb=10.0.0.7", "10.0.0.7"),
            ("attach", "allow", "2001:db8::7/64/32", "2001:db8::7/64"),
            ("proxy", "listen", "8443", ":8443"),
            ("proxy", "listen", ":::8443", "[::]:8443"),
            ("proxy", "listen", "0.0.0.0 8443", "0.0.0.0:8443"),
            ("proxy", "listen", "tcp://0.0.0.0:8443", "0.0.0.0:8443"),
            ("proxy", "listen", ":1,:2", ":1 :2"),
            ("proxy", "ipv4", "443", "127.0.0.1:443"),
            ("proxy", "ipv4", "[127.0.0.1]:443", "127.0.0.1:443"),
            ("proxy", "ipv4", "http://app:80/x", "app:80"),
            ("proxy", "ipv6", "::1:443", "[::1]:443"),
            ("proxy", "ipv6", ":443", "[::1]:443"),
            ("proxy", "idle-timeout", "1d", "24h"),
            ("proxy", "idle-timeout", "1.5 minutes", "90s"),
            ("proxy", "idle-timeout", "off", "none"),
            ("proxy", "header-max", "4kb", "4KiB"),
            ("proxy", "send-proxy", "2", "v2"),
            ("proxy", "tls-min", "TLSv1.3", "1.3"),
            ("proxy", "routes", "yes", "auto"),
            ("https", "origin", "8080", "http://127.0.0.1:8080"),
            ("https", "origin", "/=http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("proxy", "listen", ":8443 :8444", ":8443 :8444"),
            ("https", "acme", "https://www.site.example/", "www.site.example"),
            ("https", "acme", "https://www.site.example:443", "www.site.example"),
            ("https", "origin", "app:8080", "http://app:8080"),
            ("https", "origin", "https://app/path", "https://app"),
            ("https", "max-body", "10MB", "10MiB"),
            ("ban", "for", "10minutes", "10m"),
            ("ban", "for", "1d12h", "36h"),
            ("ban", "for", "1h 30 min", "90m"),
            ("ban", "clients", "192.0.2.*", "192.0.2.0/24"),
            ("doctor", "port", "https://site.example", "443"),
            ("proxy", "ipv4", "https://app", "app:443"),
            ("https", "origin", "a.example -> http://127.0.0.1:1", "a.example=http://127.0.0.1:1"),
            ("attach", "dev", "eth0,eth1", "eth0 eth1"),
            ("attach", "dev", "*", "all"),
            ("attach", "allow", "10.0.0.0 255.0.0.0", "10.0.0.0/8"),
            ("proxy", "ipv4", "app:https", "app:443"),
            ("proxy", "ipv4", "10.0.0.5/443", "10.0.0.5:443"),
            ("proxy", "header-timeout", "2,5s", "2500ms"),
            ("https", "origin", "http//app:80", "http://app:80"),
            ("https", "origin", "/api=127.0.0.1:9000", "/api=http://127.0.0.1:9000"),
            ("proxy", "admin", "9144", "127.0.0.1:9144"),
            ("proxy", "admin", "http://127.0.0.1:9144/", "127.0.0.1:9144"),
            ("proxy", "header", "off", "forbid"),
            ("attach", "allow", "10.0.0.7/", "10.0.0.7"),
            ("attach", "allow", "10.0.0.0/33", "10.0.0.0/32"),
            ("attach", "allow", "2001:db8::/129", "2001:db8::/128"),
            ("attach", "allow", "loopbak", "loopback"),
            ("attach", "port", "25-", "25"),
            ("attach", "header", "10.0.0.7=optonal", "10.0.0.7=optional"),
            ("proxy", "header", "requird", "require"),
            ("proxy", "udp-dialect", "standalon", "standalone"),
            ("proxy", "udp-dialect", "simple", "spp"),
            ("proxy", "sender", "cloudflare", "spectrum"),
            ("run", "port", "8000:8000", "8000"),
            ("run", "port", "8080:80", "80"),
            ("probe", "target", "8443", "127.0.0.1:8443"),
        ] {
            let all = crate::command();
            let command = all.find_subcommand(command).unwrap();
            let meant = meant(command, option, typed).map(|words| words.join(" "));
            assert_eq!(meant.as_deref(), Some(expected), "--{option} {typed}");
        }
    }

    #[test]
    fn what_has_no_other_notation_has_none() {
        let all = crate::command();
        for (option, typed) in [
            ("allow", "10.0.0.9-10.0.0.1"),
            ("allow", "nobody"),
            ("allow", ""),
            ("header", "perhaps"),
            ("ipv4", "127.0.0.1:1,127.0.0.1:2"),
            ("idle-timeout", "soon"),
            ("idle-timeout", "1h soon"),
            ("listen", "127.0.0.1"),
        ] {
            let proxy = all.find_subcommand("proxy").unwrap();
            assert_eq!(meant(proxy, option, typed), None, "--{option} {typed}");
        }
    }
}
