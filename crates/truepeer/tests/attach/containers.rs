//! Containers: found by a process or by their engine, and attached to their own cgroup.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::{
    Bed, Behaviour, Host, NetNs, Program, Running, Test, Topology, client, datagrams, ip_here,
};

use crate::cgroups::Cgroup;
use crate::kit::{LISTENER, attachments, command, header, who};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "a_process_names_its_namespace_and_its_cgroup",
            a_process_names_its_namespace_and_its_cgroup,
        ),
        Test::new("this_hosts_own_namespace_is_refused", this_hosts_own_namespace_is_refused),
        Test::new("a_server_of_another_container_is_refused", a_server_of_another_container_is_refused),
        Test::new("the_root_of_a_cgroup_namespace_is_taken", the_root_of_a_cgroup_namespace_is_taken),
        Test::new("engines_are_asked_for_a_container", engines_are_asked_for_a_container),
        Test::new("datagrams_of_a_container_show_their_client", datagrams_of_a_container_show_their_client),
        Test::new("more_containers_than_a_cgroup_has_room_for", |bed| many(bed, 66))
            .time_limit(Duration::from_secs(400)),
        Test::new("five_hundred_containers_at_once", |bed| many(bed, 500))
            .long()
            .alone()
            .time_limit(Duration::from_secs(1800)),
    ]
    .into_iter()
    .map(|test| test.of_group("containers"))
    .collect()
}

/// A server in a cgroup and a network namespace.
pub(crate) fn serve_in(bed: &Bed, cgroup: &Path, netns: &NetNs, address: &str) -> Result<Running> {
    let shell = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", cgroup.display());
    serve_by(bed, &shell, netns, address)
}

fn serve_by(bed: &Bed, shell: &str, netns: &NetNs, address: &str) -> Result<Running> {
    Behaviour::Who.start_program(bed, &[address], |program| {
        program.launched_by("/bin/sh", &["-c", shell, "sh"]).in_netns(netns)
    })
}

fn attach_to(bed: &Bed, args: &[&str]) -> Result<String> {
    command(bed, &[&["--port", "80", "--allow", "any"], args].concat())?.run(bed)
}

fn is_refused(bed: &Bed, args: &[&str]) -> Result<String> {
    let attaching = command(bed, &[&["--port", "80", "--allow", "any"], args].concat())?.start(bed)?;
    ensure!(!attaching.wait_end()?.success(), "{}", attaching.log());
    Ok(attaching.stderr())
}

fn sees_the_client(lb: &Host, host: &Host) -> Result<()> {
    let seen = who(lb, host.at(false, 80), &header("203.0.113.1:1001")?)?;
    ensure!(seen == "203.0.113.1:1001", "{seen}");
    Ok(())
}

fn a_process_names_its_namespace_and_its_cgroup(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let (cgroup, elsewhere) = (Cgroup::make("container")?, Cgroup::make("elsewhere")?);
    let server = serve_in(bed, &cgroup.0, &host.netns, "0.0.0.0:80")?;
    let pid = server.pid().to_string();
    for option in ["--pid", "--netns"] {
        let attaching = command(bed, &["--port", "80-81", "--allow", "any", option, &pid])?.start(bed)?;
        ensure!(attaching.wait_end()?.success(), "{}", attaching.log());
        // In its namespace, not in this one.
        let said = attaching.stderr();
        ensure!(
            said.contains("0.0.0.0:80 is IPv4 only") && said.contains("nothing listens on port 81 here"),
            "{said}"
        );
        sees_the_client(lb, host)?;
        ensure!(command(bed, &["status", option, &pid])?.run(bed)?.contains("port 80/tcp: attached"));
        // Everything is on that cgroup, nothing on the root.
        let told = attach_to(bed, &[option, &pid, "--port", "53/udp", "--dry-run"])?;
        let cgroups = told.lines().filter(|line| line.starts_with("cgroup "));
        let expected = format!("cgroup {}: ", cgroup.0.display());
        ensure!(
            cgroups.clone().count() == 4 && cgroups.clone().all(|line| line.starts_with(&expected)),
            "{told}"
        );
        command(bed, &["detach", "--now", option, &pid])?.run(bed)?;
        ensure!(attachments(bed)?.is_empty());
    }
    let inode = std::fs::metadata(format!("/proc/{pid}/ns/net"))?.ino();
    let said = is_refused(bed, &["--pid", &pid, "--netns-inode", &(inode + 1).to_string()])?;
    ensure!(said.contains(&format!("what is named is in network namespace {inode} now")), "{said}");
    attach_to(bed, &["--pid", &pid, "--netns-inode", &inode.to_string()])?;
    command(bed, &["detach", "--now", "--pid", &pid])?.run(bed)?;
    let said = is_refused(bed, &["--pid", &pid, "--cgroup", &elsewhere.0.to_string_lossy()])?;
    ensure!(said.contains(&format!("process {pid} is not in it but in {}", cgroup.0.display())), "{said}");
    let said = is_refused(bed, &["--pid", "4194304"])?;
    ensure!(said.contains("--pid 4194304: there is no such process"), "{said}");
    Ok(())
}

