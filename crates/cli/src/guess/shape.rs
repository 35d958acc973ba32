//! Words and values in another shape than the command takes them, seen before clap reads the line.

use std::net::IpAddr;
use std::path::Path;

use truepeer_policy::PrefixSet;

use super::{is_address, is_number, is_time, meant, named, to};

/// Values in another form than the option takes: what was typed, what was expected, and what to type.
pub(super) fn misshapen<'a>(command: &str, rest: &[&'a str]) -> Option<(&'a str, &'static str, String)> {
    let end = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let rest = &rest[..end];
    let of_pair = |pair: &[&'a str]| match (command, pair) {
        (
            "proxy" | "https",
            &["-l" | "-L" | "-R" | "-p" | "--publish" | "--port" | "--ports" | "--listen", pair],
        ) => Some((pair, "expected an address before the port", forwarded(command, pair)?)),
        ("proxy" | "https", &["--from" | "--source" | "--src" | "--local" | "--in", listen])
            if is_address(listen) =>
        {
            Some((listen, "expected --listen before it", format!("--listen {listen}")))
        }
        ("https", &["-d", name]) if name.contains('.') && !name.starts_with('-') => {
            Some((name, "expected --acme before a name", format!("--acme {name}")))
        }
        ("ban", &[client, time]) if client.contains(['.', ':']) && is_time(time) => {
            Some((time, "expected an option before it", format!("truepeer ban {client} --for {time}")))
        }
        ("doctor", &["-p", port]) if is_number(port) => {
            Some((port, "expected no option before a port", format!("truepeer doctor {port}")))
        }
        ("proxy" | "https", &["-c", file]) if file.contains('/') || file.ends_with(".toml") => {
            Some((file, "a file is for serve", format!("truepeer serve -c {file}")))
        }
        ("attach", &["-p" | "-P" | "--protocol" | "--proto", "tcp"]) => {
            Some(("tcp", "not needed", "nothing: leave it out; a port is one of TCP".to_owned()))
        }
        ("run", &["--port", port]) if port.ends_with("/udp") => {
            Some((port, "run is for TCP", format!("truepeer attach --port {port}, once the program runs")))
        }
        // `443:10.0.0.7`
        ("attach", &["--port" | "-p" | "--ports", pair])
            if let Some((port, sender)) = pair.split_once(':')
                && is_number(port)
                && sender.parse::<IpAddr>().is_ok() =>
        {
            Some((pair, "expected a port alone", format!("--port {port} --allow {sender}")))
        }
        ("attach", &["-p" | "--publish" | "--ports", pair]) => {
            let (_, port) = pair.split_once(':').filter(|(host, port)| is_number(host) && is_number(port))?;
            Some((pair, "expected the server's own port", format!("--port {port}")))
        }
        ("attach", &["detach", now @ ("--force" | "-f" | "--kill" | "--immediately")]) => {
            Some((now, "not a word of this command", "truepeer attach detach --now".to_owned()))
        }
        ("attach", &["status", follow @ ("-w" | "--watch" | "-f" | "-F" | "--tail")]) => {
            Some((follow, "not a word of this command", "truepeer attach status --follow".to_owned()))
        }
        ("attach", &["--pid", name]) if !is_number(name) && !name.starts_with('-') => Some((
            name,
            "expected the number of a container's process",
            format!("--pid \"$(pidof -s {name})\", or --container NAME; for a server of this host neither"),
        )),
        ("proxy", &["-a" | "-allowed-subnets" | "--allowed-subnets", prefix])
            if prefix.parse::<PrefixSet>().is_ok() =>
        {
            Some((prefix, "expected a file behind --allowed-subnets", format!("--allow {prefix}")))
        }
        (_, &["--tls-cert", files]) if !Path::new(files).exists() => {
            let (cert, other) = files.split_once([',', ':'])?;
            let is_key = other.ends_with("key") || other.contains("priv");
            let option = if is_key { "--tls-key" } else { "--tls-cert" };
            Some((files, "expected one file", format!("--tls-cert {cert} {option} {other}")))
        }
        ("attach", &["--container", container]) => {
            let (name, port) = container.rsplit_once(':')?;
            if !is_number(port) {
                let named = format!("--container {name}");
                return Some((container, "expected a container's name, not an image", named));
            }
            let port = if rest.contains(&"--port") { String::new() } else { format!(" --port {port}") };
            Some((container, "expected a name, without a port", format!("--container {name}{port}")))
        }
        _ => None,
    };
    let of_three = |three: &[&'a str]| match (command, three) {
        (_, &[option, sign @ "=", value]) if option.starts_with('-') => {
            Some((sign, "expected no blanks beside it", format!("{option}={value}")))
        }
        ("proxy" | "https", &["--tls-cert", cert, key]) if !cert.starts_with('-') && is_file(key) => {
            Some((key, "expected an option before it", format!("--tls-cert {cert} --tls-key {key}")))
        }
        ("connect", &["--to", host, port]) if is_number(port) && !is_address(host) => {
            Some((port, "expected the port behind its host", format!("--to {host}:{port}")))
        }
        _ => None,
    };
    let of_four = |four: &[&'a str]| match four {
        &[option, first, sign @ ("-" | "to" | "..."), last] if is_number(first) && is_number(last) => {
            Some((sign, "expected no blanks beside it", format!("{option} {first}-{last}")))
        }
        _ => None,
    };
    let of_some = rest.windows(2).find_map(of_pair).or_else(|| rest.windows(3).find_map(of_three));
    of_some.or_else(|| rest.windows(4).find_map(of_four))
}

