//! Which datagrams are refused, which pass unchanged, and for how long.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use truepeer_testbed::datagrams::{Backend, send, socket, spp, v2};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Program, Test, Topology, client, tests, wait_for};

use crate::bans::operate;

use super::{CLIENTS, DESTINATIONS, Pair, command, counter_in, exchange};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        datagrams_are_refused_by_reason,
        a_sender_that_names_no_client_is_its_own_client,
        a_senders_own_address_may_not_be_claimed,
        a_client_of_another_family_keeps_the_senders_address,
        datagrams_from_others_than_senders_pass,
        headers_from_addresses_that_are_not_allowed_are_counted_and_told,
        strangers_do_not_fill_the_ring_of_refusals,
        forwarded_datagrams_pass,
        the_mtu_of_the_page_fits_and_a_byte_more_makes_fragments,
        multicast_is_refused_where_a_route_leads_on,
        a_client_that_sends_by_itself_is_answered_directly_after_a_silence,
        clients_are_denied_while_it_runs,
        clients_are_banned_while_it_runs,
        udp_ends_at_once_when_detached,
        a_dry_run_names_the_programs_of_udp,
    ]
}

fn datagrams_are_refused_by_reason(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--header-max", "1024"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let whole = v2(CLIENTS[0], DESTINATIONS[0])?;
    let mut stream = v2(CLIENTS[0], DESTINATIONS[0])?;
    stream[12] = 0x31;
    let mut too_long = client::v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, &[0; 1000])])?;
    too_long[13] += 1;
    let mut overlong = whole.clone();
    overlong[15] = 200;
    let refused: [(&[u8], &str); 9] = [
        (b"no header at all", "refused_no_header"),
        (b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n", "refused_no_header"),
        (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "refused_no_header"),
        (&whole[..11], "refused_no_header"),
        (&whole[..27], "refused_malformed"),
        (&stream, "refused_malformed"),
        (&overlong, "refused_malformed"),
        (&v2("127.0.0.1:1", DESTINATIONS[0])?, "refused_claim"),
        (&too_long, "refused_too_long"),
    ];
    for (bytes, _) in &refused {
        send(&sender, &[bytes])?;
    }
    // More than a network packet holds.
    send(&sender, &[&whole, &Pattern::bytes(3000)])?;
    exchange(&sender, CLIENTS[0], &whole, b"the last one")?;
    for (_, reason) in &refused {
        let expected = refused.iter().filter(|(_, other)| other == reason).count() as u64;
        ensure!(pair.counter(bed, reason)? == expected, "{reason}: {}", pair.status(bed)?);
    }
    ensure!(pair.counter(bed, "refused_fragment")? == 1, "{}", pair.status(bed)?);
    ensure!(backend.seen().len() == 1, "{:?}", *backend.seen());
    Ok(())
}

fn a_sender_that_names_no_client_is_its_own_client(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--header", "optional"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    exchange(&sender, &me, &client::v2_local(), b"LOCAL")?;
    exchange(&sender, &me, &client::v2_raw(0x21, 0, &[])?, b"UNSPEC")?;
    exchange(&sender, &me, &client::v2(CLIENTS[0], DESTINATIONS[0])?, b"a header for TCP")?;
    exchange(&sender, &me, b"", b"no header")?;
    // A header's claim about this address is valid until the address sends for itself.
    exchange(&sender, &me, &v2(&me, DESTINATIONS[0])?, b"named")?;
    exchange(&sender, &me, b"", b"no header")?;
    ensure!(pair.counter(bed, "named_itself")? == 3 && pair.counter(bed, "header_absent")? == 2);
    Ok(())
}

fn a_senders_own_address_may_not_be_claimed(bed: &Bed) -> Result<()> {
    command(bed, &["--port", "5300:53/udp"])?.run(bed)?;
    let backend = Backend::who(&["127.0.0.1:53"])?;
    let connected = |from: &str| -> Result<UdpSocket> {
        let socket = socket(from)?;
        socket.connect("127.0.0.1:5300")?;
        Ok(socket)
    };
    let itself = connected("127.0.0.9:0")?;
    let me = itself.local_addr()?.to_string();
    exchange(&itself, &me, &client::v2_local(), b"LOCAL")?;
    let other = connected("127.0.0.8:0")?;
    send(&other, &[&v2(&me, DESTINATIONS[0])?, b"a claim"])?;
    exchange(&other, CLIENTS[0], &v2(CLIENTS[0], DESTINATIONS[0])?, b"a good one")?;
    exchange(&itself, &me, &client::v2_local(), b"LOCAL again")?;
    let status = command(bed, &["status", "--json"])?.run(bed)?;
    ensure!(counter_in(&serde_json::from_str(&status)?, "refused_claim")? == 1, "{status}");
    ensure!(backend.seen().len() == 3, "{:?}", *backend.seen());
    Ok(())
}

