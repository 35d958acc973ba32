//! Three hosts. `client` has several addresses, `lb` runs the load balancers, `host` runs truepeer before its
//! backends.
//!
//! ```text
//!          ┌─ HAProxy ──TCP─────────────▶ :8443 ┐                    ┌ 127.0.0.1:8000, echoes
//! client ─▶├─ HAProxy ──TLS─────────────▶ :8444 ├ truepeer serve ──▶ ├ 127.0.0.1:8000
//!          ├─ HAProxy ──HTTPS, HTTP/2───▶ :8445 │                    ├ 127.0.0.1:8001, NGINX
//!          ├─ HAProxy ──TCP, spliced────▶ :8447 │                    ├ 127.0.0.1:8000
//!          ├─ dnsdist ──UDP─────────────▶ :5300 │                    ├ 127.0.0.1:53, Unbound
//!          ├──────────────────TCP───────▶ :8443 │                    ├ 127.0.0.1:8000
//!          └──────────────────TCP───────▶ :8448 ┘                    └ 127.0.0.1:8002, for faults
//! ```

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use anyhow::Context;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::servers::dns::{Dnsdist, Unbound};
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Behaviour, Host, Program, Running, Topology};

/// The number of the client's addresses: one for each load.
pub(crate) const CLIENTS: u8 = 21;
/// The length of NGINX's file.
pub(crate) const FILE_BYTES: usize = 50_000;

/// The backend that faults kill. No other entry leads to it.
pub(crate) const FAULTY_BACKEND: &str = "127.0.0.1:8002";
/// No host has this address.
pub(crate) const NOWHERE: &str = "192.0.2.99:8446";

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const TCP: u16 = 8443;
const TLS: u16 = 8444;
const HTTPS: u16 = 8445;
const SPLICED: u16 = 8447;
const FAULTY: u16 = 8448;
pub(crate) const UDP: u16 = 5300;

/// Receives sockets on its standard input, and starts a program with them as sd_listen_fds(3) says.
const MANAGER: &str = "
import os, socket, sys
_, sockets, _, _ = socket.recv_fds(socket.socket(fileno=os.dup(0)), 1, 16)
high = [os.dup2(fd, 100 + place) for place, fd in enumerate(sockets)]
for place, fd in enumerate(high): os.dup2(fd, 3 + place)
for fd in high: os.close(fd)
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
os.environ.update(LISTEN_FDS=str(len(high)), LISTEN_PID=str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])
";

pub(crate) struct Stage {
    pub(crate) client: Host,
    lb: Host,
    pub(crate) host: Host,
    /// The listening sockets that the service manager keeps.
    kept: Vec<OwnedFd>,
    unbound: Running,
    /// The value of `splice` for the listener that may have it.
    splice: &'static str,
    drain_timeout: &'static str,
    _others: Vec<Running>,
}

impl Stage {
    /// Flows are open for as long as a stop permits, so restarts need a short `drain_timeout`.
    pub(crate) fn start(
        bed: &Bed,
        splice: &'static str,
        drain_timeout: &'static str,
    ) -> anyhow::Result<Self> {
        let hosts = Topology::line(&["client", "lb", "host"])?;
        let [client, lb, host] = ["client", "lb", "host"].map(|name| hosts.host(name).clone());
        // One more, for faults.
        for n in 0..=CLIENTS {
            client.ip(&[&format!("addr add {}/24 dev lb", address(n))])?;
        }
        let certificate = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
        bed.write("site.pem", certificate.cert.pem() + &certificate.signing_key.serialize_pem())?;
        let kept = host.run(|| listen(&host))??;
        let unbound =
            Unbound::start(bed, &["127.0.0.1:53".parse()?], |program| program.in_netns(&host.netns))?;
        let echo = Behaviour::Banner
            .start_program(bed, &["127.0.0.1:8000"], |program| program.in_netns(&host.netns))?;
        let nginx = origin(bed)?.start_with(bed, |program| program.in_netns(&host.netns))?;
        let haproxy = haproxy(&lb, &host).start_with(bed, |program| program.in_netns(&lb.netns))?;
        let mut stage = Self {
            client,
            lb,
            host,
            kept,
            unbound,
            splice,
            drain_timeout,
            _others: vec![echo, nginx, haproxy],
        };
        stage.write_config(bed, 1)?;
        // dnsdist waits until its server answers.
        let first = stage.start_by_manager(bed)?;
        let options = "useProxyProtocol=true, maxCheckFailures=60";
        let dnsdist = Dnsdist::default().relay_with(stage.dns(), stage.host.at(false, UDP), options);
        let dnsdist = dnsdist.start(bed, |program| program.in_netns(&stage.lb.netns))?;
        stage._others.push(dnsdist);
        first.stop()?;
        Ok(stage)
    }

