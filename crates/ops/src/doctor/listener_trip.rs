//! A real connection through a listener of truepeer to its backend, with a header where this host may send
//! one.
//!
//! The running truepeer says beforehand whether it would refuse the connection ([`Trial`]). Then none is
//! made: a refusal is logged and counted, and somebody would look for a sender that does not exist. A session
//! that is made has an address of the documentation as its client, and a unique id: its log line shows that
//! it is the doctor's.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use truepeer_proto::{Addresses, Command, Transport, V1_MAX_LEN, V2Encoder, encode_v1, tlv};
use truepeer_routes::item::IpFamily;

use super::probe;
use super::report::{Check, Report, Verdict};
use super::scene::{AtPort, Scene};
use crate::admin::client::Client;
use crate::admin::listing::SessionDoc;
use crate::admin::status::{FromHere, ListenerDoc, StatusDoc, Trial};
use crate::reasons;

/// What sessions and log lines of a round trip have as their `unique_id`.
const UNIQUE_ID: &str = "truepeer-doctor";
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// More than a header takes here.
const MOST_HEADER: usize = V1_MAX_LEN + 128;

pub(super) fn examine(scene: &Scene<'_>, listeners: &[&ListenerDoc], at: AtPort, report: &mut Report) {
    let (Some(admin), Some(listener)) = (&scene.admin, listeners.first()) else {
        let tried = format!("a connection to port {at}");
        let why = "no truepeer says whom it admits, and a connection that it refuses would be logged";
        return report.add(Check::skip("trip", tried, why).mend("truepeer doctor --admin SOCKET"));
    };
    for from_here in &listener.from_here {
        let check = through(admin, listener, from_here, scene.timeout);
        let bans =
            scene.bans && check.verdict == Verdict::Ok && matches!(from_here.may, Trial::V1 | Trial::V2);
        report.add(check);
        if bans {
            report.add(banned(admin, listener, from_here, scene.timeout));
        }
    }
}

/// Bans the client of the documentation at this port for a moment: then its session is refused.
fn banned(admin: &Client, listener: &ListenerDoc, FromHere { to, may }: &FromHere, limit: Duration) -> Check {
    let client = IpFamily::of(to.ip()).example_client();
    let tried = format!("a ban of {client}, whom the header names");
    let bans = format!("/bans?client={client}&port={}&why={UNIQUE_ID}", to.port());
    if let Err(error) = admin.ask("POST", &format!("{bans}&for=60")) {
        return Check::skip("ban", tried, format!("{error:#}"));
    }
    let outcome = travel(admin, listener, *to, may, limit);
    let lifted = admin.ask("DELETE", &bans);
    match (outcome, lifted) {
        (Ok(Outcome::Not(why)), Ok(_)) if why == reasons::refusal("client_banned").to_string() => {
            Check::ok("ban", tried).found(format!("its next connection was refused: {why}"))
        }
        (Ok(Outcome::Reached(_)), _) => Check::fail("ban", tried, "its next connection was served"),
        (Ok(Outcome::Not(why)), Ok(_)) => Check::fail("ban", tried, why),
        (Err(error), _) | (_, Err(error)) => Check::fail("ban", tried, format!("{error:#}")),
    }
}

fn through(
    admin: &Client,
    listener: &ListenerDoc,
    FromHere { to, may }: &FromHere,
    limit: Duration,
) -> Check {
    let client = IpFamily::of(to.ip()).example_client();
    let tried = match may {
        Trial::V1 | Trial::V2 => format!("a connection to {to} whose header names {client}"),
        _ => format!("a connection to {to}"),
    };
    match may {
        Trial::Refused(reason) => {
            let reason = reasons::refusal(reason).short();
            let why = format!("from this host it would be refused, so none was made: {reason}");
            return Check::skip("trip", tried, why);
        }
        Trial::Spoken => {
            let why = "TLS or a request would have to follow, which a client must try";
            return Check::skip("trip", tried, why);
        }
        Trial::V1 | Trial::V2 | Trial::NoHeader => {}
    }
    match travel(admin, listener, *to, may, limit) {
        Ok(Outcome::Reached(session)) => {
            let backend = session.backend.map_or_else(String::new, |backend| format!(" {backend}"));
            let client = session.client.map_or(client, |client| client.ip());
            Check::ok("trip", tried).found(format!("it reached the backend{backend}, which is told {client}"))
        }
        Ok(Outcome::Not(why)) => Check::fail("trip", tried, why).mend("truepeer doctor"),
        Err(error) => Check::fail("trip", tried, format!("{error:#}")).mend("truepeer doctor"),
    }
}

