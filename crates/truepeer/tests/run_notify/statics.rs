//! `truepeer connect --udp-dialect spp` with static programs: a receiving call returns, waits and ends as
//! without truepeer, where the answers have no header.

use anyhow::ensure;
use truepeer_testbed::datagrams::{Backend, spp};
use truepeer_testbed::{Bed, Program, Test, User, tests};

use crate::kit::{CLIENT4, via};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = vec![Test::new("a_static_go_program_gets_its_answers_bare", go).needs_program("go")];
    let c = tests![
        a_static_c_program_gets_its_answers_bare,
        calls_that_wait_for_an_answer_end_as_without_truepeer,
        poll_and_epoll_report_sockets_correctly,
    ];
    all.extend(c.into_iter().map(|test| test.needs_program("gcc")));
    all.into_iter().map(Test::needs_several_users).collect()
}

/// Prints the same with and without truepeer, in this many lines. Its requests have headers only with
/// truepeer.
fn is_served_as_without_us(bed: &Bed, file: &std::path::Path, lines: usize) -> anyhow::Result<()> {
    let backend = Backend::echo(&["127.0.0.1:9053"])?;
    let program = Program::new(file).as_user(User::TESTER);
    let without = program.clone().run(bed)?;
    ensure!(without.lines().count() == lines, "{without}");
    let payloads: Vec<Vec<u8>> = backend.seen().iter().map(|seen| seen.payload.clone()).collect();
    for from in [None, Some(CLIENT4)] {
        let named = from.map_or_else(Vec::new, |from| vec!["--from", from]);
        let launch =
            [&["connect", "--via", via(), "--udp-dialect", "spp"], named.as_slice(), &["--"]].concat();
        let with = program.clone().launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch).run(bed)?;
        ensure!(without == with, "without us:\n{without}with us:\n{with}");
    }
    let header = spp(CLIENT4, "127.0.0.1:9053")?;
    let seen = backend.seen();
    let last = &seen[seen.len() - payloads.len()..];
    let mut told: Vec<Vec<u8>> = last.iter().map(|one| one.payload.clone()).collect();
    let mut expected: Vec<Vec<u8>> =
        payloads.iter().map(|payload| [&header, payload.as_slice()].concat()).collect();
    // Threads and processes send in any order.
    told.sort();
    expected.sort();
    ensure!(seen.len() == 3 * payloads.len() && told == expected, "{} and {}", seen.len(), payloads.len());
    Ok(())
}