fn a_client_of_another_family_keeps_the_senders_address(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--port", "54/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
    for v6 in [false, true] {
        let sender = pair.sender(v6, 53)?;
        let me = sender.local_addr()?.to_string();
        let other = usize::from(!v6);
        exchange(&sender, &me, &v2(CLIENTS[other], DESTINATIONS[other])?, b"x")?;
    }
    ensure!(pair.counter(bed, "client_not_showable")? == 2, "{}", pair.status(bed)?);
    // In SPP, the answer could not name its client.
    pair.attach(bed, &["--port", "53/udp", "--udp-dialect", "spp", "--replace"])?;
    send(&pair.sender(false, 53)?, &[&spp(CLIENTS[1], DESTINATIONS[1])?, b"x"])?;
    wait_for("the refusal", || pair.counter(bed, "refused_family").is_ok_and(|count| count == 1))?;
    ensure!(backend.seen().len() == 2);
    Ok(())
}

fn datagrams_from_others_than_senders_pass(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let here = pair.host().v4.to_string();
    command(bed, &["--port", "53/udp", "--allow", &here])?.in_netns(&pair.host().netns).run(bed)?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    for payload in [b"as it is".as_slice(), b"", b"\r\n", b"\r\n\r\n\0\r\nQUIT"] {
        exchange(&sender, &me, b"", payload)?;
    }
    ensure!(pair.counter(bed, "not_a_sender")? == 4 && pair.counter(bed, "header_unlisted")? == 0);
    Ok(())
}

/// They pass as well, but an operator must learn of it: a stale conntrack entry changes a sender's address.
fn headers_from_addresses_that_are_not_allowed_are_counted_and_told(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    let status = |more: &[&str]| Ok::<_, anyhow::Error>(command(bed, more)?.in_netns(&pair.host().netns));
    for (dialect, headers) in [
        ("every", [v2(CLIENTS[0], DESTINATIONS[0])?, client::v2_local()]),
        ("spp", [spp(CLIENTS[0], DESTINATIONS[0])?, spp(CLIENTS[1], DESTINATIONS[1])?]),
    ] {
        let args = ["--port", "53/udp", "--allow", "10.9.9.9", "--udp-dialect", dialect, "--replace"];
        status(&args)?.run(bed)?;
        let _backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
        let before = pair.counter(bed, "header_unlisted")?;
        for v6 in [false, true] {
            let sender = pair.sender(v6, 53)?;
            let me = sender.local_addr()?.to_string();
            for header in &headers {
                exchange(&sender, &me, b"", &[header, b"as it is".as_slice()].concat())?;
            }
        }
        ensure!(pair.counter(bed, "header_unlisted")? == before + 4, "{}", pair.status(bed)?);
    }
    ensure!(pair.counter(bed, "not_a_sender")? == 0);
    let text = status(&["status"])?.run(bed)?;
    ensure!(text.contains("conntrack -D -p udp"), "{text}");
    let follow = status(&["status", "--follow"])?.start(bed)?;
    follow.wait_for_log(&format!("{}:", pair.lb().v4))?;
    follow.wait_for_log("to port 53/udp: a header, not from an allowed sender")
}

/// Everybody can send a header. Refusals of listed senders must still be told.
fn strangers_do_not_fill_the_ring_of_refusals(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    command(bed, &["--port", "53/udp", "--allow", "10.9.9.9"])?.in_netns(&pair.host().netns).run(bed)?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let me = sender.local_addr()?.to_string();
    let began = Instant::now();
    for _ in 0..30 {
        exchange(&sender, &me, b"", &v2(CLIENTS[0], DESTINATIONS[0])?)?;
    }
    let took = began.elapsed().as_secs();
    let follow = command(bed, &["status", "--follow", "--json"])?.in_netns(&pair.host().netns).start(bed)?;
    follow.wait_for_log("header_unlisted")?;
    let told = follow.stdout().matches("header_unlisted").count() as u64;
    ensure!(told <= took + 2, "{told} lines in {took} s: {}", follow.log());
    Ok(())
}

