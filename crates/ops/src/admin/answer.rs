//! The answer to each request.

use std::cell::{RefCell, RefMut};
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use truepeer_http::fields::FieldName;
use truepeer_http::{BodyLength, RequestHead, query};
use truepeer_policy::PrefixSet;
use truepeer_session::{SessionFilter, SessionId};

use super::listing::{Listing, Rates};
use super::metrics::MetricsFormat;
use super::status::StatusDoc;
use super::stop::Stopper;
use super::{BanFailure, Running, State, bans, metrics, page, whois};

/// The protocol of an upgrade.
pub(crate) const HANDOVER: &str = "truepeer-handover";

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A response. The connection closes after it.
pub(super) struct Response {
    status: u16,
    content_type: &'static str,
    pub(super) body: Body,
}

pub(super) enum Body {
    Whole(Vec<u8>),
    /// Generated while it is sent.
    Listing(Listing),
}

/// What the other end of a connection may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    /// This user may change things.
    Change(u32),
    /// Read everything.
    Read,
    /// Ask who one peer is.
    Whois,
}

/// What a request leads to.
pub(super) enum Action {
    Now(Response),
    /// A separate thread carries it out.
    Later(Receiver<Response>),
    /// The connection switches to the upgrade's protocol.
    Upgrade,
}

impl Response {
    pub(super) fn text(status: u16, text: &str) -> Self {
        Self { status, content_type: TEXT, body: Body::Whole(format!("{text}\n").into_bytes()) }
    }

    fn fixed(content_type: &'static str, text: &str) -> Self {
        Self { status: 200, content_type, body: Body::Whole(text.as_bytes().to_vec()) }
    }

    fn json(value: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => Self { status: 200, content_type: JSON, body: Body::Whole(bytes) },
            Err(error) => Self::text(500, &error.to_string()),
        }
    }

    /// Its head, with the empty line.
    pub(super) fn head(&self, is_chunked: bool) -> String {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            409 => "Conflict",
            413 => "Content Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let mut head =
            format!("HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\n", self.status, self.content_type);
        // Writing to a String can't fail.
        let _ = match &self.body {
            Body::Whole(bytes) => write!(head, "Content-Length: {}\r\n", bytes.len()),
            Body::Listing(_) if is_chunked => write!(head, "Transfer-Encoding: chunked\r\n"),
            Body::Listing(_) => Ok(()),
        };
        if self.content_type == HTML {
            // Writing to a String can't fail.
            let _ = write!(head, "Content-Security-Policy: {}\r\n", page::POLICY);
        }
        head.push_str(
            "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        );
        head
    }
}

/// Carries out what requests ask for.
pub(super) struct Orders {
    running: Arc<dyn Running>,
    stopper: Stopper,
    /// A reload or an upgrade is going on.
    is_busy: Arc<AtomicBool>,
    rates: RefCell<Rates>,
}

impl Orders {
    pub(super) fn new(running: Arc<dyn Running>, stopper: Stopper) -> Self {
        Self { running, stopper, is_busy: Arc::default(), rates: RefCell::default() }
    }

    pub(super) fn rates(&self) -> RefMut<'_, Rates> {
        self.rates.borrow_mut()
    }

    /// Reloads in a thread of its own, because names may be resolved slowly.
    fn reload(&self) -> Action {
        let (done, answer) = channel();
        let (running, stopper) = (Arc::clone(&self.running), self.stopper.clone());
        let work = move |free: Free| {
            let response = match running.reload() {
                Ok(text) => Response::text(200, &text),
                Err(text) => Response::text(409, &text),
            };
            // Before the answer: whoever has read it may reload again.
            drop(free);
            let _ = done.send(response); // the requester may have left
            stopper.wake();
        };
        match self.spawn("reload", work) {
            Ok(()) => Action::Later(answer),
            Err(error) => Action::Now(Response::text(503, &error.to_string())),
        }
    }

    /// Answers 101, and hands the connection over.
    pub(super) fn upgrade(&self, mut peer: UnixStream) -> io::Result<()> {
        let running = Arc::clone(&self.running);
        self.spawn("upgrade", move |_free| {
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {HANDOVER}\r\n\r\n"
            );
            if peer.set_nonblocking(false).and_then(|()| peer.write_all(head.as_bytes())).is_ok() {
                running.upgrade(peer);
            }
        })
    }

    fn spawn(&self, name: &str, work: impl FnOnce(Free) + Send + 'static) -> io::Result<()> {
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return Err(io::Error::other(
                "another reload or upgrade is going on: try again when it has ended",
            ));
        }
        let free = Free(Arc::clone(&self.is_busy));
        // If no thread can be started, `free` is dropped with the closure.
        std::thread::Builder::new().name(name.to_owned()).spawn(move || work(free)).map(|_| ())
    }
}

