//! Sessions before they relay.

use std::time::Duration;

use rustix::io::Errno;
use truepeer_policy::{HeaderError, HeaderRule, OnConflict, Source};
use truepeer_proto::{V2_SIGNATURE, Version};
use truepeer_session::CloseReason;
use truepeer_session::connect_as::ConnectError;
use truepeer_session::counters::Counter;

use super::case::{Case, check_whole, script};
use super::connection::End;
use super::driver::budgets;
use super::io::Hardships;
use super::party::Ending;
use super::scenario::header;
use super::world::Dial;

const SECOND: Duration = Duration::from_secs(1);
const FIVE_SECONDS: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(20);

#[test]
fn a_header_may_come_in_any_pieces() {
    let mut case = Case::new();
    for chunk in [1, 2, 7, 11, 12, 13, 40, 60, 1000] {
        case.client.chunk = chunk;
        case.hardships.meanwhile = 30;
        for seed in 0..40 {
            case.seed = seed;
            check_whole(&case.play());
        }
    }
}

#[test]
fn nothing_is_dialled_before_the_whole_header_and_the_wait_is_limited() {
    for cut in 0..header(1).len() {
        let mut case = Case::new();
        case.client = script(header(1)[..cut].to_vec(), 0, Ending::Never);
        case.client.chunk = 5;
        let played = case.play();
        assert_eq!(played.attempts(), 0);
        let (waited, received) = (FIVE_SECONDS, cut);
        assert_eq!(played.closed().reason, CloseReason::Header(HeaderError::Late { waited, received }));
        assert_eq!(played.after(), FIVE_SECONDS);
        played.0.check_that_nothing_is_left();
    }
}

#[test]
fn a_sender_that_leaves_within_its_header_gets_no_session() {
    for ending in [Ending::Fin, Ending::Close, Ending::Reset { sent: 20, received: 0 }] {
        let mut case = Case::new();
        case.client = script(header(1)[..20].to_vec(), 0, ending);
        case.play_often(|played| {
            assert_eq!(played.attempts(), 0);
            let was_reset = matches!(ending, Ending::Reset { .. });
            let error = if was_reset { HeaderError::Absent } else { HeaderError::CutShort { received: 20 } };
            assert_eq!(played.closed().reason, CloseReason::Header(error));
            assert_eq!(played.after(), Duration::ZERO);
        });
    }
}

#[test]
fn bytes_that_are_no_header_are_refused() {
    Case::with_rule(HeaderRule::Require, b"GET / HTTP/1.1\r\n").play_often(|played| {
        assert_eq!(played.attempts(), 0);
        assert!(matches!(played.closed().reason, CloseReason::Header(HeaderError::Invalid { .. })));
    });
}

#[test]
fn where_headers_are_optional_their_absence_loses_nothing() {
    for opening in ["GET / HTTP/1.1\r\n\r\n", "X", "PROXIMITY", "\r\nX"] {
        let mut case = Case::with_rule(HeaderRule::Optional, opening.as_bytes());
        case.expected_opening = opening.into();
        case.client.chunk = 3;
        case.play_often(check_whole);
    }
    Case::with_rule(HeaderRule::Optional, &header(1)).play_often(check_whole);
}

#[test]
fn where_headers_are_optional_one_that_has_begun_is_completed_or_refused() {
    for cut in 1..header(1).len() {
        let part = &header(1)[..cut];
        let mut silent = Case::with_rule(HeaderRule::Optional, b"");
        silent.client = script(part.to_vec(), 0, Ending::Never);
        let played = silent.play();
        assert_eq!(played.attempts(), 0);
        let error = HeaderError::Late { waited: FIVE_SECONDS, received: cut };
        assert_eq!(played.closed().reason, CloseReason::Header(error));
        assert_eq!(played.after(), FIVE_SECONDS);
        let mut ended = Case::with_rule(HeaderRule::Optional, b"");
        ended.client = script(part.to_vec(), 0, Ending::Fin);
        let played = ended.play();
        assert_eq!(played.attempts(), 0);
        assert_eq!(played.closed().reason, CloseReason::Header(HeaderError::CutShort { received: cut }));
    }
}

#[test]
fn where_headers_are_optional_a_client_that_ends_before_its_first_byte_is_served() {
    let mut case = Case::with_rule(HeaderRule::Optional, b"");
    case.client = script(Vec::new(), 0, Ending::Fin);
    case.play_often(|played| {
        check_whole(played);
        assert_eq!(played.attempts(), 1);
        assert_eq!(played.after(), Duration::ZERO);
    });
}

/// A client to which the server speaks first, and the bytes that it then begins with.
fn late(opening: &[u8], ending: Ending) -> Case {
    let mut case = Case::with_rule(HeaderRule::Optional, opening);
    case.backend.ending = Ending::Fin;
    case.client.ending = ending;
    case.client.hears_first = 1;
    case.hardships.meanwhile = 30;
    case
}

