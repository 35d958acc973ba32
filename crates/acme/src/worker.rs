//! The thread that keeps certificates current.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use tracing::{debug, error, info, warn};

use crate::schedule::{DUE_AGAIN, Failures, due};
use crate::state::{self, Stored, stored};
use crate::suggested::Suggested;
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
    suggested: Suggested,
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
            let (suggested, failures) = (Suggested::default(), Failures::default());
            let mut managed = Managed { wanted: wanted.clone(), certificate: None, suggested, failures };
            managed.load(&work.settings, server);
            all.push(managed);
        }
    }
}

/// Orders what is due. Returns how long nothing will be.
fn turn(settings: &Settings, all: &mut [Managed], server: &dyn Server) -> Duration {
    ask(settings, all);
    if !all.iter().any(Managed::is_due) {
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
    for managed in all.iter_mut().filter(|managed| managed.is_due()) {
        // Another process may have ordered it since the last look.
        managed.load(settings, server);
        if managed.is_due() {
            managed.renew(settings, server);
        }
    }
    drop(lock);
    pause(all)
}

/// Asks when the authority suggests to renew. A certificate that is due is not asked for.
fn ask(settings: &Settings, all: &mut [Managed]) {
    for at in 0..all.len() {
        let managed = &mut all[at];
        let now = SystemTime::now();
        if managed.ask_at(now).is_none_or(|ask_at| ask_at > now) {
            continue;
        }
        let Some(certificate) = &managed.certificate else { continue };
        let asked = managed.suggested.ask(settings, certificate);
        match asked {
            Ok(true) => {
                let hours = managed.due().duration_since(now).unwrap_or_default().as_secs() / 3600;
                info!(
                    hours,
                    "acme: the authority suggests when to renew the certificate for {}",
                    managed.name()
                );
            }
            Ok(false) => {}
            Err(failure) => {
                debug!("acme: the authority does not suggest when to renew {}: {failure}", managed.name());
                if failure.is_of_connection {
                    // It would let the thread wait for each of the others, too.
                    return all.iter_mut().for_each(|managed| managed.suggested.put_off(now));
                }
            }
        }
    }
}

fn pause(all: &[Managed]) -> Duration {
    let now = SystemTime::now();
    let next = all.iter().map(|managed| managed.next(now).duration_since(now).unwrap_or_default()).min();
    next.map_or(LOOK, |next| next.clamp(Duration::from_millis(10), LOOK))
}

impl Managed {
    fn due(&self) -> SystemTime {
        self.due_after(self.failures)
    }

    fn due_after(&self, failures: Failures) -> SystemTime {
        let validity = self.certificate.as_ref().filter(|stored| stored.has(&self.wanted.names));
        due(validity.map(|stored| stored.validity), self.suggested.at, failures, SystemTime::now())
    }

    /// When to ask what the authority suggests. `None`: not before there is another certificate.
    fn ask_at(&self, now: SystemTime) -> Option<SystemTime> {
        (self.certificate.is_some() && self.due() > now).then(|| self.suggested.ask_at(now))
    }

    /// When there is something to do.
    fn next(&self, now: SystemTime) -> SystemTime {
        let due = self.due();
        self.ask_at(now).map_or(due, |ask_at| due.min(ask_at))
    }

    fn is_due(&self) -> bool {
        self.due() <= SystemTime::now()
    }

    /// How long the certificate is still valid.
    fn left(&self) -> Option<Duration> {
        let until = self.certificate.as_ref()?.validity.until;
        Some(until.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Takes the certificate that is kept, if it is a better one.
    fn load(&mut self, settings: &Settings, server: &dyn Server) {
        let loaded = match stored(settings, &self.wanted.names) {
            Ok(Some(kept)) if self.is_improved_by(&kept) => self.install(kept, server),
            Ok(_) => Ok(()),
            Err(problem) => Err(problem.to_string()),
        };
        if let Err(problem) = loaded {
            warn!("acme: the certificate that is kept for {} can't be used: {problem}", self.name());
        }
    }

    /// Not by an older one, which stays in the file if the newer one could not be written; nor by one of
    /// fewer names, of another listener.
    fn is_improved_by(&self, kept: &Stored) -> bool {
        let names = &self.wanted.names;
        match &self.certificate {
            Some(own) if own.has(names) => kept.has(names) && kept.validity.until > own.validity.until,
            _ => self.certificate.as_ref() != Some(kept),
        }
    }

    fn install(&mut self, new: Stored, server: &dyn Server) -> Result<(), String> {
        server.install(&self.wanted.names, &new)?;
        self.certificate = Some(new);
        self.suggested = Suggested::default();
        Ok(())
    }

    fn renew(&mut self, settings: &Settings, server: &dyn Server) {
        // A way that has failed is not the only one.
        let by_http = self.wanted.has_http && self.failures.count.is_multiple_of(2);
        let is_known = self.suggested.is_known();
        let replaces = self.certificate.as_ref().filter(|_| is_known).and_then(Stored::id);
        let issued = issue::issue(settings, &self.wanted, by_http, replaces.as_ref(), server);
        let pem = match issued {
            Ok(pem) => pem,
            Err(failure) => {
                if !failure.is_of_connection {
                    self.suggested.forget();
                }
                if failure.lost_account {
                    let forgotten = state::forget_account(settings);
                    info!(forgotten = forgotten.is_ok(), "acme: the authority does not know the account");
                }
                return self.fail(&failure.to_string(), failure.pause);
            }
        };
        match Stored::of(pem) {
            Some(new) => self.take(new, settings, server),
            None => self.fail("the authority has sent no certificate", None),
        }
    }

    /// Keeps and installs what the authority has issued.
    fn take(&mut self, new: Stored, settings: &Settings, server: &dyn Server) {
        if let Err(problem) = state::store(settings, &self.wanted.names, &new.pem) {
            // It is good, and the next start lacks it.
            error!("acme: can't keep the certificate for {}: {problem}", self.name());
        }
        if let Err(problem) = self.install(new, server) {
            return self.fail(&format!("the new one can't be used: {problem}"), None);
        }
        self.suggested = Suggested::of_new(SystemTime::now());
        if self.due_after(Failures::default()) <= SystemTime::now() {
            // It counts as a failure: otherwise orders would follow each other without a pause.
            let pause = self.failures.add(SystemTime::now(), Some(DUE_AGAIN), self.left());
            warn!(
                "acme: the new certificate for {} is due for renewal at once: check this host's clock, and \
                 that the authority issues all these names; tried again in {} s",
                self.name(),
                pause.as_secs()
            );
            return;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Answer;

    /// Takes every certificate.
    struct Taking;

    impl Server for Taking {
        fn answer(&self, _: &Answer) -> Result<(), String> {
            Ok(())
        }

        fn withdraw(&self, _: &Answer) {}

        fn install(&self, _: &[String], _: &Stored) -> Result<(), String> {
            Ok(())
        }
    }

    /// The work for `a.test` and `b.test`, of an authority that nobody can reach.
    fn work(name: &str) -> Work {
        let state = std::env::temp_dir().join(format!("truepeer-acme-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&state).unwrap();
        let directory = "https://127.0.0.1:1/dir".to_owned();
        let settings = Settings { directory, email: None, state, external: None, roots: None };
        let names = vec!["a.test".to_owned(), "b.test".to_owned()];
        Work { settings, wanted: vec![Wanted { names, has_http: false }] }
    }

    fn pem(names: &[String]) -> Vec<u8> {
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.signing_key.serialize_pem() + &made.cert.pem()).into_bytes()
    }

    #[test]
    fn a_certificate_that_another_process_has_ordered_is_not_ordered_again() {
        let (work, mut all) = (work("ordered"), Vec::new());
        take_up(&mut all, &work, &Taking);
        assert!(all[0].is_due());
        let names = &work.wanted[0].names;
        state::store(&work.settings, names, &pem(names)).unwrap();
        turn(&work.settings, &mut all, &Taking);
        assert_eq!((all[0].failures, all[0].is_due()), (Failures::default(), false));
        std::fs::remove_dir_all(&work.settings.state).unwrap();
    }

    #[test]
    fn a_certificate_of_fewer_names_does_not_take_the_place_of_one() {
        let (work, mut all) = (work("fewer"), Vec::new());
        let names = &work.wanted[0].names;
        state::store(&work.settings, names, &pem(names)).unwrap();
        take_up(&mut all, &work, &Taking);
        state::store(&work.settings, names, &pem(&names[..1])).unwrap();
        all[0].load(&work.settings, &Taking);
        assert!(!all[0].is_due(), "it still has all names");
        std::fs::remove_dir_all(&work.settings.state).unwrap();
    }

    /// Orders in a row would use up what the authority allows.
    #[test]
    fn a_new_certificate_that_is_due_at_once_is_a_failure() {
        let (work, mut all) = (work("again"), Vec::new());
        take_up(&mut all, &work, &Taking);
        let names = &work.wanted[0].names;
        let year = |year| rcgen::date_time_ymd(year, 1, 1);
        // It lacks a name, it is over, and it has seconds left.
        let soon = SystemTime::now() + Duration::from_secs(40);
        let dates = [(1, year(4000)), (2, year(2020)), (2, soon.into())];
        for (count, (covered, until)) in dates.into_iter().enumerate() {
            let mut params = rcgen::CertificateParams::new(&names[..covered]).unwrap();
            (params.not_before, params.not_after) = (year(2019), until);
            let key = rcgen::KeyPair::generate().unwrap();
            let made = params.self_signed(&key).unwrap();
            let pem = (key.serialize_pem() + &made.pem()).into_bytes();
            all[0].take(Stored::of(pem).unwrap(), &work.settings, &Taking);
            assert_eq!((all[0].failures.count, all[0].is_due()), (count + 1, false), "{until}");
            let pause = all[0].due().duration_since(SystemTime::now()).unwrap();
            assert!(pause > DUE_AGAIN / 2, "{pause:?}");
        }
        all[0].take(Stored::of(pem(names)).unwrap(), &work.settings, &Taking);
        assert_eq!((all[0].failures, all[0].is_due()), (Failures::default(), false));
        std::fs::remove_dir_all(&work.settings.state).unwrap();
    }
}
