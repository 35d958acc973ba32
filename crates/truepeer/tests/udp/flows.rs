//! Flows: which datagrams belong together, where replies go, and when a flow is forgotten.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Test};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, ask, counted, hears_nothing, proxy, receive, send,
    sender_towards, socket, start, start_proxy, v2, wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    truepeer_testbed::tests![
        a_thousand_clients_behind_one_sender_port,
        replies_follow_the_senders_newest_port,
        one_client_from_many_sender_ports_is_one_flow,
        a_client_after_another_on_one_sender_port_is_never_taken_for_it,
        a_restarting_backend_does_not_end_a_flow,
        two_destinations_of_one_client_are_two_flows,
        two_flows_with_one_tuple_keep_their_replies_apart,
        too_many_flows_forget_the_longest_silent,
        a_backends_datagrams_keep_a_flow_alive_where_each_names_its_client,
        only_the_senders_datagrams_keep_a_flow_alive_where_they_are_bare,
        a_flow_that_was_forgotten_is_named_as_the_reason,
        order_is_kept_within_a_flow,
        a_client_keeps_a_port_that_truepeer_listens_on,
        a_port_that_another_program_holds_is_named_and_counted,
        a_client_at_the_backends_address_is_refused,
        no_flow_is_connected_to_itself,
    ]
}

fn nth_client(n: usize) -> String {
    format!("198.18.{}.{}:{}", n / 250, n % 250 + 1, 1024 + n)
}

/// NTP clients and some resolvers send from the port that they send to.
fn a_client_keeps_a_port_that_truepeer_listens_on(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = proxy("--on-conflict refuse").ipv4(BACKENDS[0]).ipv6(BACKENDS[1]);
    let _truepeer = start(bed, truepeer, &["[::]:5300"])?;
    for (n, client) in ["192.0.2.7:5300", "[2001:db8::7]:5300"].into_iter().enumerate() {
        let sender = sender_towards(LISTENERS[n])?;
        let answer = String::from_utf8(ask(&sender, &[&v2(client, DESTINATIONS[n])?, b"here"])?)?;
        ensure!(answer == format!("{client} here"), "{answer}");
    }
    Ok(())
}

fn a_port_that_another_program_holds_is_named_and_counted(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let _holder = socket("[::]:5000")?;
    let truepeer = start_proxy(bed, "")?;
    let answer = ask(&sender_towards(LISTENERS[0])?, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"here"])?;
    let answer = String::from_utf8(answer)?;
    ensure!(answer.starts_with("192.0.2.7:") && !answer.starts_with(CLIENTS[0]), "{answer}");
    truepeer.wait_for_log("a program on this host holds the client's port")?;
    wait_counted(&truepeer, "client_ports_held", 1)
}

fn a_client_at_the_backends_address_is_refused(bed: &Bed) -> Result<()> {
    let truepeer = start_proxy(bed, "--allow-claims loopback")?;
    for n in 0..2 {
        let sender = sender_towards(LISTENERS[n])?;
        send(&sender, &[&v2(BACKENDS[n], DESTINATIONS[n])?, b"echo"])?;
        hears_nothing(&sender)?;
    }
    wait_counted(&truepeer, "client_is_backend", 2)
}

/// If nothing listens on the backend's port, the kernel may choose exactly that port.
fn no_flow_is_connected_to_itself(bed: &Bed) -> Result<()> {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001")?;
    let truepeer = proxy("--send-proxy v2").ipv4("127.0.0.1:40000").ipv6("[::1]:40000");
    let truepeer = start(bed, truepeer, &LISTENERS)?;
    let sender = socket("127.0.0.1:31000")?;
    sender.connect(LISTENERS[0])?;
    for n in 0..20 {
        send(&sender, &[&v2(nth_client(n), DESTINATIONS[0])?, b"echo"])?;
    }
    hears_nothing(&sender)?;
    truepeer.wait_for_log("connected_with_itself")
}

