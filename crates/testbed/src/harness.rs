//! The harness: runs each test in its own namespaces, with a time limit. Tests can be skipped.

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock, mpsc};
use std::thread;
use std::time::Duration;
use std::{env, fs, io};

use anyhow::Context;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, getrlimit};
use truepeer_sys::netns::{NetNs, enter_new_mount_namespace};

use crate::bed::Bed;
use crate::enter::{Entry, enter};
use crate::skip::Skip;
use crate::userns::{SEVERAL, Users};
use crate::{backend, crowd, kernel, topology, whereabouts};

/// The default time limit. Only a test that hangs reaches it, however busy the machine is.
const TIME_LIMIT: Duration = Duration::from_secs(600);
/// The exit status of a program that can't run here; neither success nor failure (automake's convention).
const CANT_TELL: u8 = 77;
/// The environment variable that runs the long tests as well.
const ALL: &str = "TRUEPEER_TEST_ALL";

/// Places in a namespace's table of connections. Half of it is how many may be in TIME_WAIT.
const CONNECTION_TABLE: &str = "65536";

/// Locked by each running test: shared by most, exclusively by those that measure or use the whole machine.
static MACHINE: RwLock<()> = RwLock::new(());
type Body = Box<dyn FnOnce(&Bed) -> anyhow::Result<()> + Send>;

/// A named test and its requirements on the machine.
pub struct Test {
    name: String,
    body: Body,
    needs: Vec<Need>,
    limit: Duration,
    alone: bool,
    long: bool,
}

enum Need {
    Program(String),
    SeveralUsers,
    OpenFiles(u64),
}

/// The capabilities of the bed on this machine.
#[derive(Clone)]
enum Ground {
    Namespaces(Users),
    Nothing(String),
}

impl Test {
    /// A test, named by the behaviour that it shows.
    pub fn new(
        name: impl Into<String>,
        body: impl FnOnce(&Bed) -> anyhow::Result<()> + Send + 'static,
    ) -> Test {
        let name = name.into();
        Test { name, body: Box::new(body), needs: Vec::new(), limit: TIME_LIMIT, alone: false, long: false }
    }

    /// Skips it if this program is neither unpacked nor installed.
    pub fn needs_program(mut self, name: &str) -> Test {
        self.needs.push(Need::Program(name.to_owned()));
        self
    }

    /// Skips it if only root exists (a plain caller without newuidmap or a line in `/etc/subuid`).
    pub fn needs_several_users(mut self) -> Test {
        self.needs.push(Need::SeveralUsers);
        self
    }

    /// Skips it if a process can't open this many files (the hard limit).
    pub fn needs_open_files(mut self, count: u64) -> Test {
        self.needs.push(Need::OpenFiles(count));
        self
    }

    /// Fails it after this time, if that is longer than the usual ten minutes.
    pub fn time_limit(self, limit: Duration) -> Test {
        let limit = self.limit.max(limit);
        self.give_up_after(limit)
    }

    /// Fails it after this time. For tests of the limit itself.
    pub fn give_up_after(mut self, limit: Duration) -> Test {
        self.limit = limit;
        self
    }

    /// Runs it while no other test of this binary runs: it measures, or uses up what others need.
    pub fn alone(mut self) -> Test {
        self.alone = true;
        self
    }

    /// Only `make test-all` runs it.
    pub fn long(mut self) -> Test {
        self.long = true;
        self
    }

    /// Puts it into a group: `group::its_name`.
    pub fn of_group(mut self, group: &str) -> Test {
        self.name = format!("{group}::{}", self.name);
        self
    }

    /// Does something before the body, and something after it has passed.
    pub fn between(
        mut self,
        before: impl FnOnce(&Bed) -> anyhow::Result<()> + Send + 'static,
        after: impl FnOnce(&Bed) -> anyhow::Result<()> + Send + 'static,
    ) -> Test {
        let body = self.body;
        self.body = Box::new(move |bed| {
            before(bed)?;
            body(bed)?;
            after(bed)
        });
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn into_trial(self, ground: Ground, all: bool) -> Trial {
        Trial::ignorable_test(self.name.clone(), move || match self.missing(&ground, all) {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => self.run(),
        })
    }

    fn missing(&self, ground: &Ground, all: bool) -> Option<String> {
        let users = match ground {
            Ground::Nothing(reason) => return Some(reason.clone()),
            Ground::Namespaces(users) => *users,
        };
        if self.long && !all {
            return Some("long: make test-all runs it".into());
        }
        self.needs.iter().find_map(|need| need.missing(users))
    }

    fn run(self) -> Result<Completion, Failed> {
        let _machine = if self.alone {
            (None, Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner)))
        } else {
            (Some(MACHINE.read().unwrap_or_else(PoisonError::into_inner)), None)
        };
        let bed = Arc::new(Bed::make(&self.name).map_err(|error| format!("{error:#}"))?);
        let dropped = || kernel::dropped_packets().unwrap_or_default();
        let (before, outcome) = (dropped(), run_within(self.limit, &self.name, &bed, self.body));
        let verdict = match outcome {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(skip) => Ok(Completion::ignored_with(&skip.reason)),
                None => {
                    let dropped = dropped().saturating_sub(before);
                    let packets = format!("this machine dropped {dropped} packets meanwhile");
                    Err(format!("{error:#}\n{packets}\n{}", bed.tails()).into())
                }
            },
        };
        bed.remove();
        verdict
    }
}

