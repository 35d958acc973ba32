//! `--udp-dialect first` and `standalone`: only a flow's first datagram has a header.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::datagrams::{ask, hears_nothing, receive, send, socket, v2};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Test, client, tests, wait_for};

use super::{CLIENTS, DESTINATIONS, Pair, command, exchange, nth_client};

const DIALECTS: [&str; 2] = ["first", "standalone"];
/// In seconds: more than a busy machine takes between two datagrams.
const CLOSE_AFTER: &str = "4";
/// Longer than that.
const SILENCE: Duration = Duration::from_millis(4100);

pub(crate) fn tests() -> Vec<Test> {
    tests![
        bare_datagrams_belong_to_the_client_that_their_header_named,
        a_header_alone_is_swallowed_only_where_it_stands_alone,
        a_later_header_is_the_clients_data,
        a_datagram_without_a_flow_is_dropped_and_counted,
        a_refused_header_begins_no_flow,
        a_sender_that_is_silent_begins_anew,
        bare_datagrams_keep_a_flow_and_answers_do_not,
        a_clients_newest_sender_port_replaces_the_earlier_one,
        a_sender_without_header_where_it_is_optional_stays_itself,
        only_a_listed_sender_begins_a_flow,
        no_datagram_is_given_to_another_client_while_flows_are_forgotten,
    ]
}

pub(super) fn attach(pair: &Pair, bed: &Bed, dialect: &str, more: &[&str]) -> Result<()> {
    pair.attach(bed, &[&["--udp-dialect", dialect, "--replace"], more].concat())
}

fn refused(pair: &Pair, bed: &Bed, reason: &str, count: u64) -> Result<()> {
    wait_for(reason, || pair.counter(bed, reason).is_ok_and(|counted| counted == count))
        .with_context(|| pair.status(bed).map_or_else(|error| error.to_string(), |status| status.to_string()))
}

fn bare_datagrams_belong_to_the_client_that_their_header_named(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        for (port, bound) in [("53/udp", 53), ("53:5353/udp", 5353)] {
            let pair = Pair::new()?;
            attach(&pair, bed, dialect, &["--port", port])?;
            let _backend = pair.backend(&[format!("0.0.0.0:{bound}"), format!("[::1]:{bound}")])?;
            for v6 in [false, true] {
                let (client, destination) = (CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)]);
                let sender = pair.sender(v6, 53)?;
                exchange(&sender, client, &v2(client, destination)?, b"first")?;
                for len in [0, 1, 2, 15, 16, 28, 512, 1400] {
                    exchange(&sender, client, b"", &Pattern::bytes(len))
                        .with_context(|| format!("{dialect} {port} {client}, {len} bytes"))?;
                }
            }
            ensure!(pair.counter(bed, "header_v2")? == 2, "{}", pair.status(bed)?);
            ensure!(pair.counter(bed, "datagrams")? == 18, "{}", pair.status(bed)?);
            ensure!(pair.counter(bed, "answers")? == 18, "{}", pair.status(bed)?);
        }
    }
    Ok(())
}

fn a_header_alone_is_swallowed_only_where_it_stands_alone(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        let pair = Pair::new()?;
        attach(&pair, bed, dialect, &["--port", "53/udp"])?;
        let backend = pair.backend(&["0.0.0.0:53".to_owned(), "[::1]:53".to_owned()])?;
        for v6 in [false, true] {
            let (client, destination) = (CLIENTS[usize::from(v6)], DESTINATIONS[usize::from(v6)]);
            let sender = pair.sender(v6, 53)?;
            if dialect == "standalone" {
                send(&sender, &[&v2(client, destination)?])?;
            } else {
                exchange(&sender, client, &v2(client, destination)?, b"")?;
            }
            exchange(&sender, client, b"", b"bare")?;
        }
        let expected = if dialect == "standalone" { 2 } else { 4 };
        ensure!(backend.seen().len() == expected, "{dialect}: {:?}", *backend.seen());
    }
    Ok(())
}

/// Otherwise a client of such a sender could choose its own name.
fn a_later_header_is_the_clients_data(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        let pair = Pair::new()?;
        attach(&pair, bed, dialect, &["--port", "53/udp"])?;
        let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
        let sender = pair.sender(false, 53)?;
        exchange(&sender, CLIENTS[0], &v2(CLIENTS[0], DESTINATIONS[0])?, b"first")?;
        let forged = [v2("203.0.113.66:6666", DESTINATIONS[0])?, b"forged".to_vec()].concat();
        for payload in [&forged[..], &forged[..28], &client::v2_local(), b"\r\n\r\n\0\r\nQUIT\n"] {
            exchange(&sender, CLIENTS[0], b"", payload).context(dialect)?;
        }
    }
    Ok(())
}

