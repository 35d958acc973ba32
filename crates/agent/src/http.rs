//! `/metrics`, `/healthz` and `/readyz`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::metrics;
use crate::statuses::StatusTable;
use crate::truepeer::Truepeer;

/// The node's loop turns once a second. Without that for so long, it hangs.
const HANGS: Duration = Duration::from_secs(60);
/// A connection's bounds: how many at a time, and how long each.
const CONNECTIONS: usize = 32;
const LIFETIME: Duration = Duration::from_secs(120);
const HEAD: Duration = Duration::from_secs(10);

/// The pages.
pub(crate) struct Pages {
    pub(crate) statuses: Arc<StatusTable>,
    pub(crate) truepeer: Truepeer,
    pub(crate) metrics: metrics::Labels,
    pub(crate) counters: metrics::Counters,
    pub(crate) started: Instant,
}

/// Opens the listener, and serves it in the background.
pub(crate) async fn serve(address: SocketAddr, pages: Pages) -> Result<()> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("--listen {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /metrics, /healthz and /readyz");
    tokio::spawn(accept(listener, Arc::new(pages)));
    Ok(())
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
            http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(16 * 1024);
            // A client's mistakes are its own.
            let _ = timeout(LIFETIME, http.serve_connection(TokioIo::new(stream), service)).await;
            drop(permit);
        });
    }
}

async fn answer(pages: Arc<Pages>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let text = "text/plain; charset=utf-8";
    let (status, kind, body) = match (request.method(), request.uri().path()) {
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
    /// Before the first list, an API server that can't be reached is no reason to be restarted.
    fn health(&self, now: Instant) -> (StatusCode, String) {
        match self.statuses.last_alive() {
            Some(last) if now.duration_since(last) > HANGS => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("nothing has moved for {} s\n", now.duration_since(last).as_secs()),
            ),
            _ => (StatusCode::OK, format!("ok, for {} s\n", now.duration_since(self.started).as_secs())),
        }
    }
}
