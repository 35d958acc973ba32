//! One order, from the account to the certificate.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, ChallengeType,
    ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus,
};

use crate::authority::Authority;
use crate::explain::{Failure, is_of_check};
use crate::{Answer, Server, Settings, Wanted, state};

/// How long the authority may take to check the names, and to sign.
const PATIENCE: Duration = Duration::from_secs(120);
/// Orders, one after the other, if nonces are refused. That says nothing about the names.
const ORDERS: usize = 4;
/// The pauses between questions, from and to.
const FIRST_LOOK: Duration = Duration::from_millis(250);
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Answers to challenges, which end with the order.
struct Answers<'a> {
    server: &'a dyn Server,
    given: Vec<Answer>,
}

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.given.iter().for_each(|answer| self.server.withdraw(answer));
    }
}

/// Orders a certificate. Returns it with its key, as PEM. `by_http`: http-01, otherwise tls-alpn-01.
/// `replaces`: the certificate that the authority has suggested to renew.
pub(crate) fn issue(
    settings: &Settings,
    wanted: &Wanted,
    by_http: bool,
    replaces: Option<&CertificateIdentifier<'_>>,
    server: &dyn Server,
) -> Result<Vec<u8>, Failure> {
    let once = || {
        let authority = Authority::new(settings).map_err(Failure::new)?;
        let account = account(settings, &authority)?;
        Issuing { authority, by_http, replaces, server }.run(&account, wanted)
    };
    for _ in 1..ORDERS {
        match once() {
            Err(failure) if failure.bad_nonce => {}
            done => return done,
        }
    }
    once()
}

struct Issuing<'a> {
    authority: Authority,
    by_http: bool,
    replaces: Option<&'a CertificateIdentifier<'a>>,
    server: &'a dyn Server,
}

impl Issuing<'_> {
    fn failed<'a>(&'a self, doing: &'a str) -> impl Fn(instant_acme::Error) -> Failure + 'a {
        move |error| Failure::of(doing, &error, self.authority.pause())
    }

    fn run(&self, account: &Account, wanted: &Wanted) -> Result<Vec<u8>, Failure> {
        let names: Vec<_> = wanted.names.iter().cloned().map(Identifier::Dns).collect();
        let mut new = NewOrder::new(&names);
        if let Some(replaces) = self.replaces {
            new = new.replaces(replaces.clone());
        }
        let mut order = wait(account.new_order(&new)).map_err(self.failed("new order"))?;
        {
            let mut answers = Answers { server: self.server, given: Vec::new() };
            self.answer(&mut order, &mut answers)?;
            self.until(&mut order, |status| status != OrderStatus::Pending)?;
        }
        if order.state().status != OrderStatus::Ready {
            return Err(self.refused(&mut order));
        }
        let key = rcgen::KeyPair::generate().map_err(|error| Failure::new(format!("new key: {error}")))?;
        let request =
            request(&wanted.names, &key).map_err(|error| Failure::new(format!("request: {error}")))?;
        wait(order.finalize_csr(&request)).map_err(self.failed("request"))?;
        self.until(&mut order, |status| status != OrderStatus::Processing && status != OrderStatus::Ready)?;
        let chain = wait(order.certificate()).map_err(self.failed("certificate"))?;
        let chain = chain.ok_or_else(|| Failure::new("certificate: the authority has none yet"))?;
        Ok((key.serialize_pem() + &chain).into_bytes())
    }

    /// Answers the challenges of all names that the authority has not checked lately.
    fn answer(&self, order: &mut Order, answers: &mut Answers<'_>) -> Result<(), Failure> {
        let mut names = order.authorizations();
        while let Some(name) = wait(names.next()) {
            let mut name = name.map_err(self.failed("authorization"))?;
            if name.status == AuthorizationStatus::Valid {
                continue;
            }
            let host = name.identifier().to_string();
            let kind = if self.by_http { ChallengeType::Http01 } else { ChallengeType::TlsAlpn01 };
            let mut challenge = name.challenge(kind).ok_or_else(|| {
                let kind = if self.by_http { "http-01" } else { "tls-alpn-01" };
                Failure::new(format!("{host}: the authority offers no {kind}"))
            })?;
            let authorization = challenge.key_authorization();
            let answer = if self.by_http {
                Answer::Http { token: challenge.token.clone(), text: authorization.as_str().to_owned() }
            } else {
                let digest = authorization.digest();
                let digest =
                    digest.as_ref().try_into().map_err(|_| Failure::new("a digest of another length"))?;
                Answer::Tls { name: host.clone(), digest }
            };
            self.server.answer(&answer).map_err(|problem| Failure::new(format!("{host}: {problem}")))?;
            answers.given.push(answer);
            // The answer may say already that the check has failed.
            wait(challenge.set_ready()).map_err(|error| match error {
                instant_acme::Error::Api(problem) if is_of_check(&problem) => {
                    Failure::of_name(&host, self.by_http, Some(&problem))
                }
                error => self.failed("challenge")(error),
            })?;
        }
        Ok(())
    }

    /// Asks for the order's state until it is `enough`.
    fn until(&self, order: &mut Order, enough: impl Fn(OrderStatus) -> bool) -> Result<(), Failure> {
        let (until, mut pause) = (Instant::now() + PATIENCE, FIRST_LOOK);
        while !enough(order.state().status) {
            if Instant::now() >= until {
                return Err(Failure::new(format!(
                    "the authority has not finished within {} s",
                    PATIENCE.as_secs()
                )));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LAST_LOOK);
            wait(order.refresh()).map_err(self.failed("order"))?;
        }
        Ok(())
    }

    /// Why the order is invalid: what the authority says of a name.
    fn refused(&self, order: &mut Order) -> Failure {
        {
            let mut names = order.authorizations();
            while let Some(Ok(mut name)) = wait(names.next()) {
                if wait(name.refresh()).is_err() || name.status == AuthorizationStatus::Valid {
                    continue;
                }
                let problem = name.challenges.iter().find_map(|challenge| challenge.error.as_ref());
                return Failure::of_name(&name.identifier().to_string(), self.by_http, problem);
            }
        }
        match &order.state().error {
            Some(problem) => Failure::of("order", &instant_acme::Error::Api(problem.clone()), None),
            None => Failure::new("order: the authority refuses it"),
        }
    }
}

