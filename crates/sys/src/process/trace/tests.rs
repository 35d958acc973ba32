use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// Ends with its test.
struct Cat(Child);

impl Drop for Cat {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cat {
    fn start() -> Self {
        let piped = || Stdio::piped();
        Self(Command::new("cat").stdin(piped()).stdout(piped()).spawn().expect("cat"))
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().expect("a small number")
    }

    /// Waits until it waits for its standard input.
    fn reads(&self) -> PendingCall {
        let began = Instant::now();
        loop {
            let call = PendingCall::of(self.pid(), self.pid()).expect("its call");
            match call.filter(|call| (call.number, call.args[0]) == (libc::SYS_read, 0)) {
                Some(call) => return call,
                None => assert!(began.elapsed() < LIMIT, "it does not read"),
            }
        }
    }

    fn says(&mut self, words: &[u8]) {
        self.0.stdin.as_mut().expect("its input").write_all(words).expect("it reads");
        let mut answer = vec![0; words.len()];
        self.0.stdout.as_mut().expect("its output").read_exact(&mut answer).expect("it answers");
        assert_eq!(answer, words);
    }
}

#[test]
fn a_call_ends_as_the_tracer_says() {
    let mut cat = Cat::start();
    let (thread, call) = (cat.pid(), cat.reads());
    let ended = trace_apart(|tracer| tracer.stop(thread, LIMIT)?.end(&call, 0)).expect("a thread");
    assert_eq!(ended, Ok(true));
    assert!(cat.0.wait().expect("its end").success(), "it has read the end of its input");
}

#[test]
fn a_call_that_is_left_alone_begins_again() {
    let mut cat = Cat::start();
    for _ in 0..20 {
        let (thread, call) = (cat.pid(), cat.reads());
        let other = PendingCall { number: libc::SYS_write, ..call };
        trace_apart(|tracer| {
            let stopped = tracer.stop(thread, LIMIT).expect("it stops");
            assert_eq!(stopped.is_within(&call), Ok(true));
            assert_eq!(stopped.end(&other, 0), Ok(false), "another call");
            assert_eq!(stopped.restore_signal_mask(), Ok(()));
            assert_eq!(tracer.stop(thread, LIMIT).err(), Some(Errno::PERM), "it is traced");
        })
        .expect("a thread");
        cat.says(b"still here");
    }
}

#[test]
fn a_thread_is_let_go_when_its_tracer_ends_or_fails() {
    let mut cat = Cat::start();
    let thread = cat.pid();
    cat.reads();
    trace_apart(|tracer| std::mem::forget(tracer.stop(thread, LIMIT))).expect("a thread");
    cat.says(b"forgotten");
    cat.reads();
    let panicked = trace_apart(|tracer| {
        let _stopped = tracer.stop(thread, LIMIT);
        panic!("on purpose");
    });
    assert!(panicked.is_err());
    cat.says(b"let go");
}

#[test]
fn a_signal_that_comes_while_it_is_stopped_is_kept() {
    let mut cat = Cat::start();
    let (thread, call) = (cat.pid(), cat.reads());
    let pid = Pid::from_raw(thread).expect("a process");
    trace_apart(|tracer| {
        let stopped = tracer.stop(thread, LIMIT).expect("it stops");
        kill_process(pid, Signal::TERM).expect("a signal");
        assert_eq!(stopped.is_within(&call), Ok(true));
    })
    .expect("a thread");
    let status = cat.0.wait().expect("its end");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut cat = Cat::start();
    let (thread, call) = (cat.pid(), cat.reads());
    let pid = Pid::from_raw(thread).expect("a process");
    kill_process(pid, Signal::STOP).expect("a signal");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).expect("it is there");
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    let began = Instant::now();
    while state() != Some('T') {
        assert!(began.elapsed() < LIMIT, "it does not stop");
    }
    let ended = trace_apart(|tracer| tracer.stop(thread, LIMIT)?.end(&call, 0)).expect("a thread");
    assert_eq!(ended, Ok(false), "it was not interrupted");
    let began = Instant::now();
    while state() != Some('T') {
        assert!(began.elapsed() < LIMIT, "it does not stop again");
    }
    kill_process(pid, Signal::CONT).expect("a signal");
    cat.says(b"continued");
}

#[test]
fn a_thread_that_has_ended_is_not_traced() {
    let mut cat = Cat::start();
    let thread = cat.pid();
    cat.0.kill().expect("a signal");
    cat.0.wait().expect("its end");
    assert_eq!(trace_apart(|tracer| tracer.stop(thread, LIMIT).err()).expect("a thread"), Some(Errno::SRCH));
    assert!(PendingCall::of(thread, thread).is_err());
}

#[test]
fn tracing_is_permitted_here() {
    assert_eq!(may_trace(), Ok(()));
    let forbidden = trace_apart(|_| {
        let filter = crate::seccomp::Filter::default()
            .rule(libc::SYS_ptrace, crate::seccomp::SeccompAction::Fail(Errno::PERM));
        filter.apply().expect("a filter");
        may_trace()
    });
    assert_eq!(forbidden.expect("a thread"), Err(Untraceable::Refused(Errno::PERM)));
}

#[test]
fn calls_are_read_as_the_kernel_writes_them() {
    let text = "7 0x7fa1 0x1 0xffffffff 0x1 0x0 0x0 0x7ffe 0x7fa2\n";
    let call = PendingCall {
        number: 7,
        args: [0x7fa1, 1, 0xffff_ffff, 1, 0, 0],
        stack: 0x7ffe,
        instruction: 0x7fa2,
    };
    assert_eq!(PendingCall::parse(text), Some(call));
    for other in ["running\n", "-1 0x7ffe 0x7fa2\n", "", "7 0x1 0x2\n"] {
        assert_eq!(PendingCall::parse(other), None, "{other:?}");
    }
}
