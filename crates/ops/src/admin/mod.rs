//! Watches and steers the running program by HTTP, over a unix socket or TCP.
//!
//! ```text
//! curl, Prometheus, truepeer status ─▶ Admin: one thread, poll(2) ─▶ answer ─▶ trait Running: the server
//!                                        bounded connections, bytes and times
//! ```
//! A user who may connect to the unix socket (its mode is 0660) may read, end sessions, ban and reload. An
//! upgrade also takes root or the process's own user. Over TCP everything can be read and nothing changed,
//! because anybody on the network may connect. At `whois:PATH` every user of this host may ask for one peer.
//!
//! Prometheus scrapes `/metrics`. The engines never wait for this thread: it reads counters without locks,
//! and asks workers for their sessions in small pages.

mod answer;
pub(crate) mod bans;
pub(crate) mod client;
mod connection;
mod listen;
pub(crate) mod listing;
mod metrics;
mod page;
mod room;
mod serve;
pub(crate) mod status;
mod stop;
mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod whois;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use truepeer_policy::{BannedPrefix, Bans};
use truepeer_session::complaints::RecentComplaint;
use truepeer_session::counters::Counters;
use truepeer_session::{ListenerId, SessionList};

pub use self::bans::{BanChange, BanDoc};
pub use self::client::{Client, connect_to, switch_protocol};
use self::listen::Entrance;
pub use self::status::{AttachmentDoc, FromHere, SpliceDoc, StatusDoc, Trial};
use self::stop::Stopper;
use truepeer_config::spec::{AdminAddr, Protocol};

/// The running program, as its operator watches and steers it. Calls come from the admin thread, and
/// [`Running::reload`] and [`Running::upgrade`] from threads of their own.
pub trait Running: Send + Sync {
    /// What it does at this moment.
    fn state(&self) -> State;

    /// The counters of all engines.
    fn counters(&self) -> &Counters;

    /// The listeners that are open, and those that have been.
    fn listeners(&self) -> Vec<ListenerView>;

    /// The listeners that should be open and are not, after a change that failed and could not be undone.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// For each address of the listener: what this host may send there without a refusal.
    fn trials(&self, _: &ListenerView) -> Vec<FromHere> {
        Vec::new()
    }

    /// The sessions of each engine.
    fn sessions(&self) -> Vec<Arc<dyn SessionList>>;

    /// Whether sessions may leave user space, if a listener's are to.
    fn splice(&self) -> Option<SpliceDoc> {
        None
    }

    /// What is attached in the kernel for this program.
    fn attachments(&self) -> Vec<AttachmentDoc> {
        Vec::new()
    }

    /// Who was refused in the last minutes, and why.
    fn complaints(&self) -> Vec<RecentComplaint> {
        Vec::new()
    }

    /// Who is banned.
    fn bans(&self) -> &Bans;

    /// Changes who is banned. Open sessions of those who are now end within a moment. Returns how many bans
    /// were set or lifted.
    ///
    /// # Errors
    /// Why nothing has changed.
    fn change_bans(&self, change: BanChange) -> Result<usize, BanFailure>;

    /// What the operator should know about this ban.
    fn note_of_ban(&self, _: BannedPrefix) -> Option<String> {
        None
    }

    /// Reads the configuration and all files again. Returns what has changed, in a sentence or several lines.
    ///
    /// # Errors
    /// The reason why everything stays as it was.
    fn reload(&self) -> Result<String, String>;

    /// Hands over to a new process, which is at the other end of `peer`. Nothing after the request's head has
    /// been read or written.
    fn upgrade(&self, peer: UnixStream);
}

/// Why who is banned has not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BanFailure {
    /// The table can't take it.
    Refused(String),
    /// A new process takes the table over: ask again, it answers in a moment.
    Upgrading,
}

/// What the program does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing is served yet.
    Starting,
    /// All that it should serve.
    Serving,
    /// Open sessions go on; nothing new is taken.
    Draining,
    /// A worker has ended unexpectedly, for this reason.
    Broken(String),
}

impl State {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Broken(_) => "broken",
        }
    }
}

/// A listener as an operator knows it.
#[derive(Debug, Clone)]
pub struct ListenerView {
    /// Whose counters and sessions are its own.
    pub id: ListenerId,
    /// The entry of the configuration that it belongs to: `proxy` or `https`.
    pub entry: &'static str,
    /// What it takes.
    pub protocol: Protocol,
    /// With the port that the kernel chose for port 0.
    pub addresses: Vec<SocketAddr>,
    /// The site's name, if several share the listener.
    pub site: Option<String>,
    /// Whether it takes new connections.
    pub is_open: bool,
}

impl ListenerView {
    /// The addresses, and the site's name.
    pub(crate) fn name(&self) -> String {
        name_of(&self.addresses, self.site.as_deref())
    }
}

/// The name of a listener, or of one of its sites, for operators.
pub(crate) fn name_of(addresses: &[SocketAddr], site: Option<&str>) -> String {
    let addresses = addresses.iter().map(ToString::to_string);
    addresses.chain(site.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}

/// The admin thread and its sockets.
#[derive(Debug)]
pub struct Admin {
    entrances: Arc<Vec<Entrance>>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

/// Opens unix sockets for [`start`], before this process becomes another user, and adds them to `inherited`.
///
/// # Errors
/// A socket that can't be opened.
pub fn open_ahead(listen: &[&AdminAddr], inherited: &mut Vec<OwnedFd>) -> anyhow::Result<()> {
    for address in listen {
        let socket = Entrance::open_quietly(address, inherited)?.duplicate()?;
        inherited.push(socket);
    }
    Ok(())
}

/// Opens `listen`, or takes their sockets from `inherited`, and starts the thread. With nothing to listen on,
/// there is no thread.
///
/// # Errors
/// A socket that can't be opened, or a thread that can't be started.
pub fn start(
    listen: &[AdminAddr],
    inherited: &mut Vec<OwnedFd>,
    running: Arc<dyn Running>,
) -> anyhow::Result<Admin> {
    let opened = listen.iter().map(|address| Entrance::open(address, inherited));
    let entrances = Arc::new(opened.collect::<anyhow::Result<Vec<_>>>()?);
    let (stopper, stopped) = stop::stopper().context("can't start the admin thread")?;
    let thread = if entrances.is_empty() {
        None
    } else {
        let entrances = Arc::clone(&entrances);
        let work = move || serve::serve(&entrances, &stopped, &running);
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(work);
        Some(thread.context("can't start the admin thread")?)
    };
    Ok(Admin { entrances, stopper, thread })
}

impl Admin {
    /// Its listening sockets, for a process that takes over.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn sockets(&self) -> anyhow::Result<Vec<OwnedFd>> {
        self.entrances.iter().map(Entrance::duplicate).collect()
    }

    /// Answers nothing more. `unlink`: removes the paths of unix sockets, unless another process listens on
    /// them.
    pub fn stop(mut self, unlink: bool) {
        self.end();
        if unlink {
            self.entrances.iter().for_each(Entrance::unlink);
        }
    }

    fn end(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.end();
    }
}