fn this_hosts_own_namespace_is_refused(bed: &Bed) -> Result<()> {
    let sleeping = Program::new("sleep").arg("1000").start(bed)?;
    let said = is_refused(bed, &["--pid", &sleeping.pid().to_string()])?;
    ensure!(said.contains("uses this host's own network namespace"), "{said}");
    // As seen from a container, or behind `ip netns exec`.
    let elsewhere = NetNs::create()?;
    let attaching = command(bed, &["--port", "80", "--allow", "any", "--pid", "1"])?.in_netns(&elsewhere);
    let attaching = attaching.start(bed)?;
    let has_failed = !attaching.wait_end()?.success();
    ensure!(
        has_failed && attaching.stderr().contains("this host's own network namespace"),
        "{}",
        attaching.log()
    );
    Ok(())
}

/// As in a pod: several containers, each with its own cgroup, in one network namespace.
fn a_server_of_another_container_is_refused(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let pod = Cgroup::make("pod")?;
    let (one, other) = (pod.below("one")?, pod.below("other")?);
    let server = serve_in(bed, &one.0, &host.netns, "0.0.0.0:80")?;
    let beside = serve_in(bed, &other.0, &host.netns, "0.0.0.0:81")?;
    let said = is_refused(bed, &["--pid", &beside.pid().to_string()])?;
    let expected = format!(
        "0.0.0.0:80 was opened by another container of this network namespace, in {}",
        one.0.display()
    );
    ensure!(said.contains(&expected) && said.contains("--cgroup"), "{said}");
    ensure!(
        command(bed, &["status", "--pid", &server.pid().to_string()])?.run(bed)?.contains("not attached")
    );

    let path = pod.0.to_string_lossy().into_owned();
    for process in [&server, &beside] {
        attach_to(bed, &["--pid", &process.pid().to_string(), "--cgroup", &path])?;
        sees_the_client(lb, host)?;
    }
    Ok(())
}

/// The container's first process has moved to a cgroup below, as init systems do.
fn the_root_of_a_cgroup_namespace_is_taken(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("namespace")?;
    let below = cgroup.below("init.scope")?;
    let shell = format!(
        "echo $$ > {}/cgroup.procs && exec unshare --cgroup /bin/sh -c 'echo $$ > {}/cgroup.procs && exec \"$@\"' sh \"$@\"",
        cgroup.0.display(),
        below.0.display()
    );
    let server = serve_by(bed, &shell, &host.netns, "0.0.0.0:80")?;
    let pid = server.pid().to_string();
    let told = attach_to(bed, &["--pid", &pid, "--dry-run"])?;
    ensure!(told.contains(&format!("cgroup {}: sock_ops", cgroup.0.display())), "{told}");
    attach_to(bed, &["--pid", &pid])?;
    sees_the_client(lb, host)
}

