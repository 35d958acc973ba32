//! `[[attach]]` entries and `--watch`: a place in other words, and a name that leads to another place.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Topology, ip_here, tests};

use crate::cgroups::Cgroup;
use crate::entries::{TABLES, TRUEPEER, entry, is_attached, is_seen, reload, serve, start, write};
use crate::kit::{BACKEND, attach, backend_on, command, header, status, who};
use crate::watch::Container;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_reload_changes_what_becomes_of_clients_that_cannot_be_shown,
        a_reload_attaches_again_what_another_command_detached,
        a_reload_with_another_name_of_a_place_keeps_what_is_attached,
        a_reload_that_fails_after_another_name_of_a_place_changes_nothing,
        an_upgrade_with_another_name_of_a_place_keeps_what_is_attached,
        an_entry_follows_its_name_to_another_namespace,
        an_entry_follows_a_container_that_starts_again,
        a_watch_follows_its_name_to_another_namespace,
        an_entry_attaches_to_a_device_when_it_can,
    ];
    all.into_iter().map(|test| test.of_group("reloads")).collect()
}

/// A sender and a host with a server, which a name can lead to.
struct Place {
    line: Topology,
    _server: Running,
}

impl Place {
    fn make(bed: &Bed) -> Result<Self> {
        let line = Topology::line(&["lb", "host"])?;
        let server = backend_on(bed, line.host("host"), Behaviour::Who, &["0.0.0.0:80"])?;
        Ok(Self { line, _server: server })
    }

    /// Makes this name lead here.
    fn call(&self, bed: &Bed, name: &str) -> Result<PathBuf> {
        let path = bed.dir().join(name);
        let netns = self.line.host("host").netns.as_fd().as_raw_fd();
        let _ = fs::remove_file(&path);
        symlink(format!("/proc/{}/fd/{netns}", std::process::id()), &path)?;
        Ok(path)
    }

    fn names_the_client(&self) -> Result<()> {
        let seen =
            who(self.line.host("lb"), self.line.host("host").at(false, 80), &header("203.0.113.1:1001")?)?;
        ensure!(seen == "203.0.113.1:1001", "{seen}");
        Ok(())
    }

    fn is_attached(&self, bed: &Bed) -> Result<bool> {
        let status = command(bed, &["status"])?.in_netns(&self.line.host("host").netns).run(bed)?;
        Ok(status.contains("port 80/tcp: attached"))
    }
}

fn at(bed: &Bed, name: &str) -> String {
    let path = bed.dir().join(name);
    entry(bed, &format!("port = [\"80\"]\nallow = [\"0.0.0.0/0\"]\nnetns = \"{}\"", path.display()))
}

fn a_reload_changes_what_becomes_of_clients_that_cannot_be_shown(bed: &Bed) -> Result<()> {
    let _truepeer = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let rule = || -> Result<Value> { Ok(status(bed)?["attachments"][0]["rules"]["unshowable"].clone()) };
    ensure!(rule()? == "show-sender", "{}", status(bed)?);
    write(bed, &[&entry(bed, "port = [\"80\"]\nunshowable = \"refuse\"")])?;
    let said = reload(bed)?;
    ensure!(rule()? == "refuse", "{said}");
    Ok(())
}

fn a_reload_attaches_again_what_another_command_detached(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    let _truepeer = start(bed, &[&entry(bed, "port = [\"80\"]")])?;
    let said = reload(bed)?;
    ensure!(said.contains("nothing has changed"), "{said}");
    attach(bed, &["detach", "--now"])?;
    ensure!(!is_attached(bed)?);
    let said = reload(bed)?;
    ensure!(said.contains("was attached again"), "{said}");
    ensure!(is_seen("203.0.113.1:1001")?);
    Ok(())
}