    /// Where the client finds HAProxy's TCP listeners that lead to plain TCP here, to TLS, and to TCP that
    /// may be spliced.
    pub(crate) fn streams(&self) -> [SocketAddr; 3] {
        [1000, 1001, 1003].map(|port| self.lb.at(false, port))
    }

    /// Where the client finds HAProxy's HTTP listeners that lead to HTTP/1.1 here, and to HTTP/2.
    pub(crate) fn webs(&self) -> [SocketAddr; 2] {
        [1002, 1004].map(|port| self.lb.at(false, port))
    }

    pub(crate) fn dns(&self) -> SocketAddr {
        self.lb.at(false, 53)
    }

    /// The entry for plain TCP, for senders that write their headers themselves.
    pub(crate) fn direct(&self) -> SocketAddr {
        self.host.at(false, TCP)
    }

    /// The entry before [`FAULTY_BACKEND`]. Its senders write headers themselves.
    pub(crate) fn faulty(&self) -> SocketAddr {
        self.host.at(false, FAULTY)
    }

    /// truepeer's own UDP listener.
    pub(crate) fn datagram_listener(&self) -> SocketAddr {
        self.host.at(false, UDP)
    }

    /// Each variant differs from the next in a list, and in a listener that nobody uses.
    pub(crate) fn write_config(&self, bed: &Bed, variant: usize) -> anyhow::Result<()> {
        let is_even = variant.is_multiple_of(2);
        let allow = if is_even { "\"10.77.0.0/16\"" } else { "\"10.77.0.0/16\", \"192.0.2.1\"" };
        let more = if is_even { String::new() } else { format!(", \"{}\"", self.host.at(false, 8446)) };
        bed.write("truepeer.toml", self.config(allow, &more))?;
        Ok(())
    }

    /// A configuration that can't be applied: one of its listeners can't be opened, the others have another
    /// list.
    pub(crate) fn write_wrong_config(&self, bed: &Bed) -> anyhow::Result<()> {
        bed.write("truepeer.toml", self.config("\"192.0.2.2\"", &format!(", \"{NOWHERE}\"")))?;
        Ok(())
    }

    /// Idle connections to the origin end soon: a short load is in balance after that time.
    fn config(&self, allow: &str, more: &str) -> String {
        let at = |port| self.host.at(false, port);
        format!(
            r#"
drain-timeout = "{drain_timeout}"
[admin]
listen = ["./admin.sock"]
[log]
level = "info"
format = "text"

[[proxy]]
listen = ["{tcp}"{more}]
ipv4 = "127.0.0.1:8000"
allow = [{allow}]
routes = "auto"

[[proxy]]
listen = ["{tls}"]
ipv4 = "127.0.0.1:8000"
tls-cert = ["site.pem"]
header = ["require"]
allow = [{allow}]
routes = "auto"

[[proxy]]
listen = ["{spliced}"]
ipv4 = "127.0.0.1:8000"
allow = [{allow}]
routes = "auto"
splice = "{splice}"
splice-after = "0"

[[proxy]]
listen = ["{faulty}"]
ipv4 = "{FAULTY_BACKEND}"
allow = [{allow}]
header-timeout = "1s"
routes = "auto"
splice = "{splice}"
splice-after = "0"

[[https]]
listen = ["{https}"]
origin = "http://127.0.0.1:8001"
tls-cert = ["site.pem"]
header = ["require"]
allow = [{allow}]
client-address = "transparent"
origin-idle = "1s"
routes = "auto"

[[proxy]]
protocol = "udp"
listen = ["{udp}"]
ipv4 = "127.0.0.1:53"
close-after = "5s"
allow = [{allow}]
routes = "auto"
"#,
            tcp = at(TCP),
            tls = at(TLS),
            spliced = at(SPLICED),
            splice = self.splice,
            drain_timeout = self.drain_timeout,
            https = at(HTTPS),
            udp = at(UDP),
            faulty = at(FAULTY),
        )
    }

