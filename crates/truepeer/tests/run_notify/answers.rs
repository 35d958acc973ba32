//! `truepeer connect --udp-dialect spp`: answers carry the header back, and no call passes it to the program.

use anyhow::ensure;
use truepeer_testbed::datagrams::{Backend, socket, spp};
use truepeer_testbed::{Bed, Test, tests};

use crate::flows::{DIALECTS, TO, begins, comes};
use crate::kit::{CLIENT4, PYTHON};
use crate::sends::script;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        answers_are_received_as_without_truepeer,
        headers_of_others_are_data,
        a_refusal_reported_by_a_receiving_call_ends_a_flow,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// Every receiving call, with a buffer for the whole datagram, for a part, and for nothing. Each request is
/// answered separately.
const EVERY_CALL: &str = "\
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
TO = ('127.0.0.1', 9053)
PEEK, TRUNC, DONTWAIT, WAITFORONE = socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_DONTWAIT, 0x10000
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, 8, 1) # IP_PKTINFO
s.settimeout(30)
s.connect(TO)
fd = s.fileno()
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(30)
def ask(text, by=s):
    by.sendto(text, TO) if by is plain else by.send(text)
def wait(by=s):
    by.recv(1, PEEK)
def buffers(*lengths):
    return [bytearray(length) for length in lengths]
ask(b'recv'); print(s.recv(100))
ask(b'recv, short'); print(s.recv(4))
ask(b'peeked'); print(s.recv(100, PEEK), s.recv(3, PEEK), s.recv(100))
ask(b'', ); print(s.recv(100))
ask(b'recvfrom', plain); print(plain.recvfrom(100))
ask(b'recvfrom, short', plain); print(plain.recvfrom(8))
ask(b'whole length'); wait(); one = bytearray(5); print(libc.recv(fd, (ctypes.c_char * 5).from_buffer(one), 5, TRUNC), one)
ask(b'read'); wait(); print(os.read(fd, 100))
ask(b'readv'); wait(); parts = buffers(2, 0, 100); print(os.readv(fd, parts), [bytes(part).rstrip(bytes(1)) for part in parts])
ask(b'recvmsg'); data, control, flags, name = s.recvmsg(100, 100); print(data, len(control), control[0][:2], flags, name)
ask(b'recvmsg, short'); data, control, flags, name = s.recvmsg(7, 100); print(data, len(control), flags, name)
ask(b'recvmsg, in parts'); parts = buffers(3, 4, 100); print(s.recvmsg_into(parts)[0], [bytes(part).rstrip(bytes(1)) for part in parts])
many = buffers(*[1] * 40); ask(b'many parts'); print(s.recvmsg_into(many)[0], b''.join(many))
s.setblocking(False)
for call in (lambda: s.recv(100), lambda: os.read(fd, 100), lambda: s.recvmsg(100)):
    try:
        print(call())
    except BlockingIOError as error:
        print(error.strerror)
s.settimeout(30)

class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('name_length', ctypes.c_uint), ('parts', ctypes.POINTER(Part)),
        ('count', ctypes.c_size_t), ('control', ctypes.c_void_p), ('control_length', ctypes.c_size_t),
        ('flags', ctypes.c_int), ('padding', ctypes.c_int), ('received', ctypes.c_uint)]
rooms = [ctypes.create_string_buffer(20) for _ in range(4)]
parts = [Part(ctypes.addressof(room), 20) for room in rooms]
messages = (Message * 4)(*[Message(parts=ctypes.pointer(part), count=1) for part in parts])
s.setblocking(True)
ask(b'one of two'); ask(b'two of two')
print(libc.recvmmsg(fd, messages, 2, 0, None), [(room.value, message.received) for room, message in zip(rooms, messages)])
ask(b'alone'); print(libc.recvmmsg(fd, messages, 4, WAITFORONE, None), rooms[0].value, messages[0].received)
print(libc.recvmmsg(fd, messages, 4, DONTWAIT, None), ctypes.get_errno())
print(libc.recv(fd, ctypes.c_void_p(8), 5, DONTWAIT), libc.recv(999, rooms[0], 5, 0), libc.read(-1, rooms[0], 5))
one, other = socket.socketpair()
one.send(b'a pair'); print(other.recv(100))
near, far = os.pipe()
os.write(far, b'a pipe'); print(os.read(near, 100))
";

