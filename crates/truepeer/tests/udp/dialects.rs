//! The four dialects: each delivers the client and the payload, for both families and any length, and takes
//! nothing else for a header. Cloudflare's and Tencent's senders are simulated, because they are not
//! available.

use anyhow::{Result, ensure};
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Test, client};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, ask, counted, hears_nothing, receive, send,
    sender_towards, spp, start_proxy, v2, v2_with_tlvs, wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = truepeer_testbed::tests![
        a_later_header_in_a_flow_is_payload,
        a_header_alone_begins_a_flow,
        spp_replies_carry_the_newest_header_back,
        a_flow_that_begins_without_header_is_refused,
        bad_headers_are_dropped_and_counted_by_reason,
        senders_with_and_without_header_where_they_are_listed,
        a_datagrams_header_counts_only_with_the_secret,
    ];
    for dialect in ["every", "first", "standalone", "spp"] {
        let name = format!("{dialect}_delivers_any_length_of_either_family");
        tests.push(Test::new(name, move |bed| any_length(bed, dialect)));
    }
    tests
}

/// The longest payload of a UDP datagram over IPv4.
const LONGEST: usize = 65_507;

fn any_length(bed: &Bed, dialect: &str) -> Result<()> {
    let backend = Backend::echo(&BACKENDS)?;
    let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect}"))?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        let header = match dialect {
            "spp" => spp(CLIENTS[family], DESTINATIONS[family])?,
            _ => v2(CLIENTS[family], DESTINATIONS[family])?,
        };
        let mut is_first = true;
        let longest = LONGEST - header.len();
        for length in [1, 0, 2, 15, 16, 37, 38, 64, 512, 1400, 1500, 9000, 32_768, longest] {
            let payload = Pattern::bytes(length);
            let in_front = if is_first || matches!(dialect, "every" | "spp") { &header[..] } else { &[] };
            let answer = ask(&sender, &[in_front, &payload])?;
            let expected = if dialect == "spp" { [&header, &payload[..]].concat() } else { payload.clone() };
            ensure!(answer == expected, "{} bytes back for {length}", answer.len());
            backend.saw_last(CLIENTS[family], &payload)?;
            is_first = false;
        }
    }
    ensure!(counted(&truepeer, "flows_opened")? == 2, "more than one flow for a client");
    ensure!(counted(&truepeer, "datagrams_dropped")? == 0);
    Ok(())
}

/// Each wrong one is counted, the flow's client stays, and the backend sees no secret.
fn a_datagrams_header_counts_only_with_the_secret(bed: &Bed) -> Result<()> {
    const SECRET: &[u8] = b"a-secret-of-the-balancer-0001";
    let file = bed.write("secret", SECRET)?;
    let backend = Backend::echo(&BACKENDS)?;
    for (number, dialect) in ["every", "first", "standalone"].into_iter().enumerate() {
        let required = format!("0xE5=@{}", file.display());
        let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect} --require-tlv {required}"))?;
        for family in [0, 1] {
            let client = CLIENTS[family].replace(":5000", &format!(":{}", 5000 + number));
            let header = |tlvs: &[(u8, &[u8])]| v2_with_tlvs(&client, DESTINATIONS[family], tlvs);
            let mut wrong = vec![header(&[])?, header(&[(0xE4, SECRET)])?, header(&[(0xE5, &SECRET[1..])])?];
            wrong.push(header(&[(0xE5, SECRET), (0xE5, SECRET)])?);
            wrong.push(header(&[(0xE5, &[SECRET, b"\0"].concat()[..])])?);
            let before = counted(&truepeer, "header_unproved")?;
            for header in &wrong {
                send(&sender_towards(LISTENERS[family])?, &[header, b"forged"])?;
            }
            wait_counted(&truepeer, "header_unproved", before + wrong.len() as u64)?;
            let sender = sender_towards(LISTENERS[family])?;
            let right = header(&[(0xE5, SECRET), (0xE4, b"more")])?;
            if dialect == "standalone" {
                send(&sender, &[&right])?;
                ensure!(ask(&sender, &[b"good"])? == b"good");
            } else {
                ensure!(ask(&sender, &[&right, b"good"])? == b"good");
            }
            backend.saw_last(&client, b"good")?;
        }
        ensure!(!truepeer.log().contains("a-secret"), "{}", truepeer.log());
        truepeer.stop()?;
    }
    ensure!(backend.seen().len() == 6, "{:?}", *backend.seen());
    Ok(())
}

/// Otherwise a client of such a sender could choose its own name.
fn a_later_header_in_a_flow_is_payload(bed: &Bed) -> Result<()> {
    let backend = Backend::echo(&BACKENDS)?;
    for (dialect, port) in [("first", 5000), ("standalone", 5001)] {
        let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect}"))?;
        let sender = sender_towards(LISTENERS[0])?;
        let client = format!("192.0.2.7:{port}");
        ask(&sender, &[&v2(&client, DESTINATIONS[0])?, b"first"])?;
        let forged = [v2("192.0.2.66:6666", DESTINATIONS[0])?, b"forged".to_vec()].concat();
        ensure!(ask(&sender, &[&forged])? == forged, "a forged header was taken off");
        backend.saw_last(&client, &forged)?;
        truepeer.stop()?;
    }
    Ok(())
}

