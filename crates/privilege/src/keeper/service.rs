//! The keeper's side.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType, ipproto, sockopt};
use truepeer_relay::udp::MOST_BUFFER_BYTES;
use truepeer_session::listening::{ListenOptions, listen, listen_locally};
use truepeer_sys::CallError;
use truepeer_sys::socket::{bind_beside_listeners, is_unconnected, local_address};
use truepeer_sys::udp::force_buffers;

use super::owner::Owner;
use super::permitted::{Permitted, check_client};
use super::records::{NeedRecord, limited, outcomes};
use super::wire::{self, Answer, MOST_NEEDS, Received, Request};
use truepeer_routes::apply::chain;
use truepeer_routes::change;
use truepeer_routes::item::{Item, Need};
use truepeer_routes::netlink::NetlinkError;
use truepeer_routes::owners::RulesLock;
use truepeer_routes::plan::RoutePlan;

pub(super) struct Service {
    pub(super) permitted: Permitted,
    /// The process that asks, this one's parent.
    pub(super) relay: Owner,
    /// Asked when the relay has ended without a word: whether its rules stay.
    pub(super) rules_stay: Box<dyn Fn() -> bool>,
}

/// Serves until the relay says so, or ends. Returns the exit status.
pub(super) fn serve(
    line: &OwnedFd,
    service: &Service,
    confine: impl FnOnce() -> anyhow::Result<Vec<String>>,
) -> i32 {
    let _ = rustix::thread::set_name(c"truepeer-keeper");
    if !is_ready(line.as_fd(), confine) {
        return 1;
    }
    let mut room = wire::room();
    loop {
        let (number, answer) = match wire::receive_into(&mut room, line.as_fd(), RecvFlags::empty()) {
            Ok(Received::Message { number, body: Request::End, .. }) => {
                let _ = wire::send(line.as_fd(), number, &Answer::Done, &[]);
                return 0;
            }
            Ok(Received::Message { body: Request::Grow { bytes }, descriptors, .. }) => {
                grow(&descriptors, bytes);
                continue;
            }
            Ok(Received::Message {
                number,
                body: Request::Listen { address, reuse_port, transparent, v6_only },
                ..
            }) => {
                let opened = listen(address, ListenOptions { reuse_port, transparent, v6_only });
                let socket: Vec<_> = opened.iter().map(AsFd::as_fd).collect();
                let answer =
                    opened.as_ref().map_or_else(|failed| call_failed(failed.error), |_| Answer::Done);
                let _ = wire::send(line.as_fd(), number, &answer, &socket);
                continue;
            }
            Ok(Received::Message { number, body, descriptors }) => {
                (number, service.carry_out(body, &descriptors))
            }
            Ok(Received::Bad(reason)) => (0, Answer::Refused(limited(&reason))),
            Ok(Received::End) | Err(_) => break,
        };
        // A relay that has no room for an answer doesn't wait for it.
        let _ = wire::send(line.as_fd(), number, &answer, &[]);
    }
    service.clean_up();
    0
}

/// Confines a helper process, which then says that it is ready, and what it could not give up; or why it is
/// not: then it must end.
pub(super) fn is_ready(line: BorrowedFd<'_>, confine: impl FnOnce() -> anyhow::Result<Vec<String>>) -> bool {
    let ready = hold_no_output().map_err(anyhow::Error::from).and_then(|()| confine());
    let (first, is_ready) = match ready {
        Ok(missing) => (Answer::Ready { missing }, true),
        Err(error) => (Answer::Refused(limited(&format!("{error:#}"))), false),
    };
    wire::send(line, 0, &first, &[]).is_ok() && is_ready
}

/// A program that waits for the end of truepeer's output must not wait for the keeper's.
pub fn hold_no_output() -> std::io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

impl Service {
    fn carry_out(&self, request: Request, descriptors: &[OwnedFd]) -> Answer {
        let done = match (request, descriptors) {
            (Request::Add { needs, sweeps }, []) => self.add(needs, sweeps),
            (Request::RemoveUnused, []) => self
                .permitted
                .check_any()
                .map(|()| change::remove_unused().map_or_else(|error| failed(&error), Answer::Removed)),
            (Request::Share { address }, [socket]) => share(socket.as_fd(), address),
            (Request::ListenLocally { backlog }, [socket]) => listen_on_unix(socket.as_fd(), backlog),
            _ => Err("a descriptor too many, or too few".to_owned()),
        };
        done.unwrap_or_else(|reason| Answer::Refused(limited(&reason)))
    }