/// The header's datagram is lost, or comes late: nothing is guessed from those before it.
fn a_datagram_without_a_flow_is_dropped_and_counted(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        let pair = Pair::new()?;
        attach(&pair, bed, dialect, &["--port", "53/udp"])?;
        let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
        let sender = pair.sender(false, 53)?;
        let before = pair.counter(bed, "refused_no_flow")?;
        let header = v2(CLIENTS[0], DESTINATIONS[0])?;
        for payload in [b"bare".as_slice(), b"", &header[..11], b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n"] {
            send(&sender, &[payload])?;
        }
        refused(&pair, bed, "refused_no_flow", before + 4)?;
        exchange(&sender, CLIENTS[0], &header, b"late")?;
        exchange(&sender, CLIENTS[0], b"", b"bare")?;
        ensure!(backend.seen().len() == 2, "{:?}", *backend.seen());
        let follow = command(bed, &["status", "--follow"])?.in_netns(&pair.host().netns).start(bed)?;
        follow.wait_for_log("to port 53/udp: no header, and no flow")?;
    }
    Ok(())
}

fn a_refused_header_begins_no_flow(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let deny = bed.write("deny", "203.0.113.128/25\n")?;
    let whole = v2(CLIENTS[0], DESTINATIONS[0])?;
    let mut overlong = whole.clone();
    overlong[15] = 200;
    let mut too_long = client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, &[0; 1000])])?;
    too_long[13] += 1;
    let refusals: [(&[u8], &str); 6] = [
        (&whole[..27], "refused_malformed"),
        (&overlong, "refused_malformed"),
        (&too_long, "refused_too_long"),
        (&v2("127.0.0.1:1", DESTINATIONS[0])?, "refused_claim"),
        (&v2("203.0.113.200:1", DESTINATIONS[0])?, "refused_denied"),
        // Of the other family.
        (&v2(CLIENTS[1], DESTINATIONS[1])?, "refused_family"),
    ];
    for dialect in DIALECTS {
        let deny = deny.to_string_lossy();
        let options =
            ["--port", "53/udp", "--header-max", "512", "--deny-clients", &deny, "--unshowable", "refuse"];
        attach(&pair, bed, dialect, &options)?;
        let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
        for (bytes, reason) in &refusals {
            let (before, dropped) = (pair.counter(bed, reason)?, pair.counter(bed, "refused_no_flow")?);
            let sender = pair.sender(false, 53)?;
            send(&sender, &[bytes])?;
            refused(&pair, bed, reason, before + 1)?;
            send(&sender, &[b"bare"])?;
            if ["refused_claim", "refused_denied", "refused_family"].contains(reason) {
                // The client writes it: its sender passes on what comes after the header as it is.
                send(&sender, &[&whole, b"forged"])?;
                refused(&pair, bed, reason, before + 3)?;
            } else {
                refused(&pair, bed, "refused_no_flow", dropped + 1)?;
            }
        }
        // More than a packet holds: nothing is learnt from fragments.
        let dropped = pair.counter(bed, "refused_no_flow")?;
        let sender = pair.sender(false, 53)?;
        send(&sender, &[&whole, &Pattern::bytes(3000)])?;
        send(&sender, &[b"bare"])?;
        refused(&pair, bed, "refused_no_flow", dropped + 1)?;
        exchange(&sender, CLIENTS[0], &whole, b"good")?;
        ensure!(backend.seen().len() == 1, "{dialect}: {:?}", *backend.seen());
    }
    Ok(())
}

/// The sender has forgotten the flow, and its port may be another client's.
fn a_sender_that_is_silent_begins_anew(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        let pair = Pair::new()?;
        attach(&pair, bed, dialect, &["--port", "53/udp", "--close-after", CLOSE_AFTER])?;
        let backend = pair.host().run(|| socket("0.0.0.0:53"))??;
        let sender = pair.sender(false, 53)?;
        let mut buffer = [0; 100];
        let mut sees = |client: &str, payload: &[u8]| -> Result<()> {
            let (len, from) = backend.recv_from(&mut buffer)?;
            ensure!(from.to_string() == client && buffer[..len] == *payload, "{from}: {:?}", &buffer[..len]);
            Ok(())
        };
        let dropped = pair.counter(bed, "refused_no_flow")?;
        let header = v2(CLIENTS[0], DESTINATIONS[0])?;
        send(&sender, &[&header, b"first"])?;
        sees(CLIENTS[0], b"first")?;
        std::thread::sleep(SILENCE);
        send(&sender, &[b"bare"])?;
        refused(&pair, bed, "refused_no_flow", dropped + 1)?;
        let other = "203.0.113.8:5000";
        send(&sender, &[&v2(other, DESTINATIONS[0])?, b"of another"])?;
        sees(other, b"of another")?;
        send(&sender, &[&header])?;
        sees(other, &header)?;
        // What the server says to the first client must not reach the second one.
        let _ = pair.host().run(|| backend.send_to(b"late", CLIENTS[0]))?;
        pair.host().run(|| backend.send_to(b"answer", other))??;
        ensure!(receive(&sender)? == b"answer", "{dialect}");
        hears_nothing(&sender)?;
    }
    Ok(())
}

