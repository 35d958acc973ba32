//! Towards a client.

use std::task::Poll;

use super::super::encode::{status, write_field};
use super::super::huffman;
use super::*;
use crate::fields::FieldList;
use crate::{BodyLength, HeadError, RequestHead};

pub(super) const GET: &[u8] = &[0x82, 0x87, 0x84, 0x41, 1, b'a'];
pub(super) const WHOLE: u8 = END_HEADERS | END_STREAM;

pub(super) fn post(length: Option<usize>) -> Vec<u8> {
    let mut block = [&[0x83], &GET[1..]].concat();
    if let Some(length) = length {
        write_field(&mut block, b"content-length", length.to_string().as_bytes());
    }
    block
}

/// A connection after the client's SETTINGS, with these parameters.
pub(super) fn connection(parameters: &[(u16, u32)]) -> Shared {
    let state = shared(Role::Server);
    say(&state, &[CLIENT_PREFACE, &settings(parameters)].concat()).unwrap();
    sent(&state);
    state
}

pub(super) fn ask(state: &Shared, id: u32, flags: u8, block: &[u8]) -> StreamHandle {
    say(state, &frame(HEADERS, flags, id, block)).unwrap();
    StreamHandle::next_request(state).expect("a request")
}

pub(super) fn answer(stream: &StreamHandle, ends: bool) {
    let mut block = Vec::new();
    status(&mut block, 200);
    assert_eq!(stream.poll_head_room(&cx()), Poll::Ready(true));
    stream.send_head(&block, false, ends);
}

fn data(stream: &StreamHandle) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
    let mut data = Vec::new();
    stream.poll_data(&cx(), &mut data).map(|done| done.map(|has| has.then_some(data)))
}

#[test]
fn the_preface_is_the_line_and_whole_settings() {
    let state = shared(Role::Server);
    let preface = [CLIENT_PREFACE, &settings(&[])].concat();
    let mut at = 0;
    for end in 0..preface.len() {
        at += state.borrow_mut().receive(&preface[at..end], Duration::ZERO).unwrap();
        assert_ne!(state.borrow().preface(), Preface::Settings, "after {end} bytes");
    }
    say(&state, &preface[at..]).unwrap();
    assert_eq!(state.borrow().preface(), Preface::Settings);
    assert_eq!(kinds(&state), [SETTINGS, WINDOW_UPDATE, SETTINGS]);
    for other in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nXX",
        &[CLIENT_PREFACE, &frame(PING, 0, 0, &[0; 8])].concat(),
        &[CLIENT_PREFACE, &frame(SETTINGS, ACK, 0, &[])].concat(),
    ] {
        let said = shared(Role::Server).borrow_mut().receive(other, Duration::ZERO);
        assert_eq!(said, Err(Reason::PROTOCOL_ERROR.into()), "{other:?}");
    }
}

#[test]
fn a_request_is_answered_in_two_frames() {
    let state = connection(&[]);
    let stream = ask(&state, 1, WHOLE, GET);
    let head = stream.take_request().unwrap();
    assert_eq!((head.method(), head.target(), head.host()), (&b"GET"[..], &b"/"[..], &b"a"[..]));
    assert_eq!(data(&stream), Poll::Ready(Ok(None)));
    answer(&stream, false);
    assert_eq!(stream.poll_room(&cx(), 5), Poll::Ready(Some(5)));
    stream.send_data(b"hello", true);
    let expected = [(HEADERS, END_HEADERS, 1, vec![0x20, 0x88]), (DATA, END_STREAM, 1, b"hello".to_vec())];
    assert_eq!(sent(&state), expected);
    assert!(state.borrow().is_quiet() && state.borrow().handles() == 1);
    stream.give_back(head, stream.take_response());
    drop(stream);
    assert!(sent(&state).is_empty() && state.borrow().handles() == 0);
}

