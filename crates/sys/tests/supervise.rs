//! A real program's calls, answered from here. `uname` makes one that writes to memory.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail like the test")]

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;
use truepeer_sys::process::{Reach, SpawnCommand, Supervised, descriptor_of, read_memory, write_memory};
use truepeer_sys::seccomp::{Answer, Filter, Notification, SeccompAction, is_supported};

/// The length of a field of struct utsname.
const FIELD: usize = 65;

fn shell(script: &str, filter: Filter) -> Supervised {
    let words = ["sh", "-c", script].map(OsString::from).to_vec();
    SpawnCommand::new(Path::new("/bin/sh"), words).unwrap().start(filter).unwrap()
}

/// The kernel answers EINVAL before 5.19, and sandboxes may forbid it: nothing can be shown there.
fn can_supervise() -> bool {
    let supported = is_supported();
    if let Err(error) = &supported {
        eprintln!("SKIP: no seccomp supervisor here: {error}");
    }
    supported.is_ok()
}

/// Answers every call until all who could make one have ended, and says whether the shell was content.
fn answer_all(mut supervised: Supervised, mut answer: impl FnMut(&Supervised, Notification)) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        let mut polled = [PollFd::new(&supervised.notifier, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
        if !polled[0].revents().contains(PollFlags::IN) {
            break;
        }
        if let Some(notification) = supervised.notifier.receive().unwrap() {
            answer(&supervised, notification);
        }
    }
    supervised.child.wait().unwrap().success()
}

#[test]
fn a_call_is_answered_through_the_programs_memory() {
    if !can_supervise() {
        return;
    }
    let filter = Filter::default().rule(libc::SYS_uname, SeccompAction::Ask);
    let supervised = shell("test \"$(uname -s) $(uname -s)\" = 'truepeer truepeer'", filter);
    let mut asked = 0;
    let content = answer_all(supervised, |supervised, call| {
        assert_eq!(call.call, libc::SYS_uname);
        let mut name = vec![0_u8; 6 * FIELD];
        name[..8].copy_from_slice(b"truepeer");
        assert!(supervised.notifier.is_waiting(call.id));
        write_memory(call.thread, call.args[0], &name).unwrap();
        let mut back = [0; 8];
        read_memory(call.thread, call.args[0], &mut back).unwrap();
        assert_eq!(&back, b"truepeer");
        assert_eq!(write_memory(call.thread, 8, &name), Err(Errno::FAULT));
        assert_eq!(read_memory(call.thread, 8, &mut back), Err(Errno::FAULT));
        supervised.notifier.send(call.id, Answer::Value(0)).unwrap();
        assert!(!supervised.notifier.is_waiting(call.id));
        asked += 1;
    });
    assert!(content && asked >= 2, "asked {asked} times");
}

#[test]
fn a_call_fails_or_goes_on_as_told() {
    if !can_supervise() {
        return;
    }
    let filter = Filter::default().rule(libc::SYS_uname, SeccompAction::Ask);
    let mut first = true;
    let content =
        answer_all(shell("! uname -s && test \"$(uname -s)\" = Linux", filter), |supervised, call| {
            let answer = if std::mem::take(&mut first) { Answer::Fail(Errno::PERM) } else { Answer::GoOn };
            supervised.notifier.send(call.id, answer).unwrap();
        });
    assert!(content);
}

#[test]
fn a_rule_alone_makes_a_call_fail() {
    if !can_supervise() {
        return;
    }
    let filter = Filter::default().rule(libc::SYS_uname, SeccompAction::Fail(Errno::NOSYS));
    assert!(answer_all(shell("! uname -s", filter), |_, call| panic!("{call:?}")));
}

#[test]
fn a_rule_may_look_at_a_bit_of_an_argument() {
    if !can_supervise() {
        return;
    }
    // Of kill: SIGCONT (18) has that bit, signal 0 hasn't.
    let filter = Filter::default().rule_if_set(libc::SYS_kill, 1, 16, SeccompAction::Fail(Errno::PERM));
    let script = "kill -0 $$ && ! kill -CONT $$";
    assert!(answer_all(shell(script, filter), |_, call| panic!("{call:?}")));
}

#[test]
fn descriptors_go_both_ways() {
    if !can_supervise() {
        return;
    }
    let filter = Filter::default().rule(libc::SYS_uname, SeccompAction::Ask);
    // Without a fork, so that the descriptor that uname gets is uname's own.
    let content = answer_all(shell("exec uname -s", filter), |supervised, call| {
        let theirs = descriptor_of(call.thread, 2).unwrap();
        assert!(supervised.notifier.is_waiting(call.id));
        assert_eq!(descriptor_of(call.thread, 1 << 20).unwrap_err(), Reach::NoDescriptor);
        assert_eq!(descriptor_of(i32::MAX - 1, 0).unwrap_err(), Reach::NoThread);
        let number = supervised.notifier.add_descriptor(call.id, theirs.as_fd(), true).unwrap();
        assert!(number > 2);
        descriptor_of(call.thread, number).unwrap();
        supervised.notifier.send(call.id, Answer::GoOn).unwrap();
    });
    assert!(content);
}

#[test]
fn a_program_that_cannot_be_started_is_an_error() {
    if !can_supervise() {
        return;
    }
    let command = SpawnCommand::new(Path::new("/no/such/program"), vec!["x".into()]).unwrap();
    let error = command.start(Filter::default()).unwrap_err();
    assert_eq!(error.errno, Errno::NOENT);
}
