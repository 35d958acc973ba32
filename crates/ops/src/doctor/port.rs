//! One port: who listens, who takes the header off, by which devices, who came and was refused, and a real round trip.
//!
//! No command that is printed here refuses anybody who is served now: a sender that is added may leave the header out.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use truepeer_attach::{Attached, hints_of, listener_warnings};
use truepeer_bpf::{PortStatus, Traffic};
use truepeer_config::plan::{ASK_AWS, speaks_first};

use super::owners::Owner;
use super::report::{Check, Report};
use super::scene::{AtPort, Scene};
use super::{listener_trip, trip};
use crate::admin::status::ListenerDoc;
use crate::reasons;

/// The time that "lately" means.
const LATELY: Duration = Duration::from_secs(600);
/// So many peers and refusals are shown.
const MOST_SHOWN: usize = 8;
/// What a refusal for want of a header is called.
const WITHOUT_HEADER: [&str; 3] = ["refused_no_header", "refused_timeout", "refused_after_wait"];

/// Who takes headers off at the port.
enum Way<'a> {
    Attach(&'a Attached, &'a PortStatus),
    /// truepeer itself listens.
    Listener(Vec<&'a ListenerDoc>, Owner),
    Run(Owner),
    None,
}

/// Everything about a port.
pub(super) fn examine(scene: &Scene<'_>, at: AtPort, report: &mut Report) {
    let sockets = at.sockets();
    let peers = at.peers();
    report.add(listens(at, &sockets));
    let way = way_of(scene, at, &sockets);
    report.add(served(&way, at, &peers));
    match &way {
        Way::Attach(attached, port) => {
            devices(attached, port, at, report);
            if !at.is_udp {
                let refuses = attached.rules(port).is_some_and(|rules| rules.refuse_unshowable);
                let known = listener_warnings(at.port, refuses);
                known.into_iter().filter(|_| !sockets.is_empty()).for_each(|warning| {
                    report.add(Check::note("shows", format!("the server's sockets on port {at}"), warning));
                });
            }
            senders(attached, port, at, &peers, report);
        }
        Way::Listener(listeners, _) => refused_by_listener(scene, listeners, at, report),
        _ => {}
    }
    connected(at, &peers, report);
    if sockets.is_empty() || at.is_udp {
        return;
    }
    match &way {
        Way::Listener(listeners, _) => listener_trip::examine(scene, listeners, at, report),
        Way::Attach(attached, port) if !port.draining => {
            trip::examine(at.port, &sockets, attached.rules(port), scene.timeout, report);
        }
        _ => trip::examine(at.port, &sockets, None, scene.timeout, report),
    }
}

fn listens(at: AtPort, sockets: &[(SocketAddr, Option<Owner>)]) -> Check {
    let tried = format!("a server on port {at}");
    if sockets.is_empty() {
        return Check::fail("listens", tried, "nothing listens there").mend(if at.is_udp {
            "ss -lunp"
        } else {
            "ss -ltnp"
        });
    }
    let name = |(address, owner): &(SocketAddr, Option<Owner>)| match owner {
        Some(owner) => format!("{address} ({owner})"),
        None => address.to_string(),
    };
    Check::ok("listens", tried).found(sockets.iter().map(name).collect::<Vec<_>>().join(", "))
}

fn way_of<'a>(scene: &'a Scene<'_>, at: AtPort, sockets: &[(SocketAddr, Option<Owner>)]) -> Way<'a> {
    let attached = scene.attached.as_ref();
    if let Some((attached, port)) =
        attached.and_then(|attached| Some((attached, attached.port(at.port, at.is_udp)?)))
    {
        return Way::Attach(attached, port);
    }
    let mut owners = sockets.iter().filter_map(|(_, owner)| owner.as_ref());
    if let Some(owner) = owners.clone().find(|owner| owner.is_truepeer()) {
        return Way::Listener(scene.listeners(at), owner.clone());
    }
    owners.find(|owner| owner.is_run()).map_or(Way::None, |owner| Way::Run(owner.clone()))
}

