//! Any requests and responses, in any framing and any pieces, and a party that leaves at any moment.
//!
//! The client and the origin are plain: they know what the other one sends, and compare. A message that its
//! sender has not finished must not look finished.

use proptest::prelude::*;
use truepeer_testbed::chance::Chance;

use super::*;

/// A request and its response: the lengths of the bodies, and whether they come in chunks.
#[derive(Debug, Clone, Copy)]
struct Round {
    request: (usize, bool),
    response: (usize, bool),
    /// The origin ends its connection behind the response.
    closes: bool,
}

/// Who leaves, and after how many of the bytes that it would send (in 1/256).
#[derive(Debug, Clone, Copy)]
enum Leaves {
    Nobody,
    Client(u8),
    Origin(u8),
}

fn message() -> impl Strategy<Value = (usize, bool)> {
    (prop_oneof![Just(0), 1..100_usize, 1000..9000_usize], any::<bool>())
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let round = (message(), message(), prop::bool::weighted(0.2))
        .prop_map(|(request, response, closes)| Round { request, response, closes });
    proptest::collection::vec(round, 1..4)
}

fn leaves() -> impl Strategy<Value = Leaves> {
    prop_oneof![
        2 => Just(Leaves::Nobody),
        1 => any::<u8>().prop_map(Leaves::Client),
        1 => any::<u8>().prop_map(Leaves::Origin),
    ]
}

/// The body of message `number`. Neighbouring bytes differ, and so do the messages.
fn body(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + u8::try_from((at * 7 + number * 5) % 25).unwrap()).collect()
}

/// A whole message.
fn message_of(
    start: &str,
    number: usize,
    (length, is_chunked): (usize, bool),
    chance: &mut Chance,
) -> Vec<u8> {
    let body = body(number, length);
    if !is_chunked {
        return [format!("{start}Content-Length: {length}\r\n\r\n").as_bytes(), &body].concat();
    }
    let mut text = format!("{start}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    let mut rest = &body[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at((1 + chance.below(3000)).min(rest.len()));
        text.extend_from_slice(&[format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        rest = after;
    }
    text.extend_from_slice(b"0\r\n\r\n");
    text
}

/// Sends in pieces. `false`: the other end is gone.
async fn send(stream: &mut DuplexStream, text: &[u8], reactor: &Reactor, chance: &mut Chance) -> bool {
    let most = chance.one_of(&[1 + text.len() / 50, 300, 20_000]);
    let mut rest = text;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((1 + chance.below(most)).min(rest.len()));
        if stream.write_all(piece).await.is_err() {
            return false;
        }
        rest = after;
        for _ in 0..chance.below(3) {
            reactor.yield_now().await;
        }
    }
    true
}

/// Reads a message whole: its first line and its body. `None`: it ends too early.
async fn receive(stream: &mut DuplexStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let mut body = Vec::new();
    if let Some(length) = field("Content-Length: ") {
        body.resize(length.parse().ok()?, 0);
        stream.read_exact(&mut body).await.ok()?;
    } else if field("Transfer-Encoding: chunked").is_some() {
        loop {
            let mut size = Vec::new();
            while !size.ends_with(b"\r\n") {
                size.push(stream.read_u8().await.ok()?);
            }
            let size = usize::from_str_radix(std::str::from_utf8(&size).ok()?.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).await.ok()?;
            body.extend_from_slice(&chunk[..size]);
            if size == 0 {
                break;
            }
        }
    }
    Some((head.lines().next()?.to_owned(), body))
}

fn part(text: &[u8], of_256: u8) -> &[u8] {
    &text[..text.len() * usize::from(of_256) / 256]
}

/// Sends all requests at once; reads the answers. How many of them were whole.
async fn client(
    mut stream: DuplexStream,
    rounds: Vec<Round>,
    leaves: Leaves,
    reactor: Reactor,
    seed: u64,
) -> usize {
    let mut chance = Chance::new(seed);
    let mut text = Vec::new();
    for (number, round) in rounds.iter().enumerate() {
        let start = format!("POST /{number} HTTP/1.1\r\nHost: a\r\n");
        text.extend(message_of(&start, number, round.request, &mut chance));
    }
    if let Leaves::Client(of_256) = leaves {
        send(&mut stream, part(&text, of_256), &reactor, &mut chance).await;
        return 0;
    }
    if !send(&mut stream, &text, &reactor, &mut chance).await {
        return 0;
    }
    for (number, round) in rounds.iter().enumerate() {
        let Some((line, received)) = receive(&mut stream).await else { return number };
        if line != "HTTP/1.1 200 OK" {
            assert!(matches!(leaves, Leaves::Origin(_)), "{line}");
            return number;
        }
        assert!(received == body(number + 100, round.response.0), "the body of response {number}");
    }
    rounds.len()
}

/// Answers requests over as many connections as it takes. How many requests were whole.
async fn origin(
    mut connections: VecDeque<DuplexStream>,
    rounds: Vec<Round>,
    leaves: Leaves,
    reactor: Reactor,
    seed: u64,
) -> usize {
    let mut chance = Chance::new(seed + 1);
    let mut stream = connections.pop_front().expect("a connection");
    for (number, round) in rounds.iter().enumerate() {
        let Some((line, received)) = receive(&mut stream).await else { return number };
        assert_eq!(line, format!("POST /{number} HTTP/1.1"));
        assert!(received == body(number, round.request.0), "the body of request {number}");
        let start =
            if round.closes { "HTTP/1.1 200 OK\r\nConnection: close\r\n" } else { "HTTP/1.1 200 OK\r\n" };
        let text = message_of(start, number + 100, round.response, &mut chance);
        if let Leaves::Origin(of_256) = leaves
            && number + 1 == rounds.len()
        {
            send(&mut stream, part(&text, of_256), &reactor, &mut chance).await;
            return number + 1;
        }
        if !send(&mut stream, &text, &reactor, &mut chance).await {
            return number + 1;
        }
        if round.closes {
            stream = connections.pop_front().expect("a connection");
        }
    }
    rounds.len()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_exchange_delivers_each_body_once_and_no_part_as_a_whole(
        rounds in rounds(),
        leaves in leaves(),
        seed in any::<u32>(),
    ) {
        let bed = bed(HttpSettings::default());
        let connections = (0..=rounds.len()).map(|_| bed.origin.next_connection()).collect();
        let (stream, reactor) = (bed.client(), bed.reactor.clone());
        let (there, all) = (rounds.clone(), rounds.len());
        let answered = Rc::new(Cell::new(None));
        let note = Rc::clone(&answered);
        let its_reactor = reactor.clone();
        reactor.spawn(async move {
            note.set(Some(origin(connections, there, leaves, its_reactor, seed.into()).await));
        });
        let seen = Rc::clone(&answered);
        let whole = bed.run(async move {
            let whole = client(stream, rounds, leaves, reactor.clone(), seed.into()).await;
            // The origin has its last turns.
            for _ in 0..100 {
                if seen.get().is_none() {
                    reactor.yield_now().await;
                }
            }
            whole
        });
        match leaves {
            Leaves::Nobody => prop_assert_eq!((whole, answered.get()), (all, Some(all))),
            // It never sends all of its last request.
            Leaves::Client(_) => prop_assert!(answered.get().is_none_or(|whole| whole < all)),
            Leaves::Origin(_) => prop_assert!(whole < all),
        }
    }
}
