//! Messages to users.

use std::io::pipe;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Behaviour, Program, Test, User, client, tests, with_child_signal};

use crate::kit::{BACKEND, attach, command, header, session, start};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        risky_settings_are_warned_about,
        ports_that_are_not_served_are_warned_about,
        status_need_not_be_read_to_its_end,
        a_sender_that_is_missing_from_the_list_is_hinted_at,
    ];
    all.push(
        Test::new("plain_users_are_told_what_is_missing", plain_users_are_told_what_is_missing)
            .needs_several_users(),
    );
    all.push(
        Test::new("status_says_where_it_cannot_look", status_says_where_it_cannot_look).needs_several_users(),
    );
    all.into_iter().map(|test| test.of_group("words")).collect()
}

fn a_sender_that_is_missing_from_the_list_is_hinted_at(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    start(bed, &["--allow", "127.0.0.9"])?;
    let saw = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(saw.starts_with("127.0.0.1:"), "{saw}");
    let said = attach(bed, &["status"])?;
    ensure!(said.contains("hint: no connection came from an address that --allow lists"), "{said}");
    Ok(())
}

/// As in `ip netns exec` without CAP_SYS_PTRACE: "not attached" would be a guess.
fn status_says_where_it_cannot_look(bed: &Bed) -> Result<()> {
    let line = "umount -l /sys/fs/bpf 2>/dev/null; umount -l /run/truepeer-attach 2>/dev/null; exec setpriv --reuid 61000 --clear-groups \"$@\"";
    let running = Program::new(env!("CARGO_BIN_EXE_truepeer"))
        .args(["attach", "status"])
        .launched_by("unshare", &["--mount", "sh", "-c", line, "sh"])
        .start(bed)?;
    let ended = running.wait_end()?;
    ensure!(
        !ended.success() && running.stderr().contains("can't look for what is attached"),
        "{}",
        running.log()
    );
    Ok(())
}

fn plain_users_are_told_what_is_missing(bed: &Bed) -> Result<()> {
    let said_to_a_plain_user = |args: &[&str]| -> Result<String> {
        let running = command(bed, args)?.as_user(User::TESTER).start(bed)?;
        ensure!(!running.wait_end()?.success(), "{args:?}: {}", running.log());
        Ok(running.stderr())
    };
    let attaching = said_to_a_plain_user(&["--port", "80"])?;
    start(bed, &[])?;
    for said in [attaching, said_to_a_plain_user(&["status"])?, said_to_a_plain_user(&["detach"])?] {
        ensure!(
            said.contains("CAP_PERFMON and CAP_NET_ADMIN (missing: CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN)"),
            "{said}"
        );
        ensure!(said.contains("truepeer run needs none of them"), "{said}");
    }
    for (held, missing) in
        [(&["net_admin"][..], "CAP_BPF, CAP_PERFMON"), (&["net_admin", "bpf"], "CAP_PERFMON")]
    {
        let part =
            command(bed, &["--port", "80"])?.as_user(User::TESTER).with_capabilities(held).start(bed)?;
        let is_said = |log: &str| log.contains(&format!("(missing: {missing})"));
        ensure!(!part.wait_end()?.success() && is_said(&part.stderr()), "{held:?}: {}", part.log());
    }
    Ok(())
}

fn status_need_not_be_read_to_its_end(bed: &Bed) -> Result<()> {
    start(bed, &[])?;
    for args in [["status"].as_slice(), &["status", "--json"]] {
        let (reader, writer) = pipe()?;
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_truepeer"));
        command
            .arg("attach")
            .args(args)
            .arg("--pins")
            .arg(bed.dir().join("bpf/truepeer"))
            .stdout(writer)
            .stderr(Stdio::piped());
        let output = with_child_signal(|| command.output())?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{args:?}: {}: {said}", output.status);
    }
    Ok(())
}

/// What attaching says when it has succeeded.
fn ports_that_are_not_served_are_warned_about(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::ffff:127.0.0.1]:81"])?;
    let warnings = |args: &[&str]| -> Result<String> {
        let running = command(bed, args)?.start(bed)?;
        ensure!(running.wait_end()?.success(), "{}", running.log());
        Ok(running.stderr())
    };
    let said = warnings(&["--port", "80-82", "--port", "53/udp"])?;
    ensure!(
        said.contains("127.0.0.1:80 is IPv4 only: IPv6 clients whose header comes over IPv4 are shown as the sender there"),
        "{said}"
    );
    ensure!(said.contains("nothing listens on port 82 here yet") && !said.contains("81"), "{said}");
    let said = warnings(&["--port", "81", "--replace"])?;
    ensure!(said.contains("no longer served, because they are not named: port 80, 82, 53/udp"), "{said}");
    // Left out before, and draining now.
    let said = warnings(&["--port", "81"])?;
    ensure!(said.is_empty(), "{said}");
    Ok(())
}

fn risky_settings_are_warned_about(bed: &Bed) -> Result<()> {
    let warnings = |args: &[&str]| -> Result<String> {
        let running = command(bed, &[args, &["--dry-run"]].concat())?.start(bed)?;
        ensure!(running.wait_end()?.success(), "{}", running.log());
        Ok(running.stderr())
    };
    ensure!(
        warnings(&["--port", "80", "--port", "53/udp", "--close-after", "9s", "--header-timeout", "9s"])?
            .is_empty()
    );
    let every_host = warnings(&["--port", "80", "--allow", "any", "--allow-claims", "loopback"])?;
    ensure!(
        every_host.contains("warning: every host may connect and claim to be any client"),
        "{every_host}"
    );
    ensure!(
        every_host.contains("warning: a header may claim that the client is in 127.0.0.0/8"),
        "{every_host}"
    );
    let optional = warnings(&["--port", "53/udp", "--header", "optional"])?;
    ensure!(optional.contains("warning: --header optional: a datagram without a header"), "{optional}");
    let cgroup = truepeer_bpf::cgroup_root()?.to_string_lossy().into_owned();
    for (port, protocol, option, value) in [
        ("80", "UDP", "--udp-dialect", "spp"),
        ("80", "UDP", "--close-after", "9s"),
        ("53/udp", "TCP", "--header-timeout", "9s"),
        ("53/udp", "TCP", "--cgroup", &cgroup),
    ] {
        let said = warnings(&["--port", port, option, value])?;
        ensure!(
            said.contains(&format!("warning: {option} has no effect: no {protocol} port is named")),
            "{said}"
        );
    }
    Ok(())
}
