//! Counts who uses which rule: per network namespace, without files, and without cleaning up after killed
//! processes.
//!
//! A truepeer opens one raw IP socket (a *token*) for each rule, route and sysctl that it needs.
//! `/proc/net/raw` shows the tokens of all processes in the network namespace, whatever container they are
//! in:
//!
//! ```text
//!  239.155.18.7:00FD      127.0.18.103:0007
//!   │   the need, hashed      │ the process id
//!   bound: receives nothing   connected
//! ```
//!
//! The kernel closes a token with its process, SIGKILL included. Only a process with CAP_NET_RAW in the
//! namespace can open one, so nobody can hold rules who could not use clients' addresses anyway. A truepeer
//! that has CAP_NET_ADMIN alone opens UDP sockets instead. Any user could open these, so they count for other
//! processes of the same user only, and everywhere if root has opened them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, connect, socket_with};

use super::item::{IpFamily, IpTransport, Need, Rule};

/// How long a start waits for another's change to end; a change takes milliseconds.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

const LOCK: &str = "truepeer/routes/lock";
/// The protocol of raw tokens: for experiments, never on a wire (RFC 3692, RFC 4727).
pub const PROTOCOL: u8 = 253;
/// Where UDP tokens are connected to. Nothing is ever sent.
const DISCARD: u16 = 9;

/// The uses of this process. They end when this is dropped.
#[derive(Debug)]
pub struct Owner {
    _tokens: Vec<OwnedFd>,
}

impl Owner {
    /// Counts this process as a user of `needs`.
    ///
    /// # Errors
    /// The kernel's; nothing is counted then.
    pub fn of<'a>(needs: impl IntoIterator<Item = &'a Need>) -> io::Result<Self> {
        let keys: BTreeSet<Key> = needs.into_iter().map(Key::of).collect();
        let tokens: Result<Vec<OwnedFd>, Errno> = keys.into_iter().map(open_token).collect();
        Ok(Self { _tokens: tokens? })
    }
}

fn open_token(key: Key) -> Result<OwnedFd, Errno> {
    let raw = NonZeroU32::new(PROTOCOL.into()).map(Protocol::from_raw);
    match socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, raw) {
        Ok(token) => {
            bind(&token, &SocketAddrV4::new(key.address(), 0))?;
            // For `routes show` only. It fails where the loopback interface is down.
            let _ = connect(&token, &SocketAddrV4::new(this_process(), 0));
            Ok(token)
        }
        Err(Errno::PERM | Errno::ACCESS) => {
            let token = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
            bind(&token, &SocketAddrV4::new(key.address(), 0))?;
            connect(&token, &SocketAddrV4::new(this_process(), DISCARD))?;
            Ok(token)
        }
        Err(errno) => Err(errno),
    }
}

/// The process id as an address of 127.0.0.0/8: Linux's ids have at most 22 bits.
fn this_process() -> Ipv4Addr {
    Ipv4Addr::from_bits(127 << 24 | (std::process::id() & 0x00ff_ffff))
}

/// Represents a need by 24 bits of a hash. If two needs collide, one of them stays until both are unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u32);

impl Key {
    /// Must give the same for the same need in every version: the old and the new one count each other in an
    /// upgrade.
    fn of(need: &Need) -> Self {
        // FNV-1a, 32 bits, folded to 24
        let hash = spelled(need)
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self((hash >> 24) ^ (hash & 0x00ff_ffff))
    }

    /// A multicast address that nobody joins: any process may bind it, even without a device.
    fn address(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(239 << 24 | self.0)
    }

    fn in_address(address: Ipv4Addr) -> Option<Self> {
        (address.octets()[0] == 239).then_some(Self(address.to_bits() & 0x00ff_ffff))
    }
}