    /// All or none: a plan with one rule that is not permitted is refused.
    fn add(&self, needs: Vec<NeedRecord>, sweeps: bool) -> Result<Answer, String> {
        if needs.len() > MOST_NEEDS {
            return Err(format!("{} rules and routes", needs.len()));
        }
        let items = needs.into_iter().map(|record| {
            let need = Need::try_from(record)?;
            self.permitted.check(&need)?;
            Ok(Item { need, why: "asked for" })
        });
        let plan = RoutePlan { items: items.collect::<Result<_, String>>()?, upstream_mark: None };
        Ok(match change::add(&plan, sweeps) {
            Ok(outcome) => Answer::Added(outcomes(&plan.items, &outcome)),
            Err(error) => failed(&error),
        })
    }

    /// The relay has ended without a word. What it used alone is removed.
    fn clean_up(&self) {
        // Its tokens are closed by then.
        self.relay.wait_closed();
        if (self.rules_stay)() {
            return;
        }
        let _lock = RulesLock::acquire();
        match change::remove_unused() {
            Ok(0) => {}
            Ok(removed) => tracing::warn!(
                removed,
                "routes: process {} has ended without removing its rules; its keeper has removed them",
                self.relay.id()
            ),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "routes: process {} has ended without removing its rules, and they can't be removed; the next start of truepeer does it, \
                 or `truepeer routes remove`",
                self.relay.id()
            ),
        }
    }
}

fn failed(error: &NetlinkError) -> Answer {
    Answer::Failed { words: limited(&chain(error)), errno: error.source.raw_os_error().unwrap_or_default() }
}

/// Binds a socket that is about to connect as a client whose port a program of this host listens on.
fn share(socket: BorrowedFd<'_>, address: SocketAddr) -> Result<Answer, String> {
    check_client(address)?;
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let is_unused = is_tcp(socket, family)
        && is_unconnected(socket)
        && local_address(socket).is_ok_and(|local| local.port() == 0);
    if !is_unused {
        return Err("the socket is no new TCP socket of the address's family".to_owned());
    }
    Ok(bind_beside_listeners(socket, address).map_or_else(call_failed, |()| Answer::Done))
}

/// Of no other family: a TCP socket may be bound beside another program's listener, because its owner had it
/// shared or put under repair.
fn listen_on_unix(socket: BorrowedFd<'_>, backlog: i32) -> Result<Answer, String> {
    if sockopt::socket_domain(socket) != Ok(AddressFamily::UNIX) {
        return Err("the socket is no unix socket".to_owned());
    }
    Ok(listen_locally(socket, backlog).map_or_else(call_failed, |()| Answer::Done))
}

/// The call is the words.
fn call_failed(error: CallError) -> Answer {
    Answer::Failed { words: error.call.to_owned(), errno: error.errno.raw_os_error() }
}

/// Grows the buffers of those sockets that are UDP's, and returns how many. They may be bound and connected:
/// their owner has them already, and could have bound them afterwards.
fn grow(sockets: &[OwnedFd], bytes: usize) -> usize {
    let is_udp = |socket: BorrowedFd<'_>| {
        [AddressFamily::INET, AddressFamily::INET6]
            .into_iter()
            .any(|family| is_of(socket, family, SocketType::DGRAM, ipproto::UDP))
    };
    if bytes > MOST_BUFFER_BYTES {
        return 0;
    }
    let udp = sockets.iter().map(AsFd::as_fd).filter(|socket| is_udp(*socket));
    udp.filter(|socket| force_buffers(*socket, bytes).is_ok()).count()
}

pub(super) fn is_tcp(socket: BorrowedFd<'_>, family: AddressFamily) -> bool {
    is_of(socket, family, SocketType::STREAM, ipproto::TCP)
}

