//! The words of other programs, each with what to type instead.

/// Commands that other programs have.
pub(super) const COMMANDS: [(&[&str], &str); 10] = [
    (&["detach", "unattach", "remove"], "truepeer attach detach"),
    (&["start", "up"], "systemctl start truepeer, or truepeer serve -c FILE"),
    (
        &["stop", "down", "restart"],
        "systemctl stop truepeer or restart truepeer; without systemd: kill PROCESS, as truepeer status names it",
    ),
    (&["enable", "install", "init"], "systemctl enable --now truepeer"),
    (&["disable", "uninstall"], "systemctl disable --now truepeer"),
    (&["kill"], "truepeer sessions --client 192.0.2.7 --kill"),
    (&["version"], "truepeer --version"),
    (&["log", "logs"], "journalctl -u truepeer"),
    (&["list", "ps", "show"], "truepeer status, truepeer sessions or truepeer attach status"),
    (&["config", "test", "validate"], "truepeer check -c FILE"),
];

/// Words of other programs behind a command. A word without a dash is meant as the first one only.
pub(super) struct Other {
    commands: &'static [&'static str],
    typed: &'static [&'static str],
    /// `{…}` is the value that was typed, or this one.
    instead: &'static str,
}

const fn other(
    commands: &'static [&'static str],
    typed: &'static [&'static str],
    instead: &'static str,
) -> Other {
    Other { commands, typed, instead }
}

const SERVERS: &[&str] = &["proxy", "https"];
const RECEIVERS: &[&str] = &["attach", "proxy"];
const FILES: &[&str] = &["serve", "check", "reload", "upgrade"];
const ALL: &[&str] = &["attach", "proxy", "https"];