/// With its event loop, and with blocking calls.
const GO: &str = r#"
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	to := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9053}
	buffer := make([]byte, 65536)

	connected, err := net.DialUDP("udp", nil, to)
	check(err)
	check(connected.SetReadDeadline(time.Now().Add(30 * time.Second)))
	for _, text := range []string{"one", "", "three"} {
		connected.Write([]byte(text))
		n, err := connected.Read(buffer)
		fmt.Printf("read %q %v\n", buffer[:n], err)
	}
	connected.Write([]byte("cut short"))
	n, err := connected.Read(buffer[:3])
	fmt.Printf("read %q %v\n", buffer[:n], err)
	whole := bytes.Repeat([]byte("0123456789"), 6000)
	connected.Write(whole)
	n, err = connected.Read(buffer)
	fmt.Println("read 60000:", n, bytes.Equal(buffer[:n], whole), err)

	free, err := net.ListenUDP("udp4", nil)
	check(err)
	free.WriteToUDP([]byte("from whom"), to)
	n, from, err := free.ReadFromUDP(buffer)
	fmt.Printf("readfrom %q %v %v\n", buffer[:n], from, err)
	free.WriteMsgUDP([]byte("message"), nil, to)
	control := make([]byte, 100)
	n, controls, flags, from, err := free.ReadMsgUDP(buffer[:4], control)
	fmt.Printf("readmsg %q %d %#x %v %v\n", buffer[:n], controls, flags, from, err)
	check(free.SetReadDeadline(time.Now().Add(30 * time.Millisecond)))
	_, _, err = free.ReadFromUDP(buffer)
	fmt.Println("nothing:", errors.Is(err, os.ErrDeadlineExceeded))
	check(free.SetReadDeadline(time.Now().Add(30 * time.Second)))
	free.WriteToUDP([]byte("afterwards"), to)
	n, _, err = free.ReadFromUDP(buffer)
	fmt.Printf("readfrom %q %v\n", buffer[:n], err)
	go free.Close()
	_, _, err = free.ReadFromUDP(buffer)
	fmt.Println("closed:", errors.Is(err, net.ErrClosed))

	dual, err := net.ListenUDP("udp", nil)
	check(err)
	dual.WriteToUDP([]byte("dual stack"), to)
	n, from, err = dual.ReadFromUDP(buffer)
	fmt.Printf("readfrom %q %v %v\n", buffer[:n], from, err)

	// A hundred requests at once.
	var all sync.WaitGroup
	answers := make([]string, 100)
	for i := range answers {
		all.Add(1)
		go func() {
			defer all.Done()
			one, err := net.DialUDP("udp", nil, to)
			check(err)
			defer one.Close()
			one.Write([]byte(fmt.Sprintf("asker %02d", i)))
			own := make([]byte, 100)
			n, err := one.Read(own)
			check(err)
			answers[i] = string(own[:n])
		}()
	}
	all.Wait()
	good := 0
	for i, answer := range answers {
		if answer == fmt.Sprintf("asker %02d", i) {
			good++
		}
	}
	fmt.Println("answered:", good)

	// Blocking calls.
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	check(err)
	there := &syscall.SockaddrInet4{Port: 9053, Addr: [4]byte{127, 0, 0, 1}}
	check(syscall.Sendto(fd, []byte("peeked"), 0, there))
	n, name, err := syscall.Recvfrom(fd, buffer[:4], syscall.MSG_PEEK)
	fmt.Printf("peek %q %v %v\n", buffer[:n], name.(*syscall.SockaddrInet4).Port, err)
	n, name, err = syscall.Recvfrom(fd, buffer, 0)
	fmt.Printf("recvfrom %q %v %v\n", buffer[:n], name.(*syscall.SockaddrInet4).Port, err)
	// Receiving calls that start before the requests are sent.
	var got []string
	var lock sync.Mutex
	for range 3 {
		all.Add(1)
		go func() {
			defer all.Done()
			own := make([]byte, 100)
			n, err := syscall.Read(fd, own)
			check(err)
			lock.Lock()
			got = append(got, string(own[:n]))
			lock.Unlock()
		}()
	}
	time.Sleep(50 * time.Millisecond)
	for _, text := range []string{"first", "second", "third"} {
		check(syscall.Sendto(fd, []byte(text), 0, there))
	}
	all.Wait()
	sort.Strings(got)
	fmt.Println("threads", got)
	check(syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Usec: 20000}))
	_, _, err = syscall.Recvfrom(fd, buffer, 0)
	fmt.Println("late:", err)
}
"#;

fn go(bed: &Bed) -> anyhow::Result<()> {
    let program = truepeer_testbed::go::build(bed, "asker", GO)?;
    is_served_as_without_us(bed, &program, 16)
}

