//! `truepeer connect` leaves datagrams and the results of sending calls as they are.

use anyhow::ensure;
use truepeer_testbed::datagrams::socket;
use truepeer_testbed::{Bed, Program, Test, User, tests};

use crate::kit::{CLIENT4, PYTHON, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![datagrams_have_no_header, sending_returns_the_same_as_without_truepeer];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

fn script(bed: &Bed, text: &str, options: Option<&[&str]>) -> anyhow::Result<Program> {
    let program = Program::new(PYTHON).arg("-u").arg(bed.write(&bed.fresh_name("sends.py"), text)?);
    let program = program.as_user(User::TESTER);
    Ok(match options {
        None => program,
        Some(options) => {
            let launch = [&["connect", "--via", via()], options, &["--"]].concat();
            program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
        }
    })
}

/// Every sending call: connected or not, in parts, with control data, several at once, and with no bytes.
const EVERY_CALL: &str = "\
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_char_p), ('length', ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('name_length', ctypes.c_uint), ('parts', ctypes.POINTER(Part)),
        ('count', ctypes.c_size_t), ('control', ctypes.c_void_p), ('control_length', ctypes.c_size_t),
        ('flags', ctypes.c_int), ('padding', ctypes.c_int), ('sent', ctypes.c_uint)]
def several(s, texts):
    parts = [Part(text, len(text)) for text in texts]
    messages = (Message * len(texts))(*[Message(parts=ctypes.pointer(part), count=1) for part in parts])
    assert libc.sendmmsg(s.fileno(), messages, len(texts), 0) == len(texts)
    return sum(message.sent for message in messages)

to = ('127.0.0.1', 9053)
def new(connected):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if connected:
        s.connect(to)
    return s
tos = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 16))]
for connected, text, send in (
    (False, b'sendto', lambda s: s.sendto(b'sendto', to)),
    (True, b'send', lambda s: s.send(b'send')),
    (True, b'write', lambda s: os.write(s.fileno(), b'write')),
    (True, b'writev', lambda s: os.writev(s.fileno(), [b'wri', b'', b'tev'])),
    (False, b'sendmsg', lambda s: s.sendmsg([b'send', b'', b'msg'], tos, 0, to)),
    (True, b'many parts', lambda s: s.sendmsg([b'many'] + [b''] * 40 + [b' parts'])),
    (True, b'onetwo', lambda s: several(s, [b'one', b'two'])),
    (False, b'', lambda s: s.sendto(b'', to)),
):
    s = new(connected)
    sent = send(s)
    assert sent == len(text), (text, sent)
";

/// As they arrive.
const PAYLOADS: [&[u8]; 9] =
    [b"sendto", b"send", b"write", b"writev", b"sendmsg", b"many parts", b"one", b"two", b""];

fn datagrams_have_no_header(bed: &Bed) -> anyhow::Result<()> {
    let receiver = socket("127.0.0.1:9053")?;
    script(bed, EVERY_CALL, Some(&["--from", CLIENT4]))?.run(bed)?;
    for payload in PAYLOADS {
        let mut buffer = [0; 2048];
        let (length, _) = receiver.recv_from(&mut buffer)?;
        ensure!(&buffer[..length] == payload, "{:?}", buffer[..length].escape_ascii());
    }
    Ok(())
}

fn sending_returns_the_same_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import ctypes, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def say(what, answer):
    print(what, answer if answer >= 0 else 'errno %d' % ctypes.get_errno())
def inet(port):
    return struct.pack('=H', socket.AF_INET) + struct.pack('!H', port) + socket.inet_aton('127.0.0.1') + bytes(8)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fd = udp.fileno()
say('to nobody', libc.send(fd, b'x', 1, 0))
say('to nobody by write', libc.write(fd, b'x', 1))
say('a wrong pointer', libc.sendto(fd, ctypes.c_void_p(8), 5, 0, inet(9053), 16))
say('a wrong address', libc.sendto(fd, b'x', 1, 0, ctypes.c_void_p(8), 16))
say('a wrong message', libc.sendmsg(fd, ctypes.c_void_p(8), 0))
say('too short an address', libc.sendto(fd, b'x', 1, 0, inet(9053), 8))
say('too long a datagram', libc.sendto(fd, bytes(70000), 70000, 0, inet(9053), 16))
say('no descriptor', libc.sendto(999, b'x', 1, 0, inet(9053), 16))
say('nobody there', libc.sendto(fd, b'x', 1, 0, inet(9), 16))
connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
connected.connect(('127.0.0.1', 9))
connected.send(b'x')
say('nobody there, connected', libc.send(connected.fileno(), b'x', 1, 0))
one, other = socket.socketpair()
say('a pair', libc.send(one.fileno(), b'pair', 4, 0))
say('a pair by sendmsg', one.sendmsg([b'of', b'two']))
print(other.recv(100))
read, write = os.pipe()
say('a pipe', os.write(write, b'pipe'))
print(os.read(read, 100))
";
    let (without, with) =
        (script(bed, text, None)?.run(bed)?, script(bed, text, Some(&["--from", CLIENT4]))?.run(bed)?);
    ensure!(without.lines().count() == 15, "{without}");
    ensure!(without == with, "without us:\n{without}with us:\n{with}");
    Ok(())
}