fn a_header_alone_begins_a_flow(bed: &Bed) -> Result<()> {
    let backend = Backend::echo(&BACKENDS)?;
    let _truepeer = start_proxy(bed, "--udp-dialect standalone")?;
    for family in [0, 1] {
        let sender = sender_towards(LISTENERS[family])?;
        send(&sender, &[&v2(CLIENTS[family], DESTINATIONS[family])?])?;
        ensure!(ask(&sender, &[b"bare"])? == b"bare");
        backend.saw_last(CLIENTS[family], b"bare")?;
    }
    ensure!(backend.seen().len() == 2, "the header itself reached the backend: {:?}", *backend.seen());
    Ok(())
}

fn spp_replies_carry_the_newest_header_back(bed: &Bed) -> Result<()> {
    let _backend = Backend::echo(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--udp-dialect spp")?;
    let sender = sender_towards(LISTENERS[0])?;
    for (client, port) in [("192.0.2.7:1", 53), ("192.0.2.7:2", 54), ("192.0.2.7:1", 53)] {
        let header = spp(client, format!("198.51.100.1:{port}"))?;
        let answer = ask(&sender, &[&header, b"?"])?;
        ensure!(answer == [&header[..], b"?"].concat(), "{answer:?}");
    }
    ensure!(counted(&truepeer, "flows_opened")? == 2);
    Ok(())
}

fn a_flow_that_begins_without_header_is_refused(bed: &Bed) -> Result<()> {
    let backend = Backend::echo(&BACKENDS)?;
    for (number, dialect) in ["first", "standalone"].into_iter().enumerate() {
        let truepeer = start_proxy(bed, &format!("--udp-dialect {dialect}"))?;
        let sender = sender_towards(LISTENERS[0])?;
        for payload in [&b"bare"[..], b"", b"\r\n\r\n", &[0x56, 0xEC]] {
            send(&sender, &[payload])?;
        }
        wait_counted(&truepeer, "flow_without_header", 4)?;
        truepeer.wait_for_log("a flow must begin with a header")?;
        ask(&sender, &[&v2(format!("192.0.2.7:{}", 100 + number), DESTINATIONS[0])?, b"good"])?;
        ensure!(backend.seen().len() == number + 1, "{:?}", *backend.seen());
        truepeer.stop()?;
    }
    Ok(())
}

fn bad_headers_are_dropped_and_counted_by_reason(bed: &Bed) -> Result<()> {
    let backend = Backend::echo(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--header-max 107")?;
    let sender = sender_towards(LISTENERS[0])?;
    let good = v2(CLIENTS[0], DESTINATIONS[0])?;
    let too_long = client::v2_raw(0x21, 0x12, &[0; 200])?;
    let mut bad_version = good.clone();
    bad_version[12] = 0x31;
    let bad: [&[u8]; 9] = [
        b"",
        b"no header at all",
        &good[..5],
        &good[..good.len() - 1],
        &bad_version,
        &too_long,
        &spp(CLIENTS[0], DESTINATIONS[0])?,
        &client::v1(CLIENTS[0], DESTINATIONS[0])?, // the text form is for streams (PROXY 2.1)
        &client::v2_raw(0x21, 0x12, &[0; 11])?,
    ];
    for bytes in bad {
        send(&sender, &[bytes])?;
    }
    wait_counted(&truepeer, "datagrams_refused", bad.len() as u64)?;
    ensure!(ask(&sender, &[&good, b"good"])? == b"good");
    ensure!(backend.seen().len() == 1, "{:?}", *backend.seen());
    truepeer.wait_for_log("does --udp-dialect match the sender?")
}

/// Health checks, for example, have no header.
fn senders_with_and_without_header_where_they_are_listed(bed: &Bed) -> Result<()> {
    let backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--header 127.0.0.1=optional --on-conflict ephemeral")?;
    let sender = sender_towards(LISTENERS[0])?;
    let good = v2(CLIENTS[0], DESTINATIONS[0])?;
    let me = sender.local_addr()?;
    for payload in [&b"bare, and long enough to be a header of PROXY version 2"[..], b"short", b""] {
        let answer = ask(&sender, &[payload])?;
        ensure!(answer.starts_with(b"127.0.0.1:") && answer.ends_with(payload), "{answer:?}");
    }
    ensure!(ask(&sender, &[&good, b"!"])? == format!("{} !", CLIENTS[0]).as_bytes());
    // Bytes that start like a header but are no whole one are never payload.
    send(&sender, &[&good[..20]])?;
    wait_counted(&truepeer, "datagrams_refused", 1)?;
    hears_nothing(&sender)?;
    ensure!(counted(&truepeer, "flows_opened")? == 2, "{me}: {:?}", *backend.seen());
    send(&sender, &[&good, b"again"])?;
    receive(&sender).map(drop)
}
