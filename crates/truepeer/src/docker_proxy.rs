//! In the place of Docker's userland proxy: `truepeer docker-proxy`, or a link called truepeer-docker-proxy
//! or docker-proxy. A published port that the settings name is served by `truepeer proxy`, every other one by
//! Docker's own docker-proxy.
//!
//! dockerd starts one for each published port and address, and waits for a word on descriptor 3: "0\n", or
//! "1\n" and the reason (moby, daemon/libnetwork/portmapper and cmd/docker-proxy).

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, anyhow, ensure};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Signal, getppid, kill_process};
use socket2::{Domain, Socket, Type};
use truepeer_cli as cli;
use truepeer_sys::inherit::take_passed;
use truepeer_sys::tell;

/// dockerd waits for a word on it.
const ANSWER: i32 = 3;
/// The listening socket, with `-use-listen-fd` (Docker 28).
const LISTENER: i32 = 4;
/// Where the first passed socket is: sd_listen_fds(3).
const FIRST: i32 = 3;
const NAME: &str = "docker-proxy";
/// Which published ports are served, below /etc or the user's directory of settings: a port, with /udp for
/// UDP, and options of `truepeer proxy`.
const SETTINGS: &str = "truepeer/docker-proxy.conf";
const BACKLOG: i32 = 4096;
const HELP: &str = "\
truepeer docker-proxy: dockerd starts it for each published port, in the place of its userland proxy.

  ln -s /usr/bin/truepeer /usr/local/bin/truepeer-docker-proxy
  /etc/docker/daemon.json:
    {\"iptables\": false, \"userland-proxy-path\": \"/usr/local/bin/truepeer-docker-proxy\"}
  /etc/truepeer/docker-proxy.conf, or ~/.config/truepeer/docker-proxy.conf, a line for each port:
    8081 --allow 10.0.0.7
    5300/udp --allow 10.0.0.7

A line has a published port and options of truepeer proxy. Other ports go to Docker's own docker-proxy.";

/// What dockerd asks for.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    is_udp: bool,
    host: SocketAddr,
    container: SocketAddr,
    has_listener: bool,
}

/// `None`: this is no call by dockerd.
pub(crate) fn answer(words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let mut words: Vec<OsString> = words.collect();
    let called = Path::new(words.first()?).file_name()?.to_str()?.to_owned();
    let is_command = words.get(1).is_some_and(|word| word == NAME);
    if !is_command && called != NAME && called != "truepeer-docker-proxy" {
        return None;
    }
    words.drain(..=usize::from(is_command));
    if words.is_empty() || words.iter().any(|word| word == "--help" || word == "-h") {
        tell!("{HELP}");
        return Some(ExitCode::SUCCESS);
    }
    let Err(error) = serve(&words);
    tell!("error: docker-proxy: {error:#}");
    if let Some(answer) = take_passed(ANSWER) {
        // dockerd may be gone.
        let _ = fs::File::from(answer).write_all(format!("1\n{error:#}").as_bytes());
        end_rootlesskit();
    }
    Some(ExitCode::FAILURE)
}

/// In rootless Docker a program of RootlessKit starts this one. It keeps dockerd's pipe open until SIGINT,
/// even if this one fails: dockerd would wait for the pipe's end, then say only that it timed out.
fn end_rootlesskit() {
    let Some(parent) = getppid() else { return };
    let name = fs::read_to_string(format!("/proc/{}/comm", parent.as_raw_nonzero()));
    // The kernel keeps 15 bytes of rootlesskit-docker-proxy.
    if name.is_ok_and(|name| name.trim_end() == "rootlesskit-doc") {
        // It may be gone.
        let _ = kill_process(parent, Signal::INT);
    }
}

