//! Towards an origin.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake};

use proptest::prelude::*;

use super::super::encode::{indexed, write_field};
use super::*;
use crate::fields::FieldList;
use crate::{HeadError, ResponseHead};

const OK: &[u8] = &[0x88];
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * MOST_STREAMS;

/// A connection after the origin's SETTINGS, with these parameters.
fn connection(parameters: &[(u16, u32)]) -> Shared {
    let state = shared(Role::Client);
    say(&state, &settings(parameters)).unwrap();
    sent(&state);
    state
}

fn begin(state: &Shared, is_whole: bool) -> StreamHandle {
    StreamHandle::begin(state, is_whole, |block| {
        indexed(block, 2);
        Ok(())
    })
    .unwrap()
}

fn status(stream: &StreamHandle) -> Poll<Result<u16, StreamError>> {
    let mut head = ResponseHead::default();
    stream.poll_head(&cx(), &mut head).map(|done| done.map(|()| head.status))
}

fn data(stream: &StreamHandle) -> Poll<Result<Option<Vec<u8>>, StreamError>> {
    let mut data = b"of an earlier use".to_vec();
    stream.poll_data(&cx(), &mut data).map(|done| done.map(|has| has.then_some(data)))
}

#[test]
fn the_first_head_announces_that_no_table_is_used() {
    let state = connection(&[]);
    let streams = [begin(&state, true), begin(&state, true)];
    let flags = END_HEADERS | END_STREAM;
    assert_eq!(sent(&state), [(HEADERS, flags, 1, vec![0x20, 0x82]), (HEADERS, flags, 3, vec![0x82])]);
    drop(streams);
    assert_eq!(kinds(&state), [RST_STREAM, RST_STREAM]);
}

#[test]
fn a_request_that_cannot_be_written_leaves_nothing() {
    let state = connection(&[]);
    let failed = StreamHandle::begin(&state, true, |block| {
        indexed(block, 2);
        Err(HeadError::Field)
    });
    assert!(matches!(failed, Err(NotBegun::Invalid(_))));
    assert!(sent(&state).is_empty());
    begin(&state, true);
    assert_eq!(sent(&state)[0].2, 1);
}

#[test]
fn long_heads_come_and_go_in_several_frames() {
    let state = connection(&[]);
    let long = vec![b'x'; 40_000];
    let stream = StreamHandle::begin(&state, true, |block| {
        write_field(block, b"via", &long);
        Ok(())
    });
    let frames = sent(&state);
    let seen: Vec<_> = frames.iter().map(|(kind, flags, ..)| (*kind, *flags)).collect();
    assert_eq!(seen, [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]);
    assert_eq!(frames.iter().map(|(.., payload)| payload.len()).sum::<usize>(), 1 + 2 + 4 + 40_000);
    let block = [OK, b"\x00\x01a\x01b"].concat();
    say(&state, &frame(HEADERS, 0, 1, &block[..2])).unwrap();
    say(&state, &frame(CONTINUATION, END_HEADERS, 1, &block[2..])).unwrap();
    assert_eq!(status(&stream.unwrap()), Poll::Ready(Ok(200)));
}

#[test]
fn nothing_comes_between_the_frames_of_a_head() {
    for between in [frame(PING, 0, 0, &[0; 8]), frame(CONTINUATION, 0, 3, &[]), frame(9, 0, 0, &[])] {
        let state = connection(&[]);
        let _streams = [begin(&state, true), begin(&state, true)];
        say(&state, &frame(HEADERS, 0, 1, OK)).unwrap();
        assert_eq!(say(&state, &between), Err(Reason::PROTOCOL_ERROR.into()));
    }
    let state = connection(&[]);
    assert_eq!(say(&state, &frame(CONTINUATION, 0, 1, &[])), Err(Reason::PROTOCOL_ERROR.into()));
}

