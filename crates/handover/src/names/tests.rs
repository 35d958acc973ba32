use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};

use super::*;

struct Open(BTreeSet<u64>);

impl Census for Open {
    fn ask(&mut self, cookie: u64, _: &ConnectionTuple) -> Standing {
        if self.0.contains(&cookie) { Standing::Open } else { Standing::Closed }
    }
}

/// A census in which all connections but this one are closed.
fn only(cookie: u64) -> Open {
    Open(BTreeSet::from([cookie]))
}

/// A census that can't be asked.
struct Silent;

impl Census for Silent {
    fn ask(&mut self, _: u64, _: &ConnectionTuple) -> Standing {
        Standing::Unknown
    }
}

fn name(client: &str) -> Name {
    let (local, sender) = ("10.0.0.1:80".parse().unwrap(), "[fe80::1]:5".parse().unwrap());
    let tuple = ConnectionTuple { local, sender, device: u32::MAX, namespace: u32::MAX - 1 };
    Name { client: client.parse().unwrap(), destination: None, tuple }
}

#[test]
fn a_name_is_found_by_its_cookie_in_every_process() {
    let (names, fd) = Names::create().unwrap();
    let other = Names::open(fd.as_fd()).unwrap();
    let mapped = Name { destination: "[2001:db8::1]:443".parse().ok(), ..name("[::ffff:192.0.2.1]:80") };
    let _ = names.insert(5, &mapped, &mut only(5)).unwrap();
    let _ = names.insert(6, &name("[fe80::2%7]:1"), &mut only(6)).unwrap();
    assert_eq!(other.find(5), Some(mapped));
    assert_eq!(other.find(6), Some(name("[fe80::2%7]:1")));
    assert_eq!(other.find(7), None);
    for last in [u64::MAX, u64::MAX - 1] {
        let _ = names.insert(last, &mapped, &mut only(last)).unwrap();
        assert_eq!(other.find(last), Some(mapped), "the kernel counts down, too");
    }
    assert_eq!(other.wake_up().word(), names.wake_up().word());
}

#[test]
fn only_closed_connections_are_forgotten() {
    let (names, _fd) = Names::create().unwrap();
    let mut open = only(0);
    // Cookies that share one slot at every size of the table.
    let mut cookies = (0..).map(|round| 1 + round * SLOTS as u64);
    let mut inserted = Vec::new();
    let refused = loop {
        let cookie = cookies.next().unwrap();
        if names.insert(cookie, &name("192.0.2.1:1"), &mut open) == Err(NamesFull) {
            break cookie;
        }
        open.0.insert(cookie);
        inserted.push(cookie);
    };
    assert!(inserted.len() >= WINDOW, "{}", inserted.len());
    let closed = inserted.pop().unwrap();
    open.0.remove(&closed);
    let _ = names.insert(refused, &name("192.0.2.2:2"), &mut open).unwrap();
    assert_eq!(names.find(closed), None);
    assert_eq!(names.find(refused), Some(name("192.0.2.2:2")));
    assert!(inserted.into_iter().all(|cookie| names.find(cookie) == Some(name("192.0.2.1:1"))));
}

#[test]
fn the_table_grows_with_open_connections_only() {
    let (names, _fd) = Names::create().unwrap();
    for cookie in 1..10 * FIRST_SIZE as u64 {
        let _ = names.insert(cookie, &name("192.0.2.1:1"), &mut only(cookie)).unwrap();
    }
    assert_eq!(names.size(), FIRST_SIZE);
    let mut open = only(0);
    for cookie in 100_000..105_000_u64 {
        open.0.insert(cookie);
        let _ = names.insert(cookie, &name("192.0.2.2:2"), &mut open).unwrap();
    }
    assert_eq!(names.size(), 8 * FIRST_SIZE);
    assert!((100_000..105_000).all(|cookie| names.find(cookie) == Some(name("192.0.2.2:2"))));
}