/// The start of the programs in C.
const BEGINNING: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[65536];
static struct sockaddr_in to(int port) {
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return there;
}
static int connected(int port) {
    struct sockaddr_in there = to(port);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (connect(fd, (void *)&there, sizeof there) != 0) abort();
    return fd;
}
static void ask(int fd, const char *text) {
    if (send(fd, text, strlen(text), 0) != (ssize_t)strlen(text)) abort();
}
static void say(const char *what, ssize_t got) {
    if (got < 0) printf("%s: %s\n", what, strerror(errno));
    else printf("%s: %zd %.*s\n", what, got, (int)(got < 100 ? got : 100), buffer);
    fflush(stdout);
    memset(buffer, 0, 200);
}
static void wait_at_most(int fd, int seconds, int milliseconds) {
    struct timeval time = {seconds, milliseconds * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}
"#;

fn c_program(bed: &Bed, main: &str, lines: usize) -> anyhow::Result<()> {
    let (file, program) = (bed.write("asker.c", format!("{BEGINNING}{main}"))?, bed.dir().join("asker"));
    let options = ["-static", "-O1", "-pthread", "-o"];
    Program::new("gcc").args(options).arg(&program).arg(file).run(bed)?;
    is_served_as_without_us(bed, &program, lines)
}

fn a_static_c_program_gets_its_answers_bare(bed: &Bed) -> anyhow::Result<()> {
    let main = r#"
int main(void) {
    int fd = connected(9053), one = 1;
    ask(fd, "recv"); say("recv", recv(fd, buffer, 100, 0));
    ask(fd, "short"); say("recv", recv(fd, buffer, 2, 0));
    ask(fd, "whole length"); say("recv", recv(fd, buffer, 2, MSG_TRUNC));
    ask(fd, "peek"); say("peek", recv(fd, buffer, 100, MSG_PEEK)); say("peeked", recv(fd, buffer, 100, 0));
    ask(fd, "read"); say("nothing", read(fd, buffer, 0)); say("read", read(fd, buffer, 100));
    ask(fd, "nowhere"); say("nowhere", recv(fd, NULL, 0, 0)); say("gone", recv(fd, buffer, 100, MSG_DONTWAIT));
    struct iovec parts[3] = {{buffer, 3}, {NULL, 0}, {buffer + 3, 97}};
    ask(fd, "in parts"); say("readv", readv(fd, parts, 3));
    ask(fd, "badly"); poll(&(struct pollfd){fd, POLLIN, 0}, 1, 30000);
    say("wrong pointer", recv(fd, (void *)8, 5, 0)); say("it is gone", recv(fd, buffer, 5, MSG_DONTWAIT));

    char control[200];
    struct sockaddr_in from;
    struct msghdr message = {&from, 4, parts, 1, control, sizeof control, -1};
    setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof one);
    ask(fd, "message"); say("recvmsg", recvmsg(fd, &message, 0));
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    printf("name %u, control %zu, of type %d, flags %#x\n", message.msg_namelen, message.msg_controllen, first->cmsg_type, message.msg_flags);
    message.msg_controllen = 8; message.msg_name = NULL;
    ask(fd, "little room"); say("recvmsg", recvmsg(fd, &message, 0));
    printf("name %u, control %zu, flags %#x\n", message.msg_namelen, message.msg_controllen, message.msg_flags);
    say("wrong message", recvmsg(fd, (void *)8, 0));

    struct mmsghdr several[3];
    char rooms[3][10] = {"", "", ""};
    struct iovec room[3];
    for (int i = 0; i < 3; i++) {
        room[i] = (struct iovec){rooms[i], 9};
        several[i] = (struct mmsghdr){{NULL, 0, &room[i], 1, NULL, 0, 0}, 77};
    }
    ask(fd, "one"); ask(fd, "two");
    say("recvmmsg", recvmmsg(fd, several, 2, 0, NULL));
    printf("%s %u, %s %u\n", rooms[0], several[0].msg_len, rooms[1], several[1].msg_len);
    ask(fd, "alone"); say("recvmmsg", recvmmsg(fd, several, 3, MSG_WAITFORONE, NULL));
    struct timespec none = {0, 0}, wrong = {0, 2000000000};
    ask(fd, "in time"); say("recvmmsg", recvmmsg(fd, several, 3, 0, &none));
    printf("%s, left %ld %ld\n", rooms[0], none.tv_sec, none.tv_nsec);
    say("recvmmsg", recvmmsg(fd, several, 3, 0, &wrong));
    wait_at_most(fd, 0, 30);
    ask(fd, "only one"); say("recvmmsg", recvmmsg(fd, several, 3, 0, NULL));
    say("recvmmsg", recvmmsg(fd, several, 3, 0, NULL));

    int unconnected = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in there = to(9053);
    socklen_t length = 5;
    sendto(unconnected, "whom", 4, 0, (void *)&there, sizeof there);
    memset(&from, 0, sizeof from);
    say("recvfrom", recvfrom(unconnected, buffer, 100, 0, (void *)&from, &length));
    printf("length %u, family %d\n", length, from.sin_family);
    sendto(unconnected, "whom", 4, 0, (void *)&there, sizeof there);
    say("recvfrom", recvfrom(unconnected, buffer, 100, 0, (void *)&from, &length));
    printf("length %u, port %d\n", length, ntohs(from.sin_port));
    length = -1;
    sendto(unconnected, "whom", 4, 0, (void *)&there, sizeof there);
    say("wrong length", recvfrom(unconnected, buffer, 100, 0, (void *)&from, &length));

    int nobody = connected(9);
    setsockopt(nobody, IPPROTO_IP, IP_RECVERR, &one, sizeof one);
    say("no errors yet", recv(nobody, buffer, 100, MSG_ERRQUEUE));
    ask(nobody, "to nobody"); say("nobody", recv(nobody, buffer, 100, 0));
    message.msg_name = &from; message.msg_namelen = sizeof from; message.msg_controllen = sizeof control;
    say("error queue", recvmsg(nobody, &message, MSG_ERRQUEUE));
    printf("port %d, flags %#x\n", ntohs(from.sin_port), message.msg_flags);
    say("no descriptor", recv(-1, buffer, 100, 0));
}
"#;
    c_program(bed, main, 35)
}