/// Those that nobody takes are held, and count together as one head does.
#[test]
fn interim_heads_that_wait_have_a_limit_of_bytes() {
    let hint = [&b"\x08\x03103"[..], b"\x00\x04link\x7f\xa1\x3e", &[b'x'; 8096]].concat();
    let state = connection(&[]);
    let (taken, left) = (begin(&state, true), begin(&state, true));
    sent(&state);
    let limit = HttpLimits::default().head_bytes / 8000;
    for _ in 0..limit + 1 {
        say(&state, &frame(HEADERS, END_HEADERS, 1, &hint)).unwrap();
        assert_eq!(status(&taken), Poll::Ready(Ok(103)));
        say(&state, &frame(HEADERS, END_HEADERS, 3, &hint)).unwrap();
    }
    let calm = Reason::ENHANCE_YOUR_CALM.0.to_be_bytes().to_vec();
    assert_eq!(sent(&state), [(RST_STREAM, 0, 3, calm)]);
    while status(&left) == Poll::Ready(Ok(103)) {}
    assert_eq!(status(&left), Poll::Ready(Err(StreamError::Violation(Reason::ENHANCE_YOUR_CALM))));
}

#[test]
fn a_head_without_end_ends_the_connection() {
    for piece in [&[][..], &[0; 16_000]] {
        let state = connection(&[]);
        let _stream = begin(&state, true);
        say(&state, &frame(HEADERS, 0, 1, &[])).unwrap();
        let ended = (0..100).find_map(|_| say(&state, &frame(CONTINUATION, 0, 1, piece)).err());
        assert_eq!(ended, Some(Fault::Excess));
    }
}

/// An origin may not send more than the windows, which open as data is taken.
#[test]
fn windows_are_kept_and_opened() {
    let state = connection(&[]);
    let stream = begin(&state, true);
    let piece = frame(DATA, 0, 1, &[7; MOST_PAYLOAD]);
    say(&state, &frame(HEADERS, END_HEADERS, 1, OK)).unwrap();
    assert_eq!(status(&stream), Poll::Ready(Ok(200)));
    sent(&state);
    let whole = STREAM_WINDOW as usize / MOST_PAYLOAD;
    for _ in 0..whole {
        say(&state, &piece).unwrap();
    }
    let Poll::Ready(Ok(Some(came))) = data(&stream) else { panic!("no data") };
    assert_eq!(came.len(), STREAM_WINDOW as usize);
    stream.release(came.len());
    assert_eq!(sent(&state), [(WINDOW_UPDATE, 0, 1, STREAM_WINDOW.to_be_bytes().to_vec())]);
    for _ in 0..whole {
        say(&state, &piece).unwrap();
    }
    assert!(sent(&state).is_empty());
    say(&state, &frame(DATA, 0, 1, b"x")).unwrap();
    assert_eq!(sent(&state), [(RST_STREAM, 0, 1, Reason::FLOW_CONTROL_ERROR.0.to_be_bytes().to_vec())]);
}

/// The origin counts as RFC 9113 6.9.1 says: with the padding, and until WINDOW_UPDATE.
#[test]
fn padding_is_given_back_to_the_stream_and_to_the_connection() {
    for (data_bytes, padding) in [(100, 255), (0, 255), (200, 0), (10_000, 200)] {
        let state = connection(&[]);
        let stream = begin(&state, true);
        say(&state, &frame(HEADERS, END_HEADERS, 1, OK)).unwrap();
        sent(&state);
        let (mut of_stream, mut of_connection) = (STREAM_WINDOW, CONNECTION_WINDOW);
        let payload = [&[padding][..], &vec![7; data_bytes], &vec![0; usize::from(padding)]].concat();
        let bytes = u32::try_from(payload.len()).unwrap();
        // Both windows are used up twice.
        for number in 0..2 * CONNECTION_WINDOW / bytes {
            assert!(
                of_stream >= bytes && of_connection >= bytes,
                "frame {number} of {bytes} bytes is blocked"
            );
            (of_stream, of_connection) = (of_stream - bytes, of_connection - bytes);
            say(&state, &frame(DATA, PADDED, 1, &payload)).unwrap();
            if let Poll::Ready(Ok(Some(came))) = data(&stream) {
                stream.release(came.len());
            }
            for (kind, _, id, payload) in sent(&state) {
                assert_eq!(kind, WINDOW_UPDATE, "{bytes}");
                let more = u32::from_be_bytes(payload.try_into().unwrap());
                *if id == 0 { &mut of_connection } else { &mut of_stream } += more;
            }
            assert!(of_stream <= STREAM_WINDOW && of_connection <= CONNECTION_WINDOW);
        }
    }
}

