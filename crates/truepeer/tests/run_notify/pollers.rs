//! Static programs that wait in poll(), ppoll(), select() or pselect6(), on hosts that can't connect to their
//! own listener: a connection whose header comes late ends the wait, and nothing else changes.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Host, Program, Running, Test, Topology, User, client, tests, wait_for};

use crate::kit::{PYTHON, header_of, supervisor_and_program, under, wait_until_served_without_header};

const CLIENT: &str = "203.0.113.7:5000";
/// How the server waits, and its port.
const WAYS: [(&str, u16); 7] = [
    ("poll", 8091),
    ("poll-blocking", 8092),
    ("ppoll", 8093),
    ("select", 8094),
    ("select-timeout", 8095),
    ("pselect", 8096),
    ("pselect-timeout", 8097),
];

/// Accepts one connection each time that its listener is reported, and answers with the client and the number
/// of signals that it has handled, once something has come. Echoes datagrams. Aborts if a call reports
/// anything else than what is ready, or if a signal is handled outside of a call that permits it.
const SERVER: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : wrong(#what, __LINE__))
static void wrong(const char *what, int line) {
    fprintf(stderr, "wrong: %s, line %d\n", what, line);
    abort();
}
static volatile sig_atomic_t handled, waits, has_a_mask;
static void on_signal(int number) { CHECK(!has_a_mask || waits); handled++; }
static int listener, datagrams, quiet, full, nonexistent = -1;

/// Whether listener and datagrams are readable.
static void wait_by_poll(const char *way, const sigset_t *unblocked, int ready[2]) {
    struct pollfd all[5] = {
        {quiet, POLLIN, 0x7777}, {nonexistent, POLLIN, 0x7777}, {listener, POLLIN | POLLPRI, 0x7777},
        {full, POLLOUT, 0x7777}, {datagrams, POLLIN, 0x7777},
    };
    int count = unblocked ? ppoll(all, 5, NULL, unblocked) : poll(all, 5, -1);
    if (count < 0) { CHECK(errno == EINTR); return; }
    ready[0] = all[2].revents != 0; ready[1] = all[4].revents != 0;
    CHECK(count == ready[0] + ready[1] && count > 0);
    CHECK(!all[0].revents && !all[1].revents && !all[3].revents);
    CHECK(!ready[0] || all[2].revents == POLLIN);
    CHECK(!ready[1] || all[4].revents == POLLIN);
}
static void wait_by_select(const char *way, const sigset_t *unblocked, int ready[2]) {
    int is_timed = strstr(way, "timeout") != NULL;
    fd_set sets[3];
    for (int i = 0; i < 3; i++) FD_ZERO(&sets[i]);
    FD_SET(quiet, &sets[0]); FD_SET(listener, &sets[0]); FD_SET(datagrams, &sets[0]);
    FD_SET(full, &sets[1]);
    FD_SET(listener, &sets[2]);
    struct timeval limit = {3600, 0};
    struct timespec precise = {3600, 0};
    fd_set *writing = unblocked && is_timed ? NULL : &sets[1];
    fd_set *other = unblocked && !is_timed ? NULL : &sets[2];
    int count = unblocked
        ? pselect(FD_SETSIZE, &sets[0], writing, other, is_timed ? &precise : NULL, unblocked)
        : select(FD_SETSIZE, &sets[0], writing, other, is_timed ? &limit : NULL);
    if (count < 0) { CHECK(errno == EINTR); return; }
    CHECK(!is_timed || unblocked || (limit.tv_sec <= 3600 && limit.tv_sec > 3000));
    ready[0] = FD_ISSET(listener, &sets[0]); ready[1] = FD_ISSET(datagrams, &sets[0]);
    CHECK(count == ready[0] + ready[1] && count > 0);
    CHECK(!FD_ISSET(quiet, &sets[0]));
    CHECK((unblocked && is_timed) || !FD_ISSET(full, &sets[1]));
    CHECK((unblocked && !is_timed) || !FD_ISSET(listener, &sets[2]));
}

static void serve(void) {
    struct sockaddr_in6 peer;
    socklen_t length = sizeof peer;
    int connection;
    do connection = accept4(listener, (void *)&peer, &length, 0); while (connection < 0 && errno == EINTR);
    if (connection < 0) { CHECK(errno == EAGAIN); return; }
    char text[200], ip[100];
    ssize_t got;
    do got = recv(connection, text, sizeof text, 0); while (got < 0 && errno == EINTR);
    inet_ntop(AF_INET6, &peer.sin6_addr, ip, sizeof ip);
    int said = sprintf(text, "%d %s %d\n", handled, ip, ntohs(peer.sin6_port));
    if (send(connection, text, said, MSG_NOSIGNAL) < 0) CHECK(errno == EPIPE || errno == ECONNRESET);
    close(connection);
}
static void echo(void) {
    struct sockaddr_in6 peer;
    socklen_t length = sizeof peer;
    char text[200];
    ssize_t got = recvfrom(datagrams, text, sizeof text, MSG_DONTWAIT, (void *)&peer, &length);
    CHECK(got >= 0);
    sendto(datagrams, text, got, 0, (void *)&peer, length);
}

int main(int count, char **words) {
    const char *way = words[1], *device = words[3];
    int port = atoi(words[2]), signals = atoi(words[4]), processes = atoi(words[5]), off = 0, on = 1;
    int pair[2];
    listener = socket(AF_INET6, SOCK_STREAM | (strstr(way, "blocking") ? 0 : SOCK_NONBLOCK), 0);
    datagrams = socket(AF_INET6, SOCK_DGRAM, 0);
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(datagrams, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(!*device || setsockopt(listener, SOL_SOCKET, SO_BINDTODEVICE, device, strlen(device)) == 0);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    CHECK(bind(listener, (void *)&any, sizeof any) == 0 && bind(datagrams, (void *)&any, sizeof any) == 0);
    CHECK(pipe(pair) == 0);
    quiet = pair[0];
    CHECK(pipe2(pair, O_NONBLOCK) == 0);
    full = pair[1];
    while (write(full, way, 1) == 1) {}

    sigset_t blocked, before, *unblocked = NULL;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGRTMIN, &action, NULL);
    if (way[0] == 'p' && way[1] != 'o') {
        sigprocmask(SIG_BLOCK, &blocked, &before);
        unblocked = &before;
        has_a_mask = 1;
    }
    CHECK(listen(listener, 1000) == 0);
    if (signals > 0 && fork() == 0) {
        for (int i = 0; i < signals; i++) { CHECK(kill(getppid(), SIGRTMIN) == 0); usleep(700); }
        _exit(0);
    }
    for (int i = 1; i < processes; i++) if (fork() == 0) break;
    for (;;) {
        int ready[2] = {0, 0};
        waits = 1;
        (strstr(way, "poll") ? wait_by_poll : wait_by_select)(way, unblocked, ready);
        waits = 0;
        if (ready[0]) serve();
        if (ready[1]) echo();
    }
}
"#;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_late_header_ends_the_wait_of_a_static_program,
        a_silent_client_ends_the_wait_of_a_static_program,
        a_late_header_ends_a_wait_that_was_stopped_and_continued,
        a_thousand_late_headers_leave_nobody_waiting,
        signals_beside_late_headers_are_handled_once_each,
        an_idle_process_is_woken_beside_a_busy_one,
        a_traced_program_is_woken_once_it_is_let_go,
    ];
    all.into_iter()
        .map(|test| test.needs_program("gcc").needs_program(PYTHON).needs_several_users())
        .collect()
}