/// Signals, cancellation, death, time-outs, and the end of the socket. The pauses only let a call start to
/// wait; without them the result would be the same.
fn calls_that_wait_for_an_answer_end_as_without_truepeer(bed: &Bed) -> anyhow::Result<()> {
    let main = r#"
static int fd, asks;
static void on_signal(int number) {
    int before = errno;
    if (asks-- == 1) ask(fd, "asked by a handler");
    errno = before;
}
/// Repeatedly, because a signal that comes too early is lost.
static void signals(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 20000}, {0, 20000}};
    setitimer(ITIMER_REAL, &often, NULL);
}
static void no_signals(void) {
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
}
static void *waits(void *text) {
    char own[100];
    ssize_t got = recv(fd, own, 99, 0);
    if (got < 0) return NULL;
    own[got] = 0;
    return strdup(own);
}
static void *shuts(void *none) { shutdown(fd, SHUT_RD); return none; }
static int compare(const void *a, const void *b) { return strcmp(*(char **)a, *(char **)b); }

int main(void) {
    fd = connected(9053);
    asks = 0; signals(0); say("a signal", recv(fd, buffer, 100, 0)); no_signals();
    asks = 3; signals(SA_RESTART); say("begun again", recv(fd, buffer, 100, 0)); no_signals();
    wait_at_most(fd, 30, 0);
    asks = 0; signals(SA_RESTART); say("a signal and a limit", recv(fd, buffer, 100, 0)); no_signals();
    wait_at_most(fd, 0, 30);
    say("a limit", recv(fd, buffer, 100, 0));
    wait_at_most(fd, 0, 0);

    struct mmsghdr several[3];
    struct iovec room = {buffer, 100};
    for (int i = 0; i < 3; i++) several[i] = (struct mmsghdr){{NULL, 0, &room, 1, NULL, 0, 0}, 0};
    // A separate socket: the kernel stores the signal as its error.
    int other = connected(9053);
    ask(other, "one of three");
    poll(&(struct pollfd){other, POLLIN, 0}, 1, 30000);
    asks = 0; signals(0); ssize_t got = recvmmsg(other, several, 3, 0, NULL); no_signals();
    printf("recvmmsg and a signal: %zd\n", got);

    pthread_t threads[4];
    void *results[4];
    pthread_create(&threads[0], NULL, waits, NULL);
    usleep(20000);
    pthread_cancel(threads[0]);
    pthread_join(threads[0], &results[0]);
    printf("cancelled: %d\n", results[0] == PTHREAD_CANCELED);

    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, waits, NULL);
    usleep(20000);
    ask(fd, "a"); ask(fd, "b"); ask(fd, "c"); ask(fd, "d");
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &results[i]);
    qsort(results, 4, sizeof results[0], compare);
    printf("four wait: %s %s %s %s\n", (char *)results[0], (char *)results[1], (char *)results[2], (char *)results[3]);

    pid_t child = fork();
    if (child == 0) { recv(fd, buffer, 100, 0); _exit(1); }
    usleep(20000);
    kill(child, SIGKILL);
    int status;
    waitpid(child, &status, 0);
    printf("killed: %d\n", WTERMSIG(status));
    ask(fd, "after a death"); say("after a death", recv(fd, buffer, 100, 0));

    child = fork();
    if (child == 0) { say("stopped and continued", recv(fd, buffer, 100, 0)); _exit(0); }
    usleep(20000);
    kill(child, SIGSTOP); waitpid(child, &status, WUNTRACED);
    printf("stopped: %d\n", WIFSTOPPED(status)); fflush(stdout);
    kill(child, SIGCONT);
    ask(fd, "a stopped child"); waitpid(child, &status, 0);
    printf("ended: %d\n", WEXITSTATUS(status)); fflush(stdout);

    pthread_create(&threads[0], NULL, shuts, NULL);
    say("shut", recv(fd, buffer, 100, 0));
    pthread_join(threads[0], NULL);
    say("shut, not waiting", recv(fd, buffer, 100, MSG_DONTWAIT));
}
"#;
    c_program(bed, main, 14)
}

