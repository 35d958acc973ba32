//! What a process has after its start.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Truepeer, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, Stand, TRUEPEER, ask, classic_rules, header_of, proxy,
    proxy_without_routes, refused,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        after_the_start_every_thread_has_only_what_its_job_needs,
        a_file_beside_those_of_the_start_can_not_be_read,
        without_confinement_everything_stays_as_it_was,
        a_user_that_does_not_exist_is_named,
    ];
    let with_users = tests![
        started_by_root_it_becomes_another_user,
        a_named_user_is_taken,
        files_of_root_are_read_again_by_the_other_user,
        an_admin_socket_in_roots_directory_is_opened_by_root,
        a_units_user_owns_its_runtime_directory_and_root_still_steers,
        drop_in_names_are_confined,
    ];
    all.extend(with_users.into_iter().map(Test::needs_several_users));
    all
}

/// The lines of /proc/PID/task/*/status with this name.
fn of_every_thread(truepeer: &Running, name: &str) -> anyhow::Result<Vec<String>> {
    of_every_thread_of(truepeer.pid(), name)
}

fn of_every_thread_of(process: i32, name: &str) -> anyhow::Result<Vec<String>> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))?;
    threads
        .map(|thread| {
            let status = fs::read_to_string(thread?.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            Ok(line.with_context(|| format!("no {name} in {status}"))?.to_owned())
        })
        .collect()
}

fn all_are(truepeer: &Running, name: &str, wanted: &str) -> anyhow::Result<()> {
    let found = of_every_thread(truepeer, name)?;
    ensure!(found.len() > 1 && found.iter().all(|one| one == wanted), "{name}: {found:?}, not {wanted}");
    Ok(())
}

const NET_RAW: u64 = 1 << 13;
/// Helps with pipes, and is not everywhere.
const SYS_RESOURCE: u64 = 1 << 24;
const NET_ADMIN: u64 = 1 << 12;
const NET_BIND_SERVICE: u64 = 1 << 10;

fn after_the_start_every_thread_has_only_what_its_job_needs(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let manual = proxy_without_routes().listen(DOOR_V4).ipv4(BACKEND_V4);
    let manual = manual.args(&["--routes", "manual", "--splice", "off"]);
    let auto = proxy().args(&["--splice", "off"]);
    let wanted = NET_RAW | NET_BIND_SERVICE;
    for (truepeer, has_keeper) in [(&manual, false), (&auto, true)] {
        let Stand { truepeer, backend: _backend } = Stand::behind(bed, Behaviour::Who, truepeer)?;
        ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
        for sets in ["CapEff", "CapPrm", "CapBnd"] {
            for found in of_every_thread(&truepeer, sets)? {
                let found = u64::from_str_radix(&found, 16)? & !SYS_RESOURCE;
                ensure!(found == wanted, "{sets}: {found:x}, not {wanted:x}: {}", truepeer.log());
            }
        }
        for (name, wanted) in [
            ("CapInh", "0000000000000000"),
            ("CapAmb", "0000000000000000"),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            all_are(&truepeer, name, wanted)?;
        }
        truepeer.wait_for_log("confined: ")?;
        let keepers = truepeer.children()?;
        ensure!(keepers.len() == usize::from(has_keeper), "{keepers:?}: {}", truepeer.log());
        keepers.iter().try_for_each(|keeper| has_only_what_a_keeper_needs(*keeper))?;
        truepeer.stop()?;
        let is_there = |keeper: &i32| fs::exists(format!("/proc/{keeper}")).unwrap_or(true);
        ensure!(!keepers.iter().any(is_there), "the keeper outlives its process");
    }
    Ok(())
}

fn has_only_what_a_keeper_needs(keeper: i32) -> anyhow::Result<()> {
    let wanted = format!("{:016x}", NET_ADMIN | NET_BIND_SERVICE);
    for (name, wanted) in [
        ("Name", "truepeer-keeper"),
        ("CapEff", &wanted),
        ("CapPrm", &wanted),
        ("CapBnd", &wanted),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        let found = of_every_thread_of(keeper, name)?;
        ensure!(found == [wanted], "the keeper's {name}: {found:?}, not {wanted}");
    }
    let open: Vec<_> = fs::read_dir(format!("/proc/{keeper}/fd"))?
        .map(|entry| fs::read_link(entry?.path()))
        .collect::<Result<_, _>>()?;
    // The standard streams, the socket to its process, and by which it sees that process's end.
    ensure!(open.len() == 5, "{open:?}");
    ensure!(open.iter().filter(|file| file.ends_with("anon_inode:[pidfd]")).count() == 1, "{open:?}");
    ensure!(open.iter().filter(|file| file.starts_with("/dev/null")).count() >= 2, "{open:?}");
    Ok(())
}