fn request(names: &[String], key: &rcgen::KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = rcgen::CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// The account that is kept.
pub(crate) fn kept_account(settings: &Settings, authority: &Authority) -> Result<Option<Account>, Failure> {
    let kept = state::account(settings).map_err(|error| Failure::new(format!("account: {error}")))?;
    let Some(json) = kept else { return Ok(None) };
    let credentials: AccountCredentials = serde_json::from_slice(&json).map_err(|error| {
        let file = state::account_file(settings);
        Failure::new(format!(
            "account: {} is damaged ({error}): remove it, and truepeer makes a new account",
            file.display()
        ))
    })?;
    let builder = Account::builder_with_http(Box::new(authority.clone()));
    let account = wait(builder.from_credentials(credentials));
    account.map(Some).map_err(|error| Failure::of("account", &error, authority.pause()))
}

/// The account that is kept, or a new one.
fn account(settings: &Settings, authority: &Authority) -> Result<Account, Failure> {
    if let Some(account) = kept_account(settings, authority)? {
        return Ok(account);
    }
    let contact = settings.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<_> = contact.iter().map(String::as_str).collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let external = external(settings)?;
    let builder = Account::builder_with_http(Box::new(authority.clone()));
    let made = wait(builder.create(&new, settings.directory.clone(), external.as_ref()));
    let (account, credentials) = made.map_err(|error| Failure::of("account", &error, authority.pause()))?;
    let kept = serde_json::to_vec(&credentials).map_err(std::io::Error::other);
    let kept = kept.and_then(|json| state::store_account(settings, &json));
    kept.map_err(|error| Failure::new(format!("account: can't keep it: {error}")))?;
    tracing::info!(authority = %settings.directory, "acme: a new account");
    Ok(account)
}

fn external(settings: &Settings) -> Result<Option<ExternalAccountKey>, Failure> {
    let Some(external) = &settings.external else { return Ok(None) };
    let wrong = |what: String| Failure::new(format!("{}: {what}", external.key.display()));
    let text = std::fs::read_to_string(&external.key).map_err(|error| wrong(error.to_string()))?;
    let key = base64url(text.trim()).ok_or_else(|| wrong("expected a key in base64url".to_owned()))?;
    Ok(Some(ExternalAccountKey::new(external.id.clone(), &key)))
}

/// RFC 4648, 5; also with the letters of section 4, and with padding.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0u32, 0, Vec::new());
    for c in text.trim_end_matches('=').bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'-' | b'+' => 62,
            b'_' | b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count).to_be_bytes()[3]);
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

/// Runs a future of the library to its end. Its requests block, so it hardly ever waits.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker: Waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_external_accounts_are_base64url() {
        for (text, bytes) in [
            ("AQID", Some(vec![1, 2, 3])),
            ("-_8", Some(vec![0xfb, 0xff])),
            ("+/8=", Some(vec![0xfb, 0xff])),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(base64url(text), bytes, "{text}");
        }
    }
}
