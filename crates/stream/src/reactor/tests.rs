use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use truepeer_policy::{HeaderError, HeaderReader, HeaderRule, HeaderTimes};
use truepeer_proto::Limits;
use truepeer_session::connect_as::{ConnectError, Upstream};
use truepeer_session::listening::{ListenOptions, listen};

use super::*;

const LONG: Duration = Duration::from_secs(60);

fn listening(reactor: &Reactor) -> (TcpListener, SocketAddr) {
    let socket = listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
    let listener = TcpListener::new(reactor, socket).unwrap();
    let address = listener.local_address().unwrap();
    (listener, address)
}

async fn dial(reactor: &Reactor, backend: SocketAddr) -> Result<TcpStream, ConnectError> {
    connect(reactor, &Upstream { source: None, backend, mark: 0, path_mtu: None }).await
}

/// What a reader gets of these pieces, each of which is sent when the one before is in the kernel.
fn read_late(pieces: &'static [&'static [u8]]) -> io::Result<Vec<u8>> {
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    let other = reactor.clone();
    let read = async move {
        let mut client = dial(&other, address).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let times = HeaderTimes::default();
        stream.await_late_bytes(HeaderReader {
            rule: HeaderRule::Optional,
            limits: Limits::default(),
            times,
        });
        let writer = other.clone();
        other.spawn(async move {
            for piece in pieces {
                // The reader may have refused it.
                let _ = client.write_all(piece).await;
                while client.unacknowledged() > 0 {
                    writer.yield_now().await;
                }
            }
            let _ = client.shutdown().await;
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.map(|_| all)
    };
    reactor.block_on(read).unwrap()
}

#[test]
fn late_bytes_that_are_a_header_are_an_error_and_others_are_read_whole() {
    let refused: [&[&[u8]]; 4] = [
        &[b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", b"data"],
        &[b"P", b"ROXY", b" "],
        &[b"\r\n\r\n\0\r\nQUIT", b"\n\x21\x11"],
        &[b"\r", b"\n\r\n\0\r\nQUIT\n"],
    ];
    for pieces in refused {
        let error = read_late(pieces).unwrap_err();
        assert!(matches!(refused_late(&error), Some(HeaderError::AfterWait { .. })), "{error}");
    }
    let read: [&[&[u8]]; 6] = [
        &[],
        &[b"P"],
        &[b"PROXY"],
        &[b"\r\n", b"\r\n"],
        &[b"PRO", b"XIMITY"],
        &[b"GET / HTTP/1.1\r\n", b"\r\n"],
    ];
    for pieces in read {
        assert_eq!(read_late(pieces).unwrap(), pieces.concat());
    }
}

#[test]
fn a_task_that_panics_ends_alone() {
    let reactor = Reactor::new().unwrap();
    reactor.spawn(async { panic!("on purpose") });
    let other = reactor.clone();
    let left = reactor.block_on(async move {
        while other.panics() == 0 {
            other.yield_now().await;
        }
        other.tasks()
    });
    assert_eq!(left.unwrap(), 1);
}

#[test]
fn a_busy_task_leaves_the_others_their_turns() {
    let reactor = Reactor::new().unwrap();
    let busy = reactor.clone();
    reactor.spawn(async move {
        loop {
            poll_fn(|cx| busy.poll_allowance(cx)).await;
        }
    });
    let other = reactor.clone();
    let turns = reactor.block_on(async move {
        for _ in 0..10 {
            other.yield_now().await;
        }
        10
    });
    assert_eq!(turns.unwrap(), 10);
}

#[test]
fn all_work_before_any_of_them_sends() {
    let reactor = Reactor::new().unwrap();
    let steps: Rc<RefCell<Vec<&str>>> = Rc::default();
    for _ in 0..3 {
        let (inner, steps) = (reactor.clone(), Rc::clone(&steps));
        reactor.spawn(async move {
            steps.borrow_mut().push("works");
            poll_fn(|_| inner.poll_settling()).await;
            steps.borrow_mut().push("sends");
        });
    }
    let (other, seen) = (reactor.clone(), Rc::clone(&steps));
    let seen = reactor.block_on(async move {
        other.yield_now().await;
        seen.take()
    });
    assert_eq!(seen.unwrap(), ["works", "works", "works", "sends", "sends", "sends"]);
}

/// It always has something to send and always more to do, so it is woken before it is polled again.
#[test]
fn a_task_that_sends_and_works_on_is_polled_twice_a_turn_and_no_more() {
    const TURNS: usize = 50;
    let reactor = Reactor::new().unwrap();
    let polls = Rc::new(Cell::new(0));
    let (count, busy) = (Rc::clone(&polls), reactor.clone());
    reactor.spawn(poll_fn(move |cx| {
        count.set(count.get() + 1);
        let _ = busy.poll_settling();
        cx.waker().wake_by_ref();
        Poll::<()>::Pending
    }));
    let (other, seen) = (reactor.clone(), Rc::clone(&polls));
    let most = reactor.block_on(async move {
        let (mut before, mut most) = (seen.get(), 0);
        for _ in 0..TURNS {
            other.yield_now().await;
            most = most.max(seen.get() - before);
            before = seen.get();
        }
        most
    });
    assert_eq!(most.unwrap(), 2);
}

/// What ends a kept connection may wait behind the events that one epoll_wait takes.
#[test]
fn a_full_epoll_wait_is_not_all_that_has_happened() {
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    let other = reactor.clone();
    let had_all = reactor.block_on(async move {
        let mut connections = Vec::new();
        for _ in 0..event_loop::EVENTS + 10 {
            connections.push(dial(&other, address).await.unwrap());
        }
        let mut had_all = Vec::new();
        other.yield_now().await;
        had_all.push(other.has_all_events_of(LONG));
        // Nobody has accepted them: the kernel resets all of them now.
        drop(listener);
        for _ in 0..2 {
            other.yield_now().await;
            had_all.push(other.has_all_events_of(LONG));
        }
        had_all
    });
    assert_eq!(had_all.unwrap(), [true, false, true]);
}

/// A wakes B, which wakes C, and so on: each works once a turn, none is forgotten, and a long chain leaves
/// the others their turns.
#[test]
fn tasks_that_a_turn_wakes_work_in_it_in_turns_of_a_few() {
    const TASKS: usize = 8;
    let reactor = Reactor::new().unwrap();
    let wakers: Rc<RefCell<Vec<Option<Waker>>>> = Rc::new(RefCell::new(vec![None; TASKS]));
    let worked = Rc::new(RefCell::new(Vec::new()));
    let now = reactor.clone();
    let turns = Rc::new(Cell::new(0));
    for at in 0..TASKS {
        let (wakers, worked, turns) = (Rc::clone(&wakers), Rc::clone(&worked), Rc::clone(&turns));
        reactor.spawn(async move {
            poll_fn(|cx| {
                let was_known = wakers.borrow_mut()[at].replace(cx.waker().clone()).is_some();
                if !was_known {
                    return Poll::Pending;
                }
                worked.borrow_mut().push((at, turns.get()));
                if let Some(Some(next)) = wakers.borrow().get(at + 1) {
                    next.wake_by_ref();
                }
                Poll::Ready(())
            })
            .await;
        });
    }
    let (counted, first) = (Rc::clone(&turns), Rc::clone(&wakers));
    reactor
        .block_on(async move {
            now.yield_now().await;
            first.borrow()[0].as_ref().expect("polled once").wake_by_ref();
            while now.tasks() > 1 {
                counted.set(counted.get() + 1);
                now.yield_now().await;
            }
        })
        .unwrap();
    let worked = worked.take();
    assert!(worked.iter().map(|(at, _)| *at).eq(0..TASKS), "{worked:?}");
    let of_turn = |turn| worked.iter().filter(|(_, of)| *of == turn).count();
    assert!((1..=turns.get()).all(|turn| of_turn(turn) <= 3), "{worked:?}");
    assert!(turns.get() <= TASKS / 2, "{worked:?}");
}

#[test]
fn a_wake_from_another_thread_arrives() {
    let reactor = Reactor::new().unwrap();
    let mut waiter = None;
    let rung = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let done = reactor.block_on(poll_fn(move |cx| {
        use std::sync::atomic::Ordering::SeqCst;
        if rung.load(SeqCst) {
            return Poll::Ready(true);
        }
        let (waker, rung) = (cx.waker().clone(), Arc::clone(&rung));
        waiter.get_or_insert_with(|| {
            thread::spawn(move || {
                rung.store(true, SeqCst);
                waker.wake();
            })
        });
        Poll::Pending
    }));
    assert!(done.unwrap());
}

#[test]
fn timers_pass_in_order_put_off_or_brought_forward() {
    let reactor = Reactor::new().unwrap();
    let order = Rc::new(RefCell::new(Vec::new()));
    let (loop_, seen) = (reactor.clone(), Rc::clone(&order));
    reactor
        .block_on(async move {
            for (name, millis) in [("second", 20), ("first", 5)] {
                let (loop_, seen) = (loop_.clone(), Rc::clone(&seen));
                loop_.clone().spawn(async move {
                    loop_.sleep(Duration::from_millis(millis)).await;
                    seen.borrow_mut().push(name);
                });
            }
            let timer = loop_.timer();
            timer.arm(LONG);
            timer.arm(Duration::from_millis(30)); // forward
            timer.expired().await;
            timer.arm(Duration::from_millis(1));
            timer.arm(Duration::from_millis(40)); // off
            timer.expired().await;
            seen.borrow_mut().push("last");
        })
        .unwrap();
    assert_eq!(*order.borrow(), ["first", "second", "last"]);
}

#[test]
fn a_time_out_drops_its_future() {
    let reactor = Reactor::new().unwrap();
    let other = reactor.clone();
    let (slow, quick) = reactor
        .block_on(async move {
            let slow = other.timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
            let quick = other.timeout(LONG, async { 7 }).await;
            let disarmed = other.timer();
            disarmed.arm(Duration::from_millis(1));
            disarmed.disarm();
            assert_eq!(other.timeout(Duration::from_millis(10), disarmed.expired()).await, Err(Elapsed));
            (slow, quick)
        })
        .unwrap();
    assert_eq!((slow, quick), (Err(Elapsed), Ok(7)));
}

#[test]
fn bytes_go_both_ways_and_each_way_ends_by_itself() {
    const BYTES: usize = 3 << 20;
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    let echo = async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0);
    };
    reactor.spawn(echo);
    let other = reactor.clone();
    let received = reactor.block_on(async move {
        let mut stream = dial(&other, address).await.unwrap();
        let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        stream.write_all(&sent).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        received == sent
    });
    assert!(received.unwrap());
}

#[test]
fn a_reset_is_an_error_after_what_came_before() {
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    reactor.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 1]).await;
        stream.reset_when_closed();
    });
    let other = reactor.clone();
    let error = reactor.block_on(async move {
        let mut stream = dial(&other, address).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.read(&mut [0; 16]).await.unwrap_err().kind()
    });
    assert_eq!(error.unwrap(), io::ErrorKind::ConnectionReset);
}

