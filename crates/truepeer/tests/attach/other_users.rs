//! A BPF file system that everybody may write to, and a user who does.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Program, Test, User, tests};

use crate::kit::command;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_place_that_another_user_made_is_refused_by_name,
        another_user_can_neither_move_pins_nor_hold_their_locks,
    ];
    all.into_iter().map(|test| test.of_group("other_users")).collect()
}

const ATTACH: [&str; 4] = ["--port", "80", "--allow", "any"];

fn a_place_that_another_user_made_is_refused_by_name(bed: &Bed) -> Result<()> {
    command(bed, &[])?; // mounts the file system
    let shared = bed.dir().join("bpf");
    let by_tester = |line: &str| {
        let line = format!("cd {} && {line}", shared.display());
        Program::new("sh").args(["-c", &line]).as_user(User::TESTER).run(bed)
    };
    let is_refused = |why: &str| -> Result<()> {
        for args in [&ATTACH[..], &["status"], &["detach"], &["sweep"], &["status", "--all"]] {
            let ended = command(bed, args)?.start(bed)?;
            ensure!(
                !ended.wait_end()?.success() && ended.stderr().contains(why),
                "{args:?}: {}",
                ended.log()
            );
        }
        Ok(())
    };
    for (line, why) in [
        ("mkdir truepeer", "bpf/truepeer belongs to user 61000"),
        (
            "chmod 777 truepeer && mkdir truepeer/123 && ln -s 123 truepeer/124",
            "bpf/truepeer belongs to user 61000",
        ),
        ("rm -r truepeer; mkdir theirs && ln -s theirs truepeer", "bpf/truepeer is no directory"),
        ("rm truepeer; ln -s /nowhere truepeer", "bpf/truepeer is no directory"),
        ("rm truepeer; ln -s truepeer truepeer", "bpf/truepeer is no directory"),
        ("rm truepeer; ln -s /tmp truepeer", "bpf/truepeer is no directory"),
    ] {
        by_tester(line)?;
        is_refused(why)?;
    }
    // A link elsewhere, and a path that is not absolute.
    by_tester("rm truepeer; mkdir theirs/pins")?;
    std::os::unix::fs::symlink(shared.join("theirs/pins"), bed.dir().join("link"))?;
    for (pins, at) in [(bed.dir().join("link"), bed.dir()), ("theirs/pins".into(), shared.as_path())] {
        let ended = Program::new(env!("CARGO_BIN_EXE_truepeer"))
            .args(["attach", "--port", "80", "--allow", "any", "--pins"])
            .arg(&pins)
            .launched_by("env", &["-C", &at.display().to_string()])
            .start(bed)?;
        ensure!(
            !ended.wait_end()?.success() && ended.stderr().contains("belongs to user 61000"),
            "{}: {}",
            pins.display(),
            ended.log()
        );
    }
    by_tester("rmdir theirs/pins")?;
    fs::set_permissions(&shared, Permissions::from_mode(0o777))?;
    is_refused("bpf may be written by others (mode 777)")?;
    fs::set_permissions(&shared, Permissions::from_mode(0o1777))?;
    command(bed, &ATTACH)?.run(bed)?;
    command(bed, &["detach"])?.run(bed)?;
    Ok(())
}

/// One that every user may start.
const PYTHON: &str = "/usr/bin/python3";

/// Holds what it can open.
const HOLD: &str = r"
import fcntl, os, sys, time
held = []
for path, _, _ in os.walk(sys.argv[1]):
    try:
        directory = os.open(path, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(path)
    except OSError:
        pass
try:
    os.rename(sys.argv[1] + '/truepeer', sys.argv[1] + '/mine')
    held.append('moved')
except OSError:
    pass
print('holds', held, flush=True)
time.sleep(1000)
";

fn another_user_can_neither_move_pins_nor_hold_their_locks(bed: &Bed) -> Result<()> {
    command(bed, &ATTACH)?.run(bed)?;
    let shared = bed.dir().join("bpf").display().to_string();
    let holding = Program::new(PYTHON).args(["-c", HOLD, &shared]).as_user(User::TESTER).start(bed)?;
    holding.wait_for_log(&format!("holds ['{shared}']\n"))?;
    command(bed, &[&["add", "--port", "81"], &ATTACH[2..]].concat())?.run(bed)?;
    let follow = command(bed, &["status", "--follow"])?.start(bed)?;
    let status = command(bed, &["status"])?.run(bed)?;
    ensure!(status.contains("port 80/tcp: attached") && status.contains("port 81/tcp: attached"), "{status}");
    drop(follow);
    command(bed, &["detach"])?.run(bed)?;
    let status = command(bed, &["status"])?.run(bed)?;
    ensure!(status.contains("not attached"), "{status}");
    Ok(())
}