/// The list is replaced by a link to a file that everybody may read, but that the start did not name.
fn a_file_beside_those_of_the_start_can_not_be_read(bed: &Bed) -> anyhow::Result<()> {
    if !has_landlock(bed)? {
        return truepeer_testbed::skip("this kernel has no Landlock, or it is off");
    }
    let list = bed.write("lists/allow", "127.0.0.0/8\n")?;
    let other = bed.write("elsewhere/allow", "192.0.2.1\n")?;
    for (options, is_confined) in [(vec![], true), (vec!["--confine", "off"], false)] {
        fs::remove_file(&list)?;
        fs::write(&list, "127.0.0.0/8\n")?;
        let options: Vec<&str> = [vec!["--allow", "./lists/allow"], options].concat();
        let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, &options)?;
        ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
        fs::remove_file(&list)?;
        symlink(&other, &list)?;
        truepeer.signal(Signal::HUP)?;
        if is_confined {
            truepeer.wait_for_log("not reloaded, everything stays as it was: --allow ./lists/allow: can't read the file: Permission denied")?;
            ensure!(ask(&header_of("203.0.113.8:5000".parse()?)?)? == "203.0.113.8:5000");
        } else {
            truepeer.wait_for_log("have new lists")?;
            refused(&header_of("203.0.113.8:5001".parse()?)?)?;
        }
        truepeer.stop()?;
    }
    Ok(())
}

/// landlock_create_ruleset(2) returns the version of the ABI.
const ABI: &str = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(444, None, 0, 1) < 1)";

fn has_landlock(bed: &Bed) -> anyhow::Result<bool> {
    Ok(Program::new("/usr/bin/python3").args(["-c", ABI]).start(bed)?.wait_end()?.success())
}

fn without_confinement_everything_stays_as_it_was(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Who, &["--confine", "off"])?;
    all_are(&stand.truepeer, "Seccomp", "0")?;
    all_are(&stand.truepeer, "NoNewPrivs", "0")?;
    all_are(&stand.truepeer, "Uid", "0\t0\t0\t0")
}

fn drop_in_names_are_confined(bed: &Bed) -> anyhow::Result<()> {
    let program = Program::new(TRUEPEER).args(["--compat", "go-mmproxy", "-l", DOOR_V4]);
    let truepeer = Truepeer::of(program).ipv4(BACKEND_V4).ipv6(BACKEND_V6).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    all_are(&truepeer, "Seccomp", "2")?;
    all_are(&truepeer, "NoNewPrivs", "1")?;
    for id in of_every_thread(&truepeer, "Uid")? {
        ensure!(id.split('\t').all(|id| id != "0"), "{id}");
    }
    for capabilities in of_every_thread(&truepeer, "CapEff")? {
        let held = u64::from_str_radix(&capabilities, 16)?;
        ensure!(held & !(NET_RAW | NET_BIND_SERVICE | SYS_RESOURCE) == 0, "{capabilities}");
    }
    Ok(())
}

fn a_user_that_does_not_exist_is_named(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = proxy().args(&["--user", "no-such-user"]).start_unready(bed)?;
    let status = truepeer.wait_end()?;
    let log = truepeer.log();
    ensure!(
        status.code() == Some(1) && log.contains("--user no-such-user: /etc/passwd has no such user"),
        "{log}"
    );
    Ok(())
}

fn started_by_root_it_becomes_another_user(bed: &Bed) -> anyhow::Result<()> {
    mount_bpf_in_place()?;
    let stand = Stand::with_options(bed, Behaviour::Who, &[])?;
    for ids in ["Uid", "Gid"] {
        for found in of_every_thread(&stand.truepeer, ids)? {
            ensure!(found.split('\t').all(|id| id != "0"), "{ids}: {found}");
        }
    }
    all_are(&stand.truepeer, "Groups", " ")?;
    // truepeer-pins stays root.
    for name in ["truepeer-keeper", "truepeer-splice"] {
        let keeper = stand.truepeer.helper(name)?;
        for ids in ["Uid", "Gid"] {
            let found = of_every_thread_of(keeper, ids)?;
            ensure!(found[0] == of_every_thread(&stand.truepeer, ids)?[0], "the keeper's {ids}: {found:?}");
        }
    }
    Ok(())
}

fn a_named_user_is_taken(bed: &Bed) -> anyhow::Result<()> {
    for (user, gid) in [("tester", "61000"), ("61000:61001", "61001"), ("61000", "61000")] {
        let Stand { truepeer, backend: _backend } =
            Stand::with_options(bed, Behaviour::Who, &["--user", user])?;
        all_are(&truepeer, "Uid", "61000\t61000\t61000\t61000")?;
        all_are(&truepeer, "Gid", &[gid; 4].join("\t"))?;
        ensure!(ask(&header_of(CLIENT_V4.parse()?)?)? == CLIENT_V4);
        truepeer.stop()?;
    }
    Ok(())
}