/// poll(), select() and edge-triggered epoll; without waiting in between, and with an unread error queue.
fn poll_and_epoll_report_sockets_correctly(bed: &Bed) -> anyhow::Result<()> {
    let main = r#"
int main(void) {
    int fd = connected(9053), one = 1;
    struct pollfd polled = {fd, POLLIN, 0};
    setbuf(stdout, NULL);
    printf("at first: %d\n", poll(&polled, 1, 0));
    ask(fd, "polled"); printf("poll: %d\n", poll(&polled, 1, 30000)); say("polled", recv(fd, buffer, 100, 0));
    printf("afterwards: %d\n", poll(&polled, 1, 0));
    fd_set set; FD_ZERO(&set); FD_SET(fd, &set);
    ask(fd, "selected"); printf("select: %d\n", select(fd + 1, &set, NULL, NULL, NULL)); say("selected", recv(fd, buffer, 100, 0));

    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int edges = connected(9053);
    fcntl(edges, F_SETFL, O_NONBLOCK);
    epoll_ctl(epoll, EPOLL_CTL_ADD, edges, &event);
    char text[20], drained[100] = "";
    for (int i = 0; i < 3; i++) { sprintf(text, " %d", i); ask(edges, text); }
    while (strlen(drained) < 6) {
        epoll_wait(epoll, &event, 1, 30000);
        while (recv(edges, buffer, 100, 0) > 0) { strcat(drained, buffer); memset(buffer, 0, 100); }
    }
    printf("by edges:%s, %s\n", drained, strerror(errno));
    close(edges);
    printf("closed: %d\n", epoll_wait(epoll, &event, 1, 0));

    // Its error is reported, and stays in the queue during the next wait.
    int refused = socket(AF_INET, SOCK_DGRAM, 0);
    setsockopt(refused, IPPROTO_IP, IP_RECVERR, &one, sizeof one);
    struct sockaddr_in nobody = to(9), there = to(9053);
    sendto(refused, "x", 1, 0, (void *)&nobody, sizeof nobody);
    say("an error", recv(refused, buffer, 100, 0));
    pid_t child = fork();
    if (child == 0) { say("beside an error", recv(refused, buffer, 100, 0)); _exit(0); }
    usleep(50000);
    sendto(refused, "the answer", 10, 0, (void *)&there, sizeof there);
    waitpid(child, NULL, 0);
    say("the queue", recv(refused, buffer, 100, MSG_ERRQUEUE));
}
"#;
    c_program(bed, main, 11)
}