/// With replacements, which answer as the engines do.
fn engines_are_asked_for_a_container(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("engine")?;
    let server = serve_in(bed, &cgroup.0, &host.netns, "0.0.0.0:80")?;
    let engine = |dir: &str, name: &str, script: &str| -> Result<PathBuf> {
        let file = bed.write(&format!("{dir}/{name}"), format!("#!/bin/sh\n{script}\n"))?;
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(file.parent().context("its directory")?.to_owned())
    };
    let inspect = |known: &str, process: i32| {
        format!(
            "test \"$*\" = 'container inspect --format {{{{.State.Pid}}}} -- {known}' || {{ echo 'Error: No such container: web' >&2; exit 1; }}\necho {process}"
        )
    };
    let one = engine("one", "docker", &inspect("other", 1))?;
    engine("one", "podman", &inspect("web", server.pid()))?;
    let both = engine("both", "docker", &inspect("web", server.pid()))?;
    engine("both", "podman", &inspect("web", 0))?;
    let tasks = format!(
        "case \"$*\" in\n*namespaces*) echo default; echo k8s.io;;\n*k8s.io*) echo TASK PID STATUS; echo 0123456789abcdef {} RUNNING;;\nesac",
        server.pid()
    );
    let third = engine("third", "ctr", &tasks)?;
    let dead =
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
    let silent = engine("silent", "docker", &format!("echo '{dead}' >&2; exit 1"))?;
    let run = |path: &Path, args: &[&str]| -> Result<(bool, String)> {
        let all = [&["--port", "80", "--allow", "any", "--container"], args].concat();
        let path = format!("{}:/nowhere", path.display());
        let attaching = command(bed, &all)?.env("PATH", path).start(bed)?;
        Ok((attaching.wait_end()?.success(), attaching.log()))
    };
    let (is_attached, said) = run(&silent, &["web"])?;
    ensure!(!is_attached && said.contains(&format!("docker can't answer: {dead}")), "{said}");
    let works = |path: &Path, args: &[&str]| -> Result<()> {
        let (success, said) = run(path, args)?;
        ensure!(success, "{args:?}: {said}");
        sees_the_client(lb, host)
    };
    let fails = |path: &Path, args: &[&str], expected: &str| -> Result<()> {
        let (success, said) = run(path, args)?;
        ensure!(!success && said.contains(expected), "{args:?}: {said}");
        Ok(())
    };
    works(&one, &["web"])?;
    works(&both, &["web", "--engine", "docker"])?;
    works(&third, &["0123456789"])?;
    fails(&both, &["web"], "docker and podman both have one; add --engine docker")?;
    fails(&both, &["web", "--engine", "podman"], "it is not running; podman start web")?;
    fails(&one, &["nosuch"], "docker, podman has no container of that name")?;
    fails(Path::new("/nowhere"), &["web"], "can't run docker, podman, ctr; --pid PID needs none")?;
    Ok(())
}

/// With a header in a flow's first datagram only.
fn datagrams_of_a_container_show_their_client(bed: &Bed) -> Result<()> {
    const SERVER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('0.0.0.0', 53))
while True:
    data, client = s.recvfrom(9000)
    s.sendto(b'%s:%d ' % (client[0].encode(), client[1]) + data, client)
";
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    host.ip(&["route del default"])?;
    let cgroup = Cgroup::make("datagrams")?;
    let shell = format!("echo $$ > {}/cgroup.procs && exec python3 -c \"$1\"", cgroup.0.display());
    let server =
        Program::new("/bin/sh").args(["-c", &shell, "sh", SERVER]).in_netns(&host.netns).start(bed)?;
    server.wait_bound_udp("0.0.0.0:53")?;
    let options = ["--port", "53/udp", "--allow", "any", "--udp-dialect", "frp"];
    command(bed, &[&options[..], &["--pid", &server.pid().to_string()]].concat())?.run(bed)?;
    let client = "203.0.113.7:5000";
    let sender = lb.run(|| datagrams::socket("0.0.0.0:0"))??;
    lb.run(|| sender.connect(host.at(false, 53)))??;
    for header in [datagrams::v2(client, "192.0.2.1:53")?, Vec::new()] {
        let answer = datagrams::ask(&sender, &[&header, b"?"])?;
        ensure!(answer == format!("{client} ?").as_bytes(), "{}", answer.escape_ascii());
    }
    Ok(())
}

/// A root cgroup has room for 64.
fn many(bed: &Bed, count: usize) -> Result<()> {
    let mut containers = Vec::new();
    for number in 0..count {
        let netns = NetNs::create()?;
        netns.run(|| ip_here(&["link set lo up"]))??;
        let cgroup = Cgroup::make(&format!("many-{number}"))?;
        let server = serve_in(bed, &cgroup.0, &netns, "127.0.0.1:80")?;
        attach_to(bed, &["--pid", &server.pid().to_string()])
            .with_context(|| format!("container {number}"))?;
        containers.push((server, cgroup, netns));
    }
    for (number, (.., netns)) in containers.iter().enumerate() {
        let client = format!("203.0.113.{}:{}", number % 250 + 1, 1000 + number);
        let header = header(&client)?;
        let seen = netns.run(|| client::ask(&mut client::connect(LISTENER)?, &header))??;
        ensure!(seen.trim() == client, "container {number}: {seen}");
    }
    ensure!(attachments(bed)?.len() == count);
    Ok(())
}