/// Long-lived connections that were opened together don't block the slots of later ones.
#[test]
fn consecutive_open_connections_block_no_later_one() {
    let (names, _fd) = Names::create().unwrap();
    let mut open = only(0);
    for cookie in 1..1000 {
        open.0.insert(cookie);
        let _ = names.insert(cookie, &name("192.0.2.1:1"), &mut open).unwrap();
    }
    for cookie in 1000..3 * SLOTS as u64 {
        let _ = names.insert(cookie, &name("192.0.2.2:2"), &mut open).unwrap();
    }
    assert!((1..1000).all(|cookie| names.find(cookie) == Some(name("192.0.2.1:1"))));
}

#[test]
fn a_foreign_descriptor_is_refused() {
    let file = rustix::fs::memfd_create(c"other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(Names::open(file.as_fd()).unwrap_err(), Errno::INVAL);
}

/// Many threads write to overlapping slots at once. Each finds what it wrote.
#[test]
fn insertions_at_once_do_not_mix() {
    let (names, _fd) = Names::create().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let names = &names;
            scope.spawn(move || {
                for n in 0..20_000_u64 {
                    let cookie = 1 + n * 4 + thread;
                    let port = u16::try_from(cookie % 60_000).unwrap();
                    let own = Name { client: ([192, 0, 2, 1], port).into(), ..name("192.0.2.1:1") };
                    let _ = names.insert(cookie, &own, &mut only(cookie)).unwrap();
                    assert!(names.find(cookie).is_none_or(|found| found == own), "{cookie}");
                }
            });
        }
    });
}

/// A census that sees nothing must not make open connections look closed.
#[test]
fn a_blind_census_is_not_believed() {
    let (names, _fd) = Names::create().unwrap();
    for cookie in 1..=FIRST_SIZE as u64 + 1 {
        let room = names.insert(cookie, &name("192.0.2.1:1"), &mut Open(BTreeSet::new()));
        assert_eq!(room, Ok(Remembered::InRoom));
    }
    assert_eq!(names.size(), 2 * FIRST_SIZE);
    assert!((1..=FIRST_SIZE as u64 + 1).all(|cookie| names.find(cookie).is_some()));
}

#[test]
fn without_a_census_the_oldest_are_forgotten() {
    let (names, _fd) = Names::create().unwrap();
    let last = 3 * SLOTS as u64;
    let remembered: Vec<_> =
        (1..=last).map(|cookie| names.insert(cookie, &name("192.0.2.1:1"), &mut Silent).unwrap()).collect();
    assert_eq!(remembered[0], Remembered::InRoom);
    assert_eq!(remembered.last(), Some(&Remembered::InPlaceOfAnother));
    assert_eq!(names.find(1), None);
    assert!((last - 1000..=last).all(|cookie| names.find(cookie).is_some()));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
fn the_kernel_knows_what_is_open() {
    for (address, device) in
        [("127.0.0.1:0", None), ("[::1]:0", None), ("127.0.0.1:0", Some(b"lo".as_slice()))]
    {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        if let Some(device) = device {
            // Since Linux 5.7 this needs no privilege.
            socket2::SockRef::from(&listener).bind_device(Some(device)).unwrap();
        }
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, sender) = listener.accept().unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&accepted).unwrap();
        let tuple = ConnectionTuple::of(accepted.as_fd(), sender).unwrap();
        assert_eq!(tuple.device != 0, device.is_some());
        let mut diag = SocketDiag::new();
        assert_eq!(diag.ask(cookie, &tuple), Standing::Open);
        assert_eq!(diag.ask(cookie + 1, &tuple), Standing::Closed, "another connection with these ends");
        let elsewhere = ConnectionTuple { namespace: tuple.namespace.wrapping_add(1), ..tuple };
        assert_eq!(diag.ask(cookie, &elsewhere), Standing::Unknown);
        // This end closes first, so the kernel keeps its ends and its cookie for a while (TIME_WAIT).
        drop(accepted);
        assert_eq!(diag.ask(cookie, &tuple), Standing::Closed);
        drop(stream);
    }
}
