//! The sending side: `--send-proxy` before truepeer itself, HAProxy and NGINX.

use std::io::Write;
use std::net::Shutdown;

use anyhow::{Context, ensure};
use truepeer_proto::{Addresses, Decoded, Limits, decode, tlv};
use truepeer_testbed::servers::{Haproxy, Nginx, curl};
use truepeer_testbed::{Bed, Behaviour, Running, Test, Truepeer, User, client, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, SITE_V4, SITE_V6, ask, bare_proxy, header_of,
    knock, proxy_without_routes,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_chain_of_two_shows_the_client,
        a_tunnels_two_ends_show_the_client,
        a_fresh_header_keeps_the_tlvs_and_has_a_new_checksum,
        a_v1_header_is_written_for_those_who_read_no_other,
        a_local_header_stays_local,
    ];
    all.push(
        Test::new("haproxy_accepts_truepeers_header", haproxy_accepts_truepeers_header)
            .needs_program("haproxy"),
    );
    all.push(
        Test::new("nginx_accepts_truepeers_header", nginx_accepts_truepeers_header).needs_program("nginx"),
    );
    all.push(Test::new("sending_needs_no_privilege", sending_needs_no_privilege).needs_several_users());
    all
}

const NEXT: &str = "127.0.0.1:9000";

/// A truepeer that writes headers for the listener at [`NEXT`]. It needs no routes.
fn sending(version: &str) -> Truepeer {
    proxy_without_routes().listen(DOOR_V4).ipv4(NEXT).ipv6(NEXT).option("--send-proxy", version)
}

fn a_chain_of_two_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _last = bare_proxy().listen(NEXT).ipv4(BACKEND_V4).ipv6(BACKEND_V6).start(bed)?;
    for (version, port) in [("v1", 5000), ("v2", 5001)] {
        let _first = sending(version).start(bed)?;
        for client in [format!("203.0.113.7:{port}"), format!("[2001:db8::7]:{port}")] {
            let seen = ask(&header_of(client.parse()?)?)?;
            ensure!(seen == client, "by {version} {client} was seen as {seen}");
        }
    }
    Ok(())
}

/// One end accepts connections without headers; the client is the connecting host.
fn a_tunnels_two_ends_show_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let far = bare_proxy().listen(NEXT).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    let _far = far.option("--allow-claims", "loopback").start(bed)?;
    let _near = sending("v2").option("--header", "forbid").start(bed)?;
    let mut stream = client::connect_from("127.0.0.9:5000", DOOR_V4)?;
    let seen = client::ask(&mut stream, b"hello")?;
    ensure!(seen.trim() == "127.0.0.9:5000", "{seen:?}");
    Ok(())
}

/// The bytes that the next receiver gets for this header, including its header.
fn what_the_next_receiver_gets(bed: &Bed, version: &str, header: &[u8]) -> anyhow::Result<Vec<u8>> {
    let _echo = Behaviour::Echo.start(bed, &[NEXT])?;
    let _truepeer = sending(version).start(bed)?;
    let mut stream = knock()?;
    stream.write_all(&[header, b"data"].concat())?;
    stream.shutdown(Shutdown::Write)?;
    let mut received = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut received)?;
    Ok(received)
}

fn a_fresh_header_keeps_the_tlvs_and_has_a_new_checksum(bed: &Bed) -> anyhow::Result<()> {
    let tlvs: [(u8, &[u8]); 4] =
        [(0x05, b"an id of 17 bytes"), (0x02, b"site.example"), (0xE3, &[0xFF; 300]), (0x01, b"h2")];
    let original = client::v2_with_checksum(CLIENT_V6, SITE_V6, &tlvs)?;
    let sent = what_the_next_receiver_gets(bed, "v2", &original)?;
    // Decoding verifies the checksum.
    let Decoded::Done { header, consumed } = decode(&sent, Limits::default())? else {
        anyhow::bail!("no whole header in {sent:?}")
    };
    ensure!(sent[consumed..] == *b"data", "{:?}", &sent[consumed..]);
    let expected_source = CLIENT_V6.parse()?;
    ensure!(
        matches!(header.addresses, Addresses::Inet { source, destination, .. }
            if source == expected_source && destination == SITE_V6.parse().expect("an address")),
        "{header:?}"
    );
    ensure!(header.tlvs.value(tlv::CRC32C).is_some(), "no checksum");
    let kept: Vec<(u8, &[u8])> = header.tlvs.raw().filter(|(kind, _)| *kind != tlv::CRC32C).collect();
    ensure!(kept == tlvs, "{kept:?}");
    Ok(())
}

