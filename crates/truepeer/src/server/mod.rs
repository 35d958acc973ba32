//! Runs a plan: limits, sockets, routes, the engines, attachments, and signals until the end.

mod apply;
mod attachments;
#[cfg_attr(not(feature = "acme"), path = "without_acme.rs")]
mod certificates;
mod changes;
mod follow;
mod from_here;
mod holder;
mod inherited;
mod notify;
mod process;
mod requests;
mod routes;
mod rules;
mod signals;
mod sockets;
pub(crate) mod splice;
pub(crate) mod start;
mod upgrade;
mod view;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use tracing::{error, info, warn};
use truepeer_policy::Ban;
use truepeer_session::Advise;
use truepeer_sys::limits;

use self::attachments::{Attachments, ForkedKeeper};
use self::changes::Changes;
use self::inherited::Inherited;
use self::notify::Manager;
use self::process::Process;
use self::requests::{HandedOver, Offered, Request, Requests};
use self::signals::{Event, Events};
use self::splice::Pins;
use self::upgrade::Taking;
use self::view::View;
use truepeer_cli::file::{ConfigSource, LoadedConfig};
use truepeer_config::plan::AdminConfig;
use truepeer_ops::admin::{self, Admin, State};
use truepeer_privilege::confine::{self, Confined};
use truepeer_privilege::keeper::guard::Hands;
use truepeer_privilege::keeper::{Permitted, RepairKeeper};
use truepeer_sys::output;

/// How long replies to the last datagrams may take when a drain ends.
const LAST_REPLIES: Duration = Duration::from_millis(300);

/// Serves until SIGTERM or SIGINT. Open sessions may then continue for a while; a second signal ends them at
/// once. SIGUSR1 logs the counters, SIGHUP loads `source` again. `advise` puts the engines' hints into words.
/// `is_upgrade`: takes over from the process that listens on the admin socket.
///
/// # Errors
/// The reason why it can't serve. Once it serves, no sender, client or backend can end it. A worker that ends
/// unexpectedly does, because the others would serve only a part of the connections.
pub(crate) fn run(
    source: &ConfigSource,
    loaded: LoadedConfig,
    advise: Advise,
    is_upgrade: bool,
) -> anyhow::Result<()> {
    // First: inherited descriptors have fixed numbers, which nothing else may have taken.
    let mut inherited = Inherited::take()?;
    // Before the threads start: a signal that arrives meanwhile must not be lost.
    let mut events = Events::hear(&[SIGTERM, SIGINT, SIGUSR1, SIGHUP]).context("can't wait for signals")?;
    let mut server = Server::start(source, &loaded, advise, &events, &mut inherited, is_upgrade)?;
    drop(loaded);
    inherited.warn_of_unasked();
    while server.goes_on(&mut events)? {}
    info!("stopping with {}", server.process.open());
    if let Some(admin) = server.admin.take() {
        admin.stop(true);
    }
    server.process.leave_routes();
    Ok(())
}

/// A running process, with the admin socket, the service manager and other threads' requests.
struct Server<'a> {
    source: &'a ConfigSource,
    /// Dropped first: its thread reads the process's state.
    admin: Option<Admin>,
    process: Process,
    view: Arc<View>,
    manager: Manager,
    requests: Receiver<Request>,
    /// With `reload-on-change`.
    changes: Option<Changes>,
    /// Set after a signal to stop, or after the hand-over to a new process.
    draining_until: Option<Instant>,
    upgrade: Upgrade,
    /// The drain's time is over, and the last replies may still come.
    is_ending: bool,
    /// Sessions of those who are banned since must end.
    are_bans_new: bool,
    confined: Confined,
    /// Whether a listener wanted the kernel's programs for spliced sessions at the start.
    wants_splice: bool,
    /// Dropped after the process: at the end, sessions that have left user space are reset.
    repairs: Option<RepairKeeper>,
    /// Dropped last: nobody has the tables any more.
    _pins: Option<Pins>,
}

