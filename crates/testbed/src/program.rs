//! Runs real programs in a given place, as a given user, with given limits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use rustix::process::Signal;
use truepeer_sys::netns::NetNs;
use truepeer_sys::process::with_child_signal;

use crate::bed::Bed;
use crate::enter::INSIDE;
use crate::passwd::User;
use crate::running::Running;
use crate::skip::skip;
use crate::{expose, whereabouts};

/// A program to start; see [`Program::start`] and [`Program::run`].
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    launcher: Option<(PathBuf, Vec<OsString>)>,
    args: Vec<OsString>,
    env: Vec<(String, OsString)>,
    dir: Option<PathBuf>,
    netns: Option<NetNs>,
    user: User,
    capabilities: Option<Vec<String>>,
    limits: Vec<String>,
    input: Vec<u8>,
    stdin: Option<Arc<OwnedFd>>,
    stop_by: Signal,
}

impl Program {
    /// Names it: an unpacked server, a command of the machine, or a path.
    pub fn new(name: impl AsRef<OsStr>) -> Program {
        Program {
            name: name.as_ref().to_string_lossy().into_owned(),
            launcher: None,
            args: Vec::new(),
            env: Vec::new(),
            dir: None,
            netns: None,
            user: User::ROOT,
            capabilities: None,
            limits: Vec::new(),
            input: Vec::new(),
            stdin: None,
            stop_by: Signal::TERM,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Program {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Starts it by another program: `launcher ARGS… FILE ITS-ARGS…`. All other settings stay.
    pub fn launched_by(mut self, launcher: impl Into<PathBuf>, args: &[&str]) -> Program {
        self.launcher = Some((launcher.into(), args.iter().map(Into::into).collect()));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.env.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets its working directory. The default is the bed's directory.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Program {
        self.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Sets its network namespace. The default is that of the starting thread.
    pub fn in_netns(mut self, netns: &NetNs) -> Program {
        self.netns = Some(netns.clone());
        self
    }

    /// Runs it as another user without capabilities (see [`Program::with_capabilities`]).
    pub fn as_user(mut self, user: User) -> Program {
        self.user = user;
        self
    }

    /// Runs it with exactly these capabilities, as setpriv names them (`net_raw`), inherited by what it
    /// executes. Root keeps no others either. Together with [`Program::as_user`]: "a plain user with only
    /// CAP_NET_RAW".
    pub fn with_capabilities(mut self, capabilities: &[&str]) -> Program {
        self.capabilities = Some(capabilities.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// Sets a resource limit in prlimit's notation: `nofile=1024`, `nofile=1024:4096`.
    pub fn limit(mut self, limit: &str) -> Program {
        self.limits.push(format!("--{limit}"));
        self
    }

    /// Sets its standard input, which then ends. At most 64 KiB: it is written at the start.
    pub fn input(mut self, input: impl AsRef<[u8]>) -> Program {
        self.input = input.as_ref().to_vec();
        self
    }

    /// Sets the descriptor of its standard input, for example a socket to inherit. Instead of
    /// [`Program::input`].
    pub fn stdin(mut self, stdin: impl Into<OwnedFd>) -> Program {
        self.stdin = Some(Arc::new(stdin.into()));
        self
    }

    /// Sets the signal that ends it in an orderly way. The default is SIGTERM.
    pub fn stop_by(mut self, signal: Signal) -> Program {
        self.stop_by = signal;
        self
    }

    /// Starts it. It ends when the handle is dropped. Skips the test if the machine lacks the program.
    pub fn start(&self, bed: &Bed) -> anyhow::Result<Running> {
        let Some(file) = whereabouts::find_program(&self.name) else {
            return skip(format!("{} is neither unpacked (make servers) nor installed", self.name));
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let base = bed.log_base(&name);
        let (out, err) = (base.with_extension("out"), base.with_extension("err"));
        let mut command = self.command(&file, bed)?;
        command.stdout(File::create(&out)?).stderr(File::create(&err)?);
        command.stdin(match &self.stdin {
            Some(stdin) => stdin.try_clone()?.into(),
            None => Stdio::piped(),
        });
        let mut spawn =
            || with_child_signal(|| command.spawn()).with_context(|| format!("{name} can't be started"));
        let mut child = match &self.netns {
            Some(netns) => netns.run(spawn)??,
            None => spawn()?,
        };
        if let Some(mut stdin) = child.stdin.take() {
            // A program may end without reading; its output and status are what counts.
            let _ = stdin.write_all(&self.input);
        }
        Ok(Running::adopt(name, child, self.stop_by, [out, err], bed))
    }

    /// Runs it to its end, for at most twice [`crate::WAIT_LIMIT`], and returns its standard output. If it
    /// fails, the error contains its output.
    pub fn run(&self, bed: &Bed) -> anyhow::Result<String> {
        let running = self.start(bed)?;
        let status = running.wait_end()?;
        anyhow::ensure!(status.success(), "{}: {status}: {}", self.name, running.log());
        Ok(running.stdout())
    }

    fn command(&self, file: &Path, bed: &Bed) -> anyhow::Result<Command> {
        let file = self.reachable(file, bed)?;
        let mut words: Vec<OsString> = self.wrappers();
        if let Some((launcher, args)) = &self.launcher {
            words.push(self.reachable(launcher, bed)?.into());
            words.extend(args.iter().cloned());
        }
        words.push(file.clone().into());
        words.extend(self.args.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.dir.as_deref().unwrap_or(bed.dir())).process_group(0);
        command.env_remove(INSIDE).envs(whereabouts::environment(&file));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }

    /// The file, by a path that its user can access.
    fn reachable(&self, file: &Path, bed: &Bed) -> anyhow::Result<PathBuf> {
        if self.user == User::ROOT
            || ["/usr", "/bin", "/sbin", "/run"].iter().any(|dir| file.starts_with(dir))
        {
            return Ok(file.to_path_buf());
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let place = bed.dir().join(bed.fresh_name(&name));
        expose::expose(file, &place)
    }

    fn wrappers(&self) -> Vec<OsString> {
        let mut words: Vec<String> = Vec::new();
        if !self.limits.is_empty() {
            words.extend(["prlimit".to_owned()].into_iter().chain(self.limits.iter().cloned()));
            words.push("--".into());
        }
        if self.user != User::ROOT || self.capabilities.is_some() {
            words.extend(self.setpriv());
        }
        words.into_iter().map(OsString::from).collect()
    }

    fn setpriv(&self) -> Vec<String> {
        let only = self.capabilities.iter().flatten().fold("-all".to_owned(), |set, name| set + ",+" + name);
        let mut words = vec!["setpriv".to_owned()];
        if self.user != User::ROOT {
            words.push(format!("--reuid={}", self.user.uid));
            words.push(format!("--regid={}", self.user.gid));
            words.push("--clear-groups".into());
        }
        words.push(format!("--inh-caps={only}"));
        words.push(format!("--ambient-caps={only}"));
        words.push(format!("--bounding-set={only}"));
        words.push("--".into());
        words
    }
}
