//! What must be impossible after the start is tried from inside of each process, and fails.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use rustix::io::Errno;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Truepeer, skip};

use crate::serve::{GATE, TCP, TEXT_LOG, UDP, serve};
use crate::stand::{BACKEND_V4, CLIENT_V4, DOOR_V4, Stand, TRUEPEER, ask, header_of};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> Result<()>| Test::new(name, work).needs_several_users();
    vec![
        test("a_process_can_not_do_what_its_job_does_not_need", proxies),
        test("an_https_process_can_not_do_what_its_job_does_not_need", https),
        test("a_process_with_a_file_can_not_do_what_its_job_does_not_need", with_a_file),
        test("a_keeper_can_not_do_what_its_job_does_not_need", keeper),
        test("a_repair_keeper_can_not_do_what_its_job_does_not_need", repair_keeper),
        test("a_pins_keeper_can_not_do_what_its_job_does_not_need", pins_keeper),
    ]
}

const TRIES: &str = include_str!("inside.py");
/// Not refused by the filter, but by the user, and by Landlock.
const FILES: [&str; 7] = [
    "read_shadow",
    "read_other",
    "read_init",
    "append_to_passwd",
    "create_file",
    "write_switch",
    "write_kernel_switch",
];
/// Not refused by the filter, but by the missing capability.
const RULES: [&str; 5] = ["rule_add", "rule_delete", "route_add", "tcp_repair", "buffer_force"];

/// The kinds of processes that are confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It parses what the network sends, and has no keeper.
    Alone,
    /// The same with a keeper, which alone listens: under repair, a socket binds and listens beside other
    /// programs' ones.
    Serving,
    /// The same, and its sessions may leave user space.
    Splicing,
    /// It changes rules.
    Keeper,
    /// It puts sockets under repair.
    RepairKeeper,
    /// It removes what is pinned, as the user that pinned it.
    PinsKeeper,
}

/// How a try must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Error(Errno),
    /// The filter lets it pass, because the job needs it.
    Passes,
    /// Not tried: it is the job, or stands for one of the others.
    LeftOut,
}

impl Kind {
    fn wanted(self, name: &str) -> Wanted {
        let needs: &[&str] = match self {
            Kind::Alone => &[
                "getpid",
                "socket_netlink_route",
                "socket_stream",
                "socket_datagram",
                "listen",
                "accept",
                "unlinkat",
            ],
            Kind::Serving | Kind::Splicing => {
                &["getpid", "socket_netlink_route", "socket_stream", "socket_datagram", "accept", "unlinkat"]
            }
            Kind::Keeper => &["getpid", "socket_netlink_route", "socket_stream", "listen"],
            Kind::RepairKeeper => &["getpid", "socket_stream"],
            Kind::PinsKeeper => &["getpid", "socket_netlink_route", "unlinkat"],
        };
        let is_keeper = matches!(self, Kind::Keeper | Kind::RepairKeeper);
        match name {
            _ if needs.contains(&name) => Wanted::Passes,
            "tcp_repair" if self == Kind::Splicing => Wanted::Error(Errno::NOSYS),
            // It gets no socket to set these options on.
            "tcp_repair" | "buffer_force" if self == Kind::PinsKeeper => Wanted::Error(Errno::BADF),
            "write_switch" if self == Kind::Keeper => Wanted::LeftOut,
            _ if RULES.contains(&name) && is_keeper => Wanted::LeftOut,
            _ if RULES.contains(&name) => Wanted::Error(Errno::PERM),
            _ if FILES.contains(&name) && self != Kind::RepairKeeper => Wanted::Error(Errno::ACCESS),
            _ => Wanted::Error(Errno::NOSYS),
        }
    }

    fn left_out(self) -> impl Iterator<Item = &'static str> {
        FILES.into_iter().chain(RULES).filter(move |name| self.wanted(name) == Wanted::LeftOut)
    }

    /// Tries everything in this process.
    fn is_confined(self, bed: &Bed, process: i32) -> Result<()> {
        let tried = tried_inside(bed, process, self.left_out())?;
        ensure!(tried["getpid"] > 0 && tried.len() > 30, "{self:?}: {tried:?}");
        for (name, result) in &tried {
            let is_right = match self.wanted(name) {
                Wanted::Error(errno) => *result == failed_by(errno),
                Wanted::Passes => *result != failed_by(Errno::NOSYS),
                Wanted::LeftOut => false,
            };
            ensure!(is_right, "{self:?}: {name}: {result}, not {:?}", self.wanted(name));
        }
        eprintln!("{self:?}: {} tries", tried.len());
        Ok(())
    }
}

fn failed_by(errno: Errno) -> i64 {
    -i64::from(errno.raw_os_error())
}

/// Files in a directory where everybody may read and write, but for Landlock.
struct Files {
    new: PathBuf,
    other: PathBuf,
}

impl Files {
    fn make(process: i32) -> Result<Files> {
        let path = |name| Path::new("/tmp").join(format!("truepeer-inside-{process}-{name}"));
        let files = Files { new: path("new"), other: path("other") };
        fs::write(&files.other, "for everybody")?;
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Usually there is no new one.
        let _ = fs::remove_file(&self.new);
        let _ = fs::remove_file(&self.other);
    }
}