/// Whether this process hands over to a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upgrade {
    No,
    UnderWay,
    Done,
}

impl<'a> Server<'a> {
    fn start(
        source: &'a ConfigSource,
        loaded: &LoadedConfig,
        advise: Advise,
        events: &Events,
        inherited: &mut Inherited,
        is_upgrade: bool,
    ) -> anyhow::Result<Self> {
        let open_files = limits::raise_open_files().unwrap_or_else(|error| {
            warn!("{error}: going on with the limit of open files as it is");
            limits::open_files()
        });
        let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
        // The old process's socket may be root's.
        let mut taking =
            if is_upgrade { Some(Taking::begin(&loaded.process, inherited.sockets())?) } else { None };
        let log = taking.as_mut().map(Taking::take_log).transpose()?.flatten();
        holder::look_ahead(&loaded.process);
        let grows = matches!(source, ConfigSource::File(_));
        let mut plan = confine::Plan::of(&loaded.process, &loaded.files, grows)?;
        admin::open_ahead(&plan.sockets_ahead(), inherited.sockets())
            .or_else(|failure| without_admin(&loaded.process.admin, failure))?;
        let programs = splice::load(&loaded.process, is_upgrade);
        plan.has_splice_tables(programs.splices.is_some());
        plan.has_flow_tables(programs.flows.as_ref().is_some_and(Result::is_ok));
        let tables = programs.splices.clone();
        let sessions_go_on = move || tables.as_ref().is_some_and(|tables| tables.go_on());
        let keeper = plan.start_keeper(Permitted::of(&loaded.checked), sessions_go_on);
        let hands = keeper.map_or(Hands::Own, Hands::Keeper);
        let repairs = plan.start_repair_keeper();
        let pins = programs.pins(&mut plan);
        let attach_keeper = plan.start_attach_keeper(|| ForkedKeeper::start(source, loaded))?;
        let kept = if grows { kept_bans() } else { Vec::new() };
        // Before the first thread, because threads inherit it. Listeners can still be added, and rules by the
        // keeper.
        let confined = plan.enter()?;
        let spliced_on = programs.devices.clone();
        let bell = events.bell();
        let attachments = match attach_keeper {
            Some(keeper) => Attachments::Keeper(keeper.hear(bell.clone())?),
            None => Attachments::own(Arc::new({
                let bell = bell.clone();
                move || bell.ring()
            })),
        };
        let process = Process::new(&loaded.process, open_files, advise, &bell, programs, hands, attachments);
        if let Err(error) = process.engines.bans.set(kept) {
            warn!("kept bans are lost: {error}");
        }
        let (asking, requests) = Requests::new(events.bell());
        let view = View::new(&process, asking);
        let mut server = Self {
            source,
            admin: None,
            process,
            view,
            manager: Manager::new(),
            requests,
            changes: None,
            draining_until: None,
            upgrade: Upgrade::No,
            is_ending: false,
            are_bans_new: false,
            confined,
            wants_splice: splice::is_wanted(&loaded.process),
            repairs,
            _pins: pins,
        };
        match taking {
            Some(taking) => server.take_over(loaded, inherited, taking)?,
            None => {
                server.process.apply(loaded, inherited.sockets())?;
                server.open_admin(inherited)?;
            }
        }
        if let Some(devices) = spliced_on {
            info!("sessions may leave user space, on {devices}");
        }
        server.confined.announce();
        server.view.set_state(State::Serving);
        server.watch(loaded);
        server.on_change();
        if let Some(log) = log {
            log.keep();
        }
        Ok(server)
    }

    fn open_admin(&mut self, inherited: &mut Inherited) -> anyhow::Result<()> {
        let config = &self.process.config.admin;
        if config.listen.is_empty() {
            return Ok(());
        }
        match admin::start(&config.listen, inherited.sockets(), self.view.clone()) {
            Ok(admin) => self.admin = Some(admin),
            Err(failure) => without_admin(config, failure)?,
        }
        Ok(())
    }