fn a_reload_with_another_name_of_a_place_keeps_what_is_attached(bed: &Bed) -> Result<()> {
    let place = Place::make(bed)?;
    place.call(bed, "one")?;
    place.call(bed, "two")?;
    let truepeer = start(bed, &[&at(bed, "one")])?;
    place.names_the_client()?;
    for name in ["two", "one"] {
        write(bed, &[&at(bed, name)])?;
        let said = reload(bed)?;
        ensure!(said.contains("was attached") && !said.contains("checks no new connections"), "{said}");
        place.names_the_client()?;
    }
    ensure!(place.is_attached(bed)? && !truepeer.log().contains("attach: detached"), "{}", truepeer.log());
    ensure!(truepeer.stop()?.success() && !place.is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn a_reload_that_fails_after_another_name_of_a_place_changes_nothing(bed: &Bed) -> Result<()> {
    let place = Place::make(bed)?;
    place.call(bed, "one")?;
    let two = place.call(bed, "two")?;
    let truepeer = start(bed, &[&at(bed, "one")])?;
    // Attached in the order of their pins: the other name has taken the place over before the second fails.
    let wrong = format!(
        "[[attach]]\nport = [\"82\"]\ndev = [\"none0\"]\nnetns = \"{}\"\npins = \"{}\"\n",
        two.display(),
        bed.dir().join("bpf/wrong").display()
    );
    write(bed, &[&at(bed, "two"), &wrong])?;
    let said = reload(bed)?;
    ensure!(said.contains("not reloaded") && said.contains("none0"), "{said}");
    ensure!(place.is_attached(bed)?, "{}", truepeer.log());
    place.names_the_client()?;
    ensure!(truepeer.stop()?.success() && !place.is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn an_upgrade_with_another_name_of_a_place_keeps_what_is_attached(bed: &Bed) -> Result<()> {
    let place = Place::make(bed)?;
    place.call(bed, "one")?;
    place.call(bed, "two")?;
    let old = start(bed, &[&at(bed, "one")])?;
    write(bed, &[&at(bed, "two")])?;
    let new = serve(bed, &["--take-over"])?;
    new.wait_for_log("upgrade: serves in place of process")?;
    ensure!(old.wait_end()?.success() && !old.log().contains("attach: detached"), "{}", old.log());
    ensure!(place.is_attached(bed)?, "{}", old.log());
    place.names_the_client()?;
    ensure!(new.stop()?.success() && !place.is_attached(bed)?, "{}", new.log());
    Ok(())
}

fn an_entry_follows_its_name_to_another_namespace(bed: &Bed) -> Result<()> {
    let (first, second) = (Place::make(bed)?, Place::make(bed)?);
    first.call(bed, "web")?;
    let truepeer = start(bed, &[&at(bed, "web")])?;
    first.names_the_client()?;
    fs::remove_file(bed.dir().join("web"))?;
    truepeer.wait_for_log("web (ip netns lists the names)")?;
    second.call(bed, "web")?;
    bed.wait_for("the other namespace to be attached", || second.is_attached(bed).is_ok_and(|is| is))
        .with_context(|| truepeer.log())?;
    second.names_the_client()?;
    ensure!(truepeer.stop()?.success() && !second.is_attached(bed)?, "{}", truepeer.log());
    Ok(())
}

fn an_entry_follows_a_container_that_starts_again(bed: &Bed) -> Result<()> {
    command(bed, &[])?; // mounts the BPF file system
    let state = bed.write("state", "0\n")?;
    let says = |process: i32| fs::write(&state, format!("{process}\n"));
    let script = format!("#!/bin/sh\nread process < {}\necho $process\n", state.display());
    let engine = bed.write("engine/docker", script)?;
    fs::set_permissions(&engine, PermissionsExt::from_mode(0o755))?;
    let path = engine.parent().context("its directory")?;
    let first = Container::start(bed, "first")?;
    says(first.server.pid())?;
    let keys = "port = [\"80\"]\nallow = [\"0.0.0.0/0\"]\ncontainer = \"web\"";
    bed.write("truepeer.toml", format!("{TABLES}{}", entry(bed, keys)))?;
    let truepeer =
        Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).env("PATH", path).start(bed)?;
    truepeer.wait_for_log("admin: listening on")?;
    first.names_the_client()?;
    says(0)?;
    first.end()?;
    truepeer.wait_for_log("it is not running")?;
    // It is attached when it runs again, and holds up no reload until then.
    let said = reload(bed)?;
    ensure!(said.contains("nothing has changed"), "{said}");
    let second = Container::start(bed, "second")?;
    says(second.server.pid())?;
    bed.wait_for("the container to be attached", || truepeer.log().matches("attached to").count() == 2)
        .with_context(|| truepeer.log())?;
    second.names_the_client()?;
    second.end()
}

fn a_watch_follows_its_name_to_another_namespace(bed: &Bed) -> Result<()> {
    let (first, second) = (Place::make(bed)?, Place::make(bed)?);
    let name = first.call(bed, "web")?.to_string_lossy().into_owned();
    let watch = command(bed, &["--netns", &name, "--port", "80", "--allow", "any", "--watch"])?.start(bed)?;
    watch.wait_for_log("attached to")?;
    first.names_the_client()?;
    second.call(bed, "web")?;
    bed.wait_for("the other namespace to be attached", || second.is_attached(bed).is_ok_and(|is| is))
        .with_context(|| watch.log())?;
    second.names_the_client()?;
    watch.signal(Signal::TERM)?;
    ensure!(watch.wait_end()?.success(), "{}", watch.log());
    Ok(())
}

/// Its cgroup is gone at that moment, as a unit's that is stopped.
fn an_entry_attaches_to_a_device_when_it_can(bed: &Bed) -> Result<()> {
    let above = Cgroup::make("entry")?;
    let cgroup = above.below("server")?;
    let keys = format!("port = [\"80\"]\ncgroup = \"{}\"", cgroup.0.display());
    let truepeer = start(bed, &[&entry(bed, &keys)])?;
    drop(cgroup);
    // Down and without addresses: nothing changes any more.
    ip_here(&["link add plug0 type veth peer name plug1"])?;
    truepeer.wait_for_log("not a cgroup v2 directory")?;
    let _cgroup = above.below("server")?;
    bed.wait_for("plug0 to be covered", || truepeer.log().contains("plug0"))
        .with_context(|| truepeer.log())?;
    Ok(())
}