pub(super) const OTHERS: &[Other] = &[
    other(&["attach"], &["-p", "-l", "--listen"], "truepeer attach --port {443} --allow PREFIX"),
    other(&["attach"], &["--proto", "--protocol", "--udp"], "truepeer attach --port 53/udp --allow PREFIX"),
    other(&["attach"], &["stop", "off", "down", "end", "--detach", "--stop"], "truepeer attach detach"),
    other(&["attach"], &["start", "on", "up"], "truepeer attach --port 443 --allow PREFIX"),
    other(
        &["attach"],
        &["update", "change", "replace"],
        "truepeer attach add --replace --port 443 --allow PREFIX",
    ),
    other(
        &["attach"],
        &["--permanent", "--persist", "--boot"],
        "systemctl enable --now truepeer-attach@NAME, with the options in /etc/truepeer/attach/NAME.conf",
    ),
    other(&["attach"], &["--service", "--systemd"], "--unit {NAME}"),
    other(&["attach"], &["--namespace", "--ns"], "--netns {NAME}"),
    other(
        &["attach"],
        &["--pod"],
        "kubectl annotate pod {NAME} truepeer.dev/ports=443 truepeer.dev/allow=10.0.0.7, with the agent",
    ),
    other(ALL, &["--optional"], "--header optional"),
    other(ALL, &["--required", "--require"], "--header require"),
    other(&["attach"], &["list", "ls", "show", "ps"], "truepeer attach status"),
    other(&["attach"], &["--remove", "--delete", "--del"], "truepeer attach remove --port {PORT}"),
    other(&["attach"], &["--docker", "--podman", "--containerd"], "--container {NAME}"),
    other(&["attach"], &["-i", "--interface", "--iface", "--device"], "--dev {eth0}"),
    other(ALL, &["--ban", "--block", "--deny", "--blocklist", "--blacklist"], "--deny-clients {PREFIX}"),
    other(
        RECEIVERS,
        &["--from", "--source", "--src", "--allow-from", "--trusted", "--trust", "--senders", "--proxies"],
        "--allow {PREFIX}",
    ),
    other(&["proxy"], &["--send-proxy-v2"], "--send-proxy v2"),
    other(&["proxy"], &["--send-proxy-v1"], "--send-proxy v1"),
    other(&["https"], &["--proxy-protocol", "--accept-proxy"], "--header require"),
    other(
        &["proxy"],
        &["--proxy-protocol", "--accept-proxy"],
        "--header require, which proxy does by itself; to send a header: --send-proxy v2",
    ),
    other(
        SERVERS,
        &["-d", "-D", "--daemon", "--background"],
        "systemctl start truepeer, or truepeer serve -c FILE",
    ),
    other(SERVERS, &["--group"], "--user UID:GID"),
    other(SERVERS, &["--bind", "--frontend", "--address", "--addr"], "-l :8443"),
    other(SERVERS, &["--tls", "--ssl"], "--tls-cert {FILE} --tls-key FILE"),
    other(
        SERVERS,
        &["--log", "--log-file", "--logfile"],
        "2>{FILE} behind the command; under systemd journalctl -u truepeer shows the log",
    ),
    other(
        SERVERS,
        &["--max-connections", "--maxconn", "--limit"],
        "--max-per-client {100} for each client; for all together ulimit -n, or LimitNOFILE= in the unit",
    ),
    other(&["https"], &["-4", "-6", "--ipv4", "--ipv6"], "--origin http://{127.0.0.1:8080}"),
    other(
        &["https"],
        &["--http2", "--h2"],
        "nothing for clients, which have HTTP/2; for the origin --origin-protocol h2",
    ),
    other(SERVERS, &["--log-level", "--debug", "--loglevel"], "-v 2"),
    other(SERVERS, &["--json"], "--log-format json"),
    other(SERVERS, &["--config"], "truepeer serve -c {FILE}"),
    other(&["proxy"], &["--udp"], "-p udp"),
    other(&["proxy"], &["--tcp"], "-p tcp"),
    other(
        &["https"],
        &["--domain", "--server-name", "--vhost"],
        "--origin {www.example}=http://127.0.0.1:8080",
    ),
    other(
        &["https"],
        &["--letsencrypt", "--auto-tls", "--auto-https"],
        "--acme NAME; for a first try --tls-cert self",
    ),
    other(&["https"], &["--email"], "--acme-email {admin@site.example}"),
    other(&["https"], &["--redirect", "--http", "--redirect-http"], "--listen-http :80"),
    other(&["serve"], &["--check", "-t", "--test"], "truepeer check -c FILE"),
    other(FILES, &["-f", "--file", "--conf"], "-c {FILE}"),
    other(&["status"], &["-f", "--follow", "-w", "--watch"], "truepeer top"),
    other(&["top"], &["-n", "-d", "--refresh", "--delay"], "--interval {2}"),
    other(&["upgrade"], &["--to", "--version"], "truepeer upgrade, once the new program is installed"),
    other(&["sessions"], &["kill", "end", "drop"], "truepeer sessions --client {192.0.2.7} --kill"),
    other(&["routes"], &["add", "set", "up", "install"], "truepeer routes apply -4 127.0.0.1:443"),
    other(&["routes"], &["del", "delete", "rm", "clear", "flush", "down"], "truepeer routes remove"),
    other(&["routes"], &["list", "ls", "status"], "truepeer routes show"),
    other(&["doctor"], &["--port"], "truepeer doctor {443}"),
    other(&["doctor"], &["--fix", "--repair"], "truepeer doctor, and the command that it prints"),
    other(
        &["connect"],
        &["--udp-dialect"],
        "truepeer proxy -p udp --header forbid --send-proxy v2 -l 127.0.0.1:5300 -4 HOST:PORT, and send there",
    ),
];

/// The names of other programs that truepeer can be called by.
pub(super) const COMPAT: [&str; 3] = ["go-mmproxy", "mmproxy-rs", "cloudflare"];

impl Other {
    /// The first word of another program, and what to type instead.
    pub(super) fn find<'a>(&self, command: &str, rest: &[&'a str]) -> Option<(&'a str, String)> {
        if !self.commands.contains(&command) {
            return None;
        }
        for (place, &word) in rest.iter().enumerate().take_while(|(_, word)| **word != "--") {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if self.typed.contains(&name) && (name.starts_with('-') || place == 0) {
                let next = rest.get(place + 1).filter(|next| !next.starts_with('-')).copied();
                return Some((word, self.with(value.or(next))));
            }
        }
        None
    }

    fn with(&self, value: Option<&str>) -> String {
        let Some((before, rest)) = self.instead.split_once('{') else { return self.instead.to_owned() };
        let (usual, after) = rest.split_once('}').unwrap_or((rest, ""));
        // `-l :443` names the port.
        let value = value.map(|value| value.strip_prefix(':').unwrap_or(value));
        format!("{before}{}{after}", value.unwrap_or(usual))
    }
}