fn files_of_root_are_read_again_by_the_other_user(bed: &Bed) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let list = bed.write("lists/allow", "127.0.0.0/8\n")?;
    fs::set_permissions(&list, fs::Permissions::from_mode(0o600))?;
    let stand = Stand::with_options(bed, Behaviour::Who, &["--allow", "./lists/allow"])?;
    let new = bed.write("lists/new", "192.0.2.1\n")?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    fs::rename(&new, &list)?;
    stand.truepeer.signal(Signal::HUP)?;
    stand.truepeer.wait_for_log("127.0.0.1:8443 have new lists")?;
    refused(&header_of(CLIENT_V4.parse()?)?).map(drop)
}

/// As in truepeer.service, where root has no CAP_DAC_OVERRIDE and may not write to the user's admin socket.
fn a_units_user_owns_its_runtime_directory_and_root_still_steers(bed: &Bed) -> anyhow::Result<()> {
    Program::new("install").args(["-d", "-o", "4711", "-g", "4712", "run"]).run(bed)?;
    Program::new("cp").args([TRUEPEER, "truepeer"]).run(bed)?;
    bed.write(
        "truepeer.toml",
        "[admin]\nlisten = [\"./run/admin.sock\"]\n\
         [[proxy]]\nlisten = [\"127.0.0.1:8443\"]\nipv4 = \"127.0.0.1:8000\"\n\
         ipv6 = \"[::1]:8000\"\nsend-proxy = \"v2\"\n",
    )?;
    let runtime = bed.dir().join("run");
    let less = ["--bounding-set=-dac_override", "--", "./truepeer"];
    let as_in_unit = |arguments: &[&str]| {
        let program = Program::new("setpriv").args(less).args(arguments).args(["-c", "truepeer.toml"]);
        program.env("RUNTIME_DIRECTORY", &runtime)
    };
    let truepeer = as_in_unit(&["serve"]).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    all_are(&truepeer, "Uid", &["4711"; 4].join("\t"))?;
    all_are(&truepeer, "Gid", &["4712"; 4].join("\t"))?;
    ensure!(as_in_unit(&["reload"]).run(bed)?.contains("nothing has changed"));
    ensure!(as_in_unit(&["upgrade", "--if-replaced"]).run(bed)?.is_empty(), "the file is the same");
    Program::new("sh").args(["-c", "cp truepeer next && mv next truepeer"]).run(bed)?;
    let said = as_in_unit(&["upgrade", "--if-replaced"]).run(bed)?;
    ensure!(said.contains("serves in place"), "{said}");
    truepeer.wait_end()?;
    let new: i32 = said.split_whitespace().nth(1).context("no process")?.parse()?;
    ensure!(of_every_thread_of(new, "Uid")?.iter().all(|ids| ids.starts_with("4711\t")), "{said}");
    rustix::process::kill_process(rustix::process::Pid::from_raw(new).context("0")?, Signal::TERM)?;
    Ok(())
}

/// Root steers by it, and a job that needs more than was kept is refused.
fn an_admin_socket_in_roots_directory_is_opened_by_root(bed: &Bed) -> anyhow::Result<()> {
    let relay = "[[proxy]]\nlisten = [\"127.0.0.1:8443\"]\nipv4 = \"127.0.0.1:8000\"\nroutes = \"manual\"\n";
    let sends = format!("[admin]\nlisten = [\"./admin.sock\"]\n{relay}send-proxy = \"v2\"\n");
    bed.write("truepeer.toml", &sends)?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_listening(DOOR_V4)?;
    truepeer.wait_for_log("confined: user ")?;
    ensure!(!truepeer.log().contains("not confined"), "{}", truepeer.log());
    let steer = |word| Program::new(TRUEPEER).args([word, "-c", "truepeer.toml"]).start(bed);

    let low = format!("{sends}\n{}", relay.replace("8443", "843") + "send-proxy = \"v2\"\n");
    bed.write("truepeer.toml", low)?;
    ensure!(steer("reload")?.wait_end()?.success(), "a port below 1024: {}", truepeer.log());
    truepeer.wait_listening("127.0.0.1:843")?;

    bed.write("truepeer.toml", sends.replace("send-proxy = \"v2\"\n", ""))?;
    let reload = steer("reload")?;
    ensure!(!reload.wait_end()?.success(), "{}", truepeer.log());
    let wanted =
        "now needs CAP_NET_RAW or CAP_NET_ADMIN, which this process gave up after its start: restart it";
    ensure!(reload.log().contains(wanted), "{}", reload.log());

    bed.write("truepeer.toml", &sends)?;
    let upgrade = steer("upgrade")?;
    ensure!(upgrade.wait_end()?.success(), "{}", upgrade.log());
    truepeer.wait_end()?;
    ensure!(steer("reload")?.wait_end()?.success());
    let new: i32 = upgrade.stdout().split_whitespace().nth(1).context("no process")?.parse()?;
    rustix::process::kill_process(rustix::process::Pid::from_raw(new).context("0")?, Signal::TERM)?;
    Ok(())
}