/// Without truepeer the answers have no header: the output must be the same.
fn answers_are_received_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let backend = Backend::echo(&["127.0.0.1:9053"])?;
    let without = script(bed, EVERY_CALL, None)?.run(bed)?;
    ensure!(without.lines().count() == 22, "{without}");
    let payloads: Vec<Vec<u8>> = backend.seen().iter().map(|seen| seen.payload.clone()).collect();
    for from in [None, Some(CLIENT4)] {
        let named = from.map_or_else(Vec::new, |from| vec!["--from", from]);
        let options = [&["--udp-dialect", "spp"], named.as_slice()].concat();
        let with = script(bed, EVERY_CALL, Some(&options))?.run(bed)?;
        ensure!(without == with, "without us:\n{without}with us:\n{with}");
    }
    let seen = backend.seen();
    ensure!(seen.len() == 3 * payloads.len(), "{}", seen.len());
    for (one, payload) in seen.iter().zip(payloads.iter().cycle()).skip(2 * payloads.len()) {
        ensure!(one.payload == [&spp(CLIENT4, "127.0.0.1:9053")?, payload.as_slice()].concat(), "{one:?}");
    }
    Ok(())
}

/// Answers without a header, with another client's, and shorter than one.
fn headers_of_others_are_data(bed: &Bed) -> anyhow::Result<()> {
    let _backend = Backend::start(&["127.0.0.1:9053"], |_| {
        let others = spp("203.0.113.8:5000", "127.0.0.1:9053").unwrap_or_default();
        let magic = others[..2].to_vec();
        vec![b"bare".to_vec(), vec![b'x'; 100], others, Vec::new(), magic]
    })?;
    let text = "\
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(30)
s.connect(('127.0.0.1', 9053))
for length in (2, 50, 2000):
    s.send(b'?')
    for _ in range(5):
        data, _, flags, _ = s.recvmsg(length)
        print(data, flags)
";
    let without = script(bed, text, None)?.run(bed)?;
    let with = script(bed, text, Some(&["--udp-dialect", "spp", "--from", CLIENT4]))?.run(bed)?;
    ensure!(without.lines().count() == 15, "{without}");
    ensure!(without == with, "without us:\n{without}with us:\n{with}");
    Ok(())
}

/// A program that sends and waits gets the error in its receiving call: a receiver that starts later doesn't
/// know the flow.
fn a_refusal_reported_by_a_receiving_call_ends_a_flow(bed: &Bed) -> anyhow::Result<()> {
    let calls = [
        "s.recv(9)",
        "s.recvfrom(9)",
        "s.recvmsg(9)",
        "os.read(s.fileno(), 9)",
        "os.readv(s.fileno(), [bytearray(9)])",
    ];
    for (dialect, call) in DIALECTS.iter().flat_map(|dialect| calls.map(|call| (dialect, call))) {
        let text = format!(
            "\
import os, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(('127.0.0.1', 9053))
s.send(b'one')
try:
    {call}
except ConnectionRefusedError:
    print('refused', flush=True)
sys.stdin.readline()
s.send(b'two')
s.send(b'three')
"
        );
        let (input, output) = rustix::pipe::pipe()?;
        let program = script(bed, &text, Some(&["--udp-dialect", dialect]))?.stdin(input).start(bed)?;
        program.wait_for_log("refused")?;
        let receiver = socket(TO)?;
        rustix::io::write(&output, b"\n")?;
        begins(&receiver, dialect, "itself", b"two")?;
        comes(&receiver, None, Some(b"three"))?;
        ensure!(program.wait_end()?.success(), "{call}: {}", program.log());
    }
    Ok(())
}
