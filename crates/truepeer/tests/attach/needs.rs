//! `attach` by root with exactly the capabilities that it needs, and with each of them taken away.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, NetNs, Program, Running, Test, ip_here, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![attaching_has_exactly_what_it_needs]
}

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const ATTACH: &[&str] = &["--port", "80", "--allow", "any"];
const ELSEWHERE: &[&str] = &["--port", "80", "--allow", "any", "--netns", "/proc/self/ns/net"];

struct Way {
    /// Names of the doctor's needs.
    needs: &'static [&'static str],
    arguments: &'static [&'static str],
    /// Each capability, and what is said without it.
    without: &'static [(&'static str, &'static str)],
}

const WAYS: [Way; 3] = [
    Way {
        needs: &["attach-bpf", "attach-perfmon", "attach-net"],
        arguments: ATTACH,
        without: &[("bpf", "CAP_BPF"), ("perfmon", "CAP_PERFMON"), ("net_admin", "CAP_NET_ADMIN")],
    },
    Way {
        needs: &["attach-bpf", "attach-perfmon", "attach-net", "attach-netns"],
        arguments: ELSEWHERE,
        without: &[("net_admin", "CAP_NET_ADMIN"), ("sys_admin", "Operation not permitted")],
    },
    Way {
        needs: &["attach-bpf", "attach-perfmon", "attach-net", "attach-netns", "attach-process"],
        arguments: CONTAINER,
        without: &[("sys_admin", "Operation not permitted"), ("sys_ptrace", "Permission denied")],
    },
];

/// A process in a network namespace of its own takes the place of PID.
const CONTAINER: &[&str] = &["--port", "80", "--allow", "any", "--pid", "PID"];

fn start(bed: &Bed, arguments: &[&str], capabilities: &[String]) -> Result<Running> {
    let names: Vec<&str> = capabilities.iter().map(String::as_str).collect();
    ByAttach::new(TRUEPEER).command(bed, arguments)?.with_capabilities(&names).start(bed)
}

/// The capabilities that the doctor asks for, as setpriv names them.
fn asked_for(bed: &Bed, needs: &[&str]) -> Result<Vec<String>> {
    let doctor = Program::new(TRUEPEER).args(["doctor", "--json", "--timeout", "1s"]).start(bed)?;
    doctor.wait_end()?;
    let report: Value = serde_json::from_str(&doctor.stdout())?;
    let one = |need: &&str| {
        let table = report["needs"].as_array().context("no needs")?;
        let found = table.iter().find(|one| one["name"] == **need).with_context(|| format!("no {need}"))?;
        let name = found["any_of"][0].as_str().context("no capability")?;
        Ok(name.strip_prefix("cap_").unwrap_or(name).to_owned())
    };
    needs.iter().map(one).collect()
}

fn attaching_has_exactly_what_it_needs(bed: &Bed) -> Result<()> {
    let netns = NetNs::create()?;
    netns.run(|| ip_here(&["link set lo up"]))??;
    let sleeping = Program::new("sleep").arg("1000").in_netns(&netns).start(bed)?;
    let pid = sleeping.pid().to_string();
    for Way { needs, arguments, without } in WAYS {
        let arguments: Vec<&str> =
            arguments.iter().map(|word| if *word == "PID" { pid.as_str() } else { *word }).collect();
        let arguments = arguments.as_slice();
        let all = asked_for(bed, needs)?;
        let attach = start(bed, arguments, &all)?;
        ensure!(attach.wait_end()?.success(), "{arguments:?} with {all:?}: {}", attach.log());
        let end = [&["detach", "--now"], &arguments[4..]].concat();
        let detach = start(bed, &end, &all)?;
        ensure!(detach.wait_end()?.success(), "{end:?} with {all:?}: {}", detach.log());
        for (less, says) in without {
            let fewer: Vec<String> = all.iter().filter(|one| one != less).cloned().collect();
            ensure!(fewer.len() + 1 == all.len(), "{less} is not among {all:?}");
            let attach = start(bed, arguments, &fewer)?;
            let status = attach.wait_end()?;
            let log = attach.log();
            ensure!(!status.success() && log.contains(says), "{arguments:?} with {fewer:?}: {status}: {log}");
        }
    }
    Ok(())
}