#[test]
fn bodies_and_trailers_pass_both_ways() {
    let state = connection(&[]);
    let stream = ask(&state, 1, END_HEADERS, &post(Some(4)));
    assert_eq!(stream.take_request().unwrap().length, BodyLength::Known(4));
    say(&state, &frame(DATA, PADDED, 1, b"\x02four\0\0")).unwrap();
    assert_eq!(data(&stream), Poll::Ready(Ok(Some(b"four".to_vec()))));
    assert_eq!(data(&stream), Poll::Pending);
    say(&state, &frame(HEADERS, WHOLE, 1, b"\x00\x01a\x01b")).unwrap();
    assert_eq!(data(&stream), Poll::Ready(Ok(None)));
    assert_eq!(stream.take_trailers().len(), 1);
    answer(&stream, false);
    let mut trailers = FieldList::default();
    trailers.push(b"X-End", b"1");
    assert!(stream.send_end(&trailers));
    assert!(!stream.send_end(&trailers));
    let last = sent(&state).pop().unwrap();
    assert_eq!(last, (HEADERS, WHOLE, 1, b"\x00\x05x-end\x011".to_vec()));
}

#[test]
fn malformed_requests_are_reset_and_the_connection_goes_on() {
    let state = connection(&[]);
    let mut fragment = GET.to_vec();
    fragment[2] = 0x44;
    fragment.splice(3..3, *b"\x04/x#y");
    for (at, (flags, block)) in [
        (WHOLE, fragment),
        // The entry of the table keeps what it is.
        (WHOLE, [&GET[..2], &[0xbe], &GET[3..]].concat()),
        (WHOLE, post(Some(5))),
        (WHOLE, [GET, b"\x00\x07upgrade\x01a"].concat()),
    ]
    .into_iter()
    .enumerate()
    {
        let id = 1 + 2 * u32::try_from(at).unwrap();
        say(&state, &frame(HEADERS, flags, id, &block)).unwrap();
        assert!(StreamHandle::next_request(&state).is_none(), "{at}");
        assert_eq!(resets(&state), [(id, Reason::PROTOCOL_ERROR)], "{at}");
        assert_eq!(state.borrow_mut().take_malformed(), 1);
        // They may be on their way.
        say(&state, &frame(DATA, 0, id, b"late")).unwrap();
        say(&state, &frame(HEADERS, WHOLE, id, &[])).unwrap();
        assert!(resets(&state).is_empty());
    }
    ask(&state, 99, WHOLE, GET);
}

#[test]
fn requests_that_http1_refuses_are_answered() {
    let state = connection(&[]);
    for (id, path, error) in [
        (1, &b"/a b"[..], HeadError::Target),
        (3, b"/\xe4", HeadError::Target),
        (5, b"/a\r\nx: y", HeadError::Target),
        (7, b"/\x02", HeadError::Target),
    ] {
        let coded = huffman::encode(path);
        let length = 0x80 | u8::try_from(coded.len()).unwrap();
        let block = [&GET[..2], &[4, length], &coded, &GET[3..]].concat();
        assert_eq!(ask(&state, id, WHOLE, &block).take_request().err(), Some(error), "{path:?}");
    }
}

#[test]
fn a_body_has_the_announced_length() {
    for (length, pieces, ends) in
        [(5, &["sixsix"][..], false), (5, &["five", "x", "y"], false), (5, &["four"], true)]
    {
        let state = connection(&[]);
        let stream = ask(&state, 1, END_HEADERS, &post(Some(length)));
        for (at, piece) in pieces.iter().enumerate() {
            let flags = if ends && at + 1 == pieces.len() { END_STREAM } else { 0 };
            say(&state, &frame(DATA, flags, 1, piece.as_bytes())).unwrap();
        }
        assert_eq!(resets(&state), [(1, Reason::PROTOCOL_ERROR)], "{pieces:?}");
        let mut came = data(&stream);
        while matches!(came, Poll::Ready(Ok(Some(_)))) {
            came = data(&stream);
        }
        assert_eq!(came, Poll::Ready(Err(StreamError::Violation(Reason::PROTOCOL_ERROR))));
    }
}