#[test]
fn where_headers_are_optional_one_after_the_wait_is_refused_and_never_data() {
    let mut headers = vec![header(1), b"PROXY junk".to_vec(), V2_SIGNATURE.to_vec()];
    headers.push([&V2_SIGNATURE[..], b"\x20\0\0\0"].concat());
    for (number, opening) in headers.iter().enumerate() {
        for ending in [Ending::Never, Ending::Fin, Ending::Close] {
            for chunk in [1, 5, 6, 7, 1000] {
                let mut case = late(opening, ending);
                case.client.chunk = chunk;
                // The backend fails when it reads a byte of it.
                case.client.length = 0;
                case.play_often(|played| {
                    let error = HeaderError::AfterWait { waited: SECOND };
                    assert_eq!(played.closed().reason, CloseReason::Header(error), "{number}");
                    played.at_backend(|backend| assert_eq!(backend.party.received_of_stream(), 0));
                });
            }
        }
    }
}

#[test]
fn where_headers_are_optional_other_late_bytes_are_data_however_they_begin() {
    let openings = ["", "X", "P", "PROXY", "PROXIMITY", "PROXY\t", "\r", "\r\n\r\n\0\r\nQUIT", "\r\n\r\nX"];
    for opening in openings {
        for ending in [Ending::Fin, Ending::FinAfterTheirs] {
            for length in [0, 500] {
                let mut case = late(opening.as_bytes(), ending);
                // Without another byte, only an end tells that these bytes are no header.
                let is_decided = length > 0 || ending == Ending::Fin;
                if !is_decided && !["", "X", "PROXIMITY", "PROXY\t", "\r\n\r\nX"].contains(&opening) {
                    continue;
                }
                case.expected_opening = opening.into();
                case.client.length = length;
                case.client.chunk = 3;
                case.play_often(check_whole);
            }
        }
    }
}

#[test]
fn where_headers_are_forbidden_they_are_data() {
    let mut case = Case::with_rule(HeaderRule::Forbid, &header(1));
    case.expected_opening = header(1);
    case.play_often(check_whole);
}

#[test]
fn a_silent_client_reaches_the_backend_where_headers_are_optional_or_forbidden() {
    for (rule, after) in [(HeaderRule::Optional, SECOND), (HeaderRule::Forbid, Duration::ZERO)] {
        let mut case = Case::with_rule(rule, b"");
        case.client = script(Vec::new(), 0, Ending::FinAfterTheirs);
        case.backend.ending = Ending::Fin;
        case.play_often(|played| {
            check_whole(played);
            assert_eq!(played.after(), after);
        });
    }
}

#[test]
fn a_tuple_in_use_is_tried_again_and_then_replaced_by_another_port() {
    use Dial::{AtOnce, InUse, Later};
    let cases: [(&[Dial], _, _); 4] = [
        (&[InUse, AtOnce], RETRY, 4000),
        (&[InUse, InUse, Later], 2 * RETRY, 4000),
        (&[InUse, InUse, InUse, AtOnce], 2 * RETRY, 0),
        (&[InUse, InUse, InUse, Later], 2 * RETRY, 0),
    ];
    for (dials, after, port) in cases {
        Case::dialling(dials).play_often(|played| {
            check_whole(played);
            assert_eq!(played.after(), after);
            let attempts = played.0.io.world.borrow().attempts.clone();
            let ports: Vec<_> =
                attempts.iter().map(|attempt| attempt.source.expect("the client's").port()).collect();
            assert_eq!(ports.len(), dials.len());
            assert!(ports[..ports.len() - 1].iter().all(|&port| port == 4000));
            assert_eq!(ports.last(), Some(&port));
            assert_eq!(played.0.count(Counter::PortReplaced), u64::from(port == 0));
        });
    }
}

#[test]
fn a_missing_route_is_awaited_and_not_counted_as_a_conflict() {
    use Dial::{Impossible, InUse, Later};
    const ROUTE: Duration = Duration::from_millis(250);
    let [missing, refusing] = [Errno::NETUNREACH, Errno::HOSTUNREACH].map(Impossible);
    let dials = [missing, missing, refusing, InUse, InUse, Later];
    Case::dialling(&dials).play_often(|played| {
        check_whole(played);
        assert_eq!(played.after(), 3 * ROUTE + 2 * RETRY);
        let attempts = played.0.io.world.borrow().attempts.clone();
        assert!(attempts.iter().all(|attempt| attempt.source.expect("the client's").port() == 4000));
    });
}

