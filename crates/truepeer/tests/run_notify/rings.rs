//! io_uring accepts and connects without a system call for each, so programs must not have it: servers fall
//! back. 32-bit system calls have other numbers, and are refused.

use std::io::Write;

use anyhow::{Result, ensure};
use truepeer_testbed::client::{self, End};
use truepeer_testbed::{Bed, Program, Test, User, skip, tests, wait_for};

use crate::kit::{CLIENT4, PYTHON, V4, header_of, start, under, under_by, via};

/// `accept(listener, flags)` by a ring: `flags` is 1 for multishot. `None` without io_uring.
const RING: &str = "\
import ctypes, mmap, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def setup():
    params = ctypes.create_string_buffer(120)
    return libc.syscall(425, 4, params), params.raw
def accept(listener, flags):
    ring, params = setup()
    if ring < 0:
        return None
    sq, cq = struct.unpack_from('7I', params, 40), struct.unpack_from('6I', params, 80)
    queues = mmap.mmap(ring, max(sq[6] + 4 * 4, cq[5] + 16 * 8), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    entries = mmap.mmap(ring, 64 * 4, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0x10000000)
    struct.pack_into('BBHiQQII', entries, 0, 13, 0, flags, listener.fileno(), 0, 0, 0, 0)
    struct.pack_into('I', queues, sq[6], 0)
    struct.pack_into('I', queues, sq[1], 1)
    libc.syscall(426, ring, 1, 1, 1, None, 0)
    return socket.socket(fileno=struct.unpack_from('i', queues, cq[5] + 8)[0])
";

/// Says how it has accepted, the client, and what has come.
const SERVER: &str = "
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection = accept(listener, int(sys.argv[1]))
    how = 'ring' if connection else 'call'
    connection = connection or listener.accept()[0]
    peer = connection.getpeername()
    connection.sendall(b'%s %s %d %s\\n' % (how.encode(), peer[0].encode(), peer[1], connection.recv(100)))
    connection.close()
";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        programs_that_prefer_a_ring_are_covered,
        an_inherited_ring_is_of_no_use,
        programs_that_connect_get_no_ring,
        a_variable_of_another_supervisor_permits_no_ring,
        calls_of_32_bit_programs_are_refused,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

fn programs_that_prefer_a_ring_are_covered(bed: &Bed) -> Result<()> {
    let script = bed.write("ring.py", format!("{RING}{SERVER}"))?;
    for (flags, way) in [("0", via()), ("1", via()), ("0", "auto"), ("1", "auto")] {
        let server = Program::new(PYTHON).arg("-u").arg(&script).arg(flags).as_user(User::TESTER);
        let plain = start(bed, &server, &[V4])?;
        let said = client::ask(&mut client::connect(V4)?, b"hello")?;
        plain.stop()?;
        // The kernel ends a ring after its process, and its accept() holds the listener until then.
        wait_for("the end of the ring", || client::connect(V4).is_err())?;
        if said.starts_with("call") {
            return skip("no io_uring here");
        }
        ensure!(said.starts_with("ring 127.0.0.1") && said.ends_with("hello\n"), "{said:?}");
        let allowed = start(bed, &under_by(way, server.clone(), &[]), &[V4])?;
        let first = [header_of(CLIENT4)?, b"hello".to_vec()].concat();
        let said = client::ask(&mut client::connect(V4)?, &first)?;
        allowed.stop()?;
        ensure!(said == "call 203.0.113.7 5000 hello\n", "{way}: {said:?}");
        let is_told = allowed.log().contains("asked for io_uring and gets ENOSYS");
        ensure!(is_told == (way == "auto"), "{way}: {}", allowed.log());
        let stranger = start(bed, &under_by(way, server, &["--allow", "192.0.2.1"]), &[V4])?;
        let mut stream = client::connect(V4)?;
        // It may have been refused already.
        let _ = stream.write_all(&first);
        ensure!(matches!(client::read_end(&mut stream)?, End::Reset | End::Eof));
        stranger.stop()?;
    }
    Ok(())
}

/// A program that was started with one.
fn an_inherited_ring_is_of_no_use(bed: &Bed) -> Result<()> {
    let inner = bed.write(
        "inner.py",
        "\
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for call in (426, 427):
    print(libc.syscall(call, int(sys.argv[1]), 0, 0, 0, None, 0), ctypes.get_errno())
",
    )?;
    let outer = format!(
        "{RING}
import os
ring, params = setup()
os.set_inheritable(ring, True)
os.execv(sys.argv[1], [*sys.argv[1:], str(ring)])
"
    );
    let outer = bed.write("outer.py", outer)?;
    let truepeer = env!("CARGO_BIN_EXE_truepeer");
    let program =
        Program::new(PYTHON).arg("-u").arg(outer).args([truepeer, "run", "--via", via(), "--", PYTHON]);
    let said = program.arg("-u").arg(inner).run(bed)?;
    ensure!(said == "-1 38\n-1 38\n", "{said:?}");
    Ok(())
}

fn programs_that_connect_get_no_ring(bed: &Bed) -> Result<()> {
    let script = bed.write("ring.py", format!("{RING}print(setup()[0], ctypes.get_errno())\n"))?;
    let program = Program::new(PYTHON).arg("-u").arg(script).as_user(User::TESTER);
    for way in [via(), "auto"] {
        let launch = ["connect", "--via", way, "--from", CLIENT4, "--"];
        let said = program.clone().launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?;
        ensure!(said.lines().any(|line| line == "-1 38"), "{way}: {said:?}");
    }
    Ok(())
}

/// A saved environment names a supervisor that this family does not have.
fn a_variable_of_another_supervisor_permits_no_ring(bed: &Bed) -> Result<()> {
    let script = bed.write("ring.py", format!("{RING}print(setup()[0], ctypes.get_errno())\n"))?;
    let program = Program::new(PYTHON).arg("-u").arg(script).as_user(User::TESTER);
    let said = under(program.env("TRUEPEER_SUPERVISOR", "1"), &[]).run(bed)?;
    ensure!(said.lines().any(|line| line == "-1 38"), "{said:?}");
    Ok(())
}

/// `int 0x80` in a 64-bit program makes the calls of a 32-bit one.
const INT80: &str = "\
import ctypes, mmap
code = bytes.fromhex('5389f889f389d789ca89f94489c6cd805bc3')
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
call = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 5)(address)
libc = ctypes.CDLL(None, use_errno=True)
";