/// curl does so for errors. It reads the rest of the response.
#[test]
fn a_request_that_ends_early_after_its_response_has_begun_is_cut() {
    for padding in [0, 3] {
        let state = connection(&[]);
        let stream = ask(&state, 1, END_HEADERS, &post(Some(10)));
        answer(&stream, false);
        let payload = [&[padding][..], b"four", &vec![0; padding.into()]].concat();
        say(&state, &frame(DATA, END_STREAM | PADDED, 1, &payload)).unwrap();
        assert_eq!(data(&stream), Poll::Ready(Ok(Some(b"four".to_vec()))));
        assert_eq!(data(&stream), Poll::Ready(Err(StreamError::Cut)));
        assert!(stream.poll_failed(&cx()).is_pending());
        stream.send_data(b"late", true);
        drop(stream);
        assert!(resets(&state).is_empty());
        assert!(state.borrow().is_quiet());
    }
}

#[test]
fn an_answered_request_that_goes_on_is_told_to_stop() {
    let state = connection(&[]);
    let stream = ask(&state, 1, END_HEADERS, &post(None));
    answer(&stream, true);
    say(&state, &frame(DATA, 0, 1, b"more")).unwrap();
    drop(stream);
    assert_eq!(resets(&state), [(1, Reason::NO_ERROR)]);
    say(&state, &frame(DATA, 0, 1, b"more")).unwrap();
    assert!(resets(&state).is_empty());
    let unanswered = ask(&state, 3, END_HEADERS, &post(None));
    drop(unanswered);
    assert_eq!(resets(&state), [(3, Reason::CANCEL)]);
}

#[test]
fn more_streams_than_announced_are_refused() {
    let state = connection(&[]);
    let ids = (0..MOST_STREAMS).map(|number| 1 + 2 * number);
    let open: Vec<_> = ids.map(|id| ask(&state, id, WHOLE, GET)).collect();
    say(&state, &frame(HEADERS, WHOLE, 301, GET)).unwrap();
    assert!(StreamHandle::next_request(&state).is_none());
    assert_eq!(resets(&state), [(301, Reason::REFUSED_STREAM)]);
    answer(&open[0], true);
    ask(&state, 303, WHOLE, GET);
}

#[test]
fn errors_of_the_connection_are_found() {
    for (bytes, reason) in [
        (frame(DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (frame(DATA, 0, 7, b"x"), Reason::PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, WHOLE, 2, GET), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, WHOLE, 0, GET), Reason::PROTOCOL_ERROR),
        // A number that was left out, and one that has ended.
        (frame(HEADERS, WHOLE, 1, GET), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, WHOLE, 3, GET), Reason::STREAM_CLOSED),
        (frame(HEADERS, END_HEADERS, 9, &[0x80]), Reason::COMPRESSION_ERROR),
        (
            frame(HEADERS, WHOLE | HAS_PRIORITY, 9, &[&9_u32.to_be_bytes()[..], &[0], GET].concat()),
            Reason::PROTOCOL_ERROR,
        ),
        (frame(PRIORITY, 0, 9, &[0, 0, 0, 9, 0]), Reason::PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 9, &[0; 4]), Reason::FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 0, &[0; 5]), Reason::PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 1, &[0, 0, 0, 1]), Reason::PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, &[0; 3]), Reason::FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 9, &[0; 4]), Reason::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), Reason::PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 5, &[0, 0, 0, 2]), Reason::PROTOCOL_ERROR),
        (number(WINDOW_UPDATE, 9, 1), Reason::PROTOCOL_ERROR),
    ] {
        let state = connection(&[]);
        answer(&ask(&state, 3, WHOLE, GET), true);
        let _open = ask(&state, 5, WHOLE, GET);
        assert_eq!(say(&state, &bytes), Err(reason.into()), "{:?}", &bytes[..bytes.len().min(20)]);
    }
}