/// Only the sender's own datagrams prove that it still knows the flow.
fn bare_datagrams_keep_a_flow_and_answers_do_not(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    attach(&pair, bed, "first", &["--port", "53/udp", "--close-after", CLOSE_AFTER])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    exchange(&sender, CLIENTS[0], &v2(CLIENTS[0], DESTINATIONS[0])?, b"first")?;
    for _ in 0..5 {
        std::thread::sleep(SILENCE / 4);
        exchange(&sender, CLIENTS[0], b"", b"bare")?;
    }
    std::thread::sleep(SILENCE);
    send(&sender, &[b"bare"])?;
    refused(&pair, bed, "refused_no_flow", 1)
}

/// The earlier one may be another client's at once, whose header would be data of the flow.
fn a_clients_newest_sender_port_replaces_the_earlier_one(bed: &Bed) -> Result<()> {
    for dialect in DIALECTS {
        let pair = Pair::new()?;
        attach(&pair, bed, dialect, &["--port", "53/udp"])?;
        let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
        let (before, after) = (pair.sender(false, 53)?, pair.sender(false, 53)?);
        let header = v2(CLIENTS[0], DESTINATIONS[0])?;
        exchange(&before, CLIENTS[0], &header, b"before")?;
        exchange(&after, CLIENTS[0], &header, b"after")?;
        let dropped = pair.counter(bed, "refused_no_flow")?;
        send(&before, &[b"bare"])?;
        refused(&pair, bed, "refused_no_flow", dropped + 1)?;
        let other = "203.0.113.8:5000";
        exchange(&before, other, &v2(other, DESTINATIONS[0])?, b"another client")?;
        exchange(&after, CLIENTS[0], b"", b"bare")?;
        exchange(&before, other, b"", b"bare")?;
    }
    Ok(())
}

fn a_sender_without_header_where_it_is_optional_stays_itself(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    attach(&pair, bed, "first", &["--port", "53/udp", "--header", "optional"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    exchange(&sender, &me, b"", b"bare")?;
    exchange(&sender, &me, b"", &v2(CLIENTS[0], DESTINATIONS[0])?)?;
    let other = pair.sender(false, 53)?;
    let other_one = other.local_addr()?.to_string();
    exchange(&other, &other_one, &client::v2_local(), b"LOCAL")?;
    exchange(&other, &other_one, b"", b"bare")?;
    ensure!(pair.counter(bed, "header_absent")? == 1 && pair.counter(bed, "named_itself")? == 1);
    Ok(())
}

/// Everybody's datagrams pass, as without truepeer, and name nobody.
fn only_a_listed_sender_begins_a_flow(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let args = ["--port", "53/udp", "--udp-dialect", "first", "--allow", "10.9.9.9"];
    command(bed, &args)?.in_netns(&pair.host().netns).run(bed)?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    let forged = [v2(CLIENTS[0], DESTINATIONS[0])?, b"forged".to_vec()].concat();
    for payload in [&forged[..], b"bare", &forged] {
        exchange(&sender, &me, b"", payload)?;
    }
    ensure!(pair.counter(bed, "header_unlisted")? == 2 && pair.counter(bed, "not_a_sender")? == 1);
    Ok(())
}

/// There is room for fewer flows than there are. Their datagrams come from two threads, in turns.
fn no_datagram_is_given_to_another_client_while_flows_are_forgotten(bed: &Bed) -> Result<()> {
    const FLOWS: usize = 4000;
    let pair = Pair::new()?;
    attach(&pair, bed, "first", &["--port", "53/udp", "--max-udp-flows", "1000"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let crowd = |from: usize| -> Result<usize> {
        let mut served = 0;
        for n in from..from + FLOWS / 2 {
            // A port used again within the flow's time would be the old client's.
            let sender = pair.lb().run(|| socket(format!("0.0.0.0:{}", 10_000 + n)))??;
            sender.connect(pair.host().at(false, 53))?;
            let client = nth_client(n);
            exchange(&sender, &client, &v2(&client, DESTINATIONS[0])?, b"first")?;
            served += 1;
        }
        Ok(served)
    };
    let kept: Vec<UdpSocket> = (0..50).map(|_| pair.sender(false, 53)).collect::<Result<_>>()?;
    let client = |n: usize| format!("198.51.100.{n}:7000");
    for (n, sender) in kept.iter().enumerate() {
        exchange(sender, &client(n), &v2(client(n), DESTINATIONS[0])?, b"first")?;
    }
    let served: Result<usize> = std::thread::scope(|scope| {
        let crowds = [0, FLOWS / 2].map(|from| scope.spawn(move || crowd(from)));
        let joined = crowds.map(|crowd| crowd.join().unwrap_or_else(|_| anyhow::bail!("panicked")));
        joined.into_iter().sum()
    });
    ensure!(served? == FLOWS);
    let dropped = pair.counter(bed, "refused_no_flow")?;
    let mut forgotten = 0_u64;
    for (n, sender) in kept.iter().enumerate() {
        sender.set_read_timeout(Some(Duration::from_millis(100)))?;
        match ask(sender, &[b"bare"]) {
            Ok(answer) => ensure!(answer == format!("{} bare", client(n)).as_bytes(), "{answer:?}"),
            Err(_) => forgotten += 1,
        }
    }
    ensure!(forgotten > 0, "there was room for all");
    refused(&pair, bed, "refused_no_flow", dropped + forgotten)
}
