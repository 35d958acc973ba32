//! The agent on the pods of a real API server (kube-apiserver and etcd), with the real truepeer in the
//! kernel. The test plays kubelet and the container runtime: it makes each pod's cgroup, network namespace
//! and processes.
//!
//! Needs root and the programs of Kubernetes and etcd; without them each test is skipped.

mod agent;
mod bed;
mod cluster;
mod confined;
mod mounts;
mod needs;
mod peers;
mod pods;
mod probes;
mod restarts;
mod rights;
mod sweep;
mod uninstall;
mod wait;

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use bed::Bed;

/// A test: what it is called, and what it does.
type Test = (&'static str, fn(&Bed) -> anyhow::Result<()>);

fn main() -> ExitCode {
    if peers::is_asked_for() {
        return peers::run();
    }
    let mut arguments = Arguments::from_args();
    if let Some(status) = mounts::in_namespace_of_its_own() {
        return status;
    }
    // One machine, one API server.
    arguments.test_threads = Some(1);
    let bed: Arc<Mutex<Option<Result<Bed, String>>>> = Arc::default();
    let tests = pods::TESTS
        .iter()
        .chain(restarts::TESTS)
        .chain(probes::TESTS)
        .chain(rights::TESTS)
        .chain(uninstall::TESTS)
        .chain(sweep::TESTS)
        .chain(needs::TESTS);
    let trials = tests.map(|(name, test)| {
        let bed = bed.clone();
        Trial::ignorable_test(*name, move || run(&bed, *test))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Ends the API server, which the process's end would not.
    drop(bed.lock().unwrap_or_else(PoisonError::into_inner).take());
    conclusion.exit_code()
}

/// The first test starts the API server.
fn run(
    bed: &Mutex<Option<Result<Bed, String>>>,
    test: fn(&Bed) -> anyhow::Result<()>,
) -> Result<Completion, Failed> {
    let mut bed = bed.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lack) = cluster::lack() {
        return Ok(Completion::ignored_with(lack));
    }
    match bed.get_or_insert_with(|| Bed::start().map_err(|error| format!("{error:#}"))) {
        Ok(bed) => match test(bed) {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => Err(Failed::from(format!("{error:#}"))),
        },
        Err(error) => Err(Failed::from(&*error)),
    }
}
