//! Who competes: a table that grows. A contestant says what it carries and how it is brought up between the load and the
//! backend; everything else is the same for all.

mod command;
mod go_mmproxy;
mod haproxy;
mod nginx;
mod truepeer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use truepeer_testbed::{Bed, Program, Running, find_program};

pub(crate) use command::Command;

use self::truepeer::{Attached, Via};
use crate::backend;
use crate::load::{Load, Transport};
use crate::measure::cpu;
use crate::place::{BACKEND, ENTRANCE};

/// How a contestant comes between load and backend.
#[derive(Debug, Clone)]
enum Way {
    /// Not at all: the load talks to the backend, and writes no header.
    Direct,
    /// truepeer's relay; where its binary is.
    TruepeerProxy(PathBuf),
    TruepeerAttach(PathBuf),
    TruepeerRun(PathBuf, Via),
    Haproxy,
    Nginx,
    /// With this value of GOMAXPROCS, if any.
    GoMmproxy(Option<&'static str>),
    /// Any other, by its command line.
    Command(Command),
}

/// A contestant.
#[derive(Debug, Clone)]
pub(crate) struct Contestant {
    /// Its name on the command line.
    pub(crate) name: String,
    /// What the tables call it.
    pub(crate) label: String,
    way: Way,
}

/// What all others are compared with.
pub(crate) const NO_PROXY: &str = "no-proxy";
/// The contestant that the summary holds against the best of the others; its other ways' names begin with it.
pub(crate) const TRUEPEER: &str = "truepeer";

/// What is brought up for one cell.
pub(crate) struct Stand<'a> {
    /// Where the load connects to.
    pub(crate) entrance: SocketAddr,
    /// Whether it has to begin with a header.
    pub(crate) header: bool,
    /// The contestant's programs, ended before the backend.
    programs: Vec<Running>,
    _attached: Option<Attached<'a>>,
    backend: Running,
    /// Whether the backend was started by the contestant, which stays beside it.
    is_supervised: bool,
}

impl Stand<'_> {
    /// CPU time of the contestant so far.
    pub(crate) fn cpu_time(&self) -> Duration {
        let supervisor = self.is_supervised.then(|| cpu::time_of(self.backend.pid()));
        self.groups().into_iter().flat_map(cpu::members).map(cpu::time_of).chain(supervisor).sum()
    }

    /// The process groups of the contestant.
    pub(crate) fn groups(&self) -> Vec<i32> {
        self.programs.iter().map(Running::pid).collect()
    }

    /// What a program of the contestant's that is not there any more said last.
    pub(crate) fn last_words(&self) -> Option<String> {
        let dead = self.programs.iter().find(|program| !program.is_alive())?;
        Some(reason_in(&dead.log()).to_owned())
    }
}

/// The reason in a log: Go's panics begin with it and end with a stack, its loggers wrap it up.
fn reason_in(log: &str) -> &str {
    if let Some(panic) =
        log.lines().find(|line| line.starts_with("panic:") || line.starts_with("fatal error:"))
    {
        return panic;
    }
    let last = log.lines().last().unwrap_or("without a word");
    let wrapped = last.split_once("\"error\":\"").and_then(|(_, rest)| rest.split('"').next());
    wrapped.unwrap_or(last)
}

/// All that compete without being asked for by a command line, in the order of the tables.
pub(crate) fn standard(truepeer: PathBuf) -> Vec<Contestant> {
    let contestant =
        |name: &str, label: &str, way| Contestant { name: name.to_owned(), label: label.to_owned(), way };
    vec![
        contestant(NO_PROXY, "no proxy", Way::Direct),
        contestant("go-mmproxy", "go-mmproxy", Way::GoMmproxy(None)),
        contestant("go-mmproxy-1", "go-mmproxy GOMAXPROCS=1", Way::GoMmproxy(Some("1"))),
        contestant("haproxy", "HAProxy", Way::Haproxy),
        contestant("nginx", "NGINX stream", Way::Nginx),
        contestant(TRUEPEER, "truepeer proxy", Way::TruepeerProxy(truepeer.clone())),
        contestant("truepeer-attach", "truepeer attach", Way::TruepeerAttach(truepeer.clone())),
        contestant("truepeer-run", "truepeer run", Way::TruepeerRun(truepeer.clone(), Via::Preload)),
        contestant("truepeer-notify", "truepeer run --via notify", Way::TruepeerRun(truepeer, Via::Notify)),
    ]
}

impl Contestant {
    /// One by its command line.
    pub(crate) fn by_command(command: Command) -> Self {
        Self { name: command.name.clone(), label: command.name.clone(), way: Way::Command(command) }
    }