#[test]
fn data_that_nobody_takes_opens_the_connections_window_again() {
    let state = connection(&[]);
    let (gone, rounds) = (begin(&state, true), CONNECTION_WINDOW as usize / MOST_PAYLOAD);
    drop(gone);
    sent(&state);
    let mut opened = 0;
    for _ in 0..4 * rounds {
        say(&state, &frame(DATA, PADDED, 1, &[3; MOST_PAYLOAD])).unwrap();
        opened += kinds(&state).iter().filter(|&&kind| kind == WINDOW_UPDATE).count();
    }
    assert_eq!(opened, 8);
}

#[test]
fn data_that_was_taken_and_not_delivered_opens_the_window_again() {
    let state = connection(&[]);
    let mut opened = 0;
    for _ in 0..4 * CONNECTION_WINDOW / STREAM_WINDOW {
        let stream = begin(&state, true);
        let id = sent(&state)[0].2;
        say(&state, &frame(HEADERS, END_HEADERS, id, OK)).unwrap();
        for _ in 0..STREAM_WINDOW as usize / MOST_PAYLOAD {
            say(&state, &frame(DATA, 0, id, &[7; MOST_PAYLOAD])).unwrap();
        }
        assert!(matches!(data(&stream), Poll::Ready(Ok(Some(_)))));
        drop(stream);
        opened += kinds(&state).iter().filter(|&&kind| kind == WINDOW_UPDATE).count();
    }
    assert_eq!(opened, 8);
}

/// The origin may make them smaller than what was sent.
#[test]
fn a_body_is_sent_as_the_windows_allow() {
    let state = connection(&[(4, 10)]);
    let stream = begin(&state, false);
    assert_eq!(stream.poll_room(&cx(), 100), Poll::Ready(Some(10)));
    stream.send_data(b"0123456789", false);
    assert_eq!(stream.poll_room(&cx(), 100), Poll::Pending);
    say(&state, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 3])).unwrap();
    say(&state, &frame(WINDOW_UPDATE, 0, 1, &7u32.to_be_bytes())).unwrap();
    assert_eq!(stream.poll_room(&cx(), 100), Poll::Pending);
    say(&state, &frame(WINDOW_UPDATE, 0, 1, &2u32.to_be_bytes())).unwrap();
    assert_eq!(stream.poll_room(&cx(), 100), Poll::Ready(Some(2)));
    let overflow = frame(WINDOW_UPDATE, 0, 1, &0x7fff_ffff_u32.to_be_bytes());
    say(&state, &overflow).unwrap();
    assert_eq!(stream.poll_room(&cx(), 100), Poll::Ready(None));
    assert!(!stream.send_end(&FieldList::default()));
}

#[test]
fn what_waits_to_be_sent_has_a_limit() {
    let state = connection(&[(4, 1 << 20)]);
    say(&state, &frame(WINDOW_UPDATE, 0, 0, &(1u32 << 20).to_be_bytes())).unwrap();
    let stream = begin(&state, false);
    let mut taken = 0;
    while let Poll::Ready(Some(room)) = stream.poll_room(&cx(), 1000) {
        stream.send_data(&vec![7; room], false);
        taken += room;
        assert!(state.borrow().unsent().len() <= MOST_OUT_BYTES + 1024);
    }
    assert!(taken >= MOST_OUT_BYTES / 2);
    sent(&state);
    assert_eq!(stream.poll_room(&cx(), 1000), Poll::Ready(Some(1000)));
}

/// Its waker notes the order.
struct Turn(u8, Arc<Mutex<Vec<u8>>>);

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