struct Servers<'bed> {
    bed: &'bed Bed,
    program: PathBuf,
    line: Topology,
}

/// A server, and where the other host reaches it.
struct Server {
    way: &'static str,
    running: Running,
    address: SocketAddr,
}

impl<'bed> Servers<'bed> {
    fn new(bed: &'bed Bed) -> Result<Self> {
        let (source, program) = (bed.write("waits.c", SERVER)?, bed.dir().join("waits"));
        Program::new("gcc").args(["-static", "-O1", "-w", "-o"]).arg(&program).arg(source).run(bed)?;
        Ok(Self { bed, program, line: Topology::line(&["lb", "host"])? })
    }

    fn lb(&self) -> &Host {
        self.line.host("lb")
    }

    fn host(&self) -> &Host {
        self.line.host("host")
    }

    /// Its listener is bound to a device.
    fn start(
        &self,
        (way, port): (&'static str, u16),
        options: &[&str],
        [signals, processes]: [usize; 2],
    ) -> Result<Server> {
        let words = [way, &port.to_string(), "lb", &signals.to_string(), &processes.to_string()];
        let program = Program::new(&self.program).args(words).in_netns(&self.host().netns);
        let options = [&["--allow", "10.77.0.1"], options].concat();
        let running = under(program.as_user(User::TESTER), &options).start(self.bed)?;
        let address = self.host().at(false, port);
        running.wait_listening(address)?;
        Ok(Server { way, running, address })
    }
}

impl Server {
    /// In two parts, the second after the first was accepted.
    fn late(&self) -> Result<TcpStream> {
        let header = header_of(CLIENT)?;
        let mut stream = client::connect(self.address)?;
        stream.write_all(&header[..20])?;
        wait_until_sent(&stream)?;
        Ok(stream)
    }

