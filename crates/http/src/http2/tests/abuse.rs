//! Clients that abuse a connection.

use std::collections::VecDeque;
use std::task::Poll;

use super::server::{GET, WHOLE, answer, ask, connection, post};
use super::*;

#[test]
fn rapid_resets_and_malformed_requests_end_the_connection() {
    let cancelled = |id| [frame(HEADERS, WHOLE, id, GET), number(RST_STREAM, id, 8)].concat();
    let malformed = |id| frame(HEADERS, WHOLE, id, &[0x82]);
    // "MadeYouReset": the client lets truepeer reset them.
    let violating = |id, fault: Vec<u8>| [frame(HEADERS, WHOLE, id, GET), fault].concat();
    let zero = |id| violating(id, number(WINDOW_UPDATE, id, 0));
    let overflow = |id| violating(id, number(WINDOW_UPDATE, id, 0x7fff_ffff));
    let data = |id| violating(id, frame(DATA, 0, id, b"x"));
    let head = |id| violating(id, frame(HEADERS, WHOLE, id, &[]));
    let floods = [&cancelled as &dyn Fn(u32) -> Vec<u8>, &malformed, &zero, &overflow, &data, &head];
    for (at, flood) in floods.into_iter().enumerate() {
        let state = connection(&[]);
        let ended = (0..1000).find_map(|number| {
            let said = say(&state, &flood(1 + 2 * number)).err();
            drop(StreamHandle::next_request(&state));
            sent(&state);
            said.map(|fault| (number, fault))
        });
        assert_eq!(ended, Some((101, Fault::RapidReset)), "flood {at}");
    }
}

/// Streams beyond the limit of open ones are refused, and don't make up for cancelled ones.
#[test]
fn refused_streams_do_not_hide_rapid_resets() {
    let state = connection(&[]);
    let mut id = 1;
    let mut begin = || {
        let head = frame(HEADERS, WHOLE, id, GET);
        id += 2;
        (id - 2, head)
    };
    let mut open: VecDeque<_> = (0..MOST_STREAMS)
        .map(|_| {
            let (id, head) = begin();
            say(&state, &head).unwrap();
            (id, StreamHandle::next_request(&state).expect("a request"))
        })
        .collect();
    let ended = (0..1000).find_map(|_| {
        let (oldest, task) = open.pop_front().expect("an open stream");
        let said = say(&state, &number(RST_STREAM, oldest, 8));
        drop(task);
        let (id, head) = begin();
        let said = said.and_then(|()| say(&state, &head));
        open.extend(StreamHandle::next_request(&state).map(|task| (id, task)));
        let refused: Vec<u8> = (0..4).flat_map(|_| begin().1).collect();
        let said = said.and_then(|()| say(&state, &refused));
        sent(&state);
        said.err()
    });
    assert_eq!(ended, Some(Fault::RapidReset));
}

/// Their tasks may take long to end, whatever the client does meanwhile.
#[test]
fn streams_that_are_cancelled_count_until_their_tasks_end() {
    let state = connection(&[]);
    let (mut tasks, mut id) = (Vec::new(), 1);
    let fault = loop {
        // Each second one is answered, so few are cancelled.
        let cancelled = [frame(HEADERS, WHOLE, id, GET), number(RST_STREAM, id, 8)].concat();
        let said = say(&state, &cancelled);
        tasks.extend(StreamHandle::next_request(&state));
        if let Err(fault) = said.and_then(|()| say(&state, &frame(HEADERS, WHOLE, id + 2, GET))) {
            break fault;
        }
        answer(&StreamHandle::next_request(&state).expect("a request"), true);
        sent(&state);
        id += 4;
    };
    assert_eq!((fault, tasks.len()), (Fault::RapidReset, 256));
}

#[test]
fn floods_of_control_frames_end_the_connection() {
    for flood in [
        frame(PING, 0, 0, &[7; 8]),
        frame(PING, ACK, 0, &[7; 8]),
        settings(&[]),
        number(WINDOW_UPDATE, 0, 1),
        frame(PRIORITY, 0, 77, &[0, 0, 0, 0, 16]),
        frame(PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 1]),
        frame(DATA, 0, 1, &[]),
        frame(0xee, 0, 1, b"of an unknown kind"),
    ] {
        let state = connection(&[]);
        let _open = ask(&state, 1, END_HEADERS, &post(None));
        let ended = (0..10_000).find_map(|_| say(&state, &flood).err());
        assert_eq!(ended, Some(Fault::Excess), "{:?}", flood[3]);
    }
}

/// Each one would visit all streams.
#[test]
fn of_many_initial_windows_in_one_frame_the_last_counts() {
    let (state, woken) = (connection(&[(4, 0)]), Woken::default());
    let stream = ask(&state, 1, WHOLE, GET);
    let waker = woken.waker(1);
    assert!(stream.poll_room(&Context::from_waker(&waker), 100).is_pending());
    let many: Vec<_> = (1..=2730).map(|value| (4, value)).collect();
    say(&state, &settings(&many)).unwrap();
    assert_eq!(woken.take(), [1]);
    assert_eq!(stream.poll_room(&cx(), 5000), Poll::Ready(Some(2730)));
    let fault = say(&state, &settings(&[(4, 1 << 31), (4, 1)]));
    assert_eq!(fault, Err(Reason::FLOW_CONTROL_ERROR.into()));
}

/// What SETTINGS_MAX_HEADER_LIST_SIZE says, in a few frames.
#[test]
fn a_header_block_has_a_limit() {
    let state = shared(Role::Server);
    let most = sent(&state)[0].3[14..18].try_into().map(u32::from_be_bytes).unwrap() as usize;
    say(&state, &[CLIENT_PREFACE, &settings(&[])].concat()).unwrap();
    assert!(most < 400_000, "{most}");
    say(&state, &frame(HEADERS, END_STREAM, 1, &[0; MOST_PAYLOAD])).unwrap();
    assert_eq!(state.borrow().open_block(), Some(1));
    let piece = frame(CONTINUATION, 0, 1, &[0; MOST_PAYLOAD]);
    let ended = (2..100).find_map(|pieces| say(&state, &piece).err().map(|fault| (pieces, fault)));
    assert_eq!(ended, Some((most / MOST_PAYLOAD + 1, Fault::Excess)));
}