    /// A command of truepeer with the configuration file, on its host.
    pub(crate) fn truepeer(&self, words: &[&str]) -> Program {
        Program::new(TRUEPEER).args(words).args(["-c", "truepeer.toml"]).in_netns(&self.host.netns)
    }

    /// `truepeer serve`, started with the sockets that the manager keeps.
    pub(crate) fn start_by_manager(&self, bed: &Bed) -> anyhow::Result<Running> {
        let (manager, starting) = UnixStream::pair()?;
        let truepeer =
            Program::new("python3").args(["-c", MANAGER, TRUEPEER, "serve", "-c", "truepeer.toml"]);
        let truepeer = truepeer.stdin(starting).in_netns(&self.host.netns).start(bed)?;
        let sockets: Vec<_> = self.kept.iter().map(OwnedFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        anyhow::ensure!(control.push(SendAncillaryMessage::ScmRights(&sockets)));
        sendmsg(&manager, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
        truepeer.wait_for_log("admin: listening on")?;
        Ok(truepeer)
    }

    /// The client of each name, as Unbound saw it: `info: 10.77.0.100 q1.test. A IN`.
    pub(crate) fn clients_that_asked(&self) -> HashMap<String, IpAddr> {
        let query = |line: &str| {
            let mut words = line.split("info: ").nth(1)?.split(' ');
            let (client, name) = (words.next()?.parse().ok()?, words.next()?.strip_suffix('.')?.to_owned());
            Some((name, client))
        };
        self.unbound.log().lines().filter_map(query).collect()
    }

    /// What the kernel has dropped at full UDP sockets of truepeer's host.
    pub(crate) fn drops(&self) -> anyhow::Result<String> {
        let table = self.host.run(|| std::fs::read_to_string("/proc/thread-self/net/udp"))??;
        let drops = table.lines().skip(1).filter_map(|line| line.split_whitespace().last());
        Ok(drops.filter(|drops| *drops != "0").collect::<Vec<_>>().join(", "))
    }
}

/// The client's address with this number.
pub(crate) fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 77, 0, 100 + number])
}

fn listen(host: &Host) -> anyhow::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    for port in [TCP, TLS, HTTPS, SPLICED, FAULTY] {
        let listener = TcpListener::bind(host.at(false, port))?;
        // std's backlog of 128 is too short for connections that wait while nobody accepts.
        rustix::net::listen(&listener, 4096)?;
        sockets.push(listener.into());
    }
    let udp = UdpSocket::bind(host.at(false, UDP)).context("UDP")?;
    sockets.push(udp.into());
    Ok(sockets)
}

fn origin(bed: &Bed) -> anyhow::Result<Nginx> {
    bed.write("site/file", Pattern::bytes(FILE_BYTES))?;
    let site = bed.dir().join("site");
    let serves = format!("root {}; add_header X-Client $remote_addr;", site.display());
    Ok(Nginx::default().server("127.0.0.1:8001", "", &serves))
}

/// No retries: each connection that truepeer refuses or cuts must reach the client.
fn haproxy(lb: &Host, host: &Host) -> Haproxy {
    let listen = |mode: &str, port: u16, server: u16, options: &str| {
        format!(
            "listen l{port}\n  mode {mode}\n  retries 0\n  timeout connect 20s\n  bind {}\n  server s {} \
             send-proxy-v2 {options}\n",
            lb.at(false, port),
            host.at(false, server)
        )
    };
    let config = [
        listen("tcp", 1000, TCP, ""),
        listen("tcp", 1001, TLS, "ssl verify none"),
        listen("http", 1002, HTTPS, "ssl verify none alpn http/1.1"),
        listen("tcp", 1003, SPLICED, ""),
        listen("http", 1004, HTTPS, "ssl verify none alpn h2"),
    ];
    let listeners = [1000, 1001, 1002, 1003, 1004].map(|port| lb.at(false, port).to_string());
    Haproxy::with_config(&config.concat(), &listeners.each_ref().map(String::as_str))
}
