//! The thread that keeps certificates current.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use tracing::{error, info, warn};

use crate::schedule::{Failures, due};
use crate::state::{self, Stored, stored};
use crate::{Server, Settings, Wanted, issue};

/// The longest sleep: the clock may be set meanwhile.
const LOOK: Duration = Duration::from_secs(60 * 60);
/// While another process has the state directory.
const BUSY: Duration = Duration::from_secs(60);

/// Keeps certificates current until it is dropped, which doesn't wait for a request that is under way.
#[derive(Debug)]
pub struct Acme {
    orders: Sender<Work>,
}

/// The settings and names that the thread works for, until the next ones come.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Work {
    settings: Settings,
    wanted: Vec<Wanted>,
}

/// Names, and how far their certificate is.
struct Managed {
    wanted: Wanted,
    certificate: Option<Stored>,
    failures: Failures,
}

impl Acme {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(settings: Settings, wanted: Vec<Wanted>, server: Box<dyn Server>) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let work = Work { settings, wanted };
        thread::Builder::new().name("acme".to_owned()).spawn(move || run(work, &inbox, &*server))?;
        Ok(Self { orders })
    }

    /// Other names, or another authority.
    pub fn set(&self, settings: Settings, wanted: Vec<Wanted>) {
        // The thread ends only with this handle.
        let _ = self.orders.send(Work { settings, wanted });
    }
}

fn run(mut work: Work, inbox: &Receiver<Work>, server: &dyn Server) {
    let mut all = Vec::new();
    loop {
        take_up(&mut all, &work, server);
        let next = loop {
            let pause = turn(&work.settings, &mut all, server);
            match inbox.recv_timeout(pause) {
                Ok(next) => break next,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        if next.settings != work.settings {
            all.clear();
        }
        work = next;
    }
}

/// Names that are new have no failures, and the certificate that is kept for them, if any.
fn take_up(all: &mut Vec<Managed>, work: &Work, server: &dyn Server) {
    all.retain(|managed| work.wanted.contains(&managed.wanted));
    for wanted in &work.wanted {
        if all.iter().all(|managed| managed.wanted != *wanted) {
            let mut managed =
                Managed { wanted: wanted.clone(), certificate: None, failures: Failures::default() };
            managed.load(&work.settings, server);
            all.push(managed);
        }
    }
}

/// Orders what is due. Returns how long nothing will be.
fn turn(settings: &Settings, all: &mut [Managed], server: &dyn Server) -> Duration {
    if all.iter().all(|managed| managed.due() > SystemTime::now()) {
        return pause(all);
    }
    let lock = match state::lock(settings) {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            all.iter_mut().for_each(|managed| managed.load(settings, server));
            return pause(all).max(BUSY);
        }
        Err(problem) => {
            let text = format!("can't write to {}: {problem}", settings.state.display());
            all.iter_mut().for_each(|managed| managed.fail(&text, None));
            return pause(all);
        }
    };
    for managed in all.iter_mut().filter(|managed| managed.due() <= SystemTime::now()) {
        managed.renew(settings, server);
    }
    drop(lock);
    pause(all)
}

fn pause(all: &[Managed]) -> Duration {
    let now = SystemTime::now();
    let next = all.iter().map(|managed| managed.due().duration_since(now).unwrap_or_default()).min();
    next.map_or(LOOK, |next| next.clamp(Duration::from_millis(10), LOOK))
}

impl Managed {
    fn due(&self) -> SystemTime {
        let validity = self.certificate.as_ref().filter(|stored| stored.has(&self.wanted.names));
        due(validity.map(|stored| stored.validity), self.failures, SystemTime::now())
    }

    /// How long the certificate is still valid.
    fn left(&self) -> Option<Duration> {
        let until = self.certificate.as_ref()?.validity.until;
        Some(until.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Takes the certificate that is kept, if it is another one.
    fn load(&mut self, settings: &Settings, server: &dyn Server) {
        let loaded = match stored(settings, &self.wanted.names) {
            Ok(Some(kept)) if self.certificate.as_ref() != Some(&kept) => self.install(kept, server),
            Ok(_) => Ok(()),
            Err(problem) => Err(problem.to_string()),
        };
        if let Err(problem) = loaded {
            warn!("acme: the certificate that is kept for {} can't be used: {problem}", self.name());
        }
    }

    fn install(&mut self, new: Stored, server: &dyn Server) -> Result<(), String> {
        server.install(&self.wanted.names, &new)?;
        self.certificate = Some(new);
        Ok(())
    }

    fn renew(&mut self, settings: &Settings, server: &dyn Server) {
        // A way that has failed is not the only one.
        let by_http = self.wanted.has_http && self.failures.count.is_multiple_of(2);
        let issued = issue::issue(settings, &self.wanted, by_http, server);
        let pem = match issued {
            Ok(pem) => pem,
            Err(failure) => {
                if failure.lost_account {
                    let forgotten = state::forget_account(settings);
                    info!(forgotten = forgotten.is_ok(), "acme: the authority does not know the account");
                }
                return self.fail(&failure.to_string(), failure.pause);
            }
        };
        let Some(new) = Stored::of(pem) else {
            return self.fail("the authority has sent no certificate", None);
        };
        if let Err(problem) = state::store(settings, &self.wanted.names, &new.pem) {
            // It is good, and the next start lacks it.
            error!("acme: can't keep the certificate for {}: {problem}", self.name());
        }
        if let Err(problem) = self.install(new, server) {
            return self.fail(&format!("the new one can't be used: {problem}"), None);
        }
        self.failures = Failures::default();
        let hours = self.left().unwrap_or_default().as_secs() / 3600;
        info!(authority = %settings.directory, hours, "acme: a new certificate for {}", self.name());
    }

    fn fail(&mut self, why: &str, at_least: Option<Duration>) {
        let left = self.left();
        let pause = self.failures.add(SystemTime::now(), at_least, left);
        let state = match left {
            None => "there is none".to_owned(),
            Some(Duration::ZERO) => "the old one is over".to_owned(),
            Some(left) => format!("the old one is valid for {} h", left.as_secs() / 3600),
        };
        warn!(
            "acme: no new certificate for {}, {state}: {why}; tried again in {} s",
            self.name(),
            pause.as_secs()
        );
    }

    fn name(&self) -> String {
        self.wanted.names.join(", ")
    }
}