#[test]
fn errors_of_a_stream_cost_the_others_nothing() {
    for (bytes, reason) in [
        (frame(DATA, 0, 3, b"x"), Reason::STREAM_CLOSED),
        (frame(HEADERS, WHOLE, 3, &[]), Reason::STREAM_CLOSED),
        (number(WINDOW_UPDATE, 3, 0), Reason::PROTOCOL_ERROR),
        (number(WINDOW_UPDATE, 3, 0x7fff_ffff), Reason::FLOW_CONTROL_ERROR),
    ] {
        let state = connection(&[]);
        let other = ask(&state, 1, END_HEADERS, &post(None));
        let stream = ask(&state, 3, WHOLE, GET);
        say(&state, &bytes).unwrap();
        assert_eq!(resets(&state), [(3, reason)]);
        assert!(stream.poll_failed(&cx()).is_ready() && other.poll_failed(&cx()).is_pending());
        say(&state, &frame(DATA, END_STREAM, 1, b"x")).unwrap();
        assert_eq!(data(&other), Poll::Ready(Ok(Some(b"x".to_vec()))));
    }
    // A trailer section without an end, or with a pseudo-field.
    for (flags, block) in [(END_HEADERS, &b"\x00\x01a\x01b"[..]), (WHOLE, &[0x84])] {
        let state = connection(&[]);
        let stream = ask(&state, 1, END_HEADERS, &post(None));
        say(&state, &frame(HEADERS, flags, 1, block)).unwrap();
        assert_eq!(resets(&state), [(1, Reason::PROTOCOL_ERROR)]);
        assert_eq!(data(&stream), Poll::Ready(Err(StreamError::Violation(Reason::PROTOCOL_ERROR))));
    }
}

#[test]
fn a_request_whose_trailers_are_too_long_can_be_answered() {
    let state = connection(&[]);
    let stream = ask(&state, 1, END_HEADERS, &post(None));
    say(&state, &frame(DATA, 0, 1, b"x")).unwrap();
    let mut trailers = Vec::new();
    (0..300).for_each(|number| assert!(write_field(&mut trailers, format!("x{number}").as_bytes(), b"y")));
    say(&state, &frame(HEADERS, WHOLE, 1, &trailers)).unwrap();
    assert_eq!(data(&stream), Poll::Ready(Ok(Some(b"x".to_vec()))));
    assert_eq!(data(&stream), Poll::Ready(Err(StreamError::BadHead(HeadError::TooManyFields))));
    answer(&stream, true);
    assert_eq!(kinds(&state), [HEADERS]);
}

/// A stream that waits for others is not a slow client's.
#[test]
fn what_others_send_shows_that_the_client_reads() {
    let state = connection(&[(4, 100)]);
    let (first, other) = (ask(&state, 1, WHOLE, GET), ask(&state, 3, WHOLE, GET));
    answer(&first, false);
    assert_eq!(first.taken_before_this(), other.taken_before_this());
    let before = other.taken_before_this().expect("an open window");
    first.send_data(&[7; 100], false);
    assert_eq!(first.taken_before_this(), None);
    // An answer to PING is no response.
    say(&state, &frame(PING, 0, 0, &[7; 8])).unwrap();
    assert_eq!(kinds(&state).pop(), Some(PING));
    assert_eq!(other.taken_before_this(), Some(before + 100));
}

#[test]
fn a_head_without_end_ends_the_connection() {
    for piece in [&[][..], &[0; 16_000]] {
        let state = connection(&[]);
        say(&state, &frame(HEADERS, 0, 1, GET)).unwrap();
        let ended = (0..100).find_map(|_| say(&state, &frame(CONTINUATION, 0, 1, piece)).err());
        assert_eq!(ended, Some(Fault::Excess));
    }
}

