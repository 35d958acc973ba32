//! The client that the backend sees.

use std::net::SocketAddr;

use anyhow::{Context, ensure};

use super::{CLIENT4, CLIENT6, Case, DESTINATION4, DESTINATION6, Deliver, cases};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::client;
use crate::servers::Nginx;

pub(super) const CASES: &[Case] = cases![
    v1_names_the_client,
    v2_names_the_client,
    a_v1_header_may_have_addresses_of_two_families,
    the_clients_family_chooses_the_backend,
    local_and_unknown_keep_the_sender,
    an_ipv4_client_in_ipv6_notation_is_an_ipv4_client,
    a_client_with_port_0_is_taken,
    a_claim_of_loopback_is_refused,
    a_claim_of_this_host_is_refused,
    the_same_client_can_come_again_at_once,
];

pub(super) const CASES_WITH_NGINX: &[Case] =
    &[Case::new("nginx_names_clients_of_the_other_family", nginx_names_clients_of_the_other_family)
        .adjusted(|test| test.needs_program("nginx"))];

/// Sends a header to a `Who` backend and returns the client that it saw.
fn seen(sender_to: SocketAddr, header: &[u8]) -> anyhow::Result<String> {
    Ok(client::ask(&mut client::connect(sender_to)?, header)?.trim().to_owned())
}

fn v1_names_the_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let saw = seen(who.v4, &client::v1(CLIENT4, DESTINATION4)?)?;
    ensure!(saw == CLIENT4, "the backend saw {saw:?}");
    let saw = seen(who.v6, &client::v1(CLIENT6, DESTINATION6)?)?;
    ensure!(saw == CLIENT6, "the backend saw {saw:?}");
    Ok(())
}

fn v2_names_the_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let saw = seen(who.v4, &client::v2(CLIENT4, DESTINATION4)?)?;
    ensure!(saw == CLIENT4, "the backend saw {saw:?}");
    let saw = seen(who.v6, &client::v2(CLIENT6, DESTINATION6)?)?;
    ensure!(saw == CLIENT6, "the backend saw {saw:?}");
    Ok(())
}

/// Whatever family is announced, the client is the address that is there.
fn a_v1_header_may_have_addresses_of_two_families(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let client6 = ("2001:db8::7", "10.71.0.1");
    let client4 = ("203.0.113.7", "2001:db8::1");
    let mut port = 4000;
    for family in ["TCP4", "TCP6"] {
        for (client, destination) in [client6, client4] {
            for to in [who.v4, who.v6] {
                port += 1;
                let line = format!("PROXY {family} {client} {destination} {port} 7000\r\n");
                let saw: SocketAddr = seen(to, line.as_bytes())?.parse().with_context(|| line.clone())?;
                ensure!(saw == SocketAddr::new(client.parse()?, port), "{line}: the backend saw {saw}");
            }
        }
    }
    Ok(())
}

/// With `set_real_ip_from`, NGINX writes the client that it was told and its own address, in whatever
/// families.
fn nginx_names_clients_of_the_other_family(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let directives =
        "set_real_ip_from 127.0.0.1; set_real_ip_from ::1; proxy_protocol on; proxy_half_close on;";
    let _nginx = Nginx::default()
        .relay("127.0.0.1:7000 proxy_protocol", who.v4, directives)
        .relay("[::1]:7000 proxy_protocol", who.v6, directives)
        .start(bed)?;
    for (to, client, destination) in
        [("127.0.0.1:7000", CLIENT6, DESTINATION6), ("[::1]:7000", CLIENT4, DESTINATION4)]
    {
        let saw = seen(to.parse()?, &client::v1(client, destination)?)?;
        ensure!(saw == client, "{client} was seen as {saw:?}");
    }
    Ok(())
}

fn the_clients_family_chooses_the_backend(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let saw = seen(who.v4, &client::v2(CLIENT6, DESTINATION6)?)?;
    ensure!(saw == CLIENT6, "behind an IPv4 sender the backend saw {saw:?}");
    let saw = seen(who.v6, &client::v1(CLIENT4, DESTINATION4)?)?;
    ensure!(saw == CLIENT4, "behind an IPv6 sender the backend saw {saw:?}");
    Ok(())
}

