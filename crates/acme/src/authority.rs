//! Requests to the authority: HTTP/1.1 over TLS, one connection each, with blocking calls and time limits.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body as _;
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use truepeer_http::{BodyDecoder, HeadEnd, HttpLimits, Piece, ResponseHead};

use crate::Settings;

/// For a connection, and for each read and write.
const STEP: Duration = Duration::from_secs(15);
/// For a whole exchange.
const EXCHANGE: Duration = Duration::from_secs(60);
/// The longest answer: a chain of certificates has some kilobytes.
const MOST_BYTES: usize = 1 << 20;

/// The authority's server.
#[derive(Clone)]
pub(crate) struct Authority {
    tls: Arc<ClientConfig>,
    pause: Arc<Mutex<Option<Duration>>>,
}

impl Authority {
    /// Reads the authorities that vouch for it.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| error.to_string())?;
        let tls = Arc::new(config.with_root_certificates(roots(settings)?).with_no_client_auth());
        Ok(Self { tls, pause: Arc::default() })
    }

    /// The pause that its last answer asked for (Retry-After).
    pub(crate) fn pause(&self) -> Option<Duration> {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(&self, request: Request<BodyWrapper<Bytes>>) -> io::Result<Response<Bytes>> {
        let (head, body) = request.into_parts();
        let uri = &head.uri;
        let host = uri.host().ok_or_else(|| io::Error::other("its URL has no host"))?;
        if uri.scheme_str() != Some("https") {
            return Err(io::Error::other(format!("{uri}: expected https://…")));
        }
        let bare = host.trim_matches(['[', ']']);
        let tcp = connect(bare, uri.port_u16().unwrap_or(443))
            .map_err(|error| io::Error::new(error.kind(), format!("can't reach {host}: {error}")))?;
        let tcp = Limited { tcp, until: Instant::now() + EXCHANGE };
        let name = ServerName::try_from(bare.to_owned()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, tcp);
        let authority = uri.authority().map_or(host, http::uri::Authority::as_str);
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        // This makes the handshake, too.
        let sent =
            stream.write_all(&written(&head.method, target, authority, &head.headers, &bytes_of(body)));
        sent.map_err(|error| of_tls(host, error))?;
        let is_head = head.method == Method::HEAD;
        let response = read(&mut stream, is_head).map_err(|error| of_tls(host, error))?;
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = pause(response.headers());
        Ok(response)
    }
}

impl HttpClient for Authority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let answer = self.exchange(request).map(|response| {
            let (parts, body) = response.into_parts();
            BytesResponse { parts, body: Box::new(body) }
        });
        let answer = answer.map_err(|error| instant_acme::Error::Other(Box::new(error)));
        Box::pin(std::future::ready(answer))
    }
}

fn roots(settings: &Settings) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match &settings.roots {
        Some(path) => {
            let wrong = |what: String| format!("{}: {what}", path.display());
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if roots.is_empty() {
        return Err("no certificates of authorities on this system (package ca-certificates)".to_owned());
    }
    Ok(roots)
}

/// The first address that answers.
fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, STEP) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bytes_of(mut body: BodyWrapper<Bytes>) -> Bytes {
    // It is whole, and waits for nothing.
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut body).poll_frame(&mut cx) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