/// Becomes the program that serves the port.
fn serve(words: &[OsString]) -> anyhow::Result<std::convert::Infallible> {
    // SCTP, or an option of a later Docker: not for truepeer.
    let Ok(asked) = Asked::parse(words) else { return become_dockers(words) };
    let Some((file, options)) = settings(&asked)? else { return become_dockers(words) };
    let line = asked.proxy(&options);
    cli::parse([OsString::from("truepeer")].into_iter().chain(line.iter().map(OsString::from)))
        .map_err(|error| anyhow!("{}: {}", file.display(), error.to_string().trim()))?;
    let listener = match take_passed(LISTENER).filter(|_| asked.has_listener) {
        Some(listener) => listener,
        None => asked.listen().with_context(|| format!("can't listen on {}", asked.host))?,
    };
    // Connections wait in the socket until truepeer accepts them.
    if let Some(answer) = take_passed(ANSWER) {
        fs::File::from(answer).write_all(b"0\n").context("dockerd does not listen")?;
    }
    let passed = fcntl_dupfd_cloexec(&listener, FIRST)?;
    ensure!(passed.as_raw_fd() == FIRST, "descriptor {FIRST} is open");
    fcntl_setfd(&passed, FdFlags::empty())?;
    let mut proxy = Command::new(std::env::current_exe().context("this program's file")?);
    proxy.arg0("truepeer").args(&line).env("LISTEN_FDS", "1");
    Err(proxy.env("LISTEN_PID", std::process::id().to_string()).exec()).context("can't become truepeer proxy")
}

/// Docker's own one: the first in PATH that is another file.
fn become_dockers(words: &[OsString]) -> anyhow::Result<std::convert::Infallible> {
    let own = std::env::current_exe().and_then(fs::canonicalize).context("this program's file")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = [PathBuf::from("/usr/bin"), "/usr/sbin".into(), "/usr/libexec/docker".into()];
    let mut files = std::env::split_paths(&path).chain(usual).map(|dir| dir.join(NAME));
    let dockers = files.find(|file| fs::canonicalize(file).is_ok_and(|file| file != own));
    let dockers = dockers.context("Docker's own docker-proxy, for ports without settings, is not in PATH")?;
    Err(Command::new(&dockers).args(words).exec())
        .with_context(|| format!("can't become {}", dockers.display()))
}

/// The file that names the port, and its options there. `None`: none does.
fn settings(asked: &Asked) -> anyhow::Result<Option<(PathBuf, Vec<String>)>> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = var("XDG_CONFIG_HOME").or_else(|| Some(var("HOME")?.join(".config")));
    for file in own.into_iter().chain([PathBuf::from("/etc")]).map(|dir| dir.join(SETTINGS)) {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        return Ok(options_of(&text, asked).map(|options| (file, options)));
    }
    Ok(None)
}

fn options_of(text: &str, asked: &Asked) -> Option<Vec<String>> {
    let port = asked.host.port();
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (number, protocol) = words.next().map(|word| word.split_once('/').unwrap_or((word, "tcp")))?;
        let is_meant = number.parse() == Ok(port) && (protocol == "udp") == asked.is_udp;
        is_meant.then(|| words.map(str::to_owned).collect())
    })
}

impl Asked {
    fn parse(words: &[OsString]) -> anyhow::Result<Self> {
        let mut words = words.iter().map(|word| word.to_str().unwrap_or_default());
        let (mut protocol, mut has_listener) = ("", false);
        let (mut ips, mut ports) = ([None::<IpAddr>; 2], [None::<u16>; 2]);
        while let Some(word) = words.next() {
            let option = word.trim_start_matches('-');
            if option == "use-listen-fd" {
                has_listener = true;
                continue;
            }
            let value = words.next().with_context(|| format!("{word}: expected a value"))?;
            match option {
                "proto" => protocol = value,
                "host-ip" => ips[0] = value.parse().ok(),
                "container-ip" => ips[1] = value.parse().ok(),
                "host-port" => ports[0] = value.parse().ok(),
                "container-port" => ports[1] = value.parse().ok(),
                _ => return Err(anyhow!("{word}: expected the options of Docker's docker-proxy")),
            }
        }
        ensure!(matches!(protocol, "tcp" | "udp"), "-proto {protocol}: expected tcp or udp");
        let at = |side: usize, what: &str| {
            let address = ips[side].zip(ports[side]).map(SocketAddr::from);
            address.with_context(|| format!("expected -{what}-ip ADDRESS -{what}-port PORT"))
        };
        let (host, container) = (at(0, "host")?, at(1, "container")?);
        Ok(Self { is_udp: protocol == "udp", host, container, has_listener })
    }