/// `8443:app:443`, as `-L` of ssh and `-p` of Docker have it.
pub(super) fn forwarded(command: &str, pair: &str) -> Option<String> {
    let pair = pair.strip_suffix("/tcp").unwrap_or(pair);
    let (listen, backend) = pair.split_once("->").or_else(|| pair.split_once(':'))?;
    let colon = match is_number(listen) {
        true => ":",
        false if is_address(listen) => "",
        false => return None,
    };
    let backend = if is_number(backend) { format!("127.0.0.1:{backend}") } else { backend.to_owned() };
    is_address(&backend).then(|| format!("-l {colon}{listen} {}", to(command, &backend)))
}

/// A number below zero behind an option that takes a value: clap takes it for an option.
pub(super) fn negative<'a>(
    command: &clap::Command,
    rest: &[&'a str],
) -> Option<(&'a str, &'static str, String)> {
    let of_pair = |pair: &[&'a str]| {
        let &[option, value] = pair else { return None };
        let number =
            value.strip_prefix('-').filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))?;
        let name = option.strip_prefix("--").filter(|_| named::takes_value(command, option))?;
        let none = (number == "1").then(|| meant(command, name, "unlimited")).flatten();
        let number = none.map_or_else(|| number.to_owned(), |words| words.join(" "));
        // `-4` and `-6` are options.
        let is_option = named::has(command, value);
        (!is_option).then(|| (value, "expected no number below zero", format!("{option} {number}")))
    };
    rest.windows(2).find_map(of_pair)
}

/// `site.key`, not an option or an address.
fn is_file(word: &str) -> bool {
    !word.starts_with('-') && !is_address(word) && word.contains(['.', '/'])
}

/// Words of a relay beside `--port`: a protocol, which stands behind the port, or a listener of its own.
pub(super) fn of_listener<'a>(rest: &[&'a str]) -> Option<(&'a str, String)> {
    let (place, port) = rest.windows(2).enumerate().find_map(|(place, pair)| match pair {
        ["--port", port] if port.bytes().all(|byte| byte.is_ascii_digit() || b",-".contains(&byte)) => {
            Some((place, *port))
        }
        _ => None,
    })?;
    let others = || rest.iter().enumerate().filter(|(other, _)| *other != place && *other != place + 1);
    let is_udp = |word: &str| ["--udp", "-u", "udp"].contains(&word);
    if let Some((place, &word)) = others().find(|(_, word)| is_udp(word)) {
        // `--protocol udp`
        let typed = rest[..place].last().filter(|before| before.starts_with('-') && word == "udp");
        let ports: Vec<String> = port.split(',').map(|port| format!("{port}/udp")).collect();
        return Some((*typed.unwrap_or(&word), format!("truepeer attach --port {}", ports.join(","))));
    }
    let is_listener = |word: &str| ["-l", "--listen", "--bind", "--listen-port"].contains(&word);
    let (_, &typed) = others().find(|(_, word)| is_listener(word))?;
    Some((typed, "nothing: leave it out; attach opens no listener, the server keeps its own port".to_owned()))
}
