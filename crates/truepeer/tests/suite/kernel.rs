//! Faults of the kernel while sessions come and go: its calls fail for want of memory, a control group's
//! memory is used up, the wall clock jumps.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rustix::process::Signal;
use truepeer_testbed::account;
use truepeer_testbed::pattern::Pattern;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, skip};

use crate::faults::{Load, start_backend};
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, header_of, knock};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("calls_that_fail_for_want_of_memory_end_sessions_only", calls_fail).needs_program("strace"),
        Test::new("a_control_groups_memory_for_tcp_that_is_used_up_slows_senders_only", memory_is_used_up)
            .alone(),
        Test::new("a_wall_clock_that_jumps_by_days_changes_nothing", clock_jumps).needs_program("cc"),
    ]
}

/// Calls that fail. `when=2+5` (strace(1)): the second call, and each fifth after it.
const FAILING: [(&str, &str); 9] = [
    ("accept4", "ENOBUFS:when=2+5"),
    ("socket", "ENOBUFS:when=3+5"),
    ("connect", "ENOBUFS:when=4+5"),
    ("epoll_ctl", "ENOMEM:when=9+17"),
    ("pipe2", "ENFILE:when=1+2"),
    ("splice", "ENOMEM:when=3+11"),
    ("recvfrom", "ENOBUFS:when=11+29"),
    ("sendto", "ENOBUFS:when=13+31"),
    ("shutdown", "ENOBUFS:when=5+7"),
];

/// A session whose call fails may end. None may get wrong bytes, and the process goes on.
fn calls_fail(bed: &Bed) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let truepeer = peers::start(bed, &[])?;
    let list = bed.dir().join("calls");
    let have_failed = |call: &str| {
        let list = fs::read_to_string(&list).unwrap_or_default();
        list.lines().any(|line| line.contains(&format!(" {call}(")) && line.contains("(INJECTED)"))
    };
    Load::during(bed, |load| {
        let pid = truepeer.pid().to_string();
        let mut strace = Program::new("strace").args(["-f", "-qq", "-p", &pid, "-o"]).arg(&list);
        for (call, how) in FAILING {
            strace = strace.arg(format!("--inject={call}:error={how}"));
        }
        let calls: Vec<_> = FAILING.iter().map(|(call, _)| *call).collect();
        let strace = strace.arg(format!("--trace={}", calls.join(","))).stop_by(Signal::INT).start(bed)?;
        // All programs make these. Others make only some of the rest.
        let awaited = if peers::peer().is_some() { &calls[..3] } else { &calls[..] };
        let waited = bed.wait_for("each call to fail", || awaited.iter().all(|call| have_failed(call)));
        let missing: Vec<_> = awaited.iter().filter(|call| !have_failed(call)).collect();
        waited.with_context(|| format!("these have not failed: {missing:?}; {}", strace.log()))?;
        load.wait_for_more()?;
        strace.signal(Signal::INT)?;
        strace.wait_end()?;
        Ok(())
    })?;
    ensure!(truepeer.is_alive(), "{}", truepeer.log());
    Ok(())
}

/// The memory for TCP's buffers.
const MOST_TCP_BYTES: usize = 2 << 20;
/// Sessions that want more: their backend doesn't read.
const STUCK: usize = 60;

fn memory_is_used_up(bed: &Bed) -> anyhow::Result<()> {
    let _backend = account::behaviour().start(bed, &[BACKEND_V4])?;
    let _holds = Behaviour::Hold.start(bed, &[BACKEND_V6])?;
    let truepeer = peers::start(bed, &[])?;
    let group = ControlGroup::with("memory.kmem.tcp.limit_in_bytes", MOST_TCP_BYTES)?;
    group.take(&truepeer)?;
    let mut stuck = Vec::new();
    let load = Load::during(bed, |load| {
        for number in 0..STUCK {
            stuck.push(stuck_session(load, number)?);
        }
        bed.wait_for("the limit to be reached", || {
            // The kernel lets no socket be without any, so it may be more than the limit.
            group.read("memory.kmem.tcp.usage_in_bytes").is_ok_and(|used| used >= MOST_TCP_BYTES)
        })?;
        load.wait_for_more()
    })?;
    ensure!(truepeer.is_alive(), "{}", truepeer.log());
    drop(stuck);
    load.none_failed()
}

/// Sends as much as anybody takes.
pub(crate) fn stuck_session(load: &Load, number: usize) -> anyhow::Result<TcpStream> {
    let client = SocketAddr::new("2001:db8::7".parse()?, 5000 + u16::try_from(number)?);
    load.note(client, 0);
    let mut stream = knock()?;
    stream.write_all(&header_of(client)?)?;
    stream.set_nonblocking(true)?;
    let data = Pattern::bytes(1 << 20);
    // It would block at the end.
    while stream.write(&data).is_ok() {}
    Ok(stream)
}

/// A control group of the first hierarchy, which counts TCP's memory apart. It must be empty at its end.
pub(crate) struct ControlGroup(PathBuf);

impl ControlGroup {
    /// With a limit, by its file's name.
    pub(crate) fn with(limit: &str, most: usize) -> anyhow::Result<Self> {
        let memory = Path::new("/sys/fs/cgroup/memory");
        let group = memory.join(format!("truepeer-{}", std::process::id()));
        if !memory.join(limit).exists() || fs::create_dir(&group).is_err() {
            return skip(format!("control groups of version 1 with {limit} can't be made here"));
        }
        let group = Self(group);
        fs::write(group.0.join(limit), most.to_string())?;
        Ok(group)
    }

    pub(crate) fn take(&self, program: &Running) -> anyhow::Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), program.pid().to_string())?)
    }

    /// Bytes.
    pub(crate) fn read(&self, name: &str) -> anyhow::Result<usize> {
        Ok(fs::read_to_string(self.0.join(name))?.trim().parse()?)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let processes = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            let _ = fs::write("/sys/fs/cgroup/memory/cgroup.procs", process);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// The wall clock of a process: a day ahead in every second second, and a day behind in the others.
const CLOCK: &str = "
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
static time_t jump(void) {
  static int told;
  struct timespec steady;
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, \"clock_gettime\");
  real(CLOCK_MONOTONIC, &steady);
  told |= steady.tv_sec % 2 ? 1 : 2;
  if (told == 3) { told = 7; fputs(\"the clock has jumped\\n\", stderr); }
  return steady.tv_sec % 2 ? 86400 : -86400;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, \"clock_gettime\");
  int result = real(clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += jump();
  return result;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, \"gettimeofday\");
  int result = real(now, zone);
  if (result == 0) now->tv_sec += jump();
  return result;
}
";

fn clock_jumps(bed: &Bed) -> anyhow::Result<()> {
    let (source, library) = (bed.write("clock.c", CLOCK)?, bed.dir().join("clock.so"));
    let compiler = Program::new("cc").args(["-shared", "-fPIC", "-O", "-o"]).arg(&library);
    compiler.arg(&source).arg("-ldl").run(bed)?;
    let _backend = start_backend(bed)?;
    let truepeer = peers::start_with(bed, &[], |program| program.env("LD_PRELOAD", &library))?;
    let load = Load::during(bed, |load| {
        truepeer.wait_for_log("the clock has jumped")?;
        (0..3).try_for_each(|_| load.wait_for_more())
    })?;
    ensure!(truepeer.is_alive(), "{}", truepeer.log());
    load.none_failed()
}