/// The window of all streams is smaller than theirs together. It opens again however little each takes.
#[test]
fn slow_streams_do_not_close_the_window_for_good() {
    let state = connection(&[]);
    let piece = |id| frame(DATA, 0, id, &[7; MOST_PAYLOAD]);
    let slow: Vec<_> = (0..3).map(|number| ask(&state, 1 + 2 * number, END_HEADERS, &post(None))).collect();
    let mut window = 1_i64 << 20;
    let payload = i64::try_from(MOST_PAYLOAD).unwrap();
    for stream in &slow {
        for _ in 0..(256 << 10) / MOST_PAYLOAD {
            say(&state, &piece(stream.id())).unwrap();
            window -= payload;
        }
    }
    let quick = ask(&state, 9, END_HEADERS, &post(None));
    for _ in 0..1000 {
        assert!(window >= payload, "the window is closed");
        say(&state, &piece(9)).unwrap();
        window -= payload;
        assert!(matches!(data(&quick), Poll::Ready(Ok(Some(_)))));
        quick.release(MOST_PAYLOAD);
        for (kind, _, stream, payload) in sent(&state) {
            if (kind, stream) == (WINDOW_UPDATE, 0) {
                window += i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
            }
        }
        assert!(window <= 1 << 20);
    }
}

#[test]
fn heads_wait_while_nothing_is_taken() {
    let state = connection(&[(4, 1 << 20)]);
    say(&state, &number(WINDOW_UPDATE, 0, 1 << 20)).unwrap();
    let (large, other) = (ask(&state, 1, WHOLE, GET), ask(&state, 3, WHOLE, GET));
    answer(&large, false);
    while let Poll::Ready(Some(room)) = large.poll_room(&cx(), MOST_PAYLOAD) {
        large.send_data(&vec![7; room], false);
    }
    assert_eq!(other.poll_head_room(&cx()), Poll::Pending);
    sent(&state);
    answer(&other, true);
}

/// The connection's window is closed. The data that waits for it needs no room.
#[test]
fn heads_pass_data_that_waits_for_the_window() {
    let (state, woken) = (connection(&[(4, 1 << 20)]), Woken::default());
    let (data, head) = (ask(&state, 1, WHOLE, GET), ask(&state, 3, WHOLE, GET));
    answer(&data, false);
    while let Poll::Ready(Some(room)) = data.poll_room(&cx(), MOST_PAYLOAD) {
        data.send_data(&vec![7; room], false);
        sent(&state);
    }
    state.borrow_mut().out.resize(MOST_OUT_BYTES, 0);
    let wakers = [1, 3].map(|id| woken.waker(id));
    assert!(data.poll_room(&Context::from_waker(&wakers[0]), MOST_OUT_BYTES).is_pending());
    assert!(head.poll_head_room(&Context::from_waker(&wakers[1])).is_pending());
    state.borrow_mut().on_taken(MOST_OUT_BYTES);
    assert_eq!(woken.take(), [3]);
    // It opens, for less than the data wants.
    state.borrow_mut().out.resize(MOST_OUT_BYTES, 0);
    assert!(head.poll_head_room(&Context::from_waker(&wakers[1])).is_pending());
    say(&state, &number(WINDOW_UPDATE, 0, 100)).unwrap();
    woken.take();
    state.borrow_mut().on_taken(MOST_OUT_BYTES);
    let mut both = woken.take();
    both.sort_unstable();
    assert_eq!(both, [1, 3]);
}