fn a_thousand_clients_behind_one_sender_port(bed: &Bed) -> Result<()> {
    const CLIENTS: usize = 1000;
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    let sender = sender_towards(LISTENERS[0])?;
    for round in 0..3 {
        let mut outstanding = 0;
        let mut answers: HashMap<String, String> = HashMap::new();
        for n in 0..CLIENTS {
            send(&sender, &[&v2(nth_client(n), DESTINATIONS[0])?, format!("{n} {round}").as_bytes()])?;
            outstanding += 1;
            while outstanding > 32 || (n == CLIENTS - 1 && outstanding > 0) {
                let answer = String::from_utf8(receive(&sender)?)?;
                let (who, what) = answer.split_once(' ').with_context(|| answer.clone())?;
                answers.insert(what.to_owned(), who.to_owned());
                outstanding -= 1;
            }
        }
        for n in 0..CLIENTS {
            let seen = answers.get(&format!("{n} {round}"));
            ensure!(seen == Some(&nth_client(n)), "client {n} was seen as {seen:?}");
        }
    }
    ensure!(backend.seen().len() == 3 * CLIENTS);
    ensure!(counted(&truepeer, "flows_opened")? == CLIENTS as u64);
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0);
    Ok(())
}

fn replies_follow_the_senders_newest_port(bed: &Bed) -> Result<()> {
    // Answers on request, to the address that it then knows.
    let backend =
        Backend::start(&BACKENDS, |seen| if seen.payload == b"?" { vec![b"!".to_vec()] } else { vec![] })?;
    for (number, dialect) in ["every", "first", "standalone"].into_iter().enumerate() {
        let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect}"))?;
        let (before, after) = (sender_towards(LISTENERS[0])?, sender_towards(LISTENERS[0])?);
        let header = v2(format!("192.0.2.7:{}", 600 + number), DESTINATIONS[0])?;
        send(&before, &[&header, b"first"])?;
        backend.wait_seen(2 * number + 1)?;
        ensure!(ask(&after, &[&header, b"?"])? == b"!");
        hears_nothing(&before)?;
        backend.saw_last(&format!("192.0.2.7:{}", 600 + number), b"?")?;
        // Where bare datagrams are identified by the sender's port, another worker may have the new one.
        ensure!(dialect != "every" || counted(&truepeer, "flows_opened")? == 1);
        ensure!(counted(&truepeer, "client_ports_replaced")? == 0);
        truepeer.stop()?;
    }
    Ok(())
}

/// With several workers, all must reach the same one.
fn one_client_from_many_sender_ports_is_one_flow(bed: &Bed) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--workers 4")?;
    for family in [0, 1] {
        for n in 0..64 {
            let sender = sender_towards(LISTENERS[family])?;
            let client = CLIENTS[family].replace(":5000", &format!(":{}", 5000 + n % 4));
            let answer = ask(&sender, &[&v2(&client, DESTINATIONS[family])?, b"?"])?;
            ensure!(answer == format!("{client} ?").as_bytes(), "{}", String::from_utf8_lossy(&answer));
        }
    }
    ensure!(counted(&truepeer, "flows_opened")? == 8, "{} datagrams", backend.seen().len());
    ensure!(counted(&truepeer, "client_ports_replaced")? == 0);
    Ok(())
}

fn a_client_after_another_on_one_sender_port_is_never_taken_for_it(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    for (number, dialect) in ["every", "first", "standalone"].into_iter().enumerate() {
        let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect} --close-after 1"))?;
        let sender = sender_towards(LISTENERS[0])?;
        let client = |letter: usize| format!("192.0.2.{letter}:{}", 700 + number);
        for letter in [1, 2, 1] {
            let answer = ask(&sender, &[&v2(client(letter), DESTINATIONS[0])?, b"?"])?;
            ensure!(answer == format!("{} ?", client(letter)).as_bytes(), "{dialect}: {answer:?}");
            if dialect != "every" {
                // The sender has forgotten its client, and truepeer even earlier: the port may now be another
                // client's.
                let ended = if letter == 2 { 2 } else { counted(&truepeer, "flows_opened")? };
                wait_counted(&truepeer, "flows_expired", ended)?;
            }
        }
        truepeer.stop()?;
    }
    Ok(())
}