fn served(way: &Way<'_>, at: AtPort, peers: &[(IpAddr, usize)]) -> Check {
    let tried = format!("headers to port {at}");
    match way {
        Way::Attach(attached, port) => attach(tried, attached, port),
        Way::Listener(listeners, owner) => Check::ok("way", tried).found(match listeners.first() {
            Some(listener) => format!(
                "truepeer {} takes them off ({owner}): {} open of {} accepted",
                listener.entry,
                listener.open,
                listener.taken()
            ),
            None => format!("{owner} takes them off"),
        }),
        Way::Run(owner) => Check::ok("way", tried).found(format!("truepeer run takes them off ({owner})")),
        Way::None => {
            let found = "nothing takes them off: the server gets them as data, and sees the sender";
            Check::fail("way", tried, found).mend(attach_command(at, peers))
        }
    }
}

fn attach(tried: String, attached: &Attached, port: &PortStatus) -> Check {
    let rules = attached.rules(port);
    let senders: Vec<_> = rules
        .iter()
        .flat_map(|rules| &rules.senders)
        .take(MOST_SHOWN)
        .map(|(prefix, rule)| {
            format!("{prefix} {}", rule.as_ref().map_or("none".to_owned(), ToString::to_string))
        })
        .collect();
    let open = match port.traffic {
        Traffic::Tcp(flows) => flows.total(),
        Traffic::Udp(_, flows) => flows,
    };
    let found = format!("attach takes them off: senders {}; {open} open", senders.join(", "));
    match (port.draining, attached.command(port)) {
        (false, _) => Check::ok("way", tried).found(found),
        (true, command) => {
            let check =
                Check::fail("way", tried, "detached: new connections pass with their header, as data");
            match command {
                Some(command) => check.mend(command),
                None => check,
            }
        }
    }
}

/// Attaches for the address that is connected most often. It is served without a header as well.
fn attach_command(at: AtPort, peers: &[(IpAddr, usize)]) -> String {
    let sender = peers.iter().find(|(peer, _)| !peer.is_loopback()).or(peers.first());
    match sender {
        Some((sender, _)) => format!(
            "truepeer attach add --port {}{} --allow {sender} --header optional (if {sender} is your load balancer)",
            at.port,
            if at.is_udp { "/udp" } else { "" }
        ),
        None => format!(
            "{} (nobody is connected: once the load balancer is, this names it)",
            at.sockets_command()
        ),
    }
}

fn devices(attached: &Attached, port: &PortStatus, at: AtPort, report: &mut Report) {
    let tried = format!("devices by which port {at} is reached");
    if attached.uncovered.is_empty() {
        let check = Check::ok("devices", tried);
        report.add(if attached.covered.is_empty() {
            check
        } else {
            check.found(attached.covered.join(", "))
        });
        return;
    }
    let found = format!(
        "connections that come in by {} are refused (refused_unjudged), since nothing is attached there",
        attached.uncovered.join(", ")
    );
    let check = Check::fail("devices", tried, found);
    report.add(match attached.command(port) {
        Some(command) => check.mend(command),
        None => check,
    });
}

