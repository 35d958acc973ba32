//! A process that a fault ends says which thread it was. Each test starts this program again, with a word
//! that makes it fault.
#![allow(clippy::unwrap_used, reason = "a test's helpers fail like the test")]

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};
use std::thread;

use truepeer_sys::process::tell_of_faults;

const WORD: &str = "TRUEPEER_TEST_FAULT";

/// Runs the test `name` of this program in a process of its own, which ends by `fault`.
fn end_by(fault: &str, name: &str) -> Output {
    let itself = env::current_exe().unwrap();
    Command::new(itself).args(["--exact", name, "--nocapture"]).env(WORD, fault).output().unwrap()
}

fn is_the_process_that_ends() -> bool {
    env::var_os(WORD).is_some()
}

fn in_a_worker(work: fn()) {
    tell_of_faults().unwrap();
    thread::Builder::new().name("worker-7".to_owned()).spawn(work).unwrap().join().unwrap();
}

#[test]
fn a_fault_names_its_thread_and_its_address() {
    if is_the_process_that_ends() {
        // SAFETY: none: nothing is ever mapped there, and the fault is what is wanted.
        in_a_worker(|| unsafe { std::ptr::without_provenance_mut::<u8>(0x47).write_volatile(0) });
    }
    let ended = end_by("store", "a_fault_names_its_thread_and_its_address");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        said.contains(
            "error: thread worker-7 was ended by SIGSEGV (address 0x47), and this process with it\n"
        ),
        "{said}"
    );
    assert_eq!(ended.status.signal(), Some(libc::SIGSEGV), "{said}");
}

#[test]
fn an_abort_names_its_thread() {
    if is_the_process_that_ends() {
        in_a_worker(|| std::process::abort());
    }
    let ended = end_by("abort", "an_abort_names_its_thread");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(
        said.contains("error: thread worker-7 was ended by SIGABRT, and this process with it\n"),
        "{said}"
    );
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{said}");
}