#[test]
fn each_time_there_is_room_another_stream_is_first() {
    let state = connection(&[]);
    let streams = [begin(&state, false), begin(&state, false), begin(&state, false)];
    let order = Arc::default();
    let wakers = [1, 2, 3].map(|number| Waker::from(Arc::new(Turn(number, Arc::clone(&order)))));
    let wait = || {
        state.borrow_mut().out.resize(MOST_OUT_BYTES, 0);
        for (stream, waker) in streams.iter().zip(&wakers) {
            assert!(stream.poll_room(&Context::from_waker(waker), 1).is_pending());
        }
    };
    for _ in 0..4 {
        wait();
        state.borrow_mut().on_taken(MOST_OUT_BYTES);
    }
    assert_eq!(*order.lock().unwrap(), [1, 2, 3, 2, 3, 1, 3, 1, 2, 1, 2, 3]);
}

#[test]
fn a_whole_response_stays_one_whatever_follows() {
    for after in [frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]), frame(GOAWAY, 0, 0, &[0; 8]), vec![]] {
        let state = connection(&[]);
        let stream = begin(&state, false);
        say(&state, &frame(HEADERS, END_HEADERS, 1, OK)).unwrap();
        say(&state, &frame(DATA, END_STREAM, 1, b"whole")).unwrap();
        say(&state, &after).unwrap();
        state.borrow_mut().fail_all(StreamError::Closed);
        assert_eq!(status(&stream), Poll::Ready(Ok(200)));
        assert_eq!(data(&stream), Poll::Ready(Ok(Some(b"whole".to_vec()))));
        assert_eq!(data(&stream), Poll::Ready(Ok(None)));
        assert_eq!(stream.poll_room(&cx(), 1), Poll::Ready(None));
    }
}

/// A part of what was written has been taken. The stream that was begun after that can be repeated.
#[test]
fn the_end_of_a_connection_tells_which_requests_cannot_have_left() {
    let state = connection(&[]);
    let (sent, taken) = (begin(&state, true), begin(&state, false));
    state.borrow_mut().on_taken(1);
    let unsent = begin(&state, false);
    state.borrow_mut().end();
    assert_eq!(status(&sent), Poll::Ready(Err(StreamError::Closed)));
    assert_eq!(status(&taken), Poll::Ready(Err(StreamError::Closed)));
    assert_eq!(status(&unsent), Poll::Ready(Err(StreamError::Unprocessed)));
    assert!(state.borrow().is_done());
}

/// A connection's later streams use an earlier one's memory.
#[test]
fn nothing_of_a_stream_is_left_for_the_next() {
    let state = connection(&[]);
    for _ in 0..3 {
        let stream = begin(&state, true);
        let id = sent(&state)[0].2;
        assert_eq!((status(&stream), data(&stream)), (Poll::Pending, Poll::Pending));
        say(&state, &frame(HEADERS, END_HEADERS, id, b"\x08\x03103")).unwrap();
        say(&state, &frame(HEADERS, END_HEADERS, id, OK)).unwrap();
        say(&state, &frame(DATA, 0, id, b"secret")).unwrap();
        say(&state, &frame(HEADERS, END_HEADERS | END_STREAM, id, b"\x00\x01a\x01b")).unwrap();
        assert_eq!(stream.take_trailers().len(), 1);
    }
}

/// Requests must not begin before the parameters of the first SETTINGS are known.
#[test]
fn the_preface_is_a_whole_frame() {
    let state = shared(Role::Client);
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 5]);
    for length in 0..settings.len() {
        assert_eq!(state.borrow_mut().receive(&settings[..length], Duration::ZERO), Ok(0));
        assert_eq!(state.borrow().preface(), Preface::Awaited, "after {length} bytes");
    }
    say(&state, &settings).unwrap();
    assert_eq!((state.borrow().preface(), state.borrow().most_streams()), (Preface::Settings, 5));
}

