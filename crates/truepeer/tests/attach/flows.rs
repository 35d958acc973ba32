//! Flows: when they start and end, and which client they name.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, Program, Test, Topology, client, end_link, tests};

use crate::kit::{
    BACKEND, DESTINATION, LISTENER, all_flows_end, attach_on, attachments, backend_on, command, counter,
    counter_on, echo, header, is_answered, longer_header, open, session, start, status,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_right_guess_alters_no_packet,
        flows_end_with_their_sockets,
        a_name_belongs_to_its_socket,
        connections_beyond_the_limit_of_flows_are_refused,
        a_flow_whose_end_was_missed_gives_way,
        an_ended_flow_does_not_translate_other_connections,
    ];
    let flood = |bed: &Bed| a_flood_of_syns_forgets_no_flow(bed, 1);
    all.push(Test::new("a_flood_of_syns_forgets_no_flow", flood).needs_program("python3"));
    let flood = |bed: &Bed| a_flood_of_syns_forgets_no_flow(bed, 30);
    let test = Test::new("a_flood_of_millions_of_syns_forgets_no_flow", flood).needs_program("python3");
    all.push(test.long().time_limit(Duration::from_secs(900)));
    all
}

/// A sender's first header is guessed to be a plain v2 one, each later one as long as the one before.
fn a_right_guess_alters_no_packet(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &[])?;
    let mut open = Vec::new();
    let clients = ["203.0.113.1:1001", "203.0.113.1:1002", "203.0.113.1:1003"];
    for (client, header) in clients.iter().zip([header, longer_header, longer_header]) {
        let mut stream = session(&header(client)?)?;
        is_answered(&mut stream)?;
        open.push(stream);
    }
    let counted = status(bed)?["ports"][0].clone();
    ensure!(counted["translated"] == 1 && counted["untouched"] == 2, "{counted}");
    ensure!(clients.iter().all(|client| echo.log().contains(&format!("{client} "))));
    Ok(())
}

fn flows_end_with_their_sockets(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &[])?;
    for round in 0..20 {
        let mut stream = session(&header("203.0.113.1:1001")?)?;
        is_answered(&mut stream)?;
        if round % 2 == 0 { client::reset(stream)? } else { drop(client::ask(&mut stream, b"")?) }
    }
    all_flows_end(bed)
}

/// A socket keeps its client's name even if it is reset before accept() and another connection has its
/// addresses by then.
fn a_name_belongs_to_its_socket(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    start(bed, &[])?;
    let clients = ["203.0.113.1:1001", "203.0.113.2:1002", "203.0.113.3:1003"];
    for client in clients {
        let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
        stream.write_all(&[&header(client)?, b"data".as_slice()].concat())?;
        truepeer_testbed::sockets::wait_until_sent(&stream)?;
        client::reset(stream)?;
        all_flows_end(bed)?;
    }
    for client in clients {
        let (_, seen) = listener.accept()?;
        ensure!(seen.to_string() == client, "{client} was seen as {seen}");
    }
    Ok(())
}

/// The table of flows is full: open ones continue, and one that ends makes room.
fn connections_beyond_the_limit_of_flows_are_refused(bed: &Bed) -> Result<()> {
    let echo = echo(bed)?;
    start(bed, &["--max-flows", "2"])?;
    let mut first = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut first)?;
    let mut second = session(&longer_header("203.0.113.1:1002")?)?;
    is_answered(&mut second)?;
    let descriptors = echo.descriptors()?;
    for (n, header) in [header, longer_header, header].into_iter().enumerate() {
        let mut refused = session(&header(&format!("203.0.113.2:{}", 2000 + n))?)?;
        ensure!(client::read_end(&mut refused)? == client::End::Reset);
        is_answered(&mut first)?;
        is_answered(&mut second)?;
    }
    ensure!(counter(bed, "refused_full")? == 3, "{}", status(bed)?);
    ensure!(open(bed, "untouched")? == 1 && open(bed, "translated")? == 1, "{}", status(bed)?);
    // The backend has seen the end, too.
    bed.wait_for("their sockets' end", || echo.descriptors().is_ok_and(|count| count == descriptors))?;
    ensure!(client::ask(&mut second, b"end")? == "end");
    bed.wait_for("room", || open(bed, "translated").is_ok_and(|count| count == 0))?;
    is_answered(&mut session(&header("203.0.113.1:1003")?)?)?;
    ensure!(client::ask(&mut first, b"end")? == "end");
    Ok(())
}

/// Its socket has ended unnoticed.
fn a_flow_whose_end_was_missed_gives_way(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    start(bed, &[])?;
    leave_a_flow_behind(bed)?;
    for client in ["203.0.113.2:1002", "203.0.113.3:1003"] {
        let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
        let saw = client::ask(&mut stream, &[&header(client)?, b"data".as_slice()].concat())?;
        ensure!(saw.trim() == client, "{client} was seen as {saw:?}");
        client::reset(stream)?;
        all_flows_end(bed)?;
    }
    Ok(())
}

