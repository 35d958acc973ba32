//! Tagged frames, and sessions behind one another.

use std::hint;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_sys::packet::PacketSocket;
use truepeer_testbed::packets::{ACK, PSH, Segment, Tag, Wire};
use truepeer_testbed::{Bed, client};

use crate::attack::words;
use crate::line::Line;

const RELAYS_LINK: [u8; 6] = [2, 0, 0, 0, 8, 1];

/// A tag of VLAN 0 carries only a priority, and the segment goes on without it. Other tags belong to devices
/// that this host doesn't have.
pub(crate) fn tagged(bed: &Bed, v6: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let [a, b, c, d, e, f] = RELAYS_LINK;
    let address = format!("link set near address {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    line.host("relay").ip(&[&address])?;
    let mut session = line.spliced(v6)?;
    thread::sleep(Duration::from_millis(100));
    let socket = line.host("near").run(|| PacketSocket::open("relay"))??;
    let entry = session.entry();
    let (peer, own) = session.tuples[0];
    let next = |payload: &[u8]| Segment {
        seq: words(&entry, "ack")[0],
        ack: words(&entry, "nxt")[0],
        flags: ACK | PSH,
        payload: payload.to_vec(),
        ..Segment::new(peer, own)
    };
    let tag = |ethertype, id| Tag { ethertype, id };
    let others = [vec![tag(0x8100, 5)], vec![tag(0x88a8, 7)], vec![tag(0x8100, 0), tag(0x8100, 5)]];
    for tags in others {
        socket.send(&Wire::frame_to(RELAYS_LINK, &next(b"another's").packet(), &tags))?;
    }
    thread::sleep(Duration::from_millis(100));
    ensure!(session.entry() == entry, "a frame of another VLAN has changed the flow");
    socket.send(&Wire::frame_to(RELAYS_LINK, &next(b"of priority").packet(), &[tag(0x8100, 3 << 13)]))?;
    session.hear(1, b"of priority").context("VLAN 0")
}

/// Two sessions on loopback, the second one behind the first: sender, three connections, backend.
struct Chain([(TcpStream, TcpStream); 3]);

impl Chain {
    fn make() -> Result<Self> {
        let pair = || -> Result<(TcpStream, TcpStream)> {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let near = client::connect(listener.local_addr()?)?;
            Ok((near, listener.accept()?.0))
        };
        Ok(Self([pair()?, pair()?, pair()?]))
    }

    fn sockets(&self, session: usize) -> [&TcpStream; 2] {
        [&self.0[session].1, &self.0[session + 1].0]
    }
}

/// Segments that are translated from loopback to loopback don't come in again, so the second session stays.
pub(crate) fn chained(bed: &Bed) -> Result<()> {
    let line = Line::make(bed)?;
    line.host("relay").run(|| -> Result<()> {
        let chain = Chain::make()?;
        let _first = line.arm_sockets(chain.sockets(0)).context("the first")?;
        let second = line.arm_sockets(chain.sockets(1));
        let label = second.as_ref().err().map(|stays| stays.reason().label());
        ensure!(label == Some("chained"), "{second:?}");
        Ok(())
    })?
}

/// Two workers arm both at the same time: at least one sees the other.
pub(crate) fn chained_at_once(bed: &Bed) -> Result<()> {
    const ROUNDS: u32 = 2000;
    let line = Line::make(bed)?;
    line.host("relay").run(|| -> Result<()> {
        for round in 0..ROUNDS {
            let (chain, ready) = (Chain::make()?, AtomicU32::new(0));
            let arm = |session| {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    hint::spin_loop();
                }
                line.arm_sockets(chain.sockets(session))
            };
            let both = thread::scope(|scope| {
                let first = scope.spawn(|| arm(0));
                let second = arm(1);
                [first.join().expect("no panic"), second]
            });
            let stay = both.iter().filter_map(|armed| armed.as_ref().err());
            let labels: Vec<_> = stay.map(|stays| stays.reason().label()).collect();
            ensure!(!labels.is_empty(), "round {round}: both have left");
            ensure!(labels.iter().all(|label| *label == "chained"), "round {round}: {labels:?}");
        }
        Ok(())
    })?
}