#[test]
fn errors_of_the_connection_are_found() {
    for (bytes, reason) in [
        (frame(DATA, 0, 0, b"x"), Reason::PROTOCOL_ERROR),
        (frame(DATA, 0, 3, b"x"), Reason::PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), Reason::PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b"\x01"), Reason::PROTOCOL_ERROR),
        (frame(DATA, 0, 1, &[0; MOST_PAYLOAD + 1]), Reason::FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 77, OK), Reason::PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, &[0x80]), Reason::COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, OK), Reason::FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 5, &[0; 4]), Reason::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 1, &[]), Reason::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &[0; 5]), Reason::FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, &[0; 6]), Reason::FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1]), Reason::PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), Reason::FLOW_CONTROL_ERROR),
        (frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), Reason::PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), Reason::PROTOCOL_ERROR),
        (frame(PING, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, &[0; 7]), Reason::FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, &[0; 8]), Reason::PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, &[0; 4]), Reason::PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), Reason::FLOW_CONTROL_ERROR),
        (frame(WINDOW_UPDATE, 0, 1, &[0; 3]), Reason::FRAME_SIZE_ERROR),
    ] {
        let state = connection(&[]);
        let _stream = begin(&state, true);
        assert_eq!(say(&state, &bytes), Err(reason.into()), "{:?}", &bytes[..bytes.len().min(20)]);
    }
}

/// One step of an origin that follows no rules.
#[derive(Debug, Clone)]
enum Step {
    Frame(u8, u8, u32, Vec<u8>),
    Bytes(Vec<u8>),
    Begin(bool),
    Take,
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just(OK.to_vec()),
        Just(b"\x08\x03100".to_vec()),
        Just(vec![0, 0, 0, 1]),
        Just(vec![0; 8]),
        Just(vec![1; MOST_PAYLOAD]),
    ];
    let step = prop_oneof![
        8 => (0u8..11, prop_oneof![Just(0), Just(1), Just(4), Just(5), any::<u8>()], 0u32..12, payload)
            .prop_map(|(kind, flags, stream, payload)| Step::Frame(kind, flags, stream, payload)),
        1 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(Step::Bytes),
        3 => any::<bool>().prop_map(Step::Begin),
        2 => Just(Step::Take),
        1 => Just(Step::Drop),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// Whatever an origin sends: no panic, no stream without an end once the connection has one, and memory
    /// within its limits.
    #[test]
    fn any_origin_is_survived(steps in steps()) {
        let state = connection(&[]);
        let mut streams = Vec::new();
        for step in steps {
            let said = match step {
                Step::Frame(kind, flags, stream, payload) => say(&state, &frame(kind, flags, stream, &payload)),
                Step::Bytes(bytes) => state.borrow_mut().receive(&bytes, Duration::ZERO).map(|_| ()),
                Step::Begin(is_whole) => {
                    let begun = StreamHandle::begin(&state, is_whole, |block| {
                        indexed(block, 2);
                        Ok(())
                    });
                    streams.extend(begun.ok());
                    Ok(())
                }
                Step::Take => {
                    for stream in &streams {
                        let _ = status(stream);
                        if let Poll::Ready(Ok(Some(came))) = data(stream) {
                            prop_assert!(came.len() <= STREAM_WINDOW as usize);
                            stream.release(came.len());
                        }
                        if let Poll::Ready(Some(room)) = stream.poll_room(&cx(), 100) {
                            stream.send_data(&vec![0; room], false);
                        }
                    }
                    Ok(())
                }
                Step::Drop => {
                    streams.pop();
                    Ok(())
                }
            };
            sent(&state);
            if let Err(reason) = said {
                state.borrow_mut().go_away(reason.reason());
                break;
            }
        }
        state.borrow_mut().fail_all(StreamError::Closed);
        for stream in &streams {
            while let Poll::Ready(Ok(100..200)) = status(stream) {}
            prop_assert!(status(stream).is_ready() || data(stream).is_ready());
            while let Poll::Ready(Ok(Some(_))) = data(stream) {}
            prop_assert!(data(stream).is_ready());
        }
        prop_assert!(state.borrow().is_done());
    }
}