    fn complete(&self, mut stream: TcpStream) -> Result<usize> {
        stream.write_all(&[&header_of(CLIENT)?[20..], b"hello"].concat())?;
        self.is_answered(stream)
    }

    /// By the number of signals handled.
    fn is_answered(&self, mut stream: TcpStream) -> Result<usize> {
        let mut said = String::new();
        stream.read_to_string(&mut said).with_context(|| self.log())?;
        let handled = said.strip_suffix(" ::ffff:203.0.113.7 5000\n");
        handled.and_then(|count| count.parse().ok()).with_context(|| format!("{said:?}: {}", self.log()))
    }

    fn echoes(&self) -> Result<()> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        socket.send_to(b"datagram", self.address)?;
        let mut answer = [0; 20];
        let count = socket.recv(&mut answer).with_context(|| self.log())?;
        ensure!(&answer[..count] == b"datagram");
        Ok(())
    }

    fn log(&self) -> String {
        format!("{}: {}", self.way, self.running.log())
    }
}

fn accepted(host: &Host, server: &Server) -> Result<()> {
    host.run(|| crate::obstructed::wait_until_accepted(server.address.port()))?
}

fn a_late_header_ends_the_wait_of_a_static_program(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    for way in WAYS {
        let server = servers.start(way, &[], [0, 1])?;
        servers.lb().run(|| -> Result<()> {
            for _ in 0..3 {
                let both = [server.late()?, server.late()?];
                accepted(servers.host(), &server)?;
                for stream in both {
                    server.complete(stream)?;
                    server.echoes()?;
                }
            }
            Ok(())
        })??;
        ensure!(server.running.is_alive() && !server.log().contains("can't be woken"), "{}", server.log());
    }
    Ok(())
}

fn a_silent_client_ends_the_wait_of_a_static_program(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    for way in WAYS {
        let options = ["--header", "optional", "--header-timeout", "1s", "--verbose"];
        let server = servers.start(way, &options, [0, 1])?;
        servers.lb().run(|| -> Result<()> {
            let mut silent = client::connect(server.address)?;
            // It is handed over at the end of its time. The server ends it when it has been told something.
            wait_until_served_without_header(&server.running)?;
            silent.write_all(b"hello")?;
            silent.shutdown(Shutdown::Write)?;
            let mut said = String::new();
            silent.read_to_string(&mut said).with_context(|| server.log())?;
            ensure!(said.contains(" ::ffff:10.77.0.1 "), "{said:?}: {}", server.log());
            Ok(())
        })??;
    }
    Ok(())
}

/// poll() has another number then, restart_syscall().
fn a_late_header_ends_a_wait_that_was_stopped_and_continued(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    for way in WAYS {
        let server = servers.start(way, &[], [0, 1])?;
        let late = servers.lb().run(|| server.late())??;
        accepted(servers.host(), &server)?;
        let [_, program] = supervisor_and_program(&server.running);
        let pid = Pid::from_raw(program).context("its number")?;
        let state = |wanted: char| {
            let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(wanted))
        };
        let stop = || -> Result<()> {
            kill_process(pid, Signal::STOP)?;
            wait_for("it to stop", || state('T'))
        };
        stop()?;
        kill_process(pid, Signal::CONT)?;
        // `D` in a blocking accept().
        wait_for("it to go on", || state('S') || state('D'))?;
        server.complete(late)?;

        // The header comes while it is stopped, which it stays.
        let mut late = servers.lb().run(|| server.late())??;
        accepted(servers.host(), &server)?;
        stop()?;
        late.write_all(&[&header_of(CLIENT)?[20..], b"hello"].concat())?;
        thread::sleep(Duration::from_millis(100));
        ensure!(state('T'), "{}", server.log());
        kill_process(pid, Signal::CONT)?;
        server.is_answered(late)?;
    }
    Ok(())
}