fn a_v1_header_is_written_for_those_who_read_no_other(bed: &Bed) -> anyhow::Result<()> {
    let sent = what_the_next_receiver_gets(
        bed,
        "v1",
        &client::v2_with_tlvs(CLIENT_V4, SITE_V4, &[(5, b"lost in v1")])?,
    )?;
    let sent = String::from_utf8(sent).context("v1 is text")?;
    ensure!(sent == "PROXY TCP4 203.0.113.7 192.0.2.1 5000 443\r\ndata", "{sent:?}");
    Ok(())
}

fn a_local_header_stays_local(bed: &Bed) -> anyhow::Result<()> {
    let sent = what_the_next_receiver_gets(bed, "v2", &client::v2_local())?;
    ensure!(sent.starts_with(&client::v2_local()[..13]) && sent.ends_with(b"data"), "{sent:?}");
    Ok(())
}

fn haproxy_accepts_truepeers_header(bed: &Bed) -> anyhow::Result<()> {
    let config = format!(
        "listen l\n  mode http\n  bind {NEXT} accept-proxy\n  \
         http-request return status 200 content-type text/plain lf-string \"%[src]:%[src_port] %[dst]\"\n"
    );
    let _haproxy = Haproxy::with_config(&config, &[NEXT]).start(bed)?;
    for version in ["v1", "v2"] {
        let _truepeer = sending(version).start(bed)?;
        let request = b"GET / HTTP/1.0\r\n\r\n".as_slice();
        let answer = ask(&[&header_of(CLIENT_V4.parse()?)?, request].concat())?;
        ensure!(answer.ends_with(&format!("{CLIENT_V4} 192.0.2.1")), "by {version}: {answer:?}");
    }
    Ok(())
}

fn nginx_accepts_truepeers_header(bed: &Bed) -> anyhow::Result<()> {
    let answer = "location / { return 200 \"$proxy_protocol_addr:$proxy_protocol_port\"; }";
    let _nginx = Nginx::default().server(NEXT, "proxy_protocol", answer).start(bed)?;
    // A separate port each: the remains of the first connection keep theirs.
    for (version, port) in [("v1", "4321"), ("v2", "4322")] {
        let _truepeer = sending(version).args(&["--header", "forbid"]).start(bed)?;
        let url = format!("http://{DOOR_V4}/");
        let answer = curl(&url).args(["--interface", "127.0.0.9", "--local-port", port]).run(bed)?;
        ensure!(answer == format!("127.0.0.9:{port}"), "by {version}: {answer:?}");
    }
    Ok(())
}

fn sending_needs_no_privilege(bed: &Bed) -> anyhow::Result<()> {
    let _echo: Running = Behaviour::Echo.start(bed, &[NEXT])?;
    let truepeer = sending("v1").args(&["--header", "forbid"]);
    let truepeer =
        truepeer.with(|program| program.as_user(User::TESTER).with_capabilities(&[])).start(bed)?;
    let mut stream = client::connect_from("127.0.0.9:5000", DOOR_V4)?;
    let sent = client::ask(&mut stream, b"hello")?;
    ensure!(sent == "PROXY TCP4 127.0.0.9 127.0.0.1 5000 8443\r\nhello", "{sent:?} {}", truepeer.log());
    Ok(())
}