    fn take_over(
        &mut self,
        loaded: &LoadedConfig,
        inherited: &mut Inherited,
        mut taking: Taking,
    ) -> anyhow::Result<()> {
        let old = taking.pid;
        taking.bans(&self.process.engines.bans);
        let flows = match self.process.apply_new(loaded, inherited.sockets(), &taking) {
            Ok(()) => taking.flows()?,
            Err(failure) => {
                taking.fail(&failure);
                return Err(failure);
            }
        };
        let sent = flows.len();
        let mut admin = None;
        let view = &self.view;
        let adopted = self.process.take_over(
            loaded,
            inherited.sockets(),
            flows,
            |process, sockets, udp, attached| {
                admin = Some(admin::start(&process.config.admin.listen, sockets, view.clone())?);
                taking.serving(udp, attached)
            },
        )?;
        self.admin = admin;
        sockets::let_go(inherited.sockets());
        info!("upgrade: serves in place of process {old}; {adopted} of {sent} flows go on");
        // `truepeer upgrade` reads it; it may have ended.
        let _ = writeln!(output::stdout(), "process {} serves in place of process {old}", std::process::id());
        Ok(())
    }

    /// Waits for the next event. Returns whether it goes on.
    fn goes_on(&mut self, events: &mut Events) -> anyhow::Result<bool> {
        // An upgrade or a drain doesn't look.
        let looks = self.upgrade == Upgrade::No && self.draining_until.is_none();
        let look = self.changes.as_ref().filter(|_| looks).map(Changes::next_look);
        let routes = &self.process.routes;
        let bans = self.next_expiry();
        let deadlines = [self.draining_until, self.manager.next_ping(), look, routes.next_look(), bans];
        let repairs = self.repairs.as_ref().and_then(RepairKeeper::watched);
        let watched: Vec<_> = routes.noticed().into_iter().flatten().chain(repairs).collect();
        match events.next(deadlines.into_iter().flatten().min(), &watched)? {
            Event::Signal(SIGUSR1) => self.process.report(),
            Event::Signal(SIGHUP) if self.draining_until.is_some() => {
                info!("not reloaded: truepeer is about to end");
            }
            Event::Signal(SIGHUP) => _ = self.reload(),
            Event::Signal(_) if self.draining_until.is_none() && !self.process.config.drain.is_zero() => {
                self.drain();
            }
            Event::Signal(_) => return Ok(false),
            Event::Bell | Event::Watched | Event::Timeout => {}
        }
        while let Ok(request) = self.requests.try_recv() {
            self.carry_out(request)?;
        }
        self.settle_bans();
        let now = Instant::now();
        let has_ended = self.process.have_ended().inspect_err(|broken| {
            self.view.set_state(State::Broken(format!("{broken:#}")));
        })?;
        self.process.routes.notice_keeper();
        self.repairs.iter().for_each(RepairKeeper::notice);
        self.process.attachments.notice_keeper();
        if self.process.routes.restore_if_due(now) {
            self.process.engines.probe_backends();
        }
        self.reload_if_changed(now);
        self.manager.ping(now);
        Ok(self.draining_until.is_none_or(|until| !has_ended && self.has_time(until, now)))
    }

    /// Whether the drain's time is not over. Flows never end by themselves while their clients send: at the
    /// end, the replies that are on their way still pass.
    fn has_time(&mut self, until: Instant, now: Instant) -> bool {
        if now < until {
            return true;
        }
        if self.is_ending || !self.process.await_last_replies() {
            return false;
        }
        self.is_ending = true;
        self.draining_until = Some(now + LAST_REPLIES);
        true
    }

