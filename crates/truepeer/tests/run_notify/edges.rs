//! A program with edge-triggered epoll (EPOLLET) that drains listener and connections to EAGAIN. It is told
//! nothing twice, so it never fetches a connection that was not announced.

use std::io::Write;

use anyhow::{Context, ensure};
use truepeer_testbed::crowd::{in_parallel, nth_client};
use truepeer_testbed::sockets::{wait_until_read, wait_until_sent};
use truepeer_testbed::{Bed, Running, Test, client, tests};

use crate::bodies::a_body_comes_back;
use crate::kit::{
    CLIENT4, CLIENT6, PYTHON, Talk, V4, V6, every_form_names_the_client, header_of, python, start,
};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        every_form_is_served_by_edges,
        late_headers_make_an_edge_of_their_own,
        data_that_comes_in_parts_makes_an_edge_for_each,
        a_crowd_is_served_by_edges,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// It registers each descriptor once, and reads only what was announced.
const SERVER: &str = "\
import select, socket
listener = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
listener.setblocking(False)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN | select.EPOLLET)
connections = {}
def accept():
    while True:
        try:
            connection, peer = listener.accept()
        except BlockingIOError:
            return
        assert connection.getpeername() == peer
        connection.setblocking(False)
        connections[connection.fileno()] = connection, peer, []
        epoll.register(connection, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
def read(number):
    connection, peer, parts = connections[number]
    while True:
        try:
            part = connection.recv(65536)
        except BlockingIOError:
            return
        except ConnectionError:
            break
        if not part:
            connection.setblocking(True)
            connection.sendall(b''.join(parts) + ('\\n%s %d\\n' % peer[:2]).encode())
            break
        parts.append(part)
    del connections[number]
    connection.close()
while True:
    for number, _ in epoll.poll():
        if number == listener.fileno():
            accept()
        else:
            read(number)
";

fn server(bed: &Bed) -> anyhow::Result<Running> {
    start(bed, &python(bed, SERVER, &["--header-timeout", "60s"])?, &[V4, V6])
}

/// Headers whole, split, and alone before the data; and ten megabytes, which are many edges.
fn every_form_is_served_by_edges(bed: &Bed) -> anyhow::Result<()> {
    let _server = server(bed)?;
    every_form_names_the_client(&[V4, V6], &[CLIENT4, CLIENT6], Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

/// The only announcements: no other client connects.
fn late_headers_make_an_edge_of_their_own(bed: &Bed) -> anyhow::Result<()> {
    const COUNT: usize = 30;
    let _server = server(bed)?;
    for round in 0..5 {
        let mut waiting = Vec::new();
        for n in 0..COUNT {
            let client = nth_client(round * COUNT + n);
            let header = header_of(&client.to_string())?;
            let mut stream = client::connect(V4)?;
            stream.write_all(&header[..20])?;
            wait_until_sent(&stream)?;
            waiting.push((client, header, stream));
        }
        for (client, header, stream) in &mut waiting {
            stream.write_all(&header[20..]).with_context(|| client.to_string())?;
        }
        // The last one first: each must be served without another connection.
        for (client, _, stream) in waiting.into_iter().rev() {
            let saw = Talk::Plain.say_and_hear(stream).with_context(|| format!("{client}, late"))?;
            ensure!(saw == client, "{client} was seen as {saw}");
        }
    }
    Ok(())
}

/// The header alone, then each part after the previous one was read: removing the header removes nothing
/// else.
fn data_that_comes_in_parts_makes_an_edge_for_each(bed: &Bed) -> anyhow::Result<()> {
    let _server = server(bed)?;
    for cut in [0, 20] {
        let header = header_of(CLIENT4)?;
        let mut stream = client::connect(V4)?;
        for piece in [&header[..cut], &header[cut..]] {
            stream.write_all(piece)?;
            wait_until_read(&stream)?;
        }
        for part in ["one ", "two ", "three "] {
            stream.write_all(part.as_bytes())?;
            wait_until_read(&stream)?;
        }
        let answer = client::ask(&mut stream, b"four")?;
        ensure!(answer == "one two three four\n::ffff:203.0.113.7 5000\n", "cut at {cut}: {answer:?}");
    }
    Ok(())
}

/// One of three arrives in two parts. Edges coincide, and all must be handled.
fn a_crowd_is_served_by_edges(bed: &Bed) -> anyhow::Result<()> {
    let _server = server(bed)?;
    in_parallel(50, 1000, |n| {
        let client = nth_client(n);
        let header = header_of(&client.to_string())?;
        let cut = if n.is_multiple_of(3) { 20 } else { 0 };
        let saw = Talk::Plain.ask_fast(V4, &[&header[..cut], &header[cut..], b"x"])?;
        ensure!(saw == client, "{client} was seen as {saw}");
        Ok(())
    })
}