/// What a need selects. The source address of a local route is left out: with or without, it is the same
/// route.
fn spelled(need: &Need) -> String {
    match need {
        Need::Rule(rule) => {
            let Rule { family, from, sent_here, mark, transport, source_ports, table } = rule;
            let family = number(*family);
            let from = or_dash(from.map(|net| net.trunc().to_string()));
            let mark = or_dash(mark.map(|mark| mark.to_string()));
            let transport = transport.map_or("-", |transport| match transport {
                IpTransport::Tcp => "tcp",
                IpTransport::Udp => "udp",
            });
            let ports =
                or_dash(source_ports.as_ref().map(|ports| format!("{}-{}", ports.start(), ports.end())));
            format!("rule {family} {from} {sent_here} {mark} {transport} {ports} {table}")
        }
        Need::LocalRoute(route) => format!("route {} {}", number(route.family), route.table),
        Need::Switch(switch) => format!("switch {}", switch.name()),
    }
}

fn or_dash(word: Option<String>) -> String {
    word.unwrap_or_else(|| "-".to_owned())
}

fn number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 4,
        IpFamily::V6 => 6,
    }
}

/// All processes that use rules at one moment, this one included.
#[derive(Debug, Default)]
pub(crate) struct Living(BTreeSet<(Key, u32)>);

impl Living {
    /// Reads the tokens of this thread's network namespace.
    ///
    /// # Errors
    /// Where `/proc` is missing or hidden: the caller must then assume that everything is in use.
    pub(crate) fn read() -> io::Result<Self> {
        let mut living = Self::default();
        // not /proc/self: that is the main thread's namespace
        living.add(BufReader::new(File::open("/proc/thread-self/net/raw")?), |found| {
            found.local_port == u16::from(PROTOCOL)
        })?;
        let own = rustix::process::geteuid().as_raw();
        living.add(BufReader::new(File::open("/proc/thread-self/net/udp")?), |found| {
            found.remote_port == DISCARD && (found.user == 0 || found.user == own)
        })?;
        Ok(living)
    }

    fn add(&mut self, list: impl BufRead, is_believed: impl Fn(&Listed) -> bool) -> io::Result<()> {
        for line in list.lines() {
            let Some(found) = Listed::read(&line?).filter(&is_believed) else { continue };
            if let Some(key) = Key::in_address(found.local) {
                self.0.insert((key, found.remote.to_bits() & 0x00ff_ffff));
            }
        }
        Ok(())
    }

    /// Whether any process uses this.
    pub(crate) fn need(&self, need: &Need) -> bool {
        let key = Key::of(need);
        self.0.iter().any(|(found, _)| *found == key)
    }

    /// The process ids, as each process sees its own (in a container: the container's ids).
    pub(crate) fn processes(&self) -> Vec<u32> {
        let all: BTreeSet<u32> = self.0.iter().map(|(_, process)| *process).collect();
        all.into_iter().collect()
    }
}

/// One line of `/proc/net/raw` or `/proc/net/udp`.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    local: Ipv4Addr,
    local_port: u16,
    remote: Ipv4Addr,
    remote_port: u16,
    user: u32,
}

impl Listed {
    /// `None` for the head line.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, local_port) = address(words.next()?)?;
        let (remote, remote_port) = address(words.next()?)?;
        // state, queues, timer, retransmissions
        let user = words.nth(4)?.parse().ok()?;
        Some(Self { local, local_port, remote, remote_port, user })
    }
}

/// `0100007F:0035`: the four bytes of the address as one number of this machine, and the port.
fn address(word: &str) -> Option<(Ipv4Addr, u16)> {
    let (ip, port) = word.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?.to_ne_bytes();
    Some((ip.into(), u16::from_str_radix(port, 16).ok()?))
}

/// How long nobody waits for the lock after a wait in vain.
const PAUSE: Duration = Duration::from_secs(60);

/// When this process has last waited in vain.
static IN_VAIN: Mutex<Option<Instant>> = Mutex::new(None);

/// The right to change rules.
///
/// Any local user can hold it (it is an abstract unix socket): that delays a change by `LOCK_TIMEOUT`, and
/// nothing else depends on it, because removal counts the owners again afterwards.
#[derive(Debug)]
pub struct RulesLock {
    _name: Option<UnixDatagram>,
}