fn written(method: &Method, target: &str, authority: &str, fields: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let mut out =
        format!("{method} {target} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n").into_bytes();
    for (name, value) in fields {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if *method == Method::POST {
        out.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out
}

/// Reads the final response.
fn read(stream: &mut impl Read, is_head: bool) -> io::Result<Response<Bytes>> {
    let limits = HttpLimits::default();
    let mut input = Input { stream, bytes: Vec::new() };
    let mut head = ResponseHead::default();
    loop {
        let mut end = HeadEnd::default();
        let length = loop {
            match head.read(&input.bytes, &mut end, is_head, &limits).map_err(io::Error::other)? {
                Some(length) => break length,
                None => input.more()?,
            }
        };
        input.bytes.drain(..length);
        if !head.is_interim() {
            break;
        }
    }
    let mut decoder = BodyDecoder::of_response(head.length);
    let mut body = Vec::new();
    loop {
        match decoder.next(&input.bytes, &limits).map_err(io::Error::other)? {
            Piece::Data { skip, len } => {
                body.extend_from_slice(&input.bytes[skip..skip + len]);
                input.bytes.drain(..skip + len);
            }
            Piece::End { .. } => break,
            Piece::More { skip } => {
                input.bytes.drain(..skip);
                match input.more() {
                    Err(error)
                        if error.kind() == io::ErrorKind::UnexpectedEof && decoder.ends_with_the_stream() =>
                    {
                        break;
                    }
                    more => more?,
                }
            }
        }
        if body.len() > MOST_BYTES {
            return Err(io::Error::other("its answer is too long"));
        }
    }
    let mut response = Response::builder().status(head.status);
    if let Some(fields) = response.headers_mut() {
        for field in head.fields.iter() {
            let name = HeaderName::from_bytes(field.spelt).map_err(io::Error::other)?;
            fields.append(name, HeaderValue::from_bytes(field.value).map_err(io::Error::other)?);
        }
    }
    response.body(Bytes::from(body)).map_err(io::Error::other)
}

/// A connection that ends at a moment, however slowly its other side goes on, also in a handshake.
struct Limited {
    tcp: TcpStream,
    until: Instant,
}

impl Limited {
    /// The time for the next step.
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        let is_over = || io::Error::new(io::ErrorKind::TimedOut, "it takes too long to answer");
        (!left.is_zero()).then_some(left.min(STEP)).ok_or_else(is_over)
    }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.left()?))?;
        self.tcp.read(buffer)
    }
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.left()?))?;
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

/// Bytes that were read and not used.
struct Input<'a, R> {
    stream: &'a mut R,
    bytes: Vec<u8>,
}

impl<R: Read> Input<'_, R> {
    fn more(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8192];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            length => {
                self.bytes.extend_from_slice(&buffer[..length]);
                Ok(())
            }
        }
    }
}

fn of_tls(host: &str, error: io::Error) -> io::Error {
    match error.kind() {
        // A read's time limit.
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, format!("{host} does not answer"))
        }
        io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), format!("{host} ended the connection")),
        kind => io::Error::new(kind, format!("{host}: {error}")),
    }
}

/// Retry-After in seconds (RFC 9110, 10.2.3).
fn pause(fields: &HeaderMap) -> Option<Duration> {
    let seconds = fields.get(http::header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: &[u8], is_head: bool) -> io::Result<Response<Bytes>> {
        read(&mut Slowly(bytes), is_head)
    }

    /// Each read gives one byte.
    struct Slowly<'a>(&'a [u8]);

    impl Read for Slowly<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(1);
            self.0.read(&mut buffer[..length])
        }
    }

    #[test]
    fn an_answer_is_read_in_any_form() {
        for (bytes, body) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nReplay-Nonce: n\r\n\r\n{}", "{}"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nReplay-Nonce: n\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
                "{}",
            ),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nReplay-Nonce: n\r\n\r\n{}", "{}"),
            ("HTTP/1.1 204 No Content\r\nReplay-Nonce: n\r\n\r\n", ""),
        ] {
            let response = answer(bytes.as_bytes(), false).unwrap();
            assert_eq!(response.body(), body, "{bytes}");
            assert_eq!(response.headers()["replay-nonce"], "n");
        }
        let of_head = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", true).unwrap();
        assert!(of_head.body().is_empty());
    }

    #[test]
    fn a_server_that_ends_in_the_handshake_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let ends = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read(&mut [0; 4096])
        });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let tls = config.unwrap().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let authority = Authority { tls: Arc::new(tls), pause: Arc::default() };
        let request = Request::get(format!("https://127.0.0.1:{port}/dir"));
        let request = request.body(BodyWrapper::from(Vec::<u8>::new())).unwrap();
        let error = authority.exchange(request).unwrap_err();
        assert_eq!(error.to_string(), "127.0.0.1 ended the connection");
        ends.join().unwrap().unwrap();
    }

    #[test]
    fn a_server_that_sends_byte_by_byte_does_not_hold_up_the_thread() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = connect("127.0.0.1", listener.local_addr().unwrap().port()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let slow = std::thread::spawn(move || {
            while server.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut limited = Limited { tcp, until: Instant::now() + Duration::from_millis(100) };
        let error = limited.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(limited);
        slow.join().unwrap();
    }

    #[test]
    fn a_truncated_or_endless_answer_is_an_error() {
        for bytes in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", "garbage\r\n\r\n"]
        {
            assert!(answer(bytes.as_bytes(), false).is_err(), "{bytes}");
        }
        let mut endless = b"HTTP/1.1 200 OK\r\n\r\n".as_slice().chain(io::repeat(b'x'));
        assert!(read(&mut endless, false).unwrap_err().to_string().contains("too long"));
    }
}