fn a_restarting_backend_does_not_end_a_flow(bed: &Bed) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        let header = v2(CLIENTS[family], DESTINATIONS[family])?;
        ask(&sender, &[&header, b"before"])?;
    }
    drop(backend);
    let senders: Vec<_> = LISTENERS.iter().map(|at| sender_towards(at)).collect::<Result<_>>()?;
    for (family, sender) in senders.iter().enumerate() {
        let header = v2(CLIENTS[family], DESTINATIONS[family])?;
        for _ in 0..50 {
            send(sender, &[&header, b"nobody there"])?;
        }
    }
    wait_counted(&truepeer, "bytes_up", 2 * (6 + 50 * 12))?;
    let _backend = Backend::who(&BACKENDS)?;
    for (family, sender) in senders.iter().enumerate() {
        let header = v2(CLIENTS[family], DESTINATIONS[family])?;
        for n in 0..20 {
            let answer = ask(sender, &[&header, n.to_string().as_bytes()])?;
            ensure!(answer == format!("{} {n}", CLIENTS[family]).as_bytes(), "{answer:?}");
        }
    }
    ensure!(counted(&truepeer, "flows_opened")? == 2);
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0, "an ICMP error cost a datagram");
    Ok(())
}

fn two_destinations_of_one_client_are_two_flows(bed: &Bed) -> Result<()> {
    let (one, two) =
        (Backend::who(&["127.0.0.1:1001", "[::1]:1001"])?, Backend::who(&["127.0.0.1:1002", "[::1]:1002"])?);
    let options =
        "--dynamic-destination --dynamic-allow 127.0.0.0/8:1001-1002 --dynamic-allow [::1]:1001-1002";
    let truepeer = start(bed, proxy(options), &LISTENERS)?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        for port in [1001, 1002, 1001, 1002] {
            let destination = BACKENDS[family].replace(":53", &format!(":{port}"));
            let payload = port.to_string();
            let answer = ask(&sender, &[&v2(CLIENTS[family], destination)?, payload.as_bytes()])?;
            ensure!(answer == format!("{} {port}", CLIENTS[family]).as_bytes(), "{answer:?}");
        }
        send(&sender, &[&v2(CLIENTS[family], DESTINATIONS[family])?, b"not allowed"])?;
    }
    ensure!(one.seen().iter().all(|seen| seen.payload == b"1001") && one.seen().len() == 4);
    ensure!(two.seen().iter().all(|seen| seen.payload == b"1002") && two.seen().len() == 4);
    wait_counted(&truepeer, "datagrams_refused", 2)?;
    ensure!(counted(&truepeer, "flows_opened")? == 4);
    Ok(())
}

/// A client sends from one port to two addresses of its load balancer, and both lead to one backend: the
/// kernel would deliver the backend's datagrams to one of two sockets with that tuple, whichever flow they
/// belong to.
fn two_flows_with_one_tuple_keep_their_replies_apart(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    for workers in [1, 2] {
        let truepeer = start_proxy(bed, &format!("--workers {workers}"))?;
        let senders = [sender_towards(LISTENERS[0])?, sender_towards(LISTENERS[0])?];
        for round in 0..3 {
            for (number, sender) in senders.iter().enumerate() {
                let header = v2(format!("192.0.2.7:{workers}"), format!("198.51.100.{number}:53"))?;
                let answer = String::from_utf8(ask(sender, &[&header, b"?"])?)?;
                ensure!(answer.starts_with("192.0.2.7:"), "{answer}");
                let is_first = answer == format!("192.0.2.7:{workers} ?");
                ensure!(is_first == (number == 0), "{answer} in round {round} of sender {number}");
            }
        }
        ensure!(counted(&truepeer, "client_ports_replaced")? == 1);
        truepeer.stop()?;
    }
    Ok(())
}

fn too_many_flows_forget_the_longest_silent(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--max-flows 10 --workers 1 -v 1")?;
    let sender = sender_towards(LISTENERS[0])?;
    let speak = |n: usize| {
        let answer = ask(&sender, &[&v2(nth_client(n), DESTINATIONS[0])?, b"?"])?;
        ensure!(answer == format!("{} ?", nth_client(n)).as_bytes(), "{answer:?}");
        Ok(())
    };
    for n in 0..10 {
        speak(n)?;
    }
    speak(0)?; // now the second has been silent longest
    speak(10)?;
    wait_counted(&truepeer, "flows_evicted", 1)?;
    let evicted = format!("client={}", nth_client(1));
    truepeer.wait_state("the evicted flow's line", || {
        truepeer.log().lines().any(|line| line.contains(&evicted) && line.contains("evicted"))
    })?;
    (11..500).try_for_each(speak)?;
    ensure!(counted(&truepeer, "flows_evicted")? == 490);
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0);
    Ok(())
}