fn is_of(socket: BorrowedFd<'_>, family: AddressFamily, kind: SocketType, protocol: Protocol) -> bool {
    sockopt::socket_domain(socket) == Ok(family)
        && sockopt::socket_type(socket) == Ok(kind)
        && sockopt::socket_protocol(socket) == Ok(Some(protocol))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use rustix::process::getpid;

    use super::*;
    use crate::keeper::records::{Family, Transport};

    fn service() -> Service {
        Service {
            permitted: Permitted::default(),
            relay: Owner::new(getpid()),
            rules_stay: Box::new(|| false),
        }
    }

    fn is_refused(answer: &Answer) -> bool {
        matches!(answer, Answer::Refused(_))
    }

    /// None of these reaches the kernel.
    #[test]
    fn requests_of_nobody_are_refused() {
        let rule = NeedRecord::Rule {
            family: Family::V4,
            from: None,
            sent_here: false,
            mark: None,
            transport: Some(Transport::Tcp),
            ports: None,
            table: 254,
        };
        for needs in [vec![rule.clone()], vec![NeedRecord::Switch(9)], vec![rule; MOST_NEEDS + 1]] {
            assert!(is_refused(&service().carry_out(Request::Add { needs, sweeps: false }, &[])));
        }
        let null = || [OwnedFd::from(File::open("/dev/null").unwrap())];
        assert!(is_refused(&service().carry_out(Request::RemoveUnused, &null())));
        assert!(is_refused(&service().carry_out(Request::RemoveUnused, &[])), "with --routes manual");
        assert!(is_refused(&service().carry_out(Request::Add { needs: Vec::new(), sweeps: false }, &null())));
        let share = || Request::Share { address: "192.0.2.7:5000".parse().unwrap() };
        assert!(is_refused(&service().carry_out(share(), &[])));
        assert!(is_refused(&service().carry_out(share(), &null())));
    }

    /// A TCP socket that its owner sends may be bound beside another program's listener.
    #[test]
    fn it_listens_on_unix_sockets_of_others_only() {
        let listen = |socket: OwnedFd| service().carry_out(Request::ListenLocally { backlog: 1 }, &[socket]);
        for family in [AddressFamily::INET, AddressFamily::INET6, AddressFamily::NETLINK] {
            let kind = if family == AddressFamily::NETLINK { SocketType::RAW } else { SocketType::STREAM };
            let Ok(socket) = rustix::net::socket(family, kind, None) else { continue };
            assert!(is_refused(&listen(socket)), "{family:?}");
        }
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let name = format!("truepeer/test/{}", getpid().as_raw_nonzero());
        let name = rustix::net::SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::bind(&socket, &name).unwrap();
        assert_eq!(listen(socket.try_clone().unwrap()), Answer::Done);
        assert!(sockopt::socket_acceptconn(&socket).unwrap());
    }

    /// Whether the kernel does it depends on who runs this test.
    #[test]
    fn only_the_buffers_of_udp_sockets_grow_and_not_beyond_a_listeners() {
        let udp = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        let other = [
            OwnedFd::from(File::open("/dev/null").unwrap()),
            OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()),
            OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap()),
        ];
        let may = force_buffers(udp().as_fd(), 1 << 20).is_ok();
        assert_eq!(grow(&other, 1 << 20), 0);
        assert_eq!(grow(&[udp()], MOST_BUFFER_BYTES + 1), 0);
        assert_eq!(grow(&[udp(), udp()], MOST_BUFFER_BYTES), if may { 2 } else { 0 });
    }

    #[test]
    fn only_a_new_tcp_socket_is_bound() {
        let address: SocketAddr = "192.0.2.7:5000".parse().unwrap();
        let new = |address| truepeer_sys::socket::tcp_socket(address).unwrap();
        let of_another_family = new("[::1]:0".parse().unwrap());
        let used = [
            OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()),
            UdpSocket::bind("127.0.0.1:0").unwrap().into(),
            of_another_family,
        ];
        for socket in &used {
            share(socket.as_fd(), address).unwrap_err();
        }
        let bound = new(address);
        rustix::net::bind(&bound, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        share(bound.as_fd(), address).unwrap_err();
        share(new(address).as_fd(), "192.0.2.7:0".parse().unwrap()).unwrap_err();
        // Permitted here; whether the kernel does it depends on who runs this test.
        share(new(address).as_fd(), address).unwrap();
    }
}
