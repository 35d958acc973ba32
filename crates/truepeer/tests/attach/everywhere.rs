//! Every network namespace of the machine, and places without the file systems that attach needs.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::{Bed, Behaviour, Host, Program, Test, Topology, client, tests};

use crate::kit::{
    BACKEND, attach_on, attachments, backend_on, command, header, is_answered, longer_header, session,
};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        all_namespaces_are_shown_and_detached,
        a_namespace_that_cannot_be_entered_holds_up_no_other,
        file_systems_are_mounted_where_there_are_none,
        a_namespace_that_cannot_be_read_holds_up_no_other,
    ];
    all.into_iter().map(|test| test.of_group("everywhere")).collect()
}

fn inode_of(host: &Host) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(host.run(|| std::fs::metadata("/proc/thread-self/ns/net"))??.ino())
}

fn all_namespaces_are_shown_and_detached(bed: &Bed) -> Result<()> {
    let (one, two) = (Topology::line(&["lb", "host"])?, Topology::line(&["lb", "host"])?);
    let (first, second) = (one.host("host"), two.host("host"));
    ensure!(command(bed, &["status", "--all"])?.run(bed)?.contains("nothing is attached"));
    let server = backend_on(bed, first, Behaviour::Echo, &["0.0.0.0:80"])?;
    let _other = backend_on(bed, second, Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, first, &["--port", "80"])?;
    attach_on(bed, second, &["--port", "80", "--port", "53/udp"])?;
    command(bed, &["add", "--port", "81"])?.in_netns(&second.netns).run(bed)?;

    let text = command(bed, &["status", "--all", "--json"])?.run(bed)?;
    let all: Value = serde_json::from_str(&text)?;
    let found = all["namespaces"].as_array().context("namespaces")?;
    let of = |host: &Host| -> Result<&Value> {
        let inode = inode_of(host)?;
        found.iter().find(|one| one["netns"] == inode).with_context(|| format!("{inode} in {text}"))
    };
    ensure!(found.len() == 2 && all["left_behind"] == 0, "{text}");
    ensure!(
        of(first)?["pid"] == server.pid() && of(first)?["ports"].as_array().map_or(0, Vec::len) == 1,
        "{text}"
    );
    ensure!(of(second)?["attachments"].as_array().map_or(0, Vec::len) == 2, "{text}");
    let said = command(bed, &["status", "--all"])?.run(bed)?;
    ensure!(
        said.contains(&format!(
            "(process {}):\nsenders of port 80: ::/0 require\nport 80/tcp: attached",
            server.pid()
        )),
        "{said}"
    );

    let mut open = one.host("lb").run(|| client::connect(first.at(false, 80)))??;
    std::io::Write::write_all(&mut open, &longer_header("203.0.113.1:1001")?)?;
    is_answered(&mut open)?;
    let detaching = command(bed, &["detach", "--all"])?.start(bed)?;
    detaching.wait_for_log("waiting for 1 open connections")?;
    detaching.wait_for_log(&format!("detached: network namespace {}", inode_of(second)?))?;
    is_answered(&mut open)?;
    ensure!(client::ask(&mut open, b"end")? == "end");
    ensure!(detaching.wait_end()?.success(), "{}", detaching.log());
    ensure!(attachments(bed)?.is_empty());
    Ok(())
}

/// Nothing runs in it, and it has no name: only this test holds it.
fn a_namespace_that_cannot_be_entered_holds_up_no_other(bed: &Bed) -> Result<()> {
    let (one, two) = (Topology::line(&["lb", "host"])?, Topology::line(&["lb", "host"])?);
    attach_on(bed, one.host("host"), &["--port", "80"])?;
    attach_on(bed, two.host("host"), &["--port", "80"])?;
    let _server = backend_on(bed, two.host("host"), Behaviour::Echo, &["0.0.0.0:80"])?;
    let detaching = command(bed, &["detach", "--all", "--now"])?.start(bed)?;
    ensure!(!detaching.wait_end()?.success());
    let said = detaching.stderr();
    ensure!(said.contains("it has no process and no name") && said.contains("not detached: 1"), "{said}");
    ensure!(attachments(bed)?.len() == 1, "the other is detached");
    Ok(())
}

/// As behind `ip netns exec`, on a machine without a BPF file system: /sys is another one, and what is
/// mounted there ends with the command. Process 1 is a shell of the test, so nothing is mounted on this
/// machine.
fn file_systems_are_mounted_where_there_are_none(bed: &Bed) -> Result<()> {
    command(bed, &[])?; // skips where attach can't be tested
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let truepeer = env!("CARGO_BIN_EXE_truepeer");
    let script = format!(
        "mount -t tmpfs none /run && mount --make-rprivate / && while umount -l /sys/fs/bpf; do :; done 2>/dev/null\n\
         unshare --mount sh -c 'umount -l /sys && mount -t sysfs none /sys && exec {truepeer} attach --port 80' && \
         {truepeer} attach status && ls -d /run/truepeer-attach/truepeer/* && echo is attached && sleep 1000"
    );
    let running = Program::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", &script])
        .start(bed)?;
    running.wait_for_log("is attached").with_context(|| running.log())?;
    ensure!(running.log().contains("port 80/tcp: attached"), "{}", running.log());
    let seen = client::ask(&mut session(&header("203.0.113.1:1001")?)?, b"")?;
    ensure!(seen.trim() == "203.0.113.1:1001", "{seen}");
    Ok(())
}

/// As after a removal that was killed, or while something is being attached.
fn a_namespace_that_cannot_be_read_holds_up_no_other(bed: &Bed) -> Result<()> {
    let (one, two) = (Topology::line(&["lb", "host"])?, Topology::line(&["lb", "host"])?);
    attach_on(bed, one.host("host"), &["--port", "80"])?;
    let broken = attachments(bed)?.pop().context("its pins")?;
    let _server = backend_on(bed, two.host("host"), Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, two.host("host"), &["--port", "80"])?;
    std::fs::remove_file(broken.join("maps/tp_settings"))?;
    let status = command(bed, &["status", "--all", "--json"])?.start(bed)?;
    ensure!(status.wait_end()?.success(), "{}", status.log());
    let found: Value = serde_json::from_str(&status.stdout())?;
    ensure!(found["namespaces"].as_array().map_or(0, Vec::len) == 1, "{found}");
    ensure!(status.stderr().contains("warning: network namespace of cookie"), "{}", status.log());
    let detach = command(bed, &["detach", "--all", "--now"])?.start(bed)?;
    ensure!(!detach.wait_end()?.success() && attachments(bed)? == [broken], "{}", detach.log());
    Ok(())
}