    fn carry_out(&mut self, request: Request) -> anyhow::Result<()> {
        // A failed send means that the requester has given up.
        match request {
            Request::Reload(answer) => {
                _ = answer.send(self.reload().map_err(|failure| format!("{failure:#}")))
            }
            Request::Banned => self.are_bans_new = true,
            Request::Offer(answer) => _ = answer.send(self.offer()),
            Request::Flows(answer) => _ = answer.send(self.process.give_flows()),
            Request::Keep => {
                self.upgrade = Upgrade::No;
                self.view.set_upgrading(false);
                self.process.keep()?;
            }
            Request::HandOver(to, answer) => {
                self.hand_over(&to)?;
                let _ = answer.send(());
            }
        }
        Ok(())
    }

    /// When to look for bans whose time is over. The clock may be set meanwhile, so within a minute.
    fn next_expiry(&self) -> Option<Instant> {
        let until = self.process.engines.bans.next_expiry()?;
        Some(
            Instant::now()
                + Duration::from_secs(until.saturating_sub(truepeer_attach::seconds_now()).min(60)),
        )
    }

    /// Once for all changes since the last turn.
    fn settle_bans(&mut self) {
        let bans = &self.process.engines.bans;
        if bans.next_expiry().is_some_and(|until| until <= truepeer_attach::seconds_now()) {
            bans.expire(truepeer_attach::seconds_now());
        }
        if std::mem::take(&mut self.are_bans_new) {
            self.process.engines.end_banned();
        }
    }

    /// Loads the source again. On an error, everything stays as it was. Returns what has changed.
    fn reload(&mut self) -> anyhow::Result<String> {
        self.manager.reloading();
        let reloaded = self.try_reload().map_err(|problem| self.confined.explain(problem));
        match &reloaded {
            Ok(changes) if changes.is_empty() => info!("reloaded: nothing has changed"),
            Ok(changes) => changes.iter().for_each(|change| info!("reloaded: {change}")),
            Err(problem) => match self.process.missing() {
                missing if missing.is_empty() => {
                    error!("not reloaded, everything stays as it was: {problem:#}");
                }
                missing => error!("not reloaded, and not undone: {problem:#}; {}", not_open(&missing)),
            },
        }
        self.on_change();
        let changes = reloaded.map_err(|problem| match self.process.missing() {
            missing if missing.is_empty() => problem,
            missing => anyhow::anyhow!("{problem:#}; {}", not_open(&missing)),
        })?;
        Ok(if changes.is_empty() { "nothing has changed".to_owned() } else { changes.join("\n") })
    }

    fn try_reload(&mut self) -> anyhow::Result<Vec<String>> {
        anyhow::ensure!(self.draining_until.is_none(), "truepeer is about to end");
        anyhow::ensure!(self.upgrade == Upgrade::No, "an upgrade is under way");
        let loaded = self.load()?;
        self.confined.permits(&loaded.process)?;
        let changes = self.process.apply(&loaded, &mut Vec::new())?;
        self.watch(&loaded);
        for warning in loaded.warnings(self.source) {
            warn!("{warning}");
        }
        splice::tell_of_reload(&loaded.process, self.wants_splice);
        Ok(changes)
    }

    /// Reads all files and resolves all names anew. That may take long, and the service manager wants to hear
    /// from this process meanwhile.
    fn load(&mut self) -> anyhow::Result<LoadedConfig> {
        let (source, (done, loaded)) = (self.source, channel());
        thread::scope(|scope| {
            let load = move || _ = done.send(source.load());
            let reader = thread::Builder::new().name("load".to_owned()).spawn_scoped(scope, load);
            reader.context("can't start a thread that reads the configuration")?;
            loop {
                let now = Instant::now();
                self.manager.ping(now);
                let next = self.manager.next_ping().map(|next| next.saturating_duration_since(now));
                match loaded.recv_timeout(next.unwrap_or(Duration::MAX)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    loaded => return Ok(loaded??),
                }
            }
        })
    }

