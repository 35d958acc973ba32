//! Flows of datagrams (`--udp-dialect first` and `standalone`): each starts with its header, once.

use std::net::UdpSocket;

use anyhow::{Context, ensure};
use truepeer_testbed::datagrams::{socket, v2};
use truepeer_testbed::{Bed, Test, Truepeer, tests};

use crate::kit::{CLIENT4, PYTHON};
use crate::sends::script;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_flow_begins_with_its_header,
        a_flow_of_a_forked_child_has_begun,
        a_flow_starts_again_if_there_was_no_receiver,
    ];
    let silence = "a_flow_begins_again_when_its_receiver_has_forgotten_it";
    all.push(Test::new(silence, a_silent_flow_begins_again).long());
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

pub(crate) const TO: &str = "127.0.0.1:9053";
const ELSEWHERE: &str = "127.0.0.1:9054";
pub(crate) const DIALECTS: [&str; 2] = ["first", "standalone"];

/// Checks that this arrives next, from the claimed client or the actual sender.
pub(crate) fn comes(receiver: &UdpSocket, from: Option<&str>, payload: Option<&[u8]>) -> anyhow::Result<()> {
    let mut buffer = [0; 2048];
    let (length, sender) = receiver.recv_from(&mut buffer).with_context(|| format!("{payload:?}"))?;
    let at = receiver.local_addr()?;
    let header = match from {
        None => Vec::new(),
        Some("itself") => v2(sender, at)?,
        Some(client) => v2(client, at)?,
    };
    let expected = [&header, payload.unwrap_or_default()].concat();
    let found = buffer[..length].escape_ascii();
    ensure!(buffer[..length] == expected, "{found} instead of {}", expected.escape_ascii());
    Ok(())
}

/// The first datagram of a flow, in this dialect.
pub(crate) fn begins(receiver: &UdpSocket, dialect: &str, from: &str, payload: &[u8]) -> anyhow::Result<()> {
    if dialect == "standalone" {
        comes(receiver, Some(from), None)?;
        return comes(receiver, None, Some(payload));
    }
    comes(receiver, Some(from), Some(payload))
}

fn a_flow_begins_with_its_header(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import os, socket
to, elsewhere = ('127.0.0.1', 9053), ('127.0.0.1', 9054)
def new():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 7001))
    return s
s = new()
for text in (b'one', b'two', b''):
    assert s.sendto(text, to) == len(text)
s.sendto(b'other', elsewhere)
s.sendmsg([b'th', b'ree'], [], 0, to)
s.close()
s = new() # its receiver can't know that it is another socket
s.connect(to)
s.send(b'four')
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.connect(to)
other.send(b'five')
assert os.writev(other.fileno(), [b'', b'']) == 0 # sends nothing, unlike the others
os.write(other.fileno(), b'six')
other.connect(elsewhere)
other.send(b'seven')
";
    for dialect in DIALECTS {
        for from in [None, Some(CLIENT4)] {
            let (receiver, another) = (socket(TO)?, socket(ELSEWHERE)?);
            let named = from.map_or_else(Vec::new, |from| vec!["--from", from]);
            script(bed, text, Some(&[&["--udp-dialect", dialect], named.as_slice()].concat()))?.run(bed)?;
            let from = from.unwrap_or("itself");
            begins(&receiver, dialect, from, b"one")?;
            for payload in [&b"two"[..], b"", b"three", b"four"] {
                comes(&receiver, None, Some(payload))?;
            }
            begins(&receiver, dialect, from, b"five")?;
            comes(&receiver, None, Some(b"six"))?;
            begins(&another, dialect, from, b"other")?;
            begins(&another, dialect, from, b"seven")?;
        }
    }
    Ok(())
}

fn a_flow_of_a_forked_child_has_begun(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('127.0.0.1', 9053))
def in_a_child(text):
    if os.fork() == 0:
        s.send(text)
        os._exit(0)
    os.wait()
in_a_child(b'one')
s.send(b'two')
in_a_child(b'three')
";
    for dialect in DIALECTS {
        let receiver = socket(TO)?;
        script(bed, text, Some(&["--udp-dialect", dialect]))?.run(bed)?;
        begins(&receiver, dialect, "itself", b"one")?;
        comes(&receiver, None, Some(b"two"))?;
        comes(&receiver, None, Some(b"three"))?;
    }
    Ok(())
}

/// A receiver that starts after the program doesn't know the flow.
fn a_flow_starts_again_if_there_was_no_receiver(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('127.0.0.1', 9053))
s.send(b'one')
try:
    s.send(b'two')
except ConnectionRefusedError:
    print('refused', flush=True)
sys.stdin.readline()
s.send(b'three')
s.send(b'four')
";
    for dialect in DIALECTS {
        let (input, output) = rustix::pipe::pipe()?;
        let program = script(bed, text, Some(&["--udp-dialect", dialect]))?.stdin(input).start(bed)?;
        program.wait_for_log("refused")?;
        let receiver = socket(TO)?;
        rustix::io::write(&output, b"\n")?;
        begins(&receiver, dialect, "itself", b"three")?;
        comes(&receiver, None, Some(b"four"))?;
        ensure!(program.wait_end()?.success(), "{}", program.log());
    }
    Ok(())
}

/// As long as truepeer itself remembers a flow: both sides must agree, or a header would be taken for data,
/// or data be refused.
fn a_silent_flow_begins_again(bed: &Bed) -> anyhow::Result<()> {
    let backend = truepeer_testbed::datagrams::Backend::who(&["127.0.0.1:53"])?;
    let text = "\
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.connect(('127.0.0.1', 5300))
for pause in (0, 29, 1):
    time.sleep(pause)
    s.send(b'x')
    print(s.recv(100))
";
    for dialect in DIALECTS {
        let proxy =
            Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer")).args(&["-p", "udp", "--udp-dialect", dialect]);
        let proxy = proxy.ipv4("127.0.0.1:53").option("-l", "127.0.0.1:5300").start_unready(bed)?;
        proxy.wait_for_log("listening on 127.0.0.1:5300")?;
        script(bed, text, Some(&["--udp-dialect", dialect, "--from", CLIENT4]))?.run(bed)?;
        proxy.stop()?;
    }
    let seen = backend.seen();
    ensure!(seen.len() == 6, "{}", seen.len());
    ensure!(seen.iter().all(|one| one.from.to_string() == CLIENT4 && one.payload == b"x"), "{:?}", *seen);
    Ok(())
}