fn a_thousand_late_headers_leave_nobody_waiting(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    for (way, processes) in [(WAYS[0], 1), (WAYS[2], 4), (WAYS[3], 1), (WAYS[5], 4)] {
        let server = servers.start(way, &[], [0, processes])?;
        servers.lb().run(|| {
            // A batch is complete when the whole of it has been accepted.
            (0..20).try_for_each(|_| {
                let batch: Vec<TcpStream> = (0..50).map(|_| server.late()).collect::<Result<_>>()?;
                accepted(servers.host(), &server)?;
                thread::scope(|scope| {
                    let all: Vec<_> =
                        batch.into_iter().map(|late| scope.spawn(|| server.complete(late))).collect();
                    all.into_iter().try_for_each(|one| one.join().expect("no panic").map(drop))
                })
            })
        })??;
        ensure!(server.running.is_alive(), "{}", server.log());
        ensure!(!server.log().contains("can't be woken"), "{}", server.log());
    }
    Ok(())
}

/// With ppoll() and pselect6() they are handled nowhere else than there.
fn signals_beside_late_headers_are_handled_once_each(bed: &Bed) -> Result<()> {
    const SIGNALS: usize = 3000;
    let servers = Servers::new(bed)?;
    for way in [WAYS[0], WAYS[2], WAYS[4], WAYS[5]] {
        let server = servers.start(way, &[], [SIGNALS, 1])?;
        servers.lb().run(|| -> Result<()> {
            let mut handled = 0;
            while handled < SIGNALS {
                let late = server.late()?;
                accepted(servers.host(), &server)?;
                let now = server.complete(late)?;
                ensure!(now >= handled, "{now} after {handled}");
                handled = now;
            }
            ensure!(handled == SIGNALS, "{handled}: {}", server.log());
            Ok(())
        })??;
    }
    Ok(())
}

/// Each process accepts a connection at a time, and is busy until it has been told something.
fn an_idle_process_is_woken_beside_a_busy_one(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    for way in [WAYS[0], WAYS[3]] {
        let server = servers.start(way, &[], [0, 2])?;
        let late = servers.lb().run(|| -> Result<TcpStream> {
            // Both have accepted.
            let mut both = Vec::new();
            for _ in 0..2 {
                let mut busy = client::connect(server.address)?;
                busy.write_all(&header_of(CLIENT)?)?;
                wait_until_sent(&busy)?;
                both.push(busy);
            }
            accepted(servers.host(), &server)?;
            for mut busy in both {
                busy.write_all(b"hello")?;
                busy.read_to_end(&mut Vec::new())?;
            }
            server.late()
        })??;
        accepted(servers.host(), &server)?;
        servers.lb().run(|| -> Result<()> {
            let mut busy = client::connect(server.address)?;
            busy.write_all(&header_of(CLIENT)?)?;
            wait_until_sent(&busy)?;
            accepted(servers.host(), &server)?;
            server.complete(late)?;
            busy.write_all(b"hello")?;
            busy.read_to_end(&mut Vec::new()).map(drop).with_context(|| server.log())
        })??;
    }
    Ok(())
}

/// As a debugger does.
const DEBUGGER: &str = "\
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
assert libc.ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0, os.strerror(ctypes.get_errno())
print('attached')
sys.stdin.read()
";

fn a_traced_program_is_woken_once_it_is_let_go(bed: &Bed) -> Result<()> {
    let servers = Servers::new(bed)?;
    let server = servers.start(WAYS[0], &[], [0, 1])?;
    let [_, program] = supervisor_and_program(&server.running);
    let script = bed.write("debugger.py", DEBUGGER)?;
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let debugger = Program::new(PYTHON).arg("-u").arg(script).arg(program.to_string()).stdin(reader);
    let debugger = debugger.start(bed)?;
    debugger.wait_for_log("attached").with_context(|| debugger.log())?;
    let mut late = servers.lb().run(|| server.late())??;
    accepted(servers.host(), &server)?;
    late.write_all(&[&header_of(CLIENT)?[20..], b"hello"].concat())?;
    server.running.wait_for_log("a debugger traces it").with_context(|| server.log())?;
    drop(writer);
    debugger.wait_end()?;
    server.is_answered(late).map(drop)
}
