//! What must be impossible after the start is tried from inside the process, and fails.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use rustix::io::Errno;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::stand::{CLIENT_V4, Stand, ask, header_of};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![a_process_can_not_do_what_its_job_does_not_need];
    all.into_iter().map(Test::needs_several_users).collect()
}

const TRIES: &str = include_str!("inside.py");
/// Not by a filter, but by the user, and by Landlock.
const FILES: [&str; 5] = ["read_shadow", "read_init", "append_to_passwd", "create_file", "write_switch"];
/// Not by a filter, but by the missing capability.
const RULES: [&str; 5] = ["rule_add", "rule_delete", "route_add", "tcp_repair", "buffer_force"];

/// The results of all tries, by name: a result, or a negative errno.
fn tried_inside(bed: &Bed, truepeer: &Running, new: &str) -> anyhow::Result<BTreeMap<String, i64>> {
    let tries = Program::new("python3").args(["-c", TRIES, &truepeer.pid().to_string(), new]).start(bed)?;
    ensure!(tries.wait_end()?.success(), "{}", tries.log());
    let result = |line: &str| {
        let (name, result) = line.split_once(' ').with_context(|| format!("{line:?}"))?;
        Ok((name.to_owned(), result.parse()?))
    };
    tries.stdout().lines().map(result).collect()
}

/// Without confinement the same tries have other results: they arrive in the kernel.
fn a_process_can_not_do_what_its_job_does_not_need(bed: &Bed) -> anyhow::Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return truepeer_testbed::skip("makes x86-64's system calls");
    }
    let missing = -i64::from(Errno::NOSYS.raw_os_error());
    let not_permitted = -i64::from(Errno::PERM.raw_os_error());
    let denied = -i64::from(Errno::ACCESS.raw_os_error());
    // Everybody may write there, but for Landlock.
    let new = format!("/tmp/truepeer-inside-{}", std::process::id());
    mount_bpf_in_place()?;
    let splices = &["--splice", "auto"][..];
    let ways = [(&[][..], true), (&["-p", "both"], true), (splices, true), (&["--confine", "off"], false)];
    for (options, is_confined) in ways {
        let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, options)?;
        let tried = tried_inside(bed, &truepeer, &new)?;
        let _ = std::fs::remove_file(&new);
        ensure!(tried.len() > 20 && tried["getppid"] > 0, "{tried:?}");
        for (name, result) in tried.iter().filter(|(name, _)| *name != "getppid") {
            let is_file = FILES.contains(&name.as_str());
            // With --splice, a filter refuses repair as well.
            let is_rule = RULES.contains(&name.as_str()) && !(options == splices && name == "tcp_repair");
            if is_confined {
                let wanted = match (is_file, is_rule) {
                    (true, _) => denied,
                    (_, true) => not_permitted,
                    _ => missing,
                };
                ensure!(*result == wanted, "{name}: {result}, not {wanted}");
            } else if is_file || is_rule {
                ensure!(*result >= 0, "{name}: {result}");
            } else {
                ensure!(*result != missing, "{name}: {result}");
            }
        }
        ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4, "it serves no more: {}", truepeer.log());
        truepeer.stop()?;
    }
    Ok(())
}
