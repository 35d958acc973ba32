//! What the program has from the one that starts it: signals, and standard error.

use std::io::Write as _;

use anyhow::{Context as _, ensure};
use truepeer_testbed::{Bed, Program, Test, User, client, tests};

use crate::kit::{CLIENT4, PYTHON, Talk, V4, header_of, start, via};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        signals_are_ignored_and_blocked_as_at_the_start,
        messages_that_nobody_reads_end_or_stop_nothing
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// systemd starts programs with SIGPIPE ignored (IgnoreSIGPIPE=).
fn signals_are_ignored_and_blocked_as_at_the_start(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import os, signal, sys
how = signal.SIG_IGN if sys.argv[1] == 'ignored' else signal.SIG_DFL
for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGUSR2):
    signal.signal(number, how)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
os.execv(sys.argv[2], sys.argv[2:])
";
    let script = bed.write("signals.py", script)?;
    for how in ["ignored", "not"] {
        let started = || Program::new(PYTHON).arg(&script).arg(how).as_user(User::TESTER);
        let shown = ["/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
        let without = started().args(shown).run(bed)?;
        let launch = [env!("CARGO_BIN_EXE_truepeer"), "run", "--via", via(), "--"];
        let with = started().args(launch).args(shown).run(bed)?;
        ensure!(with == without, "{how}: {with:?}, without truepeer {without:?}");
    }
    Ok(())
}

/// A connection is refused, which is logged: into a pipe that is closed at its other end, and a full one.
fn messages_that_nobody_reads_end_or_stop_nothing(bed: &Bed) -> anyhow::Result<()> {
    let launcher = "\
import os, sys
reader, writer = os.pipe()
if sys.argv[1] == 'full':
    os.set_inheritable(reader, True)
    os.set_blocking(writer, False)
    try:
        while os.write(writer, b'x' * 4096): pass
    except BlockingIOError:
        os.set_blocking(writer, True)
os.dup2(writer, 2)
os.execv(sys.argv[2], sys.argv[2:])
";
    let server = "\
import signal, socket
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
listener = socket.create_server(('127.0.0.1', 8080))
while True:
    connection, peer = listener.accept()
    while connection.recv(4096):
        pass
    connection.sendall(('%s %d' % peer).encode())
    connection.close()
";
    let (launcher, server) = (bed.write("launcher.py", launcher)?, bed.write("server.py", server)?);
    for kind in ["closed", "full"] {
        let launch = [env!("CARGO_BIN_EXE_truepeer"), "run", "--via", via(), "--", PYTHON, "-u"];
        let program = Program::new(PYTHON).arg(&launcher).arg(kind).args(launch).arg(&server);
        let running = start(bed, &program.as_user(User::TESTER), &[V4])?;
        let mut wrong = client::connect(V4)?;
        wrong.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        client::read_end(&mut wrong)?;
        let saw = Talk::Plain.ask(V4, &[&header_of(CLIENT4)?]).with_context(|| format!("{kind} pipe"))?;
        ensure!(saw.to_string() == CLIENT4, "{kind}: {saw}");
        running.stop()?;
    }
    Ok(())
}
