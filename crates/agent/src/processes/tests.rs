use super::*;

use std::os::unix::fs::symlink;

use proptest::prelude::*;

const UID: &str = "4f5c0d3a-1b2c-4d5e-8f90-0123456789ab";
const OTHER: &str = "aaaaaaaa-1b2c-4d5e-8f90-0123456789ab";

/// A directory that is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("truepeer-agent-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A process: its network namespace is a file, named by `netns`.
    fn process(&self, pid: u32, started: u64, netns: &str, cgroup: &str) {
        let path = self.0.join(pid.to_string());
        fs::create_dir_all(path.join("ns")).unwrap();
        let namespace = self.0.join(format!("netns-{netns}"));
        fs::write(&namespace, "").unwrap();
        symlink(namespace, path.join("ns/net")).unwrap();
        fs::write(path.join("cgroup"), cgroup).unwrap();
        let before = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0";
        fs::write(path.join("stat"), format!("{pid} (a) b (c) {before} {started} 0 0\n")).unwrap();
    }

    fn netns(&self, name: &str) -> u64 {
        fs::metadata(self.0.join(format!("netns-{name}"))).unwrap().ino()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn uid_of(cgroup: &str) -> Option<(String, Option<String>)> {
    Member::of(cgroup).map(|member| (member.uid, member.cgroup))
}

#[test]
fn ports_without_a_server_are_found() {
    let title = "  sl  local_address rem_address   st tx_queue rx_queue\n";
    let tcp = format!(
        "{title}   0: 0100007F:0050 00000000:0000 0A 00000000:00000000\n   1: 0100007F:0051 0100007F:C000 01 0:0\n"
    );
    assert!(has_socket(&tcp, 80, "0A") && !has_socket(&tcp, 81, "0A") && !has_socket(&tcp, 8, "0A"));
    let here = Place { pid: std::process::id(), started: 0, netns: 0, cgroup: None };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket =
        std::net::UdpSocket::bind("[::1]:0").or_else(|_| std::net::UdpSocket::bind("127.0.0.1:0")).unwrap();
    let served = Port::Tcp(listener.local_addr().unwrap().port());
    let udp = socket.local_addr().unwrap().port();
    let wrong = Port::Udp { from: udp, backend: 1 };
    let ports = [served, Port::Udp { from: 1, backend: udp }, wrong].into();
    assert_eq!(Proc::new("/proc").unserved(&here, &ports), [wrong]);
    assert_eq!(Proc::new("/none").unserved(&here, &ports), []);
}

#[test]
fn both_drivers_and_both_layouts_are_read() {
    let member = |cgroup: Option<&str>| Some((UID.to_owned(), cgroup.map(str::to_owned)));
    let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let pod = format!("pod{UID}");
    assert_eq!(uid_of(&format!("0::/kubepods/burstable/{pod}/1d2e\n")), member(Some(&pod)));
    assert_eq!(
        uid_of(&format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-1d.scope\n")),
        member(Some(&slice))
    );
    assert_eq!(uid_of(&format!("0::/../../{pod}/1d2e\n")), member(Some(&pod)));
    assert_eq!(
        uid_of(&format!(
            "4:memory:/kubepods/{pod}/1d\n1:cpu:/kubepods/{pod}/1d\n0::/system.slice/containerd.service\n"
        )),
        member(None)
    );
    assert_eq!(uid_of(&format!("4:memory:/kubepods/{pod}/1d\n0::/kubepods/{pod}/1d\n")), member(Some(&pod)));
    assert_eq!(uid_of("0::/\n"), None);
    assert_eq!(uid_of("0::/system.slice/podman.service\n"), None);
    assert_eq!(uid_of("nonsense"), None);
}

#[test]
fn cgroups_of_local_users_are_no_pods() {
    let user = "0::/user.slice/user-1000.slice/user@1000.service";
    assert_eq!(uid_of(&format!("{user}/pod{UID}/1d2e\n")), None);
}

#[test]
fn long_tables_are_not_read_to_the_end() {
    let directory = Directory::new("long");
    let path = directory.0.join("fib_trie");
    fs::write(&path, "x".repeat(1 << 20)).unwrap();
    assert_eq!(read_some(&path), None);
    fs::write(&path, "x").unwrap();
    assert_eq!(read_some(&path).as_deref(), Some("x"));
    assert_eq!(read_some(&directory.0.join("none")).as_deref(), Some(""));
}

#[test]
fn a_container_cannot_pass_for_another_pod() {
    let inner = uid_of(&format!("0::/kubepods/pod{UID}/1d/pod{OTHER}/2e\n"));
    assert_eq!(inner.map(|(uid, _)| uid).as_deref(), Some(UID));
    assert_eq!(uid_of(&format!("4:memory:/kubepods/pod{UID}/1d\n1:cpu:/kubepods/pod{OTHER}/1d\n")), None);
}

#[test]
fn the_first_process_outside_the_hosts_network_is_taken() {
    let proc = Directory::new("first");
    let cgroup = format!("0::/kubepods/pod{UID}/1d\n");
    proc.process(1, 1, "host", "0::/init.scope\n");
    proc.process(50, 500, "host", &cgroup); // runc, about to enter
    proc.process(60, 700, "browser", &cgroup);
    proc.process(70, 600, "pod", &cgroup);
    proc.process(80, 900, "pod", &cgroup);
    proc.process(90, 400, "pod", "0::/user.slice\n");
    let view = Proc::new(&proc.0);
    let host = view.netns_of_host().unwrap();
    let pods = view.pods(host);
    let expected =
        Place { pid: 70, started: 600, netns: proc.netns("pod"), cgroup: Some(format!("pod{UID}")) };
    assert_eq!(pods, [(UID.to_owned(), expected.clone())].into());
    assert!(view.is_still(&expected));
    assert!(!view.is_still(&Place { started: 601, ..expected.clone() }));
    assert!(!view.is_still(&Place { netns: host, ..expected.clone() }));
    assert!(!view.is_still(&Place { pid: 71, ..expected }));
}

/// It may be the first of a pod for a moment, and has ended when truepeer looks.
#[test]
fn a_process_of_the_runtime_is_not_taken_for_the_pods() {
    let directory = Directory::new("runtime");
    let cgroup = format!("0::/kubepods/pod{UID}/1\n");
    for (pid, name) in [(10, "runc:[2:INIT]"), (11, "pause")] {
        directory.process(pid, u64::from(pid), "pod", &cgroup);
        fs::write(directory.0.join(pid.to_string()).join("comm"), format!("{name}\n")).unwrap();
    }
    let pods = Proc::new(&directory.0).pods(1);
    assert_eq!(pods.get(UID).map(|place| place.pid), Some(11));
}

#[test]
fn the_kernels_threads_tell_the_hosts_network_if_the_first_process_does_not() {
    let proc = Directory::new("hardened");
    proc.process(2, 1, "host", "0::/\n");
    let view = Proc::new(&proc.0);
    // Process 2 of a container has a parent.
    assert!(view.netns_of_host().is_err());
    fs::write(proc.0.join("2/stat"), "2 (kthreadd) S 0 0 0").unwrap();
    assert_eq!(view.netns_of_host().unwrap(), proc.netns("host"));
}

#[test]
fn this_process_is_found_in_the_real_proc() {
    let view = Proc::new("/proc");
    let here = view.place(std::process::id(), 0).unwrap();
    assert!(here.started > 0 && view.is_still(&here));
    // Its own network namespace taken for the host's.
    assert_eq!(view.place(std::process::id(), here.netns), None);
}

#[test]
fn an_address_is_waited_for() {
    let loopback = "Local:\n  +-- 127.0.0.0/8 2 0 2\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
    let has_ipv4 = |text: &str| of_ipv4(text).next().is_some();
    assert!(!has_ipv4(loopback));
    assert!(!has_ipv4("     |-- 169.254.3.4\n        /32 host LOCAL\n"));
    assert!(!has_ipv4("     |-- 10.244.0.255\n        /32 link BROADCAST\n"));
    let two = format!(
        "{loopback}     |-- 10.244.0.7\n        /32 host LOCAL\n     |-- 10.1.0.7\n        /32 host LOCAL\n"
    );
    assert_eq!(of_ipv4(&two).map(|ip| ip.to_string()).collect::<Vec<_>>(), ["10.244.0.7", "10.1.0.7"]);
    let line = |address: &str, scope: &str, name: &str| format!("{address} 04 40 {scope} 80 {name}\n");
    let alone = line("00000000000000000000000000000001", "10", "lo")
        + &line("fe8000000000000000fc00fffe000001", "20", "eth0");
    assert_eq!(of_ipv6(&alone).next(), None);
    let found = of_ipv6(&(alone + &line("fd000000000000000000000000000002", "00", "eth0"))).next();
    assert_eq!(found, "fd00::2".parse().ok());
}

#[test]
fn the_pods_cgroup_is_the_one_nearest_to_the_root() {
    let root = Directory::new("cgroups");
    let name = format!("pod{UID}");
    let real = root.0.join("kubepods/burstable").join(&name);
    // Made by a container of another pod.
    let forged = root.0.join(format!("kubepods/pod{OTHER}")).join(&name);
    for path in [&real, &forged] {
        fs::create_dir_all(path.join("1d2e")).unwrap();
    }
    assert_eq!(cgroup_directory(std::slice::from_ref(&root.0), &name), Some(real));
    assert_eq!(cgroup_directory(std::slice::from_ref(&root.0), "pod0"), None);
}

#[test]
fn mounts_of_cgroup2_are_found() {
    let mountinfo = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw\n\
                     41 31 0:38 /../.. /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
    assert_eq!(cgroup_mounts(mountinfo), [PathBuf::from("/sys/fs/cgroup/unified")]);
}

proptest! {
    /// Any file of that name: containers choose a part of it.
    #[test]
    fn any_text_is_survived(text in "\\PC{0,200}", inner in "[-a-z0-9/._:]{0,60}") {
        let _ = Member::of(&text);
        let line = format!("0::/kubepods/pod{UID}/{inner}\n");
        prop_assert_eq!(uid_of(&line).map(|(uid, _)| uid), Some(UID.to_owned()));
    }
}

#[test]
fn the_clock_is_that_of_processes() {
    let directory = Directory::new("ticks");
    fs::write(directory.0.join("uptime"), "1520.30 324.04\n").unwrap();
    assert_eq!(Proc::new(&directory.0).ticks(), 152_030);
    assert_eq!(Proc::new(directory.0.join("none")).ticks(), 0);
    let here = Proc::new("/proc");
    let started = here.started(std::process::id()).unwrap();
    let now = here.ticks();
    // A test ends within an hour.
    assert!(started <= now && now < started + 360_000, "{started} {now}");
}
