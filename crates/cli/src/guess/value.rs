//! Reads a value that an option refuses in other notations, and keeps those that the option's parser accepts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use clap::{Arg, ArgAction, Command, error::ErrorKind};

/// The words that the option takes instead: one, or several for an option that may be repeated. `name` is the
/// option's long name, or the id of an argument without one.
pub(crate) fn meant(command: &Command, name: &str, typed: &str) -> Option<Vec<String>> {
    let is_repeatable = matches!(named(command, name)?.get_action(), ArgAction::Append);
    // attach knows no such rule.
    let is_other = |word: &str| word == "forbid" && command.get_name() == "attach";
    let takes = |word: &str| takes(command, name, word) && !is_other(word);
    let clean = typed.trim().trim_matches(|c| "\"'`“”„‘’".contains(c));
    let several: Vec<String> =
        inner(clean).split(SEPARATORS).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let is_list = is_repeatable && several.len() > 1 && several.iter().all(|word| takes(word));
    let one = notations(clean, name).into_iter().find(|word| word != typed && takes(word));
    if let Some(one) = one.filter(|_| !(is_list && name == "listen")) {
        return Some(vec![one]);
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

/// Whether the option or argument takes this value.
pub(crate) fn takes(command: &Command, name: &str, word: &str) -> bool {
    let is_option = named(command, name).is_some_and(|arg| arg.get_long().is_some());
    let word = if is_option { format!("--{name}={word}") } else { word.to_owned() };
    let alone = command.clone().no_binary_name(true).mut_args(|arg| arg.required(false));
    let alone = alone.args_override_self(true).subcommand_required(false);
    let refused = [ErrorKind::ValueValidation, ErrorKind::InvalidValue, ErrorKind::InvalidSubcommand];
    !{ alone }.try_get_matches_from([word]).is_err_and(|error| refused.contains(&error.kind()))
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
    all.extend(prefix(text));
    all.push(list);
    let pair = ["->", "=>", " = ", ": "].iter().find_map(|between| text.split_once(between));
    all.extend(pair.map(|(left, right)| format!("{}={}", left.trim(), right.trim())));
    all.extend(text.strip_suffix(['/', ',', ';', '.']).map(str::to_owned));
    match option {
        "allow" | "allow-claims" | "deny-clients" | "clients" => {
            // `fe80::1%eth0`, `NAME=10.0.0.7`, `10.0.0.0/24/32`
            let (zone, named) = (text.split_once('%'), text.split_once('='));
            let twice = text.rsplit_once('/').filter(|(prefix, _)| prefix.contains('/'));
            let parts = [zone.map(|(ip, _)| ip), named.map(|(_, ip)| ip), twice.map(|(prefix, _)| prefix)];
            all.extend(parts.into_iter().flatten().map(str::to_owned));
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
    if (1..=3).contains(&version.len()) {
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

/// A netmask, a range that is one prefix, or an address with its end left out.
fn prefix(text: &str) -> Option<String> {
    let address = |text: &str| text.trim().parse::<Ipv4Addr>().ok().map(u32::from);
    if let Some((base, mask)) = text.split_once(['/', ' ']).and_then(|(a, b)| address(a).zip(address(b))) {
        let length = mask.leading_ones();
        return (length + mask.trailing_zeros() == 32).then(|| format!("{}/{length}", Ipv4Addr::from(base)));
    }
    if let Some((first, last)) = text.split_once('-').and_then(|(a, b)| address(a).zip(address(b))) {
        return range(first.into(), last.into());
    }
    let (base, length) = text.split_once('/').map_or((text, None), |(base, length)| (base, Some(length)));
    let numbers: Vec<&str> = base.split('.').take_while(|part| part.parse::<u8>().is_ok()).collect();
    let is_open = base.split('.').skip(numbers.len()).all(|part| ["*", "x", ""].contains(&part));
    if !(1..4).contains(&numbers.len()) || !is_open || (length.is_none() && !base.contains('.')) {
        return None;
    }
    let mut octets = numbers.clone();
    octets.resize(4, "0");
    let whole = (numbers.len() * 8).to_string();
    Some(format!("{}/{}", octets.join("."), length.unwrap_or(&whole)))
}

/// A range of addresses as prefixes.
fn range(mut first: u64, last: u64) -> Option<String> {
    let mut all = Vec::new();
    while first <= last {
        let most = (last + 1 - first).ilog2();
        let host_bits = most.min(first.trailing_zeros()).min(32);
        let base = Ipv4Addr::from(u32::try_from(first).ok()?);
        all.push(if host_bits == 0 { base.to_string() } else { format!("{base}/{}", 32 - host_bits) });
        first += 1 << host_bits;
    }
    (!all.is_empty()).then(|| all.join(","))
}

/// `10minutes`, `1d`, `1.5 s`, `1h30m`.
fn time(lower: &str) -> Option<String> {
    let units = [("h", 3600e3), ("m", 60e3), ("s", 1000.0), ("ms", 1.0)];
    let (mut millis, mut rest) = (0.0, lower);
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_alphabetic()).unwrap_or(rest.len());
        let behind = rest[end..].find(|c: char| !c.is_alphabetic()).map_or(rest.len(), |unit| end + unit);
        millis += milliseconds(&rest[..behind])?;
        rest = rest[behind..].trim_start();
    }
    let (unit, each) = units.into_iter().find(|(_, each)| millis % each == 0.0)?;
    Some(format!("{}{unit}", millis / each))
}

/// A number and its unit.
fn milliseconds(text: &str) -> Option<f64> {
    let (number, unit) = number(text)?;
    let each = match unit.trim_end_matches('s') {
        "m" if unit == "ms" => 1.0,
        "msec" | "milli" | "millisecond" => 1.0,
        "" if unit.is_empty() && number.fract() == 0.0 => return None,
        "" | "sec" | "second" => 1000.0,
        "m" | "min" | "minute" => 60e3,
        "h" | "hr" | "hour" => 3600e3,
        "d" | "day" => 24.0 * 3600e3,
        "w" | "week" => 7.0 * 24.0 * 3600e3,
        _ => return None,
    };
    Some(each * number)
}

/// `10MB`, `16 k`.
fn size(lower: &str) -> Option<String> {
    let (number, unit) = number(lower)?;
    let unit = match unit.trim_end_matches('s') {
        "b" | "byte" => "",
        "k" | "kb" | "kib" => "KiB",
        "m" | "mb" | "mib" => "MiB",
        "g" | "gb" | "gib" => "GiB",
        _ => return None,
    };
    Some(format!("{number}{unit}"))
}

fn number(lower: &str) -> Option<(f64, &str)> {
    let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    // `5,000` could be either.
    let number =
        number.split_once(',').map_or(Some(number), |(_, end)| (end.len() != 3).then_some(number))?;
    Some((number.replace(',', ".").parse().ok()?, unit.trim()))
}

/// `udp/53`, `8000..8010`, `0.0.0.0:443`, a URL's port.
fn ports(lower: &str) -> Vec<String> {
    let mut all = Vec::new();
    let is_number = |text: &&str| text.parse::<u16>().is_ok();
    for (name, behind) in [("udp", "/udp"), ("tcp", "")] {
        let rest = lower.strip_prefix(name).or_else(|| lower.strip_suffix(name));
        let port = rest.map(|rest| rest.trim_matches([' ', '/', ':', '-', '.', ',']));
        all.extend(port.filter(is_number).map(|port| format!("{port}{behind}")));
    }
    for between in ["...", "..", " - ", " to ", "–", ":"] {
        let range = lower.split_once(between).filter(|(first, last)| is_number(first) && is_number(last));
        all.extend(range.map(|(first, last)| match first == last {
            true => first.to_owned(),
            false => format!("{first}-{last}"),
        }));
    }
    if let Some((scheme, rest)) = lower.split_once("://") {
        let host = rest.split('/').next().unwrap_or(rest);
        all.extend(host.rsplit_once(':').map(|(_, port)| port.to_owned()));
        all.extend(usual_port(scheme).map(|port| port.to_string()));
    }
    let is_host =
        |host: &str| host.is_empty() || host.contains(['.', ':', '*', ']']) || host.parse::<u16>().is_ok();
    all.extend(lower.rsplit_once(':').filter(|(host, _)| is_host(host)).map(|(_, port)| port.to_owned()));
    all.extend(lower.strip_prefix("port").map(|rest| rest.trim_matches([' ', '=', ':']).to_owned()));
    all
}

/// The port of a URL without one.
fn usual_port(scheme: &str) -> Option<u16> {
    match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// A URL for an address, or the reverse; IPv6 without brackets; a port alone; an address with a port too many.
fn addresses(text: &str, option: &str) -> Vec<String> {
    let (scheme, host) = text.split_once("://").map_or((None, text), |(scheme, rest)| (Some(scheme), rest));
    let mut all = vec![];
    // `http//app:80`, `http:app:80`
    let rest = text.strip_prefix("http").filter(|_| scheme.is_none());
    all.extend(rest.map(|rest| {
        let host = rest.trim_start_matches(['s', ':', '/']);
        format!("http{}://{host}", if rest.starts_with('s') { "s" } else { "" })
    }));
    all.extend(host.split_once('/').map(|(host, port)| format!("{host}:{port}")));
    let host = host.split('/').next().unwrap_or(host);
    let (address, port) =
        host.rsplit_once([':', ' ', '#']).map_or((host, ""), |(address, port)| (address.trim(), port));
    let is_port = port.parse::<u16>().is_ok();
    if address.parse::<Ipv6Addr>().is_ok() && is_port {
        all.push(format!("[{address}]:{port}"));
    }
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<Ipv4Addr>().is_ok() && is_port {
        all.push(format!("{bare}:{port}"));
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        all.push(format!("[{host}]"));
    }
    all.extend(usual_port(port).map(|port| format!("{address}:{port}")));
    if let Some(port) = scheme.and_then(usual_port).filter(|_| !is_port) {
        all.push(format!("{host}:{port}"));
    }
    let here = if option == "ipv6" { "[::1]" } else { "127.0.0.1" };
    if address == "localhost" && is_port {
        all.push(format!("{here}:{port}"));
    }
    let hosts = [
        host.to_owned(),
        format!("{address}:{port}"),
        format!(":{host}"),
        format!("{here}:{host}"),
        if host.starts_with(':') { format!("{here}{host}") } else { String::new() },
    ];
    let is_address =
        |host: &&String| host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    all.extend(hosts.iter().filter(is_address).cloned());
    let scheme = if scheme == Some("https") { "https" } else { "http" };
    let urls = hosts.iter().map(|host| format!("{scheme}://{host}"));
    all.extend(urls.filter(|_| option.starts_with("origin")));
    if is_port {
        all.push(bare.to_owned());
    }
    if text.contains("://") {
        all.push(host.to_owned());
    }
    all
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
            ("allow", "10.0.0.0/33"),
            ("allow", "2001:db8::/129"),
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