/// WireGuard adds 32 bytes to what fits its MTU. A sender over IPv6 has the least room.
fn the_mtu_of_the_page_fits_and_a_byte_more_makes_fragments(bed: &Bed) -> Result<()> {
    let page = include_str!("../../../../../docs/udp.md");
    let pair = Pair::new()?;
    for (dialect, row, is_v6_client, mtu) in [
        ("every", "| `every`, clients with IPv4 addresses | 1,392 |", false, 1392),
        ("every", "| `every`, clients with IPv6 addresses as well | 1,368 |", true, 1368),
        ("spp", "| `spp` | 1,382 |", true, 1382),
    ] {
        ensure!(page.contains(row), "{row}");
        pair.attach(bed, &["--port", "53/udp", "--udp-dialect", dialect, "--replace"])?;
        let _backend = pair.backend(&["0.0.0.0:53".to_owned(), pair.host().at(true, 53).to_string()])?;
        let counter = |name: &str| pair.counter(bed, name);
        for v6 in [false, true] {
            let client = usize::from(if dialect == "spp" { v6 } else { is_v6_client });
            let (client, destination) = (CLIENTS[client], DESTINATIONS[client]);
            let header = if dialect == "spp" { spp(client, destination)? } else { v2(client, destination)? };
            let (whole, fragments) = (counter("datagrams")?, counter("refused_fragment")?);
            send(&pair.sender(v6, 53)?, &[&header, &Pattern::bytes(mtu + 32)])?;
            bed.wait_for("the datagram", || counter("datagrams").is_ok_and(|count| count == whole + 1))?;
            ensure!(counter("refused_fragment")? == fragments, "{}", pair.status(bed)?);
            if v6 {
                send(&pair.sender(v6, 53)?, &[&header, &Pattern::bytes(mtu + 33)])?;
                bed.wait_for("fragments", || {
                    counter("refused_fragment").is_ok_and(|it| it == fragments + 1)
                })?;
            }
        }
    }
    let text = command(bed, &["status"])?.in_netns(&pair.host().netns).run(bed)?;
    ensure!(text.contains("hint: with the header, datagrams are longer than the MTU"), "{text}");
    Ok(())
}

/// With or without a header, whole or in fragments.
fn forwarded_datagrams_pass(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, far) = (line.host("lb"), line.host("router"), line.host("backend"));
    // A wildcard socket of the router would get them if they were addressed to it.
    let trap = router.run(|| Backend::who(&["[::]:53"]))??;
    let backend = far.run(|| Backend::who(&["0.0.0.0:53".to_owned(), far.at(true, 53).to_string()]))??;
    let attaching = command(bed, &["--port", "53/udp", "--allow", "any"])?;
    attaching.in_netns(&router.netns).run(bed)?;
    for v6 in [false, true] {
        let sender = lb.run(|| -> Result<UdpSocket> {
            let socket = socket(if v6 { "[::]:0" } else { "0.0.0.0:0" })?;
            socket.connect(far.at(v6, 53))?;
            Ok(socket)
        })??;
        let me = sender.local_addr()?.to_string();
        let denied = v2("127.0.0.1:1", DESTINATIONS[0])?;
        for payload in
            [b"no header".as_slice(), &v2(CLIENTS[0], DESTINATIONS[0])?, &denied, &Pattern::bytes(3000)]
        {
            exchange(&sender, &me, b"", payload)?;
        }
    }
    ensure!(backend.seen().len() == 8 && trap.seen().is_empty(), "{:?}", *trap.seen());
    Ok(())
}

/// A router's route for a multicast group leads on, although its own sockets may have joined it.
fn multicast_is_refused_where_a_route_leads_on(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, far) = (line.host("lb"), line.host("router"), line.host("backend"));
    lb.ip(&[&format!("route add 239.0.0.0/8 via {}", router.v4)])?;
    router.ip(&[&format!("route add 239.0.0.0/8 via {}", far.v4)])?;
    command(bed, &["--port", "53/udp", "--allow", "any"])?.in_netns(&router.netns).run(bed)?;
    let sender = lb.run(|| socket("0.0.0.0:0"))??;
    sender.send_to(b"no header", "239.1.1.1:53")?;
    bed.wait_for("the datagram to be refused", || {
        let status = command(bed, &["status", "--json"]).and_then(|it| it.in_netns(&router.netns).run(bed));
        status.is_ok_and(|text| {
            serde_json::from_str(&text)
                .is_ok_and(|it| counter_in(&it, "refused_no_header").is_ok_and(|n| n == 1))
        })
    })
}

