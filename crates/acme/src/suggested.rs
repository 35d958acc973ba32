//! When the authority suggests to renew a certificate (ARI, RFC 9773).

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use instant_acme::{Error, SuggestedWindow};

use crate::Settings;
use crate::authority::Authority;
use crate::explain::Failure;
use crate::issue::{kept_account, wait};
use crate::schedule::Window;
use crate::state::Stored;

/// RFC 9773 4.3.2: a client has limits for the pause that the authority asks for.
const LEAST: Duration = Duration::from_secs(60);
const MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// After a failure, which leaves the window as it was.
const RETRY: Duration = Duration::from_secs(60 * 60);
/// For a certificate that was issued just now: if its window lay in the past, orders would follow each other.
const FIRST: Duration = Duration::from_secs(6 * 60 * 60);

/// The authority's suggestion for one certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Suggested {
    window: Option<Window>,
    /// A moment of the window.
    pub(crate) at: Option<SystemTime>,
    /// When the authority was asked, and for how long it is not asked again.
    asked: Option<(SystemTime, Duration)>,
}

impl Suggested {
    /// For a certificate that was issued at `now`.
    pub(crate) fn of_new(now: SystemTime) -> Self {
        Self { asked: Some((now, FIRST)), ..Self::default() }
    }

    /// When to ask: at once also if the clock was set back since then.
    pub(crate) fn ask_at(&self, now: SystemTime) -> SystemTime {
        self.asked.filter(|(at, _)| *at <= now).map_or(now, |(at, pause)| at + pause)
    }

    /// Whether the authority knows the certificate.
    pub(crate) fn is_known(&self) -> bool {
        self.window.is_some()
    }

    /// The authority has refused an order that says what it replaces. The moment stays.
    pub(crate) fn forget(&mut self) {
        self.window = None;
    }

    /// Doesn't ask for an hour.
    pub(crate) fn put_off(&mut self, now: SystemTime) {
        self.asked = Some((now, RETRY));
    }

    /// Asks. Returns whether the window is another one than before.
    pub(crate) fn ask(&mut self, settings: &Settings, certificate: &Stored) -> Result<bool, Failure> {
        let now = SystemTime::now();
        self.put_off(now);
        let Some((window, pause)) = ask(settings, certificate)? else {
            self.asked = Some((now, MOST));
            return Ok(false);
        };
        self.asked = Some((now, pause.clamp(LEAST, MOST)));
        Ok(self.learn(window, certificate))
    }

    fn learn(&mut self, window: Window, certificate: &Stored) -> bool {
        // The moment stays as long as the window does: a new one each time would be early ever more often.
        let is_new = self.window.replace(window) != Some(window);
        if is_new {
            let part = RandomState::new().build_hasher().finish() >> 32;
            self.at = window.moment(certificate.validity, part as f64 / f64::from(u32::MAX));
        }
        is_new
    }
}

/// The window and the pause before the next question. `None`: the authority doesn't suggest anything.
fn ask(settings: &Settings, certificate: &Stored) -> Result<Option<(Window, Duration)>, Failure> {
    let Some(id) = certificate.id() else { return Ok(None) };
    let authority = Authority::new(settings).map_err(Failure::new)?;
    let Some(account) = kept_account(settings, &authority)? else { return Ok(None) };
    match wait(account.renewal_info(&id)) {
        Ok((info, pause)) => Ok(Some((window(&info.suggested_window), pause))),
        Err(Error::Unsupported(_)) => Ok(None),
        Err(error) => Err(Failure::of("renewal information", &error, authority.pause())),
    }
}

fn window(of: &SuggestedWindow) -> Window {
    // A date before 1970 is long over.
    let time = |seconds: i64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.try_into().unwrap_or(0));
    Window { from: time(of.start.unix_timestamp()), until: time(of.end.unix_timestamp()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn certificate() -> Stored {
        let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
        Stored::of((made.signing_key.serialize_pem() + &made.cert.pem()).into_bytes()).unwrap()
    }

    #[test]
    fn the_moment_stays_until_the_window_is_another_one() {
        let (now, certificate) = (SystemTime::now(), certificate());
        let mut suggested = Suggested::default();
        let window = Window { from: now + HOUR, until: now + 1000 * HOUR };
        assert!(!suggested.is_known() && suggested.learn(window, &certificate) && suggested.is_known());
        let at = suggested.at;
        assert!(at.is_some_and(|at| window.from <= at && at <= window.until), "{at:?}");
        assert!(!suggested.learn(window, &certificate));
        assert_eq!(suggested.at, at);
        let past = Window { from: now - 2 * HOUR, until: now - HOUR };
        assert!(suggested.learn(past, &certificate));
        assert!(suggested.at <= Some(now));
    }

    #[test]
    fn the_authority_is_asked_after_a_pause() {
        let now = SystemTime::now();
        assert_eq!(Suggested::default().ask_at(now), now);
        let new = Suggested::of_new(now);
        assert_eq!(new.ask_at(now), now + FIRST);
        assert_eq!(new.ask_at(now - HOUR), now - HOUR, "the clock was set back");
    }
}
