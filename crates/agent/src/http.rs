//! `/metrics`, and `/healthz` and `/readyz` for people: the kubelet asks elsewhere ([`crate::probe`]).

use std::convert::Infallible;
use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::metrics;
use crate::probe::Question;
use crate::statuses::StatusTable;
use crate::truepeer::Truepeer;

/// A connection's bounds: how many at a time, and how long each, for one request.
const CONNECTIONS: usize = 32;
const LIFETIME: Duration = Duration::from_secs(30);
const HEAD: Duration = Duration::from_secs(2);
/// The longest token, in bytes.
const MAX_TOKEN: u64 = 4096;

/// The pages.
pub(crate) struct Pages {
    pub(crate) statuses: Arc<StatusTable>,
    pub(crate) truepeer: Truepeer,
    pub(crate) metrics: metrics::Labels,
    pub(crate) counters: metrics::Counters,
    pub(crate) started: Instant,
    /// Each request must carry this token: `Authorization: Bearer TOKEN`.
    pub(crate) token: Option<TokenFile>,
}

/// A file with a token, read for each request: Kubernetes replaces it when its secret changes.
#[derive(Debug, Clone)]
pub(crate) struct TokenFile(pub(crate) PathBuf);

impl TokenFile {
    fn read(&self) -> Result<String> {
        let mut text = String::new();
        let file = File::open(&self.0).with_context(|| self.0.display().to_string())?;
        file.take(MAX_TOKEN).read_to_string(&mut text)?;
        let token = text.trim();
        ensure!(!token.is_empty(), "{} is empty", self.0.display());
        Ok(token.to_owned())
    }

    /// Takes as long for any wrong token of the same length.
    fn admits(&self, said: Option<&[u8]>) -> bool {
        let expected = match self.read() {
            Ok(token) => format!("Bearer {token}"),
            Err(error) => {
                tracing::warn!("metrics are refused: --metrics-token: {error:#}");
                return false;
            }
        };
        let Some(said) = said.filter(|said| said.len() == expected.len()) else { return false };
        let differences = said.iter().zip(expected.bytes()).fold(0, |sum, (one, other)| sum | (one ^ other));
        differences == 0
    }
}

/// Opens the listener, and serves it in the background.
pub(crate) async fn serve(address: SocketAddr, pages: Pages) -> Result<()> {
    if let Some(token) = &pages.token {
        token.read().context("--metrics-token")?;
    }
    let listener = match TcpListener::bind(address).await {
        Err(error) => match of_ipv4(address, &error) {
            Some(address) => TcpListener::bind(address).await,
            None => Err(error),
        },
        bound => bound,
    };
    let listener = listener.with_context(|| format!("--listen {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /healthz and /readyz");
    tokio::spawn(accept(listener, Arc::new(pages)));
    Ok(())
}

/// Instead of [::], where the kernel has no IPv6: a node must not be without its agent for that.
fn of_ipv4(address: SocketAddr, error: &std::io::Error) -> Option<SocketAddr> {
    let has_no_ipv6 = error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error());
    let is_any = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    (has_no_ipv6 && is_any).then(|| (Ipv4Addr::UNSPECIFIED, address.port()).into())
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Closed never.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, for example: they don't go away by trying at once.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(pages.clone(), request));
            let mut http = http1::Builder::new();
            http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 * 1024);
            // A client's mistakes are its own.
            let _ = timeout(LIFETIME, http.serve_connection(TokioIo::new(stream), service)).await;
            drop(permit);
        });
    }
}

async fn answer(pages: Arc<Pages>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = "text/plain; charset=utf-8";
    let said = request.headers().get(hyper::header::AUTHORIZATION).map(|value| value.as_bytes());
    let is_admitted = pages.token.as_ref().is_none_or(|token| token.admits(said));
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        _ if !is_admitted => {
            (StatusCode::UNAUTHORIZED, text, "expected Authorization: Bearer TOKEN\n".to_owned())
        }
        (&Method::GET | &Method::HEAD, "/healthz") => {
            let (status, body) = pages.health(Instant::now());
            (status, text, body)
        }
        (&Method::GET | &Method::HEAD, "/readyz") => match pages.statuses.unready_reason() {
            None => (StatusCode::OK, text, "ok\n".to_owned()),
            Some(unready_reason) => (StatusCode::SERVICE_UNAVAILABLE, text, format!("{unready_reason}\n")),
        },
        (&Method::GET | &Method::HEAD, "/metrics") => (
            StatusCode::OK,
            metrics::CONTENT_TYPE,
            metrics::text(&pages.statuses, &pages.counters, &pages.truepeer, &pages.metrics).await,
        ),
        (&Method::GET | &Method::HEAD, path) => {
            (StatusCode::NOT_FOUND, text, format!("{path}: expected /metrics, /healthz or /readyz\n"))
        }
        (method, _) => (StatusCode::METHOD_NOT_ALLOWED, text, format!("{method}: expected GET\n")),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

impl Pages {
    fn health(&self, now: Instant) -> (StatusCode, String) {
        match Question::Live.answer(&self.statuses, now) {
            Some(why) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
            None => (StatusCode::OK, format!("ok, for {} s\n", now.duration_since(self.started).as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let error = |errno: Errno| std::io::Error::from_raw_os_error(errno.raw_os_error());
        let instead = |address: &str, errno| of_ipv4(address.parse().unwrap(), &error(errno));
        assert_eq!(instead("[::]:9464", Errno::AFNOSUPPORT), "0.0.0.0:9464".parse().ok());
        assert_eq!(instead("[::]:9464", Errno::ADDRINUSE), None);
        assert_eq!(instead("[::1]:9464", Errno::AFNOSUPPORT), None);
    }

    #[test]
    fn only_the_whole_token_is_admitted() {
        let path = std::env::temp_dir().join(format!("truepeer-agent-token-{}", std::process::id()));
        std::fs::write(&path, "secret\n").unwrap();
        let token = TokenFile(path.clone());
        assert!(token.admits(Some(b"Bearer secret")));
        for wrong in [
            None,
            Some(&b"Bearer secre"[..]),
            Some(b"Bearer secreT"),
            Some(b"secret"),
            Some(b"Bearer secret2"),
        ] {
            assert!(!token.admits(wrong), "{wrong:?}");
        }
        std::fs::write(&path, "other").unwrap();
        assert!(token.admits(Some(b"Bearer other")) && !token.admits(Some(b"Bearer secret")));
        std::fs::write(&path, " \n").unwrap();
        assert!(!token.admits(Some(b"Bearer ")));
        std::fs::remove_file(&path).unwrap();
        assert!(!token.admits(Some(b"Bearer other")));
    }
}