/// Health checks, and other connections of the sender's own (PROXY 2.1, 2.2).
fn local_and_unknown_keep_the_sender(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let headers = [
        client::v2_local(),
        client::v2_raw(0x20, 0x11, &[10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2])?, // LOCAL: addresses are ignored
        client::v2_raw(0x20, 0x11, &[])?,                                     // LOCAL without addresses
        client::v1_unknown(),
        b"PROXY UNKNOWN ffff:f...f:ffff 1.2.3.4 7 8\r\n".to_vec(), // what follows UNKNOWN is ignored
        client::v2_raw(0x21, 0x00, &[1, 2, 3])?,                   // UNSPEC
        client::v2_raw(0x21, 0x31, &[b'x'; 216])?,                 // AF_UNIX
    ];
    for header in headers {
        for (from, to) in [("127.0.0.9:0", who.v4), ("[::1]:0", who.v6)] {
            let mut stream = client::connect_from(from, to)?;
            let saw = client::ask(&mut stream, &header)?;
            let seen: SocketAddr = saw.trim().parse().with_context(|| format!("{header:?}: {saw:?}"))?;
            ensure!(seen.ip() == stream.local_addr()?.ip(), "after {header:?} the backend saw {seen}");
        }
    }
    Ok(())
}

fn an_ipv4_client_in_ipv6_notation_is_an_ipv4_client(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let saw = seen(who.v4, &client::v2("[::ffff:203.0.113.7]:5000", DESTINATION6)?)?;
    ensure!(saw == CLIENT4, "the backend saw {saw:?}");
    Ok(())
}

/// PROXY 2.1: ports are 0..65535. No connection can have port 0, so another may replace it.
fn a_client_with_port_0_is_taken(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    let saw: SocketAddr = seen(who.v4, &client::v1("203.0.113.7:0", DESTINATION4)?)?.parse()?;
    ensure!(saw.ip().to_string() == "203.0.113.7", "the backend saw {saw}");
    Ok(())
}

fn a_claim_of_loopback_is_refused(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let claims =
        [("127.0.0.1:5000", DESTINATION4), ("[::1]:5000", DESTINATION6), ("0.0.0.0:1", DESTINATION4)];
    refuses_claims(bed, by, &claims)
}

/// Backends trust their own host's addresses as they trust loopback.
fn a_claim_of_this_host_is_refused(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    crate::ip_here(&["addr add 10.9.0.1/32 dev lo", "addr add fd00:9::1/128 dev lo nodad"])?;
    let claims = [
        ("10.9.0.1:5000", DESTINATION4),
        ("[fd00:9::1]:5000", DESTINATION6),
        ("[::ffff:10.9.0.1]:5000", DESTINATION6),
        ("[64:ff9b::10.9.0.1]:5000", DESTINATION6),
    ];
    refuses_claims(bed, by, &claims)
}

fn refuses_claims(bed: &Bed, by: &dyn Deliver, claims: &[(&str, &str)]) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    for (claim, destination) in claims {
        let mut stream = client::connect(who.v4)?;
        std::io::Write::write_all(&mut stream, &client::v2(claim, destination)?)?;
        client::read_end(&mut stream)?;
    }
    ensure!(!who.backend.log().contains("accepted"), "the backend was reached:\n{}", who.backend.log());
    Ok(())
}

fn the_same_client_can_come_again_at_once(bed: &Bed, by: &dyn Deliver) -> anyhow::Result<()> {
    let who = by.put_behind(bed, Behaviour::Who, &[])?;
    for round in 0..20 {
        let saw: SocketAddr = seen(who.v4, &client::v2(CLIENT4, DESTINATION4)?)?.parse()?;
        // Its port may be in TIME_WAIT, or the previous round may not have ended: then the kernel chooses
        // one.
        ensure!(saw.ip() == CLIENT4.parse::<SocketAddr>()?.ip(), "round {round}: the backend saw {saw}");
    }
    Ok(())
}