#[test]
fn a_missing_route_is_awaited_as_long_as_a_connection() {
    let mut case = Case::dialling(&[Dial::Impossible(Errno::NETUNREACH)]);
    case.settings.connect_timeout = Duration::from_millis(600);
    case.play_often(|played| {
        let CloseReason::ConnectFailed { error: ConnectError::NoRoute(call), .. } = &played.closed().reason
        else {
            panic!("{:?}", played.closed());
        };
        assert_eq!((call.call, call.errno), ("connect", Errno::NETUNREACH));
        // At 0, 250, 500 and 750 ms.
        assert_eq!(played.attempts(), 4);
    });
}

#[test]
fn a_conflict_may_be_refused() {
    let mut case = Case::dialling(&[Dial::InUse]);
    case.policy.delivery.on_conflict = OnConflict::Refuse;
    case.play_often(|played| {
        let CloseReason::ConnectFailed { error: ConnectError::TupleInUse, .. } = played.closed().reason
        else {
            panic!("{:?}", played.closed());
        };
        assert_eq!(played.attempts(), 3);
        assert_eq!(played.at_client(|client| client.connection.their_end()), Some(End::Reset));
    });
}

#[test]
fn a_backend_that_refuses_is_reported_and_resets_the_client() {
    let refused = Errno::CONNREFUSED;
    for dial in [Dial::FailsAtOnce(refused), Dial::FailsLater(refused), Dial::Impossible(refused)] {
        for length in [0, 500] {
            let mut case = Case::dialling(&[dial]);
            case.client.length = length;
            case.play_often(|played| {
                match &played.closed().reason {
                    CloseReason::ConnectFailed { error: ConnectError::Call(call), .. } => {
                        assert_eq!((call.call, call.errno), ("connect", refused));
                    }
                    other => panic!("{other:?}"),
                }
                assert_eq!(played.at_client(|client| client.connection.their_end()), Some(End::Reset));
                assert_eq!(played.0.count(Counter::Relayed), 0);
            });
        }
    }
}

#[test]
fn connecting_to_a_silent_backend_times_out() {
    let case = Case::dialling(&[Dial::Silent]);
    case.play_often(|played| {
        assert!(matches!(played.closed().reason, CloseReason::ConnectTimeout { .. }));
        assert_eq!(played.after(), FIVE_SECONDS);
        assert_eq!(played.at_client(|client| client.connection.their_end()), Some(End::Reset));
    });
}

#[test]
fn bytes_before_a_backends_reset_are_delivered_however_early_it_comes() {
    for (dial, length) in [(Dial::AtOnce, 0), (Dial::AtOnce, 500), (Dial::Later, 0), (Dial::Later, 500)] {
        let mut case = Case::dialling(&[dial]);
        case.client = script(header(1), length, Ending::Never);
        case.backend = script(Vec::new(), 100, Ending::Reset { sent: 100, received: 0 });
        case.hardships.meanwhile = 50;
        case.play_often(|played| {
            assert_eq!(played.closed().reason, CloseReason::ResetByBackend);
            played.at_client(|client| {
                assert_eq!((client.party.received_of_stream(), client.party.saw), (100, Some(End::Reset)));
            });
        });
    }
}

#[test]
fn a_socket_that_cannot_be_watched_ends_the_session() {
    for watches in [0, 1] {
        let hardships = Hardships { watches, ..Hardships::NONE };
        Case { hardships, ..Case::new() }.play_often(|played| {
            assert_eq!(played.closed().reason, CloseReason::Unwatchable(Errno::NOSPC));
        });
    }
}

#[test]
fn headers_in_pieces_keep_to_their_budget() {
    let mut case = Case::new();
    case.client.chunk = 10;
    case.budgets = budgets(4, 1 << 20, 30);
    case.hardships.meanwhile = 10;
    let mut over = 0;
    case.play_often(|played| match played.closed().reason {
        CloseReason::OverHeaderBudget => over += 1,
        _ => check_whole(played),
    });
    assert!(over > 50, "{over} of 100");
}

#[test]
fn the_sending_side_writes_a_new_header() {
    let mut case = Case::new();
    (case.policy.delivery.source, case.policy.delivery.send_proxy) = (Source::Any, Some(Version::V1));
    case.expected_opening = header(1);
    case.client.chunk = 30;
    case.play_often(check_whole);
}

#[test]
fn bytes_after_the_header_are_held_within_the_budget() {
    let mut case = Case::dialling(&[Dial::Silent]);
    case.client.length = 90_000;
    case.client.chunk = 100_000;
    for backlog_bytes in [1 << 20, 200_000, 100_000, 0] {
        case.budgets = budgets(4, backlog_bytes, 1 << 20);
        let held = case.play().0.most_backlog;
        assert!(held > 0 && held <= backlog_bytes.max(4096), "{held} of {backlog_bytes}");
    }
}
