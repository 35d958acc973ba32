//! Under the filters of a service manager or a container: the library serves the program alone, or the start
//! is refused, and the line to add is named.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Test, User, tests};

use crate::library::{LISTENER, SERVER, ask_late};
use crate::{PYTHON, truepeer};

const LINE: &str = "SystemCallFilter=seccomp pidfd_getfd process_vm_readv process_vm_writev ptrace";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_filter_on_the_supervisors_calls_leaves_the_library,
        a_ring_is_refused_under_a_filter_on_the_supervisors_calls,
        a_filter_on_the_supervisors_calls_refuses_a_supervised_start,
        a_second_supervisor_is_refused_by_its_reason,
        no_directory_for_the_library_names_the_line_of_the_unit,
    ];
    all.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()).collect()
}

/// Executes its words under a filter that treats one call in a special way (seccomp(2)).
const FILTERED: &str = "\
import ctypes, os, platform, struct, sys
numbers = {'seccomp': (317, 277), 'pidfd_getfd': (438, 438), 'process_vm_readv': (310, 270), 'process_vm_writev': (311, 271)}
number = numbers[sys.argv[1]][platform.machine() == 'aarch64']
libc = ctypes.CDLL(None)
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, int(sys.argv[2], 0)), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
class Filter(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(len(steps), ctypes.addressof(code))), 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
";
const KILL_PROCESS: &str = "0x80000000";
const TRAP: &str = "0x00030000";
const FAIL_WITH_EPERM: &str = "0x00050001";
const FAIL_WITH_ENOSYS: &str = "0x00050026";

/// Each of the calls, killed and refused.
const FILTERS: [(&str, &str); 6] = [
    ("seccomp", KILL_PROCESS),
    ("seccomp", FAIL_WITH_EPERM),
    ("pidfd_getfd", KILL_PROCESS),
    ("pidfd_getfd", FAIL_WITH_ENOSYS),
    ("process_vm_readv", TRAP),
    ("process_vm_writev", FAIL_WITH_EPERM),
];

/// Puts the whole command line, truepeer included, under a filter.
fn filtered(bed: &Bed, (call, action): (&str, &str), truepeer: &[&str]) -> anyhow::Result<Program> {
    let filter = bed.write(&bed.fresh_name("filter.py"), FILTERED)?;
    let words = [call, action, env!("CARGO_BIN_EXE_truepeer")];
    Ok(Program::new(PYTHON).arg(filter).args(words).args(truepeer).as_user(User::TESTER))
}

fn a_filter_on_the_supervisors_calls_leaves_the_library(bed: &Bed) -> anyhow::Result<()> {
    let server = bed.write("server.py", SERVER)?.to_string_lossy().into_owned();
    for filter in FILTERS {
        let running = filtered(bed, filter, &["run", "--", PYTHON, &server])?.start(bed)?;
        running.wait_listening(LISTENER)?;
        for _ in 0..3 {
            let said = ask_late()?;
            ensure!(said == "203.0.113.7 5000", "{filter:?}: {said:?}");
        }
        let log = running.log();
        ensure!(log.contains(LINE) && log.contains(&format!("{}(2)", filter.0)), "{filter:?}: {log}");
        running.stop()?;
    }
    Ok(())
}

/// The library alone sees nothing of what is accepted through io_uring.
fn a_ring_is_refused_under_a_filter_on_the_supervisors_calls(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(425, 8, ctypes.create_string_buffer(256)), ctypes.get_errno())
";
    let script = bed.write("ring.py", script)?.to_string_lossy().into_owned();
    for filter in FILTERS {
        let said = filtered(bed, filter, &["run", "--", PYTHON, &script])?.run(bed)?;
        ensure!(said.lines().any(|line| line.trim() == "-1 38"), "{filter:?}: {said:?}");
    }
    Ok(())
}

fn a_filter_on_the_supervisors_calls_refuses_a_supervised_start(bed: &Bed) -> anyhow::Result<()> {
    for filter in FILTERS {
        let words = ["run", "--via", "notify", "--", "/bin/echo", "started"];
        let running = filtered(bed, filter, &words)?.start(bed)?;
        let (ended, log) = (running.wait_end()?, running.log());
        ensure!(ended.code() == Some(1) && log.contains(LINE), "{filter:?}: {ended}: {log}");
        ensure!(!log.contains("started"), "{filter:?}: {log}");
    }
    Ok(())
}

fn a_second_supervisor_is_refused_by_its_reason(bed: &Bed) -> anyhow::Result<()> {
    let outer = ["run", "--via", "notify", "--", env!("CARGO_BIN_EXE_truepeer")];
    let inner = [&outer[..], &["run", "--via", "notify", "--", "/bin/echo", "started"]].concat();
    let running = truepeer(&inner).as_user(User::TESTER).start(bed)?;
    let (ended, log) = (running.wait_end()?, running.log());
    ensure!(ended.code() == Some(1) && log.contains("supervised already"), "{ended}: {log}");
    let inner = [&outer[..], &["run", "--", "/bin/echo", "started"]].concat();
    let running = truepeer(&inner).as_user(User::TESTER).start(bed)?;
    let (ended, log) = (running.wait_end()?, running.log());
    ensure!(ended.success() && log.contains("supervised already"), "{ended}: {log}");
    ensure!(running.stdout() == "started\n", "{}", running.stdout());
    Ok(())
}

/// As in a unit with `NoExecPaths=/`.
fn no_directory_for_the_library_names_the_line_of_the_unit(bed: &Bed) -> anyhow::Result<()> {
    for shared in ["/dev/shm", "/tmp", "/var/tmp"] {
        Program::new("mount").args(["-t", "tmpfs", "-o", "noexec,mode=1777", "none", shared]).run(bed)?;
    }
    let program = truepeer(&["run", "--", "/bin/echo"]).as_user(User::TESTER).env("XDG_RUNTIME_DIR", "");
    let running = program.start(bed)?;
    let (ended, log) = (running.wait_end()?, running.log());
    ensure!(ended.code() == Some(1) && log.contains("add the line ExecPaths=/dev/shm"), "{ended}: {log}");
    Ok(())
}