/// listen, accept4; both and accept by socketcall; io_uring; accept4 of an x32 program. Then: socket by
/// socketcall.
const ACCEPTING: &str = "
print([call(number, 4000, 0, 0, 0) for number in (363, 364)],
      [call(102, sub, 0, 0, 0) for sub in (4, 5, 18)],
      [call(number, 4000, 0, 0, 0) for number in (425, 426, 427)],
      [libc.syscall(0x40000000 + 288, 4000, None, None, 0), ctypes.get_errno()],
      call(102, 1, 0, 0, 0))
";
const CONNECTING: &str =
    "\nprint(call(362, 4000, 0, 0, 0), call(102, 3, 0, 0, 0), call(363, 4000, 0, 0, 0))\n";

fn calls_of_32_bit_programs_are_refused(bed: &Bed) -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("int 0x80 is of x86");
    }
    let probe = bed.write("probe.py", format!("{INT80}print(call(20, 0, 0, 0, 0) > 0)"))?;
    let probe = Program::new(PYTHON).arg(probe).start(bed)?;
    if !probe.wait_end()?.success() {
        return skip("no 32-bit programs here (CONFIG_IA32_EMULATION)");
    }
    let script = |name: &str, text: &str| bed.write(name, format!("{INT80}{text}"));
    let (accepting, connecting) = (script("accept.py", ACCEPTING)?, script("connect.py", CONNECTING)?);
    for way in [via(), "auto"] {
        let python = Program::new(PYTHON).arg("-u").as_user(User::TESTER);
        let program = python.clone().arg(&accepting);
        let said =
            program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--via", way, "--"]).run(bed)?;
        let all = "[-38, -38] [-38, -38, -38] [-38, -38, -38] [-1, 38] -14\n";
        ensure!(said.contains(all), "{way}: {said:?}");
        let launch = ["connect", "--via", way, "--from", CLIENT4, "--"];
        let program = python.arg(&connecting);
        let said = program.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?;
        ensure!(said.contains("-38 -38 -9\n"), "{way}: {said:?}");
    }
    Ok(())
}
