//! Children that the program makes without fork(3): none of the library's handlers runs in them.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use truepeer_testbed::client::{self, End};
use truepeer_testbed::{Bed, Program, Test, User, tests};

use crate::library::{LISTENER, ask_late_at, header};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_child_made_by_clone_changes_its_user_beside_a_late_connection,
        a_child_made_by_clone_is_served_late_and_holds_no_connection_open,
        a_child_made_by_vfork_takes_no_listener_from_its_parent,
        a_fork_does_not_wait_for_ever_for_the_library,
    ];
    all.into_iter().map(|test| test.needs_program("gcc").needs_several_users()).collect()
}

fn built(bed: &Bed, source: &str) -> anyhow::Result<PathBuf> {
    let program = bed.dir().join("clones");
    let source = bed.write("clones.c", source)?;
    Program::new("gcc").args(["-O1", "-pthread", "-o"]).arg(&program).arg(source).run(bed)?;
    Ok(program)
}

/// As vsftpd makes its children. The first late connection starts the library's thread.
const CLONES: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(8080) }, peer;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) return 1;
    if (listen(listener, 16) != 0) return 2;
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        socklen_t length = sizeof peer;
        int connection = accept(listener, (struct sockaddr *)&peer, &length);
        if (connection < 0) continue;
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
            char data[4096], text[64];
            if (setuid(getuid()) != 0) return 3;
            while (recv(connection, data, sizeof data, 0) > 0) {}
            snprintf(text, sizeof text, "%s %d", inet_ntoa(peer.sin_addr), ntohs(peer.sin_port));
            send(connection, text, strlen(text), 0);
            _exit(0);
        }
        close(connection);
    }
}
"#;

fn a_child_made_by_clone_changes_its_user_beside_a_late_connection(bed: &Bed) -> anyhow::Result<()> {
    let program = built(bed, CLONES)?;
    let header = header()?;
    for start in 0..20 {
        let server = Program::new(&program).as_user(User::TESTER);
        let running = server.launched_by(env!("CARGO_BIN_EXE_truepeer"), &["run", "--"]).start(bed)?;
        running.wait_listening(LISTENER)?;
        let (mut late, mut other) = (client::connect(LISTENER)?, client::connect(LISTENER)?);
        late.write_all(&header[..20])?;
        other.write_all(&header)?;
        let said = client::ask(&mut other, b"x").with_context(|| format!("start {start}"))?;
        ensure!(said == "203.0.113.7 5000", "start {start}: {said:?}");
        late.write_all(&header[20..])?;
        let said = client::ask(&mut late, b"x").with_context(|| format!("start {start}, late"))?;
        ensure!(said == "203.0.113.7 5000", "start {start}, late: {said:?}");
        running.stop()?;
    }
    Ok(())
}

/// `listening(port)`, and `serve(listener)`: one connection.
const SERVING: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int listening(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0) _exit(1);
    if (listen(listener, 16) != 0) _exit(2);
    return listener;
}
static void serve(int listener) {
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    char data[4096], text[64];
    int connection = accept(listener, (struct sockaddr *)&peer, &length);
    if (connection < 0) return;
    while (recv(connection, data, sizeof data, 0) > 0) {}
    snprintf(text, sizeof text, "%s %d", inet_ntoa(peer.sin_addr), ntohs(peer.sin_port));
    send(connection, text, strlen(text), 0);
    close(connection);
}
"#;

/// The parent serves 8080. After the second connection a child serves 8081, as vsftpd's serve passive data
/// connections.
const SERVES_IN_A_CHILD: &str = r#"
int main(void) {
    int parents = listening(8080), childs = listening(8081);
    serve(parents);
    serve(parents);
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
        close(parents);
        for (;;) serve(childs);
    }
    for (;;) serve(parents);
}
"#;