/// Lets the next order begin, also after a panic.
struct Free(Arc<AtomicBool>);

impl Drop for Free {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Answers a request.
pub(super) fn answer(head: &RequestHead, right: Right, orders: &Orders) -> Action {
    let (Ok(method), Ok(target)) = (std::str::from_utf8(head.method()), std::str::from_utf8(head.target()))
    else {
        return Action::Now(Response::text(400, "expected ASCII"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let reads = matches!(method, "GET" | "HEAD");
    if right == Right::Whois && !(reads && path == "/whois") {
        return Action::Now(Response::text(
            403,
            &format!("{method} {path}: this socket answers GET /whois?address=ADDRESS:PORT alone"),
        ));
    }
    let user = if let Right::Change(user) = right { Some(user) } else { None };
    if !reads && user.is_none() {
        return Action::Now(Response::text(
            403,
            &format!(
                "{method} {path}: over TCP everything can be read and nothing changed; use the unix socket"
            ),
        ));
    }
    if !matches!(head.length, BodyLength::None | BodyLength::Known(0)) {
        return Action::Now(Response::text(413, "expected a request without a body"));
    }
    let running = &*orders.running;
    let response = match (method, path) {
        ("GET" | "HEAD", "/") => {
            let (status, bans) = (StatusDoc::of(running), bans::list(running));
            let body = Body::Whole(page::html(&status, &bans, truepeer_attach::seconds_now()).into_bytes());
            Response { status: 200, content_type: HTML, body }
        }
        ("GET" | "HEAD", path) if path == page::SCRIPT.0 => Response::fixed(SCRIPT, page::SCRIPT.1),
        ("GET" | "HEAD", path) if path == page::STYLE.0 => Response::fixed(STYLE, page::STYLE.1),
        ("GET" | "HEAD", "/metrics") => {
            let accept = head.fields.iter().filter(|field| field.spelt.eq_ignore_ascii_case(b"accept"));
            let format = MetricsFormat::wanted_by(accept.map(|field| field.value));
            let body = Body::Whole(metrics::text(running, format).into_bytes());
            Response { status: 200, content_type: format.content_type(), body }
        }
        ("GET" | "HEAD", "/healthz") => health(running),
        ("GET" | "HEAD", "/readyz") => readiness(running),
        ("GET" | "HEAD", "/status") => Response::json(&StatusDoc::of(running)),
        ("GET" | "HEAD", "/sessions") => sessions(running, query),
        ("DELETE", path) if path.starts_with("/sessions/") => {
            end_session(running, &path["/sessions/".len()..])
        }
        ("GET" | "HEAD", "/whois") => who_is(running, query, right),
        ("GET" | "HEAD", "/bans") => Response::json(&bans::list(running)),
        ("POST" | "DELETE", "/bans") => change_bans(running, method, query, user),
        ("POST", "/reload") => return orders.reload(),
        ("POST", "/upgrade") if wants_handover(head) => return Action::Upgrade,
        ("POST", "/upgrade") => {
            Response::text(400, &format!("expected Connection: Upgrade and Upgrade: {HANDOVER}"))
        }
        (_, "/" | "/metrics" | "/healthz" | "/readyz" | "/status" | "/sessions" | "/whois") => {
            Response::text(405, &format!("{method} {path}: expected GET"))
        }
        (_, "/bans") => Response::text(405, &format!("{method} {path}: expected GET, POST or DELETE")),
        (_, "/reload") => Response::text(405, &format!("{method} {path}: expected POST")),
        _ => Response::text(
            404,
            &format!(
                "{method} {path}: expected GET /, /metrics, /healthz, /readyz, /status, /sessions, /whois or \
                 /bans, DELETE /sessions/ID, POST or DELETE /bans, or POST /reload"
            ),
        ),
    };
    Action::Now(response)
}

fn wants_handover(head: &RequestHead) -> bool {
    head.wants_upgrade && head.fields.elements(FieldName::Upgrade).eq([HANDOVER.as_bytes()])
}

/// Whether the process works at all: a supervisor restarts it if not.
fn health(running: &dyn Running) -> Response {
    match running.state() {
        State::Broken(reason) => Response::text(503, &format!("broken: {reason}")),
        state => Response::text(200, state.name()),
    }
}

/// Whether it takes new connections: a load balancer sends them elsewhere if not.
fn readiness(running: &dyn Running) -> Response {
    match running.state() {
        State::Serving => match running.missing() {
            missing if missing.is_empty() => Response::text(200, "serving"),
            missing => Response::text(503, &format!("not open: {}", missing.join(", "))),
        },
        State::Broken(reason) => Response::text(503, &format!("broken: {reason}")),
        state => Response::text(503, state.name()),
    }
}

/// `?client=PREFIX&limit=NUMBER`.
fn sessions(running: &dyn Running, query: &str) -> Response {
    let (mut filter, mut limit) = (SessionFilter::default(), usize::MAX);
    for (name, value) in query::pairs(query) {
        match name {
            "client" => match value.parse::<PrefixSet>() {
                Ok(clients) => filter.clients = Some(Box::new(clients)),
                Err(error) => return Response::text(400, &format!("client={value}: {error}")),
            },
            "limit" => match value.parse() {
                Ok(number) => limit = number,
                Err(_) => return Response::text(400, &format!("limit={value}: expected a number")),
            },
            _ => {
                return Response::text(400, &format!("{name}: expected client=PREFIX or limit=NUMBER"));
            }
        }
    }
    Response { status: 200, content_type: JSON, body: Body::Listing(Listing::new(running, filter, limit)) }
}

/// `?address=ADDRESS[:PORT]`.
fn who_is(running: &dyn Running, query: &str, right: Right) -> Response {
    let asked = match whois::asked(query) {
        Ok(asked) => asked,
        Err(problem) => return Response::text(400, &problem),
    };
    // An application knows its peer's address and port, and no sender's.
    let is_one = right == Right::Whois;
    if is_one && !asked.has_port() {
        return Response::text(403, &format!("{asked}: on this socket a port is needed: ADDRESS:PORT"));
    }
    let mut found = whois::find(running, asked);
    if is_one {
        found.retain(|doc| doc.shown_as.is_some_and(|shown| asked.is(shown)));
    }
    match found {
        found if !found.is_empty() => Response::json(&found),
        _ if is_one => Response::text(404, &format!("{asked}: no open session has this address")),
        _ => Response::text(404, &whois::nothing(running, asked)),
    }
}

fn end_session(running: &dyn Running, id: &str) -> Response {
    match id.parse::<SessionId>() {
        Err(error) => Response::text(400, &format!("{id}: {error}")),
        Ok(id) if running.sessions().iter().any(|engine| engine.end(id)) => {
            Response::text(200, &format!("{id}: ended; both connections were reset"))
        }
        Ok(id) => Response::text(404, &format!("{id}: no such session is open")),
    }
}

/// Bans or unbans. The answer has a line for what the operator should know, and the count in the last one.
fn change_bans(running: &dyn Running, method: &str, query: &str, user: Option<u32>) -> Response {
    let change = match bans::asked(method, query, user) {
        Ok(change) => change,
        Err(problem) => return Response::text(400, &problem),
    };
    let mut lines = bans::notes(running, &change);
    match running.change_bans(change) {
        Ok(count) => {
            lines.push(count.to_string());
            Response::text(200, &lines.join("\n"))
        }
        Err(BanFailure::Refused(why)) => Response::text(409, &why),
        Err(BanFailure::Upgrading) => Response::text(503, "an upgrade is under way: ask again in a moment"),
    }
}
