//! `truepeer connect --udp-dialect`: the start of datagrams, whichever call sends them, and the results that
//! the program gets.

use anyhow::{Context, ensure};
use truepeer_testbed::datagrams::{Backend, socket, spp, v2};
use truepeer_testbed::{Bed, Program, Test, Truepeer, User, tests};

use crate::kit::{CLIENT4, CLIENT6, PYTHON, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        each_datagram_has_its_header,
        only_datagrams_to_selected_destinations_have_a_header,
        sending_returns_the_same_as_without_truepeer,
        several_datagrams_in_one_call_are_refused,
    ];
    let dialects = ["every", "first", "standalone", "spp"].map(|dialect| {
        let name = format!("answers_come_back_through_truepeer_proxy_in_{dialect}");
        Test::new(name, move |bed| answers_come_back(bed, dialect))
    });
    let all = all.into_iter().chain(dialects);
    all.map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

pub(crate) fn script(bed: &Bed, text: &str, options: Option<&[&str]>) -> anyhow::Result<Program> {
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

to = (HOST, PORT)
def new(connected):
    s = socket.socket(socket.AF_INET6 if ':' in HOST else socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(30)
    if connected:
        s.connect(to)
    return s
tos = [(socket.IPPROTO_IP, socket.IP_TOS, struct.pack('i', 16))] if '.' in HOST else []
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
    AFTERWARDS
print('all sent')
";

/// As they arrive.
const PAYLOADS: [&[u8]; 9] =
    [b"sendto", b"send", b"write", b"writev", b"sendmsg", b"many parts", b"one", b"two", b""];

fn every_call(host: &str, port: u16, afterwards: &str) -> String {
    let text = EVERY_CALL.replace("HOST", &format!("'{host}'")).replace("PORT", &port.to_string());
    text.replace("AFTERWARDS", afterwards)
}

fn each_datagram_has_its_header(bed: &Bed) -> anyhow::Result<()> {
    // Version 1 doesn't support datagrams.
    let dialects: [&[&str]; 3] = [&["every"], &["every", "--header", "v1"], &["spp"]];
    for (dialect, (host, at)) in dialects
        .into_iter()
        .flat_map(|dialect| [("127.0.0.1", "127.0.0.1:9053"), ("::1", "[::1]:9053")].map(|at| (dialect, at)))
    {
        let receiver = socket(at)?;
        let text = every_call(host, 9053, "pass");
        for from in [None, Some(if host == "::1" { CLIENT6 } else { CLIENT4 })] {
            let named = from.map_or_else(Vec::new, |from| vec!["--from", from]);
            let options = [&["--udp-dialect"], dialect, named.as_slice()].concat();
            script(bed, &text, Some(&options))?.run(bed)?;
            for payload in PAYLOADS {
                let mut buffer = [0; 2048];
                let (length, sender) = receiver.recv_from(&mut buffer)?;
                let client = from.map_or_else(|| sender.to_string(), str::to_owned);
                let header = if dialect == ["spp"] { spp(&client, at)? } else { v2(&client, at)? };
                let found = buffer[..length].escape_ascii().to_string();
                let expected = [&header, payload].concat();
                ensure!(buffer[..length] == expected, "{client}, {:?}: {found}", payload.escape_ascii());
            }
        }
    }
    Ok(())
}

fn only_datagrams_to_selected_destinations_have_a_header(bed: &Bed) -> anyhow::Result<()> {
    let receiver = socket("127.0.0.1:9053")?;
    let text = every_call("127.0.0.1", 9053, "pass");
    for options in [
        &["--from", CLIENT4][..],
        &["--udp-dialect", "every", "--to", "127.0.0.0/8:9054"],
        &["--udp-dialect", "every", "--to", "10.0.0.0/8"],
    ] {
        script(bed, &text, Some(options))?.run(bed)?;
        for payload in PAYLOADS {
            let mut buffer = [0; 2048];
            let (length, _) = receiver.recv_from(&mut buffer)?;
            ensure!(&buffer[..length] == payload, "{options:?}: {:?}", buffer[..length].escape_ascii());
        }
    }
    Ok(())
}

/// A header would be before the first one only, or before each part of one.
fn several_datagrams_in_one_call_are_refused(bed: &Bed) -> anyhow::Result<()> {
    let text = "\
import socket, struct
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
def say(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, error.strerror)
SOL_UDP, UDP_CORK, UDP_SEGMENT, UDP_GRO, MSG_MORE = 17, 1, 103, 104, 0x8000
for option in (UDP_CORK, UDP_SEGMENT, UDP_GRO):
    say(option, lambda: udp.setsockopt(SOL_UDP, option, 1))
say('SO_REUSEADDR', lambda: udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1))
say('TCP_NODELAY', lambda: tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))
to = ('127.0.0.1', 9053)
say('segments', lambda: udp.sendmsg([b'onetwo'], [(SOL_UDP, UDP_SEGMENT, struct.pack('H', 3))], 0, to))
say('a part', lambda: udp.sendto(b'part', MSG_MORE, to))
";
    let said = script(bed, text, Some(&["--udp-dialect", "every"]))?.run(bed)?;
    let none = "Protocol not available";
    let expected = format!(
        "1 {none}\n103 {none}\n104 {none}\nSO_REUSEADDR None\nTCP_NODELAY None\nsegments Input/output error\n\
         a part Operation not supported\n"
    );
    ensure!(said == expected, "{said}");
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
        (script(bed, text, None)?.run(bed)?, script(bed, text, Some(&["--udp-dialect", "every"]))?.run(bed)?);
    ensure!(without.lines().count() == 15, "{without}");
    ensure!(without == with, "without us:\n{without}with us:\n{with}");
    Ok(())
}

/// truepeer at both ends: the client claimed here is seen there. One client sends from several ports here;
/// where datagrams are bare, only one worker can serve them as one flow.
fn answers_come_back(bed: &Bed, dialect: &str) -> anyhow::Result<()> {
    let backend = Backend::who(&["127.0.0.1:53"])?;
    let proxy = Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer")).args(&[
        "-p",
        "udp",
        "--workers",
        "1",
        "--udp-dialect",
        dialect,
    ]);
    let proxy = proxy.ipv4("127.0.0.1:53").option("-l", "127.0.0.1:5300").start_unready(bed)?;
    proxy.wait_for_log("listening on 127.0.0.1:5300")?;
    let afterwards =
        "print(s.recv(100).decode()); [print(s.recv(100).decode()) for _ in range(text == b'onetwo')]";
    let text = every_call("127.0.0.1", 5300, afterwards);
    let options = ["--udp-dialect", dialect, "--from", CLIENT4, "--to", "127.0.0.1:5300"];
    let said = script(bed, &text, Some(&options))?.run(bed).context("the client")?;
    let mut expected: Vec<String> = backend.seen().iter().map(|seen| seen.from.to_string()).collect();
    ensure!(expected.len() == PAYLOADS.len() && expected.iter().all(|from| from == CLIENT4), "{expected:?}");
    expected.push("all sent".to_owned());
    let matching = said.lines().zip(&expected).filter(|(line, start)| line.starts_with(start.as_str()));
    ensure!(matching.count() == expected.len() && said.lines().count() == expected.len(), "{said}");
    Ok(())
}