enum Outcome {
    Reached(Box<SessionDoc>),
    /// Why not.
    Not(String),
}

fn travel(
    admin: &Client,
    listener: &ListenerDoc,
    to: SocketAddr,
    may: &Trial,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    let mut stream = probe::stream(to, limit)?;
    let own = stream.local_addr()?;
    let client = match may {
        Trial::NoHeader => own,
        _ => SocketAddr::new(IpFamily::of(to.ip()).example_client(), own.port()),
    };
    stream.write_all(&header(may, client, to)?)?;
    stream.set_nonblocking(true)?;
    let began = Instant::now();
    loop {
        if let Some(session) = session(admin, client, own)? {
            return Ok(Outcome::Reached(Box::new(session)));
        }
        if has_ended(&mut stream) {
            return Ok(Outcome::Not(why(admin, listener, own.ip())?));
        }
        if began.elapsed() > limit {
            return Ok(Outcome::Not("the backend did not answer in time".to_owned()));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The session of this connection, once its backend is reached.
fn session(admin: &Client, client: SocketAddr, own: SocketAddr) -> anyhow::Result<Option<SessionDoc>> {
    let answer = admin.ask("GET", &format!("/sessions?client={}", client.ip()))?;
    let sessions: Vec<SessionDoc> = serde_json::from_str(&answer).context("the sessions")?;
    let is_it = |session: &SessionDoc| {
        session.sender == own && matches!(session.stage.as_str(), "relaying" | "spliced")
    };
    Ok(sessions.into_iter().find(is_it))
}

fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 256]) {
        Ok(0) => true,
        Ok(_) => false,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

/// What the listener has counted once more, or about whom it complains.
fn why(admin: &Client, before: &ListenerDoc, sender: IpAddr) -> anyhow::Result<String> {
    let status: StatusDoc = serde_json::from_str(&admin.ask("GET", "/status")?).context("the status")?;
    let is_same =
        |listener: &&ListenerDoc| listener.name() == before.name() && listener.protocol == before.protocol;
    let now = status.listeners.iter().find(is_same);
    let has_grown = |(reason, count): &(&String, &u64)| before.refusals.get(*reason) < Some(count);
    let counted = now.into_iter().flat_map(|listener| &listener.refusals).find(has_grown);
    let reason = counted.map(|(reason, _)| reason).or_else(|| {
        let of_sender = status.complaints.iter().filter(|complaint| complaint.about == Some(sender));
        of_sender.min_by_key(|complaint| complaint.seconds).map(|complaint| &complaint.reason)
    });
    Ok(reason.map_or_else(
        || "the connection was closed before the backend was reached".to_owned(),
        |reason| reasons::refusal(reason).to_string(),
    ))
}

fn header(may: &Trial, client: SocketAddr, to: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let mut buffer = [0; MOST_HEADER];
    let addresses = Addresses::Inet { transport: Transport::Stream, source: client, destination: to };
    let length = match may {
        Trial::V2 => V2Encoder::new(&mut buffer, Command::Proxy, &addresses)?
            .tlv(tlv::UNIQUE_ID, UNIQUE_ID.as_bytes())?
            .finish()?,
        Trial::V1 => encode_v1(&addresses, &mut buffer)?,
        Trial::NoHeader | Trial::Spoken | Trial::Refused(_) => 0,
    };
    Ok(buffer[..length].to_vec())
}