fn a_backends_datagrams_keep_a_flow_alive_where_each_names_its_client(bed: &Bed) -> Result<()> {
    // Continues to answer for a while by itself.
    let _backend = Backend::start(&BACKENDS, |_| {
        std::thread::sleep(Duration::from_millis(100));
        vec![b"!".to_vec()]
    })?;
    let truepeer = start_proxy(bed, "--close-after 1")?;
    let sender = sender_towards(LISTENERS[0])?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    // Asked at once, answered over two seconds: longer than the allowed silence.
    for _ in 0..20 {
        send(&sender, &[&header, b"?"])?;
    }
    for _ in 0..20 {
        receive(&sender)?;
    }
    ensure!(counted(&truepeer, "flows_expired")? == 0, "forgotten while the backend spoke");
    wait_counted(&truepeer, "flows_expired", 1)?;
    ensure!(counted(&truepeer, "flows_opened")? == 1);
    Ok(())
}

fn only_the_senders_datagrams_keep_a_flow_alive_where_they_are_bare(bed: &Bed) -> Result<()> {
    let _backend = Backend::start(&BACKENDS, |_| {
        std::thread::sleep(Duration::from_millis(100));
        vec![b"!".to_vec()]
    })?;
    let truepeer = start_proxy(bed, "--close-after 2 --udp-dialect first")?;
    let sender = sender_towards(LISTENERS[0])?;
    ask(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"?"])?;
    let (begin, mut answered) = (Instant::now(), 1);
    while begin.elapsed() < Duration::from_millis(2500) {
        ask(&sender, &[b"bare"])?;
        answered += 1;
    }
    ensure!(counted(&truepeer, "flows_expired")? == 0, "forgotten while the sender spoke");
    const LATE: u64 = 30;
    for _ in 0..LATE {
        send(&sender, &[b"bare"])?; // answered over three seconds, of which the flow lives two
    }
    wait_counted(&truepeer, "flows_expired", 1)?;
    ensure!(counted(&truepeer, "datagrams_down")? < answered + LATE);
    Ok(())
}

fn a_flow_that_was_forgotten_is_named_as_the_reason(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--close-after 1 --udp-dialect standalone")?;
    let sender = sender_towards(LISTENERS[0])?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    ask(&sender, &[&header, b"?"])?;
    wait_counted(&truepeer, "flows_expired", 1)?;
    send(&sender, &[b"bare"])?;
    wait_counted(&truepeer, "flow_forgotten", 1)?;
    truepeer.wait_for_log("its flow was forgotten")?;
    hears_nothing(&sender)?;
    ask(&sender, &[&header, b"?"]).map(drop)
}

fn order_is_kept_within_a_flow(bed: &Bed) -> Result<()> {
    let backend = Backend::silent(&BACKENDS)?;
    let truepeer = start_proxy(bed, "")?;
    let sender = sender_towards(LISTENERS[0])?;
    const DATAGRAMS: usize = 2000;
    let clients: Vec<String> = (0..10).map(nth_client).collect();
    for n in 0..DATAGRAMS {
        let header = v2(&clients[n * 7 % 10], DESTINATIONS[0])?;
        // Lengths that can be merged, and lengths that can't.
        let payload = format!("{n:05}{}", "x".repeat([0, 0, 0, 3, 1, 9][n % 6]));
        send(&sender, &[&header, payload.as_bytes()])?;
        if n % 200 == 199 {
            backend.wait_seen(n + 1)?; // no faster than a loaded machine
        }
    }
    backend.wait_seen(DATAGRAMS)?;
    let mut last: HashMap<SocketAddr, usize> = HashMap::new();
    for seen in backend.seen().iter() {
        let number: usize = std::str::from_utf8(&seen.payload[..5])?.parse()?;
        let before = last.insert(seen.from, number);
        ensure!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        ensure!(seen.from.to_string() == clients[number * 7 % 10]);
    }
    ensure!(counted(&truepeer, "flows_opened")? == 10);
    Ok(())
}
