//! Checks the backends: something listens there, and an answer to a client's address is routed back to
//! truepeer.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::listening::{self, Bound};
use super::probe;
use super::report::{Check, Report};
use super::subject::Subject;
use truepeer_config::spec::defaults;
use truepeer_routes::item::{IpFamily, IpTransport};
use truepeer_routes::place::BackendPlace;
use truepeer_routes::plan::Backend;

/// The routing table that the advice for another host names: truepeer's own by default.
const REPLIES: u32 = defaults::TABLE;

pub(super) fn examine(subject: &Subject<'_>, report: &mut Report) {
    for backend in &subject.setup.backends {
        let Some(address) = address_of(backend) else { continue };
        if address.is_ipv6() && !super::machine::has_ipv6() {
            report.add(Check::skip("backend", format!("backend {address}"), "IPv6 is off"));
            continue;
        }
        binding(backend, address).into_iter().for_each(|check| report.add(check));
        if backend.transport == IpTransport::Tcp {
            round_trips(subject, backend.place, address, report);
        }
    }
    for (family, clients, option) in
        [(IpFamily::V4, "IPv4 clients", "-4"), (IpFamily::V6, "IPv6 clients", "-6")]
    {
        if !subject.has_family(family) {
            let found = format!("refused by truepeer proxy: no backend for them; add {option} HOST:PORT");
            report.add(Check::note("no_backend", clients, found));
        }
    }
}

/// A prefix (from dynamic destinations) gives no single address to try.
fn address_of(backend: &Backend) -> Option<SocketAddr> {
    let is_one = backend.net.prefix_len() == backend.net.max_prefix_len()
        && backend.ports.start() == backend.ports.end();
    is_one.then(|| SocketAddr::new(backend.net.addr(), *backend.ports.start()))
}

fn round_trips(subject: &Subject<'_>, place: BackendPlace, backend: SocketAddr, report: &mut Report) {
    let timeout = subject.options.timeout;
    let plain = format!("connection to {backend}");
    let client = IpFamily::of(backend.ip()).example_client();
    let tried = format!("connection to {backend} as {client}");
    let own = match probe::connect(backend, timeout) {
        Ok(own) => own,
        Err(error) => {
            report.add(unreachable(plain, backend, &error));
            let skip = "the backend doesn't answer a plain connection";
            return report.add(Check::skip("backend_spoofed", tried, skip));
        }
    };
    report.add(Check::ok("backend", plain));
    match probe::connect_spoofed(backend, subject.mark, timeout) {
        Ok(()) => report.add(Check::ok("backend_spoofed", tried).found("the answer came back")),
        Err(error) => lost((place, backend, own), tried, &error, report),
    }
}

/// The earlier failure that must be fixed first.
fn cause(report: &Report) -> Option<&Check> {
    report.failure(&["transparent", "mark", "loopback", "routes", "route_taken"])
}

fn unreachable(tried: String, backend: SocketAddr, error: &io::Error) -> Check {
    let check = Check::fail("backend", tried, error.to_string());
    match error.kind() {
        io::ErrorKind::ConnectionRefused => check
            .found("refused: nothing listens there")
            .mend(format!("ss -ltnp 'sport = {}' (is it started, and on which address?)", backend.port())),
        io::ErrorKind::TimedOut => {
            check.found("no answer in time").mend(format!("ip route get {}", backend.ip()))
        }
        _ => check.mend(format!("ip route get {}", backend.ip())),
    }
}

/// Why nothing came back: what failed before, or else what a firewall may do, or else the backend's own
/// routes.
fn lost(
    (place, backend, own): (BackendPlace, SocketAddr, IpAddr),
    tried: String,
    error: &io::Error,
    report: &mut Report,
) {
    let is_silent = error.kind() == io::ErrorKind::TimedOut;
    let found = if is_silent { "no answer came back in time".to_owned() } else { error.to_string() };
    let check = Check::fail("backend_spoofed", tried, found);
    if let Some(cause) = cause(report) {
        let mend = cause.mend.clone();
        return report.add(Check { mend, ..check });
    }
    if place == BackendPlace::Elsewhere {
        return report.add(check.mend(by_this_host(backend, own)));
    }
    let (suspects, mend) = super::firewall::look();
    report.add(check.mend(mend.unwrap_or_else(|| "tcpdump -ni lo (shows where the answer goes)".to_owned())));
    suspects.into_iter().for_each(|suspect| report.add(suspect));
}

/// How a backend reaches clients is decided on its host. Only replies of this port go another way there:
/// another default route could cut off whoever types it.
fn by_this_host(backend: SocketAddr, own: IpAddr) -> String {
    let ip = if own.is_ipv4() { "ip" } else { "ip -6" };
    let (address, port) = (backend.ip(), backend.port());
    format!(
        "{ip} route replace default via {own} table {REPLIES} && \
         {ip} rule add from {address} ipproto tcp sport {port} table {REPLIES} (on the backend's host, {address}: replies of port \
         {port} alone then go by this host; who connects to that port there past truepeer gets no answer any more)"
    )
}

/// Checks which address the backend is bound to, where that matters.
fn binding(backend: &Backend, address: SocketAddr) -> Option<Check> {
    let bound = match backend.place {
        BackendPlace::Elsewhere => return None,
        BackendPlace::Loopback | BackendPlace::Local => listening::bound(address, backend.transport),
    };
    let tried = format!("a socket bound to {address}");
    match (backend.transport, bound) {
        (IpTransport::Tcp, Bound::Exactly | Bound::Nobody) => None,
        (IpTransport::Tcp, Bound::Wildcard) => Some(
            Check::note(
                "binding",
                tried,
                "it is bound to every address: clients can bypass truepeer and connect to it directly",
            )
            .mend(format!("bind the backend to {}", address.ip())),
        ),
        (IpTransport::Udp, Bound::Exactly) => Some(Check::ok("binding", tried)),
        (IpTransport::Udp, Bound::Nobody) => Some(
            Check::fail("binding", tried, "there is none")
                .mend(format!("ss -lunp 'sport = {}' (is it started, and where?)", address.port())),
        ),
        (IpTransport::Udp, Bound::Wildcard) if backend.place == BackendPlace::Loopback => Some(
            Check::ok("binding", tried).found("it is bound to every address, which the routes allow for"),
        ),
        (IpTransport::Udp, Bound::Wildcard) => Some(
            Check::fail(
                "binding",
                tried,
                "it is bound to every address: its replies would leave from another address",
            )
            .mend(format!("bind the backend to {}", address.ip())),
        ),
    }
}