#[test]
fn a_refused_connection_is_an_error() {
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    drop(listener);
    let other = reactor.clone();
    let error = reactor.block_on(async move { dial(&other, address).await.unwrap_err().to_string() });
    let error = error.unwrap();
    assert!(error.starts_with("connect failed: "), "{error}");
}

#[test]
fn a_drained_loop_ends_with_its_last_task() {
    let reactor = Reactor::new().unwrap();
    let (listener, address) = listening(&reactor);
    let other = reactor.clone();
    reactor.spawn(async move {
        let session = listener.accept();
        let (mut stream, _) = session.await.unwrap();
        other.drained().await;
        drop(listener);
        let _ = stream.read(&mut [0; 1]).await;
    });
    let remote = reactor.remote();
    let sender = thread::spawn(move || {
        let stream = std::net::TcpStream::connect_timeout(&address, LONG).unwrap();
        remote.drain();
        drop(stream);
    });
    reactor.run().unwrap();
    assert_eq!(reactor.tasks(), 0);
    sender.join().unwrap();
}

/// It works until the last task has ended, and panics or ends without being counted twice.
#[test]
fn a_drained_loop_does_not_wait_for_an_attendant() {
    let reactor = Reactor::new().unwrap();
    let turns = Rc::new(Cell::new(0));
    let (counted, attending, worker) = (Rc::clone(&turns), reactor.clone(), reactor.clone());
    reactor.spawn_attendant(async { panic!("on purpose") });
    reactor.spawn_attendant(async {});
    reactor.spawn_attendant(async move {
        loop {
            attending.sleep(Duration::from_millis(1)).await;
            counted.update(|turns| turns + 1);
        }
    });
    let seen = Rc::new(Cell::new(0));
    let noted = Rc::clone(&seen);
    reactor.spawn(async move {
        worker.drained().await;
        // The attendant may not have run yet: the drain began before the loop.
        for _ in 0..1000 {
            worker.sleep(Duration::from_millis(1)).await;
            noted.set(turns.get());
            if noted.get() > 0 {
                return;
            }
        }
    });
    reactor.remote().drain();
    reactor.run().unwrap();
    assert!(seen.get() > 0, "the attendant worked during the drain: {seen:?}");
}

#[test]
fn a_finished_wait_for_the_turn_is_removed() {
    let reactor = Reactor::new().unwrap();
    let before = Arc::strong_count(&reactor.state().mailbox);
    let other = reactor.clone();
    let waited = reactor.block_on(async move {
        for _ in 0..100 {
            let waiting = other.clone();
            other.spawn(async move {
                assert!(waiting.timeout(Duration::ZERO, waiting.drained()).await.is_err());
            });
        }
        while other.tasks() > 1 {
            other.sleep(Duration::from_millis(1)).await;
        }
    });
    waited.unwrap();
    assert_eq!(Arc::strong_count(&reactor.state().mailbox), before);
}

#[test]
fn a_stopped_loop_drops_its_tasks() {
    let reactor = Reactor::new().unwrap();
    let held = Rc::new(());
    let kept = Rc::clone(&held);
    reactor.spawn(async move {
        std::future::pending::<()>().await;
        drop(kept);
    });
    let remote = reactor.remote();
    let other = thread::spawn(move || remote.stop());
    reactor.run().unwrap();
    other.join().unwrap();
    assert_eq!(Rc::strong_count(&held), 1);
}