/// Detaches, by force, the hook that reports ends while a connection is open. The connection ends later.
fn leave_a_flow_behind(bed: &Bed) -> Result<()> {
    let flows = || Ok::<_, anyhow::Error>(open(bed, "translated")? + open(bed, "untouched")?);
    let mut unseen = client::connect_from("127.0.0.9:4000", LISTENER)?;
    unseen.write_all(&longer_header("203.0.113.1:1001")?)?;
    bed.wait_for("its flow", || flows().is_ok_and(|count| count == 1))?;
    attachments(bed)?.iter().try_for_each(|pins| end_link(&pins.join("links/tcp_end")))?;
    client::reset(unseen)?;
    start(bed, &[])?;
    ensure!(flows()? == 1, "the end was seen: {}", status(bed)?);
    Ok(())
}

/// Its translation is kept for the remaining TIME_WAIT. A later untracked connection with the same addresses
/// is another one.
fn an_ended_flow_does_not_translate_other_connections(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &[])?;
    let end_one = || -> Result<()> {
        let before = counter(bed, "translated")?;
        let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
        stream.write_all(&longer_header("203.0.113.1:1001")?)?;
        is_answered(&mut stream)?;
        ensure!(counter(bed, "translated")? == before + 1, "{}", status(bed)?);
        client::reset(stream)?;
        all_flows_end(bed)
    };
    // The guess is wrong whenever the previous header was shorter.
    let shorten = || -> Result<()> {
        let mut stream = client::connect_from("127.0.0.9:4001", LISTENER)?;
        stream.write_all(&header("203.0.113.1:1002")?)?;
        is_answered(&mut stream)?;
        client::reset(stream)?;
        all_flows_end(bed)
    };
    let passes = || -> Result<()> {
        let line = client::v1("203.0.113.2:1003", DESTINATION)?;
        let mut stream = client::connect_from("127.0.0.9:4000", LISTENER)?;
        ensure!(client::ask(&mut stream, &line)?.as_bytes() == line);
        Ok(())
    };
    end_one()?;
    start(bed, &["--allow", "10.0.0.0/8"])?;
    passes().context("from one that is no sender any more")?;

    start(bed, &[])?;
    shorten()?;
    end_one()?;
    let mut open = session(&header("203.0.113.1:1004")?)?;
    is_answered(&mut open)?;
    let detach = command(bed, &["detach"])?.start(bed)?;
    detach.wait_for_log("waiting for 1 open")?;
    passes().context("while the last ones end")?;
    ensure!(client::ask(&mut open, b"end")? == "end");
    ensure!(detach.wait_end()?.success(), "{}", detach.log());
    Ok(())
}

/// From more addresses and ports than there is room for, in so many waves.
fn a_flood_of_syns_forgets_no_flow(bed: &Bed, waves: u64) -> Result<()> {
    // More than there is room for handshakes.
    const WAVE: u64 = 160_000;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _echo = backend_on(bed, host, Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let begin = |header: Vec<u8>| -> Result<TcpStream> {
        let mut stream = lb.run(|| client::connect(host.at(false, 80)))??;
        stream.write_all(&header)?;
        is_answered(&mut stream)?;
        Ok(stream)
    };
    let mut open = begin(longer_header("203.0.113.1:1001")?)?;
    ensure!(counter_on(bed, host, "translated")? == 1);
    // No SYN is answered: there is no route back.
    host.ip(&["route add blackhole 198.18.0.0/15"])?;
    let flood = |first: u64| {
        format!(
            "\
import socket, struct
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
to = socket.inet_aton('{}')
def segment(n, check):
    return struct.pack('!HHIIBBHHH', 1024 + n % 50, 80, n, 0, 0x50, 2, 65535, check, 0)
for n in range({first}, {}):
    source = struct.pack('!I', 0xc6120000 + n // 50)
    total = sum(struct.unpack('!16H', source + to + struct.pack('!HH', 6, 20) + segment(n, 0)))
    total = (total & 0xffff) + (total >> 16)
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 40, 0, 0, 64, 6, 0) + source + to
    raw.sendto(ip + segment(n, ~((total & 0xffff) + (total >> 16)) & 0xffff), ('{}', 0))
",
            host.v4,
            first + WAVE,
            host.v4
        )
    };
    for wave in 0..waves {
        Program::new("python3").args(["-c", &flood(wave * WAVE)]).in_netns(&lb.netns).run(bed)?;
        is_answered(&mut open)?;
    }
    ensure!(counter_on(bed, host, "connections")? > waves * WAVE / 2);
    is_answered(&mut open)?;
    begin(header("203.0.113.1:1002")?)?;
    ensure!(client::ask(&mut open, b"end")? == "end");
    Ok(())
}