    /// The command line of `truepeer proxy`.
    fn proxy(&self, options: &[String]) -> Vec<String> {
        let family = if self.container.is_ipv4() { "-4" } else { "-6" };
        let mut line = vec!["proxy".to_owned(), "-l".to_owned(), self.host.to_string()];
        line.extend([family.to_owned(), self.container.to_string()]);
        if self.is_udp {
            line.extend(["-p".to_owned(), "udp".to_owned()]);
        }
        // dockerd waits for the end; the container has ended by then.
        if !options.iter().any(|option| option.starts_with("--drain-timeout")) {
            line.push("--drain-timeout=0".to_owned());
        }
        line.extend(options.iter().cloned());
        line
    }

    /// Docker asks for each family by itself, so an IPv6 socket takes no IPv4.
    fn listen(&self) -> std::io::Result<OwnedFd> {
        let kind = if self.is_udp { Type::DGRAM } else { Type::STREAM };
        let socket = Socket::new(Domain::for_address(self.host), kind, None)?;
        if self.host.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        if !self.is_udp {
            socket.set_reuse_address(true)?;
        }
        socket.bind(&self.host.into())?;
        if !self.is_udp {
            socket.listen(BACKLOG)?;
        }
        Ok(socket.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> anyhow::Result<Asked> {
        Asked::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    const TCP: &str =
        "-proto tcp -host-ip 0.0.0.0 -host-port 8081 -container-ip 172.17.0.2 -container-port 80";

    #[test]
    fn what_dockerd_asks_for_becomes_a_command_line() {
        let options = ["--allow".to_owned(), "10.0.0.7".to_owned()];
        let line = asked(TCP).unwrap().proxy(&options).join(" ");
        assert_eq!(line, "proxy -l 0.0.0.0:8081 -4 172.17.0.2:80 --drain-timeout=0 --allow 10.0.0.7");
        let udp =
            "-proto udp -host-ip :: -host-port 53 -container-ip fd00::2 -container-port 5353 -use-listen-fd";
        let udp = asked(udp).unwrap();
        assert!(udp.has_listener);
        let drains = ["--drain-timeout".to_owned(), "5s".to_owned()];
        let line = udp.proxy(&drains).join(" ");
        assert_eq!(line, "proxy -l [::]:53 -6 [fd00::2]:5353 -p udp --drain-timeout 5s");
        for wrong in ["-proto sctp", "-proto tcp -host-ip 0.0.0.0", &format!("{TCP} -what 7"), "-proto"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_port_has_the_options_of_its_line() {
        let text = "# TCP and UDP\n\n8081 --allow 10.0.0.7\n8081/udp --udp-dialect first --allow 10.0.0.8\n";
        let (tcp, udp) = (asked(TCP).unwrap(), asked(&TCP.replace("tcp", "udp")).unwrap());
        assert_eq!(options_of(text, &tcp).unwrap(), ["--allow", "10.0.0.7"]);
        assert_eq!(options_of(text, &udp).unwrap().join(" "), "--udp-dialect first --allow 10.0.0.8");
        assert_eq!(options_of(text, &asked(&TCP.replace("8081", "8082")).unwrap()), None);
    }

    #[test]
    fn other_calls_are_none_of_dockerds() {
        for line in ["truepeer proxy", "truepeer", "/usr/bin/go-mmproxy -l 1"] {
            assert!(answer(line.split(' ').map(OsString::from)).is_none(), "{line}");
        }
    }
}
