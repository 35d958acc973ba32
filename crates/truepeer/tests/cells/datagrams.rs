//! Datagrams: `attach` on the backend's host, and `proxy -p udp` on the relay.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use truepeer_sys::udp::{Run, send_runs};
use truepeer_testbed::datagrams::{Backend, receive, send, socket, v2};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Host, Topology, Truepeer, skip};

use crate::{Net, SESSIONS, TRUEPEER, attach::command};

const PORT: u16 = 53;
const LISTENER: u16 = 5300;
/// So many at once, of one length: some are merged.
const BURST: usize = 8;
/// With a header, all fit a card's 1500 bytes.
const LENGTHS: [usize; 6] = [1, 64, 65, 500, 1233, 1380];

pub(crate) fn attach(bed: &Bed, net: Net) -> Result<()> {
    let hosts = net.hosts()?;
    let host = hosts.host("backend");
    command(bed, host, &["--allow", "any", "--port", "53/udp"])?.run(bed)?;
    converse(net, &hosts, host.at(net.v6, PORT))
}

pub(crate) fn proxy(bed: &Bed, net: Net) -> Result<()> {
    let hosts = net.hosts()?;
    if !are_cut(net, &hosts)? {
        return skip("the card does not cut what UDP_SEGMENT sends into datagrams, without truepeer either");
    }
    let (relay, far) = (hosts.host("relay"), hosts.host("backend").at(net.v6, PORT));
    let listener = relay.at(net.v6, LISTENER);
    let truepeer = Truepeer::proxy(TRUEPEER)
        .args(&["-p", "udp", "--routes", "auto"])
        .allow(hosts.host("sender").at(net.v6, 0).ip())
        .option("-l", listener)
        .with(|program| program.in_netns(&relay.netns));
    let truepeer = if net.v6 { truepeer.ipv6(far) } else { truepeer.ipv4(far) };
    let truepeer = truepeer.start_unready(bed)?;
    truepeer.wait_for_log(&format!("listening on {listener}"))?;
    converse(net, &hosts, listener)
}

/// Whether datagrams that the relay's host sends in one call (UDP_SEGMENT) arrive as so many. truepeer sends
/// some so, and nothing tells it if a card does not do its part.
fn are_cut(net: Net, hosts: &Topology) -> Result<bool> {
    let far = hosts.host("backend");
    let at = far.at(net.v6, PORT + 1);
    let _backend = far.run(|| Backend::who(&[at]))??;
    let socket = hosts.host("relay").run(|| socket(if net.v6 { "[::]:0" } else { "0.0.0.0:0" }))??;
    socket.connect(at)?;
    let parts = [[1; 64]; BURST];
    let slices = parts.each_ref().map(|part| IoSlice::new(part));
    let run = Run { parts: &slices, segment_bytes: Some(64) };
    match send_runs(socket.as_fd(), None, None, &[run]) {
        // Linux 6.1 refuses it where the card does not compute sums. truepeer then sends one by one.
        Err(Errno::IO | Errno::INVAL) => return Ok(true),
        sent => ensure!(sent? == 1, "not sent"),
    }
    Ok((0..BURST).all(|_| receive(&socket).is_ok()))
}

/// Each client's datagrams come back, with its name before them.
fn converse(net: Net, hosts: &Topology, to: SocketAddr) -> Result<()> {
    let far = hosts.host("backend");
    let backend = far.run(|| Backend::who(&[far.at(net.v6, PORT)]))??;
    for number in 0..SESSIONS {
        one(net, hosts.host("sender"), to, number).with_context(|| net.client(5000 + number))?;
    }
    let all = usize::from(SESSIONS) * LENGTHS.len() * BURST;
    ensure!(backend.seen().len() == all, "the backend has received {} of {all}", backend.seen().len());
    Ok(())
}

fn one(net: Net, sender: &Host, to: SocketAddr, number: u16) -> Result<()> {
    let client = net.client(5000 + number);
    let header = v2(client, net.site())?;
    let socket = sender.run(|| socket(if net.v6 { "[::]:0" } else { "0.0.0.0:0" }))??;
    socket.connect(to)?;
    for length in LENGTHS {
        let payloads: Vec<Vec<u8>> = (0..BURST).map(|place| payload(length, place)).collect();
        for payload in &payloads {
            send(&socket, &[&header, payload])?;
        }
        let wanted = payloads.iter().map(|payload| [client.to_string().as_bytes(), b" ", payload].concat());
        let answers = (0..BURST).map(|_| receive(&socket));
        let answers = answers.collect::<Result<Vec<_>>>().with_context(|| format!("{length} bytes"))?;
        ensure!(digest(answers) == digest(wanted.collect()), "{length} bytes: others, or another client");
    }
    Ok(())
}

fn payload(length: usize, place: usize) -> Vec<u8> {
    let mut payload = vec![0; length];
    Pattern::from((place * length) as u64).fill(&mut payload);
    payload
}

/// Of datagrams in any order.
fn digest(mut datagrams: Vec<Vec<u8>>) -> String {
    datagrams.sort();
    let mut digest = Digest::default();
    datagrams.iter().for_each(|one| digest.update(one));
    digest.report()
}