/// The results of all tries, by name: a result, or a negative errno.
fn tried_inside(
    bed: &Bed,
    process: i32,
    left_out: impl Iterator<Item = &'static str>,
) -> Result<BTreeMap<String, i64>> {
    if !cfg!(target_arch = "x86_64") {
        return skip("makes x86-64's system calls");
    }
    let files = Files::make(process)?;
    let tries = Program::new("python3").args(["-c", TRIES, &process.to_string()]).arg(&files.new);
    let tries = tries.arg(&files.other).args(left_out).start(bed)?;
    ensure!(tries.wait_end()?.success(), "{}", tries.log());
    let result = |line: &str| {
        let (name, result) = line.split_once(' ').with_context(|| format!("{line:?}"))?;
        Ok((name.to_owned(), result.parse()?))
    };
    tries.stdout().lines().map(result).collect()
}

fn serves(truepeer: &Running) -> Result<()> {
    let answer = ask(&header_of(CLIENT_V4.parse()?)?)?;
    ensure!(answer == CLIENT_V4, "it serves no more ({answer:?}): {}", truepeer.log());
    Ok(())
}

/// Without confinement the same tries have other results: they arrive in the kernel.
fn proxies(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    for (options, kind) in [
        (&["--splice", "off"][..], Kind::Serving),
        (&["--splice", "off", "-p", "both"], Kind::Serving),
        (&["-p", "both"], Kind::Splicing),
    ] {
        let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, options)?;
        kind.is_confined(bed, truepeer.pid())?;
        serves(&truepeer)?;
        truepeer.stop()?;
    }
    let Stand { truepeer, backend: _backend } =
        Stand::with_options(bed, Behaviour::Who, &["--confine", "off"])?;
    for (name, result) in tried_inside(bed, truepeer.pid(), std::iter::empty())? {
        let is_done = FILES.contains(&name.as_str()) || RULES.contains(&name.as_str());
        ensure!(result != failed_by(Errno::NOSYS) && (!is_done || result >= 0), "{name}: {result}");
    }
    serves(&truepeer)
}

/// Writes a key with its certificate.
fn key(bed: &Bed) -> Result<()> {
    let made = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
    bed.write("site.pem", made.cert.pem() + &made.signing_key.serialize_pem()).map(drop)
}

const HTTPS: &str = "127.0.0.1:8445";

/// Nothing listens at its origin.
fn serves_https(bed: &Bed) -> Result<()> {
    let curl = ["-sk", "-o", "/dev/null", "-w", "%{http_code}"];
    let status = Program::new("curl").args(curl).arg(format!("https://{HTTPS}/")).run(bed)?;
    ensure!(status == "502", "{status}");
    Ok(())
}

fn https(bed: &Bed) -> Result<()> {
    key(bed)?;
    for (way, kind) in [("forwarded", Kind::Alone), ("transparent", Kind::Serving)] {
        let program = Program::new(TRUEPEER).args(["https", "--tls-cert", "site.pem"]);
        let program = program.args(["--origin", "http://127.0.0.1:8001", "--client-address", way]);
        let truepeer = Truepeer::of(program).listen(HTTPS).start(bed)?;
        serves_https(bed)?;
        kind.is_confined(bed, truepeer.pid())?;
        serves_https(bed)?;
        truepeer.stop()?;
    }
    Ok(())
}

/// With TCP, UDP and HTTPS.
fn with_a_file(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    key(bed)?;
    let https = format!(
        "[[https]]\nlisten = [\"{HTTPS}\"]\ntls-cert = [\"site.pem\"]\norigin = \"http://127.0.0.1:8001\"\n"
    );
    let _backend = Behaviour::Who.start(bed, &[BACKEND_V4])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP, UDP, &https])?;
    truepeer.wait_listening(DOOR_V4)?;
    truepeer.wait_listening(HTTPS)?;
    truepeer.wait_for_log(&format!("listening on {GATE}"))?;
    Kind::Splicing.is_confined(bed, truepeer.pid())?;
    serves_https(bed)?;
    serves(&truepeer)
}

/// It may add rules and routes, write switches of the network, has netlink, and listens.
fn keeper(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, &["-p", "both"])?;
    Kind::Keeper.is_confined(bed, truepeer.helper("truepeer-keeper")?)?;
    serves(&truepeer)?;
    ensure!(truepeer.children()?.len() == 3, "the keeper has ended: {}", truepeer.log());
    truepeer.stop().map(drop)
}

/// It may make TCP sockets, which a reset needs, and opens no file.
fn repair_keeper(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, &[])?;
    Kind::RepairKeeper.is_confined(bed, truepeer.helper("truepeer-splice")?)?;
    serves(&truepeer)?;
    ensure!(truepeer.children()?.len() == 3, "a keeper has ended: {}", truepeer.log());
    truepeer.stop().map(drop)
}

/// It stays root where truepeer was started as root, with no other power of it.
fn pins_keeper(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let Stand { truepeer, backend: _backend } = Stand::with_options(bed, Behaviour::Who, &[])?;
    Kind::PinsKeeper.is_confined(bed, truepeer.helper("truepeer-pins")?)?;
    serves(&truepeer)?;
    ensure!(truepeer.children()?.len() == 3, "a keeper has ended: {}", truepeer.log());
    truepeer.stop()?;
    let pinned = fs::read_dir("/sys/fs/bpf/truepeer-splice")?.count();
    ensure!(pinned == 0, "it has not removed what was pinned");
    Ok(())
}