fn a_client_that_sends_by_itself_is_answered_directly_after_a_silence(bed: &Bed) -> Result<()> {
    for address in ["10.9.9.8/32", "10.9.9.9/32"] {
        Program::new("ip").args(["addr", "add", address, "dev", "lo"]).run(bed)?;
    }
    // The client is on this host, whose addresses must not be claimed by default.
    let claims = ["--allow-claims", "10.9.9.9"];
    let args = ["--port", "53/udp", "--allow", "127.0.0.9", "--close-after", "1s"];
    command(bed, &[args.as_slice(), &claims].concat())?.run(bed)?;
    let _backend = Backend::who(&["0.0.0.0:53"])?;
    let me = "10.9.9.9:5000";
    let sender = socket("127.0.0.9:0")?;
    sender.connect("127.0.0.1:53")?;
    exchange(&sender, me, &v2(me, DESTINATIONS[0])?, b"by the sender")?;
    let itself = socket(me)?;
    itself.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut answer = [0; 100];
    wait_for("the client to be answered itself", || {
        itself.send_to(b"directly", "10.9.9.8:53").is_ok() && itself.recv(&mut answer).is_ok()
    })?;
    ensure!(answer.starts_with(b"10.9.9.9:5000 directly"), "{}", answer.escape_ascii());
    // And through the sender again once it comes that way.
    let again = socket("127.0.0.9:0")?;
    again.connect("127.0.0.1:53")?;
    exchange(&again, me, &v2(me, DESTINATIONS[0])?, b"by the sender")
}

fn clients_are_denied_while_it_runs(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&sender, CLIENTS[0], &header, b"before")?;
    let deny = bed.write("deny", "203.0.113.0/25\n")?;
    pair.attach(bed, &["--port", "53/udp", "--deny-clients", &deny.to_string_lossy()])?;
    send(&sender, &[&header, b"denied"])?;
    let other = "203.0.113.200:5000";
    exchange(&sender, other, &v2(other, DESTINATIONS[0])?, b"not denied")?;
    ensure!(pair.counter(bed, "refused_denied")? == 1 && backend.seen().len() == 2);
    Ok(())
}

fn clients_are_banned_while_it_runs(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--header", "optional"])?;
    let backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&sender, CLIENTS[0], &header, b"before")?;
    operate(bed, &["ban", "203.0.113.7", "--for", "1h"])?;
    send(&sender, &[&header, b"banned"])?;
    let other = "203.0.113.200:5000";
    exchange(&sender, other, &v2(other, DESTINATIONS[0])?, b"not banned")?;
    ensure!(pair.counter(bed, "refused_banned")? == 1 && backend.seen().len() == 2);
    // The sender itself, without a header; by LOCAL it looks whether the server lives.
    let me = sender.local_addr()?;
    operate(bed, &["ban", &me.ip().to_string()])?;
    send(&sender, &[b"banned"])?;
    exchange(&sender, &me.to_string(), &client::v2_local(), b"LOCAL")?;
    ensure!(pair.counter(bed, "refused_banned")? == 2 && backend.seen().len() == 3);
    operate(bed, &["unban", "203.0.113.7"])?;
    exchange(&sender, CLIENTS[0], &header, b"after")
}

fn udp_ends_at_once_when_detached(bed: &Bed) -> Result<()> {
    let pair = Pair::new()?;
    pair.attach(bed, &["--port", "53/udp", "--port", "80"])?;
    let _backend = pair.backend(&["0.0.0.0:53".to_owned()])?;
    let sender = pair.sender(false, 53)?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    exchange(&sender, CLIENTS[0], &header, b"before")?;
    let me = sender.local_addr()?.to_string();
    let all = [&header, b"after".as_slice()].concat();
    // First one port is removed, then all.
    pair.attach(bed, &["--port", "80", "--replace"])?;
    exchange(&sender, &me, b"", &all)?;
    ensure!(pair.status(bed)?["ports"].as_array().is_some_and(|ports| ports.len() == 1));
    pair.attach(bed, &["--port", "53/udp", "--replace"])?;
    exchange(&sender, CLIENTS[0], &header, b"again")?;
    command(bed, &["detach"])?.in_netns(&pair.host().netns).run(bed)?;
    exchange(&sender, &me, b"", &all)?;
    ensure!(pair.status(bed)?["attached"] == false);
    Ok(())
}

fn a_dry_run_names_the_programs_of_udp(bed: &Bed) -> Result<()> {
    let said = command(bed, &["--port", "53:5353/udp", "--dry-run"])?.run(bed)?;
    for expected in ["tc ingress lo: udp_ingress", "sendmsg4, sendmsg6", "ports: 53:5353/udp"] {
        ensure!(said.contains(expected), "{said}");
    }
    Ok(())
}