    /// Watches the files of this configuration, if it says so.
    fn watch(&mut self, loaded: &LoadedConfig) {
        let is_wanted = self.process.config.reload_on_change;
        self.changes = is_wanted.then(|| Changes::of(&loaded.files, loaded.began, Instant::now()));
    }

    /// Not during an upgrade, for which the new process reads the files.
    fn reload_if_changed(&mut self, now: Instant) {
        let looks = self.upgrade == Upgrade::No && self.draining_until.is_none();
        if looks && self.changes.as_mut().is_some_and(|changes| changes.are_due(now)) {
            info!("a file of the configuration has changed: reloading");
            // The log says what came of it.
            let _ = self.reload();
        }
    }

    /// Updates the admin socket's view and the service manager.
    fn on_change(&mut self) {
        self.view.update(&self.process);
        // VPP's stack can't duplicate sockets: ask for them only if somebody takes them.
        if notify::is_there() {
            match self.process.engines.sockets() {
                Ok(sockets) => self.manager.store(sockets),
                Err(error) => warn!("the service manager gets no sockets: {error}"),
            }
        }
        let listeners = self.process.engines.listeners().len();
        self.manager.ready(&format!("serving {listeners} listeners"));
    }

    /// All sockets for a new process.
    fn offer(&mut self) -> anyhow::Result<Offered> {
        anyhow::ensure!(self.draining_until.is_none(), "truepeer is about to end");
        anyhow::ensure!(self.upgrade == Upgrade::No, "another upgrade is under way");
        let listening = self.process.engines.sockets()?;
        let mut sockets: Vec<_> = listening.into_iter().flat_map(|(_, sockets)| sockets).collect();
        if let Some(admin) = &self.admin {
            sockets.extend(admin.sockets()?);
        }
        self.upgrade = Upgrade::UnderWay;
        self.view.set_upgrading(true);
        info!("upgrade: a new process starts");
        Ok(Offered { sockets, attached: self.process.attachments.names() })
    }

    fn hand_over(&mut self, to: &HandedOver) -> anyhow::Result<()> {
        self.upgrade = Upgrade::Done;
        // Before this process can end: the service manager would take its end for the service's.
        self.manager.hand_over(to.pid);
        self.process.hand_over(to)?;
        if let Some(admin) = self.admin.take() {
            admin.stop(false);
        }
        self.begin_drain();
        info!(
            "upgrade: process {} serves; {} may go on here for {} s",
            to.pid,
            self.process.open(),
            self.process.config.drain.as_secs_f32()
        );
        Ok(())
    }

    fn drain(&mut self) {
        self.process.drain();
        self.begin_drain();
        self.manager.stopping(&format!("stopping: {}", self.process.open()));
        info!(
            "stopping: nothing new is taken, {} may go on for {} s; a second signal ends them at once",
            self.process.open(),
            self.process.config.drain.as_secs_f32()
        );
    }

    fn begin_drain(&mut self) {
        self.draining_until = Some(Instant::now() + self.process.config.drain);
        self.view.set_state(State::Draining);
        self.view.update(&self.process);
    }
}

/// A process serves without the usual socket, which another one may have.
fn without_admin(config: &AdminConfig, failure: anyhow::Error) -> anyhow::Result<()> {
    if !config.is_usual {
        return Err(failure);
    }
    warn!(
        "{failure:#}; truepeer status, reload and upgrade don't reach this process: name another path in [admin] listen"
    );
    Ok(())
}

/// Those that outlive a restart. Who serves is more important than who is banned.
fn kept_bans() -> Vec<Ban> {
    truepeer_attach::kept_bans(truepeer_attach::seconds_now()).unwrap_or_else(|error| {
        warn!("no kept bans: {error:#}");
        Vec::new()
    })
}

fn not_open(listeners: &[String]) -> String {
    format!(
        "not open any more: {}; expected: the address free, then truepeer reload (systemctl reload truepeer)",
        listeners.join(", ")
    )
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}
