//! The counters of `attach status` for each stage of a connection.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result, bail, ensure};
use truepeer_testbed::{Bed, Behaviour, Program, Test, Topology, client, sockets};

use crate::kit::{
    DESTINATION, LISTENER, attach, attach_on, backend_on, counter, counter_on, echo, header, is_answered,
    session, start, status,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("a_header_in_parts_is_counted", a_header_in_parts_is_counted),
        Test::new("a_silent_sender_is_counted", a_silent_sender_is_counted),
        Test::new("a_port_taken_out_of_a_range_is_counted_once", a_port_taken_out_of_a_range_is_counted_once),
        Test::new("a_port_without_listener_is_left_alone", a_port_without_listener_is_left_alone),
        Test::new(
            "a_connection_half_open_before_the_attachment_is_refused",
            a_connection_half_open_before_the_attachment_is_refused,
        )
        .needs_program("nft"),
        Test::new("a_segment_that_overtakes_the_header_is_sent_again", a_segment_that_overtakes_the_header)
            .needs_program("nft"),
    ]
    .into_iter()
    .map(|test| test.of_group("counted"))
    .collect()
}

fn a_header_in_parts_is_counted(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let line = client::v1("203.0.113.1:1001", DESTINATION)?;
    let mut stream = client::connect(LISTENER)?;
    for part in [&line[..3], &line[3..20], &line[20..]] {
        stream.write_all(part)?;
        sockets::wait_until_sent(&stream)?; // acknowledged: so each part arrives alone
    }
    is_answered(&mut stream)?;
    ensure!(echo.log().contains("203.0.113.1:1001 accepted"));
    let counted = status(bed)?["ports"][0]["counters"].clone();
    ensure!(counted["header_v1"] == 1 && counted["header_v2"] == 0, "{counted}");
    ensure!(counted["header_split"] == 2, "{counted}");
    // The handshake's own ACK.
    ensure!(counted["acks_held"].as_u64().is_some_and(|count| count >= 1), "{counted}");
    Ok(())
}

fn a_port_taken_out_of_a_range_is_counted_once(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    attach(bed, &["--port", "75-85"])?;
    is_answered(&mut session(&header("203.0.113.1:1001")?)?)?;
    // It drains, and has the counters of its range.
    attach(bed, &["remove", "--port", "75"])?;
    let status = status(bed)?;
    let ports = status["ports"].as_array().context("ports")?;
    let counted: u64 = ports.iter().filter_map(|port| port["counters"]["connections"].as_u64()).sum();
    ensure!((ports.len(), counted) == (2, 1), "{status}");
    ensure!(ports[0]["draining"] == true && ports[1]["counters"]["connections"] == 1, "{status}");
    Ok(())
}

fn a_silent_sender_is_counted(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &["--header-timeout", "500ms"])?;
    ensure!(client::read_end(&mut client::connect(LISTENER)?)? == client::End::Reset);
    ensure!(counter(bed, "refused_timeout")? == 1, "{}", status(bed)?);
    ensure!(!echo.log().contains("accepted"));
    Ok(())
}

fn a_port_without_listener_is_left_alone(bed: &Bed) -> Result<()> {
    start(bed, &[])?;
    let Err(error) = client::connect(LISTENER) else { bail!("connected to nobody") };
    let kind = error.downcast_ref().map(std::io::Error::kind);
    ensure!(kind == Some(ErrorKind::ConnectionRefused), "{error:#}");
    ensure!(counter(bed, "no_listener")? == 1, "{}", status(bed)?);
    ensure!(counter(bed, "connections")? == 0);
    Ok(())
}

/// No connection bypasses truepeer: one that would be established without a header is refused.
fn a_connection_half_open_before_the_attachment_is_refused(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let echo = backend_on(bed, host, Behaviour::Echo, &["0.0.0.0:80"])?;
    let nft = |script: &str| Program::new("nft").arg(script).in_netns(&host.netns).run(bed);
    // For the sender the connection is open. Its ACK is lost here.
    nft(
        "table inet lost { chain input { type filter hook input priority 0; tcp dport 80 tcp flags != syn drop; }; }",
    )?;
    let mut stream = lb.run(|| client::connect(host.at(false, 80)))??;
    attach_on(bed, host, &["--port", "80"])?;
    nft("delete table inet lost")?;
    // The host repeats its SYN-ACK. The sender's answer to that may be refused before the header is written.
    let written = stream.write_all(&header("203.0.113.1:1001")?);
    let was_reset = written.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
    if !was_reset {
        written?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset);
    }
    ensure!(counter_on(bed, host, "refused_stray")? >= 1);
    ensure!(!echo.log().contains("accepted"));
    Ok(())
}

fn a_segment_that_overtakes_the_header(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let echo = backend_on(bed, host, Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    // The first packet with 17 bytes of data, after 52 bytes of headers (timestamps included), is lost once.
    let lose = "table inet lost { chain forward { type filter hook forward priority 0; tcp dport 80 meta length 69 limit rate 1/day burst 1 packets counter drop; }; }";
    Program::new("nft").arg(lose).in_netns(&line.host("router").netns).run(bed)?;
    let mut stream = lb.run(|| client::connect(host.at(false, 80)))??;
    let header = header("203.0.113.1:1001")?;
    stream.write_all(&header[..17])?;
    stream.write_all(&header[17..])?;
    is_answered(&mut stream)?;
    echo.wait_for_log("203.0.113.1:1001 accepted")?;
    ensure!(counter_on(bed, host, "early_segments")? >= 1);
    ensure!(client::ask(&mut stream, b"end")? == "end");
    Ok(())
}
