use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};

use super::*;

struct Open(BTreeSet<u64>);

impl Census for Open {
    fn is_open(&mut self, cookie: u64, _: &Tuple) -> bool {
        self.0.contains(&cookie)
    }
}

fn nobody() -> Open {
    Open(BTreeSet::new())
}

fn name(client: &str) -> Name {
    let tuple = Tuple { local: "10.0.0.1:80".parse().unwrap(), sender: "[fe80::1]:5".parse().unwrap() };
    Name { client: client.parse().unwrap(), destination: None, tuple }
}

#[test]
fn a_name_is_found_by_its_cookie_in_every_process() {
    let (names, fd) = Names::create().unwrap();
    let other = Names::open(fd.as_fd()).unwrap();
    let mapped = Name { destination: "[2001:db8::1]:443".parse().ok(), ..name("[::ffff:192.0.2.1]:80") };
    names.insert(5, &mapped, &mut nobody()).unwrap();
    names.insert(6, &name("[fe80::2%7]:1"), &mut nobody()).unwrap();
    assert_eq!(other.find(5), Some(mapped));
    assert_eq!(other.find(6), Some(name("[fe80::2%7]:1")));
    assert_eq!(other.find(7), None);
    assert_eq!(other.wake_up().word(), names.wake_up().word());
}

#[test]
fn only_closed_connections_are_forgotten() {
    let (names, _fd) = Names::create().unwrap();
    let mut open = nobody();
    // All of one place, at every size that the table may have.
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
    names.insert(refused, &name("192.0.2.2:2"), &mut open).unwrap();
    assert_eq!(names.find(closed), None);
    assert_eq!(names.find(refused), Some(name("192.0.2.2:2")));
    assert!(inserted.into_iter().all(|cookie| names.find(cookie) == Some(name("192.0.2.1:1"))));
}

#[test]
fn the_table_grows_with_open_connections_only() {
    let (names, _fd) = Names::create().unwrap();
    for cookie in 1..10 * FIRST_SIZE as u64 {
        names.insert(cookie, &name("192.0.2.1:1"), &mut nobody()).unwrap();
    }
    assert_eq!(names.size(), FIRST_SIZE);
    let mut open = nobody();
    for cookie in 100_000..105_000_u64 {
        open.0.insert(cookie);
        names.insert(cookie, &name("192.0.2.2:2"), &mut open).unwrap();
    }
    assert_eq!(names.size(), 8 * FIRST_SIZE);
    assert!((100_000..105_000).all(|cookie| names.find(cookie) == Some(name("192.0.2.2:2"))));
}

/// Long-lived connections that were opened together are in nobody's way when their slots come up again.
#[test]
fn a_row_of_open_connections_bars_nobody() {
    let (names, _fd) = Names::create().unwrap();
    let mut open = nobody();
    for cookie in 1..1000 {
        open.0.insert(cookie);
        names.insert(cookie, &name("192.0.2.1:1"), &mut open).unwrap();
    }
    for cookie in 1000..3 * SLOTS as u64 {
        names.insert(cookie, &name("192.0.2.2:2"), &mut open).unwrap();
    }
    assert!((1..1000).all(|cookie| names.find(cookie) == Some(name("192.0.2.1:1"))));
}

#[test]
fn a_foreign_descriptor_is_no_table() {
    let file = rustix::fs::memfd_create(c"other", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(Names::open(file.as_fd()).unwrap_err(), Errno::INVAL);
}

/// Many threads at once, on places that overlap: each finds what it wrote, nobody anything else.
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
                    names.insert(cookie, &own, &mut nobody()).unwrap();
                    assert!(names.find(cookie).is_none_or(|found| found == own), "{cookie}");
                }
            });
        }
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a connection of the test's own")]
fn the_kernel_knows_what_is_open() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, sender) = listener.accept().unwrap();
        let cookie = rustix::net::sockopt::socket_cookie(&accepted).unwrap();
        let tuple = Tuple { local: accepted.local_addr().unwrap(), sender };
        let mut diag = SocketDiag::new();
        assert!(diag.is_open(cookie, &tuple));
        assert!(!diag.is_open(cookie + 1, &tuple), "another connection with these ends");
        // This end closes first: the kernel has its ends for a while still, by its cookie.
        drop(accepted);
        assert!(!diag.is_open(cookie, &tuple));
        drop(stream);
    }
}