    /// Whether it takes part in a load: not all carry datagrams with headers in them.
    pub(crate) fn carries(&self, load: Load) -> bool {
        match (&self.way, load.transport()) {
            (Way::Direct | Way::TruepeerProxy(_) | Way::TruepeerAttach(_) | Way::GoMmproxy(_), _)
            | (_, Transport::Tcp) => true,
            // HAProxy carries no UDP; NGINX sends PROXY headers over UDP but can't receive them.
            (Way::Haproxy | Way::Nginx, Transport::Udp) => false,
            // truepeer run is about accept().
            (Way::TruepeerRun(..), Transport::Udp) => false,
            (Way::Command(command), Transport::Udp) => command.carries_udp(),
        }
    }

    /// What it lacks on this machine, if anything.
    pub(crate) fn missing(&self) -> Option<String> {
        let program = |name: &str| {
            find_program(name)
                .is_none()
                .then(|| format!("{name} is neither unpacked (make servers) nor installed"))
        };
        match &self.way {
            Way::Direct | Way::Command(_) => None,
            Way::TruepeerProxy(path) | Way::TruepeerAttach(path) | Way::TruepeerRun(path, _) => {
                (!path.exists()).then(|| format!("{} is not there (cargo build -p truepeer)", path.display()))
            }
            Way::Haproxy => program("haproxy"),
            Way::Nginx => program("nginx").or_else(nginx::missing_module),
            Way::GoMmproxy(_) => program("go-mmproxy"),
        }
    }

    /// Which version it is, in its own words.
    pub(crate) fn version(&self, bed: &Bed) -> Option<String> {
        match &self.way {
            Way::Direct => None,
            Way::TruepeerProxy(path) | Way::TruepeerAttach(path) | Way::TruepeerRun(path, _) => {
                Some(truepeer::version(bed, path))
            }
            Way::Haproxy => Some(haproxy::version(bed)),
            Way::Nginx => Some(nginx::version(bed)),
            Way::GoMmproxy(_) => Some(go_mmproxy::version()),
            Way::Command(command) => Some(format!("`{}`", command.text)),
        }
    }

    /// Brings backend and contestant up in the calling thread's network, and waits until they serve.
    pub(crate) fn stand_up<'a>(&self, bed: &'a Bed, load: Load, threads: usize) -> anyhow::Result<Stand<'a>> {
        let (kind, transport) = (load.backend(), load.transport());
        let backend = self.around(backend::program(bed, kind, threads)?, transport).start(bed)?;
        backend::wait_ready(&backend, kind)?;
        let attached = match &self.way {
            Way::TruepeerAttach(path) => Some(Attached::make(bed, path, transport)?),
            _ => None,
        };
        let program = self.between(bed, transport)?;
        let entrance = if program.is_some() { ENTRANCE } else { BACKEND };
        let programs = program.map(|program| start(&program, bed, transport)).transpose()?;
        Ok(Stand {
            entrance,
            header: !matches!(self.way, Way::Direct),
            programs: programs.into_iter().collect(),
            _attached: attached,
            backend,
            is_supervised: matches!(self.way, Way::TruepeerRun(_, Via::Notify)),
        })
    }

    /// The backend, started by the contestant where that is its way.
    fn around(&self, backend: Program, transport: Transport) -> Program {
        match &self.way {
            Way::TruepeerRun(path, via) => truepeer::run(path, *via, backend),
            Way::Command(command) if command.starts_the_backend() => command.around(backend, transport),
            _ => backend,
        }
    }

    /// The contestant's program, where it stands between load and backend.
    fn between(&self, bed: &Bed, transport: Transport) -> anyhow::Result<Option<Program>> {
        Ok(match &self.way {
            Way::Direct | Way::TruepeerAttach(_) | Way::TruepeerRun(..) => None,
            Way::Command(command) if command.starts_the_backend() => None,
            Way::TruepeerProxy(path) => Some(truepeer::proxy(path, transport)),
            Way::Haproxy => Some(haproxy::program(bed)?),
            Way::Nginx => Some(nginx::program(bed)?),
            Way::GoMmproxy(threads) => Some(go_mmproxy::program(*threads, transport)?),
            Way::Command(command) => Some(command.program(transport)?),
        })
    }
}

fn start(program: &Program, bed: &Bed, transport: Transport) -> anyhow::Result<Running> {
    let running = program.start(bed)?;
    match transport {
        Transport::Tcp => running.wait_listening(ENTRANCE)?,
        Transport::Udp => running.wait_bound_udp(ENTRANCE)?,
    }
    Ok(running)
}

/// The first line that a program says about itself.
fn first_line_of(bed: &Bed, program: &str, args: &[&str]) -> String {
    let said = Program::new(program).args(args).start(bed).and_then(|running| {
        running.wait_end()?;
        Ok(running.log())
    });
    said.ok()
        .and_then(|text| Some(text.lines().next()?.to_owned()))
        .unwrap_or("of unknown version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_in_go_s_logs() {
        let json =
            r#"{"level":"error","msg":"failed","error":"accept4: too many open files","stacktrace":"main"}"#;
        assert_eq!(reason_in(json), "accept4: too many open files");
        assert_eq!(reason_in("started\npanic: index out of range\ngoroutine 1"), "panic: index out of range");
        assert_eq!(reason_in("one\ntwo"), "two");
    }
}