impl Need {
    fn missing(&self, users: Users) -> Option<String> {
        match self {
            Need::Program(name) => whereabouts::find_program(name)
                .is_none()
                .then(|| format!("{name} is neither unpacked (make servers) nor installed")),
            Need::SeveralUsers => (users == Users::RootOnly).then(|| SEVERAL.into()),
            Need::OpenFiles(count) => {
                let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
                (limit < *count).then(|| format!("needs {count} open files, the hard limit is {limit}"))
            }
        }
    }
}

/// Runs the body on its own thread in the test's namespaces. A thread that exceeds its time can't be killed
/// and is abandoned; its programs are killed.
fn run_within(limit: Duration, name: &str, bed: &Arc<Bed>, body: Body) -> anyhow::Result<()> {
    let (report, outcome) = mpsc::channel();
    let for_thread = Arc::clone(bed);
    let in_namespaces = move || {
        let result = catch_unwind(AssertUnwindSafe(|| {
            isolate()?;
            body(&for_thread)
        }));
        // After the time limit nothing receives.
        let _ = report.send(result);
    };
    thread::Builder::new().name(name.to_owned()).spawn(in_namespaces).context("a thread for the test")?;
    match outcome.recv_timeout(limit) {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(anyhow::anyhow!("panicked: {}", panic_text(panic.as_ref()))),
        Err(_) => {
            bed.kill_programs();
            Err(anyhow::anyhow!("timed out after {limit:?}"))
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Moves the calling thread into new network and mount namespaces, with `lo` up.
pub(crate) fn isolate() -> anyhow::Result<()> {
    enter_new_mount_namespace()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("private mounts")?;
    // As under systemd. Where a plain user tests, nothing can be pinned.
    let _ = mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), c"mode=700");
    NetNs::create_and_enter()?;
    small_tables_within()?;
    topology::ip_here(&["link set lo up"])
}

/// Gives each network namespace that is made in the calling thread's a table of connections of its own. In
/// the machine's, which has hundreds of thousands of places, each look for a listener takes milliseconds.
pub(crate) fn small_tables_within() -> anyhow::Result<()> {
    match fs::write("/proc/sys/net/ipv4/tcp_child_ehash_entries", CONNECTION_TABLE) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).context("tcp_child_ehash_entries")
        }
        _ => Ok(()), // Linux before 6.1 has one table for all
    }
}

/// The `main` of a test binary. It accepts libtest's arguments (filters, `--list`, `--test-threads`).
pub fn main(tests: Vec<Test>) -> ExitCode {
    if let Some(code) = backend::run_if_asked().or_else(crowd::run_if_asked) {
        return code;
    }
    let mut arguments = Arguments::from_args();
    // They mostly wait: for time-outs, repeated segments, other programs.
    let twice = || 2 * thread::available_parallelism().map_or(1, NonZero::get);
    arguments.test_threads.get_or_insert_with(twice);
    let all = arguments.include_ignored || env::var_os(ALL).is_some_and(|value| value == "1");
    let ground = match if arguments.list { Entry::Impossible(String::new()) } else { enter() } {
        Entry::Done(code) => return code,
        Entry::Inside(users) => Ground::Namespaces(users),
        Entry::Impossible(reason) => Ground::Nothing(reason),
    };
    let trials = tests.into_iter().map(|test| test.into_trial(ground.clone(), all)).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// For programs that are not tests, such as the demo: runs `work` in private namespaces, or prints why none
/// are available. On an error, prints it with the programs' output.
pub fn run_privately(name: &str, work: impl FnOnce(&Bed) -> anyhow::Result<ExitCode>) -> ExitCode {
    if let Some(code) = backend::run_if_asked().or_else(crowd::run_if_asked) {
        return code;
    }
    match enter() {
        Entry::Done(code) => return code,
        Entry::Impossible(reason) => {
            eprintln!("SKIP {name}: {reason}");
            return ExitCode::from(CANT_TELL);
        }
        Entry::Inside(_) => {}
    }
    let bed = match isolate().and_then(|()| Bed::make(name)) {
        Ok(bed) => bed,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    work(&bed).unwrap_or_else(|error| {
        eprintln!("{name}: {error:#}\n{}", bed.tails());
        ExitCode::FAILURE
    })
}

/// `tests![f, module::g]`: a [`Test`] for each function, with the function's name.
#[macro_export]
macro_rules! tests {
    ($($function:path),* $(,)?) => {
        ::std::vec![$($crate::Test::new(::std::stringify!($function).replace(' ', ""), $function)),*]
    };
}