impl RulesLock {
    /// Takes the lock if it is free.
    pub fn try_acquire() -> Option<Self> {
        lock().ok().map(|name| Self { _name: Some(name) })
    }

    /// Waits for it at most `LOCK_TIMEOUT`, then goes on without: every change is idempotent, and an
    /// outage would be worse than two instances that race. After a wait in vain it does not wait for
    /// `PAUSE`: the many entries of a file would together wait longer than a service manager does.
    pub fn acquire() -> Self {
        let mut in_vain = IN_VAIN.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = in_vain.is_none_or(|last| last.elapsed() > PAUSE);
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match lock() {
                Ok(name) => return Self { _name: Some(name) },
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && !waits => return Self { _name: None },
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    *in_vain = Some(Instant::now());
                    tracing::warn!(
                        %error,
                        "a local process holds the abstract socket @{LOCK} (ss -xlp shows it); \
                         changing the routes without waiting for it any longer"
                    );
                    return Self { _name: None };
                }
            }
        }
    }
}

fn lock() -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(LOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{LocalRoute, Switch};

    fn rule(from: &str) -> Need {
        Need::Rule(Rule { from: Some(from.parse().unwrap()), ..Rule::to_table(IpFamily::V4, 123) })
    }

    #[test]
    fn a_need_keeps_its_key_in_every_version() {
        let route = |source: Option<&str>| {
            let source = source.map(|ip| ip.parse().unwrap());
            Need::LocalRoute(LocalRoute { family: IpFamily::V4, table: 123, source })
        };
        assert_eq!(Key::of(&rule("127.0.0.1/8")), Key::of(&rule("127.0.0.0/8")));
        assert_eq!(Key::of(&route(None)), Key::of(&route(Some("127.0.0.1"))));
        let narrow = Need::Rule(Rule {
            from: Some("127.0.0.1/32".parse().unwrap()),
            sent_here: true,
            mark: Some(5),
            transport: Some(IpTransport::Udp),
            source_ports: Some(53..=54),
            ..Rule::to_table(IpFamily::V4, 123)
        });
        let known = [rule("127.0.0.1/8"), narrow, route(None), Need::Switch(Switch::TcpFwmarkAccept)];
        assert_eq!(
            known.each_ref().map(|need| Key::of(need).address().to_string()),
            ["239.214.140.191", "239.72.144.191", "239.121.245.136", "239.28.68.36"]
        );
    }

    #[test]
    fn tokens_are_read_from_the_lists_of_sockets() {
        // on a little-endian machine
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmnt   uid  timeout inode ref pointer drops\n\
            253: 0712 not a socket\n\
            253: 07129BEF:00FD 6712007F:00FD 01 00000000:00000000 00:00000000 00000000  1000        0 24680 2 00000000d5e1e2c0 0\n\
            254: 08129BEF:00FE 6712007F:00FE 01 00000000:00000000 00:00000000 00000000  1000        0 24681 2 00000000d5e1e2c0 0\n\
              1: 0100007F:00FD 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 24682 2 00000000d5e1e2c0 0\n";
        let mut living = Living::default();
        living.add(list.as_bytes(), |found| found.local_port == 253).unwrap();
        if cfg!(target_endian = "little") {
            assert_eq!(living.0.into_iter().collect::<Vec<_>>(), [(Key(0x009b_1207), 0x1267)]);
        }
    }

    #[test]
    fn a_need_is_counted_while_its_owner_lives() {
        let (mine, other) = (rule("127.1.0.0/16"), rule("127.2.0.0/16"));
        let Ok(owner) = Owner::of([&mine]) else { return };
        let living = Living::read().unwrap();
        assert!(living.need(&mine) && !living.need(&other));
        assert!(living.processes().contains(&std::process::id()));
        drop(owner);
        assert!(!Living::read().unwrap().need(&mine));
    }
}
