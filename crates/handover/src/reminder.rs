//! Wakes an application that waits in epoll, without the network: this host may be unable to connect to its
//! own listener.
//!
//! ```text
//! listener ── IN, data ──┐
//!                        epoll ──▶ epoll_wait(): IN, data ──▶ accept() ──▶ the late connection
//! eventfd ─── IN, data ──┘
//! ```
//! `/proc/self/fdinfo` lists what an epoll watches, each with its events and data (proc(5)). An eventfd that
//! is added with those of the listener makes epoll_wait() report the listener once more.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{fstat, major, minor};
use rustix::io::Errno;
use truepeer_sys::process::descriptor_of;

/// A socket, whatever descriptor refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId {
    /// In the kernel's own form: 20 bits for the minor number.
    device: u64,
    inode: u64,
}

impl SocketId {
    /// # Errors
    /// Those of fstat(2).
    pub fn of(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = fstat(socket)?;
        let device = u64::from(major(stat.st_dev)) << 20 | u64::from(minor(stat.st_dev));
        Ok(Self { device, inode: stat.st_ino })
    }

    /// Whether this descriptor of a process refers to it.
    pub fn is_at(&self, process: i32, number: RawFd) -> bool {
        fs::read_link(format!("/proc/{process}/fd/{number}"))
            .is_ok_and(|target| target.as_os_str() == self.link().as_str())
    }

    /// A duplicate of its descriptor in any process that this one may inspect.
    pub(crate) fn anywhere(&self) -> Option<OwnedFd> {
        let (link, all) = (self.link(), fs::read_dir("/proc").ok()?);
        let processes = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        processes.filter(|name| name.starts_with(|first: char| first.is_ascii_digit())).find_map(|process| {
            let copy = |number| descriptor_of(process.parse().ok()?, number).ok();
            numbers_of(&process, &link).into_iter().find_map(copy)
        })
    }

    /// The target of its descriptors in `/proc/PID/fd`.
    pub fn link(&self) -> String {
        format!("socket:[{}]", self.inode)
    }
}

/// The epolls among a process's descriptors; `self` is the calling one. None if its `/proc` can't be read.
pub fn epolls_of(process: &str) -> Vec<RawFd> {
    numbers_of(process, "anon_inode:[eventpoll]")
}

/// A process's descriptors whose link in `/proc` is this one.
fn numbers_of(process: &str, link: &str) -> Vec<RawFd> {
    let Ok(all) = fs::read_dir(format!("/proc/{process}/fd")) else { return Vec::new() };
    let is_one =
        |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|target| target.as_os_str() == link);
    all.flatten().filter(is_one).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What [`remind`] has done.
#[derive(Debug, Default)]
pub struct Reminded {
    /// Whether the epoll watches one of the listeners.
    pub watches: bool,
    /// Each is a reminder, until it is closed.
    pub events: Vec<OwnedFd>,
    /// They must be closed at once: the application has changed its epoll meanwhile, so their data may be
    /// stale.
    pub is_stale: bool,
}

/// Makes an epoll report these listeners once more, as far as it watches them. `keep` may change a
/// descriptor's number.
pub fn remind(
    epoll: BorrowedFd<'_>,
    listeners: &[SocketId],
    keep: impl Fn(OwnedFd) -> Result<OwnedFd, Errno>,
) -> Reminded {
    let watched = watches(epoll, listeners);
    let mut reminded = Reminded { watches: !watched.is_empty(), ..Reminded::default() };
    // Without IN the application does not want to know now: it arms the listener again (EPOLLONESHOT), or has
    // paused.
    for watch in watched.iter().filter(|watch| watch.events.contains(epoll::EventFlags::IN)) {
        let Ok(event) = eventfd(1, EventfdFlags::CLOEXEC).and_then(&keep) else { continue };
        let once = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        // If it fails, nothing was added, and the descriptor reminds of nothing.
        let _ = epoll::add(epoll, &event, epoll::EventData::new_u64(watch.data), once);
        reminded.events.push(event);
    }
    let still = watches(epoll, listeners);
    let is_still = |watch: &Watch| still.iter().any(|s| (s.socket, s.data) == (watch.socket, watch.data));
    reminded.is_stale = !watched.iter().all(is_still);
    reminded
}

/// Whether an epoll watches this listener.
pub fn is_watched(epoll: BorrowedFd<'_>, listener: SocketId) -> bool {
    !watches(epoll, &[listener]).is_empty()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Watch {
    socket: SocketId,
    events: epoll::EventFlags,
    data: u64,
}

fn watches(epoll: BorrowedFd<'_>, listeners: &[SocketId]) -> Vec<Watch> {
    let file = format!("/proc/self/fdinfo/{}", epoll.as_fd().as_raw_fd());
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(parse).filter(|watch| listeners.contains(&watch.socket)).collect()
}

/// `tfd:        7 events: 80000019 data:                7  pos:0 ino:1d2c3 sdev:8` (fs/eventpoll.c,
/// `ep_show_fdinfo`).
fn parse(line: &str) -> Option<Watch> {
    let field = |name: &str| {
        let text = line.split_once(name)?.1.trim_start();
        u64::from_str_radix(text.split([' ', '\t']).next()?, 16).ok()
    };
    Some(Watch {
        socket: SocketId { device: field("sdev:")?, inode: field("ino:")? },
        events: epoll::EventFlags::from_bits_retain(u32::try_from(field("events:")?).ok()?),
        data: field("data:")?,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::event::Timespec;

    use super::*;

    const DATA: u64 = 0xfedc_ba98_7654_3210;

    fn told(epoll: &OwnedFd) -> Vec<u64> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 4];
        let count = epoll::wait(epoll, &mut events, Some(&Timespec::default())).unwrap();
        events[..count].iter().map(|event| event.data.u64()).collect()
    }

    #[test]
    fn an_epoll_reports_a_listener_once_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(DATA), flags).unwrap();
        epoll::add(&epoll, &other, epoll::EventData::new_u64(1), flags).unwrap();
        assert!(epolls_of("self").contains(&epoll.as_raw_fd()));
        let id = SocketId::of(listener.as_fd()).unwrap();
        let reminded = remind(epoll.as_fd(), &[id], Ok);
        assert!(reminded.watches && !reminded.is_stale);
        assert_eq!(told(&epoll), [DATA]);
        assert!(told(&epoll).is_empty(), "once");
        drop(remind(epoll.as_fd(), &[id], Ok));
        assert!(told(&epoll).is_empty(), "withdrawn");
        epoll::modify(&epoll, &listener, epoll::EventData::new_u64(DATA), epoll::EventFlags::empty())
            .unwrap();
        assert!(remind(epoll.as_fd(), &[id], Ok).events.is_empty(), "not armed");
        epoll::delete(&epoll, &listener).unwrap();
        assert!(!remind(epoll.as_fd(), &[id], Ok).watches);
    }
}