fn senders(
    attached: &Attached,
    port: &PortStatus,
    at: AtPort,
    peers: &[(IpAddr, usize)],
    report: &mut Report,
) {
    let count = |name: &str| {
        port.counters.iter().find(|(counter, _)| counter.name == name).map_or(0, |(_, count)| *count)
    };
    let (came, others) = (count("connections"), count("not_a_sender"));
    let tried = format!("senders of port {at}");
    if !at.is_udp {
        let is_allowed = |ip: &IpAddr| {
            let mut senders = attached.rules(port).into_iter().flat_map(|rules| &rules.senders);
            senders.any(|(prefix, rule)| rule.is_some() && prefix.contains(ip))
        };
        let stranger =
            peers.iter().map(|(peer, _)| peer).find(|peer| !peer.is_loopback() && !is_allowed(peer));
        report.add(match (came, others, stranger) {
            (0, 0, _) => Check::note("senders", tried, "nobody has come yet"),
            (0, _, stranger) => {
                let found = format!("no connection came from an address that --allow lists, but {others} from others");
                let check = Check::fail("senders", tried, found);
                match (stranger, attached.command(port)) {
                    (Some(stranger), Some(command)) => check.mend(format!(
                        "{command} --allow {stranger} --header {stranger}=optional (if {stranger} is your load balancer)"
                    )),
                    _ => check.mend(at.sockets_command()),
                }
            }
            (came, others, _) => Check::ok("senders", tried).found(format!("{came} connections came from them, {others} from others")),
        });
    }
    let lately = attached.refused_lately(LATELY).unwrap_or_default();
    for refused in lately.iter().filter(|one| one.port == at.port && one.is_udp == at.is_udp).take(MOST_SHOWN)
    {
        let (name, meaning) = refused.reason;
        let found = format!(
            "{} refused, the last {} s ago: {meaning} ({name}){}",
            refused.count,
            refused.ago.as_secs(),
            late_header(name, at.port)
        );
        report.add(Check::note("refused", format!("{} to port {at}", refused.sender), found));
    }
    for hint in hints_of(port) {
        report.add(Check::note("hint", format!("port {at}"), hint));
    }
}

/// A sender whose header comes with the client's first bytes, before a server that speaks first.
fn late_header(reason: &str, port: u16) -> String {
    match speaks_first(port).filter(|_| WITHOUT_HEADER.contains(&reason)) {
        Some(protocol) => format!(
            "; if it is an AWS NLB: its header comes with the client's first bytes, and {protocol} servers speak first; {ASK_AWS}"
        ),
        None => String::new(),
    }
}

fn refused_by_listener(scene: &Scene<'_>, listeners: &[&ListenerDoc], at: AtPort, report: &mut Report) {
    for listener in listeners {
        let name = format!("the listener {}", listener.name());
        for (reason, count) in &listener.refusals {
            let found = format!("{count} refused since the start: {}", reasons::refusal(reason));
            report.add(Check::note("refused", name.clone(), found));
        }
    }
    let recent = scene.complaints(listeners).into_iter();
    for complaint in recent.filter(|complaint| complaint.seconds <= LATELY.as_secs()).take(MOST_SHOWN) {
        let about = complaint.about.map_or("others".to_owned(), |about| about.to_string());
        let found = format!(
            "{} in the last minutes, {} s ago: {}{}",
            complaint.count,
            complaint.seconds,
            reasons::refusal(&complaint.reason),
            late_header_of_listener(&complaint.reason, scene, at)
        );
        report.add(Check::note("refused_lately", about, found));
    }
}

fn late_header_of_listener(reason: &str, scene: &Scene<'_>, at: AtPort) -> String {
    let is_late = matches!(reason, "header_timeout" | "header_missing" | "header_after_wait");
    let ports = scene.backend_ports(at);
    let protocol = ports.into_iter().find_map(speaks_first).filter(|_| is_late);
    protocol.map_or_else(String::new, |protocol| {
        format!(
            "; if it is an AWS NLB: its header comes with the client's first bytes, and {protocol} servers speak first; {ASK_AWS}"
        )
    })
}

fn connected(at: AtPort, peers: &[(IpAddr, usize)], report: &mut Report) {
    if peers.is_empty() {
        return;
    }
    let shown: Vec<_> =
        peers.iter().take(MOST_SHOWN).map(|(peer, count)| format!("{peer} ({count})")).collect();
    let more = if peers.len() > MOST_SHOWN {
        format!(", and {} more", peers.len() - MOST_SHOWN)
    } else {
        String::new()
    };
    let tried = format!("who is connected to port {at}");
    report.add(Check::ok("connected", tried).found(shown.join(", ") + &more));
}