fn a_child_made_by_clone_is_served_late_and_holds_no_connection_open(bed: &Bed) -> anyhow::Result<()> {
    let server = Program::new(built(bed, &[SERVING, SERVES_IN_A_CHILD].concat())?).as_user(User::TESTER);
    for via in ["preload", "auto"] {
        let launch = ["run", "--via", via, "--header-timeout", "60s", "--"];
        let running = server.clone().launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).start(bed)?;
        running.wait_listening(LISTENER)?;
        let served = |listener: &str| -> anyhow::Result<()> {
            let said = ask_late_at(listener).with_context(|| format!("{via}, {listener}"))?;
            ensure!(said == "203.0.113.7 5000", "{via}, {listener}: {said:?}");
            Ok(())
        };
        let mut waiting = client::connect(LISTENER)?;
        waiting.write_all(b"PROXY TC")?;
        served(LISTENER)?;
        served(LISTENER)?;
        for _ in 0..3 {
            served("127.0.0.1:8081")?;
            served(LISTENER)?;
        }
        waiting.write_all(b"nonsense")?;
        let end = client::read_end(&mut waiting).with_context(|| format!("{via}: a child's copy is open"))?;
        ensure!(matches!(end, End::Reset | End::Eof));
        running.stop()?;
    }
    Ok(())
}

const CLOSES_IN_A_CHILD: &str = r#"
int main(void) {
    int first = listening(8080), second = listening(8081);
    pid_t child = vfork();
    if (child == 0) {
        close(first);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    for (;;) {
        fd_set ready;
        FD_ZERO(&ready);
        FD_SET(first, &ready);
        FD_SET(second, &ready);
        select(second + 1, &ready, NULL, NULL, NULL);
        if (FD_ISSET(first, &ready)) serve(first);
        if (FD_ISSET(second, &ready)) serve(second);
    }
}
"#;

/// A connection that is refused must not keep the parent in accept(): it waits for both listeners.
fn a_child_made_by_vfork_takes_no_listener_from_its_parent(bed: &Bed) -> anyhow::Result<()> {
    let server = Program::new(built(bed, &[SERVING, CLOSES_IN_A_CHILD].concat())?).as_user(User::TESTER);
    let launch = ["run", "--via", "preload", "--"];
    let running = server.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).start(bed)?;
    running.wait_listening("127.0.0.1:8081")?;
    let mut wrong = client::connect(LISTENER)?;
    wrong.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    client::read_end(&mut wrong)?;
    let said = client::ask(&mut client::connect("127.0.0.1:8081")?, &header()?)?;
    ensure!(said == "203.0.113.7 5000", "{said:?}");
    Ok(())
}

/// Its allocator has a lock that is taken before a fork, as jemalloc's are, and is slow for other threads.
const LOCKS_ITS_ALLOCATOR: &str = r#"
#include <fcntl.h>
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t first;
static volatile int forks;
extern void *__libc_malloc(size_t);
void *malloc(size_t size) {
    if (forks && !pthread_equal(pthread_self(), first)) usleep(1000);
    pthread_mutex_lock(&lock);
    void *memory = __libc_malloc(size);
    pthread_mutex_unlock(&lock);
    return memory;
}
static void take(void) { pthread_mutex_lock(&lock); }
static void release(void) { pthread_mutex_unlock(&lock); }
int main(void) {
    int listener = listening(8080);
    fd_set ready;
    first = pthread_self();
    pthread_atfork(take, release, release);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    FD_ZERO(&ready);
    FD_SET(listener, &ready);
    select(listener + 1, &ready, NULL, NULL, NULL);
    accept(listener, NULL, NULL); // it is late
    puts("waits");
    fflush(stdout);
    FD_SET(listener, &ready);
    select(listener + 1, &ready, NULL, NULL, NULL); // its header has come
    for (forks = 1; forks < 2000; forks++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, NULL, 0);
    }
    forks = 0;
    fcntl(listener, F_SETFL, 0);
    for (;;) serve(listener);
}
"#;

/// While a connection is ready that the program doesn't accept, the library looks for those that wait for it.
fn a_fork_does_not_wait_for_ever_for_the_library(bed: &Bed) -> anyhow::Result<()> {
    let server = built(bed, &[SERVING, LOCKS_ITS_ALLOCATOR].concat())?;
    let launch = ["run", "--via", "preload", "--"];
    let server = Program::new(server).as_user(User::TESTER);
    let running = server.launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).start(bed)?;
    running.wait_listening(LISTENER)?;
    let mut late = client::connect(LISTENER)?;
    late.write_all(&header()?[..20])?;
    running.wait_for_log("waits")?;
    late.write_all(&header()?[20..])?;
    let said = client::ask(&mut late, b"x")?;
    ensure!(said == "203.0.113.7 5000", "{said:?}");
    Ok(())
}