/// RFC 9218: by urgency, then one after the other, or in turns.
#[test]
fn urgent_responses_leave_first() {
    let state = connection(&[(4, 1 << 20)]);
    say(&state, &number(WINDOW_UPDATE, 0, 1 << 24)).unwrap();
    let begin = |id, priority: &str| {
        let mut block = GET.to_vec();
        if !priority.is_empty() {
            write_field(&mut block, b"priority", priority.as_bytes());
        }
        let stream = ask(&state, id, WHOLE, &block);
        answer(&stream, false);
        stream
    };
    let streams =
        [begin(1, "u=5"), begin(3, ""), begin(5, "u=1"), begin(7, ""), begin(9, "u=1"), begin(11, "u=7")];
    sent(&state);
    let update = [&11_u32.to_be_bytes()[..], b"u=0"].concat();
    say(&state, &frame(PRIORITY_UPDATE, 0, 0, &update)).unwrap();
    let order = woken_in_order(&state, &streams, 9);
    assert_eq!(order, [11, 5, 9, 3, 7, 3, 7, 1, 1]);
}

/// Fills the buffer with each stream in turn: which one is woken first, and sends. The urgent ones end after
/// one piece.
fn woken_in_order(state: &Shared, streams: &[StreamHandle], rounds: usize) -> Vec<u32> {
    let woken = Woken::default();
    let mut pieces: Vec<(u32, usize)> = streams.iter().map(|stream| (stream.id(), 2)).collect();
    let mut order = Vec::new();
    for _ in 0..rounds {
        state.borrow_mut().out.resize(MOST_OUT_BYTES, 0);
        for stream in streams.iter().filter(|stream| !stream.is_sent()) {
            let waker = woken.waker(stream.id());
            assert!(stream.poll_room(&Context::from_waker(&waker), MOST_OUT_BYTES).is_pending());
        }
        state.borrow_mut().on_taken(MOST_OUT_BYTES);
        let [first] = woken.take()[..] else { panic!("one can use all of it") };
        order.push(first);
        let at = streams.iter().position(|stream| stream.id() == first).unwrap();
        pieces[at].1 -= 1;
        let ends = pieces[at].1 == 0 || [5, 9, 11].contains(&first);
        streams[at].send_data(&[7; MOST_PAYLOAD], ends);
        state.borrow_mut().discard_out();
    }
    order
}

#[test]
fn a_shut_down_serves_what_was_begun_before_the_client_knew() {
    let state = connection(&[]);
    let first = ask(&state, 1, WHOLE, GET);
    state.borrow_mut().shut_down();
    state.borrow_mut().shut_down();
    let frames = sent(&state);
    assert_eq!(frames[0].3, [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert_eq!((frames.len(), frames[1].0), (2, PING));
    let second = ask(&state, 3, WHOLE, GET);
    say(&state, &frame(PING, ACK, 0, &frames[1].3)).unwrap();
    assert_eq!(sent(&state), [(GOAWAY, 0, 0, vec![0, 0, 0, 3, 0, 0, 0, 0])]);
    // It is ignored, with its body.
    say(&state, &frame(HEADERS, END_HEADERS, 5, &post(None))).unwrap();
    say(&state, &frame(DATA, 0, 5, b"x")).unwrap();
    assert!(StreamHandle::next_request(&state).is_none() && sent(&state).is_empty());
    assert!(!state.borrow().is_done());
    answer(&first, true);
    answer(&second, true);
    assert!(state.borrow().is_done());
}

#[test]
fn nothing_of_a_request_is_left_for_the_next() {
    let state = connection(&[]);
    for id in [1, 3, 5] {
        let stream = ask(&state, id, END_HEADERS, &post(Some(9)));
        let head = stream.take_request().unwrap();
        assert_eq!((head.fields.len(), data(&stream)), (1, Poll::Pending));
        say(&state, &frame(DATA, 0, id, b"secret")).unwrap();
        say(&state, &number(RST_STREAM, id, 8)).unwrap();
        stream.give_back(head, stream.take_response());
    }
    let next = ask(&state, 7, WHOLE, GET);
    let head: RequestHead = next.take_request().unwrap();
    assert!(head.fields.is_empty() && data(&next) == Poll::Ready(Ok(None)));
}
