//! A lean origin: one thread, the page in memory. It uses less CPU time than NGINX, which leaves more of the
//! shared cores to the proxies.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::event::epoll::EventFlags;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, version::TLS13};

use super::listener::listen;
use super::page_http2::{self, Http2};
use crate::link::{Events, Poll};
use crate::page::page;
use crate::place::BACKEND;

const LISTENER: usize = usize::MAX;
const FOREVER: Duration = Duration::from_secs(3600);
/// The end of a request's head. No request has a body.
const END: &[u8] = b"\r\n\r\n";

struct Client {
    socket: TcpStream,
    tls: ServerConnection,
    /// The received part of a request's head.
    heard: Vec<u8>,
    /// It chose HTTP/2.
    http2: Option<Http2>,
}

/// The answer to each request, encoded for each version of HTTP.
struct Answers {
    http1: Vec<u8>,
    http2_fields: Vec<u8>,
}

/// Serves forever, with certificate and key from one file.
pub(super) fn serve(bundle: &Path) -> anyhow::Result<()> {
    let (config, answers) =
        (config(bundle)?, Answers { http1: answer(), http2_fields: page_http2::fields() });
    let (poll, mut events, listener) = (Poll::new()?, Events::default(), listen(BACKEND)?);
    poll.add(&listener, LISTENER, EventFlags::IN)?;
    let mut clients: HashMap<usize, Client> = HashMap::new();
    loop {
        poll.wait(&mut events, FOREVER)?;
        for (number, _) in events.iter() {
            if number == LISTENER {
                accept_all(&listener, &config, &poll, &mut clients)?;
                continue;
            }
            let Some(client) = clients.get_mut(&number) else { continue };
            let waited = client.tls.wants_write();
            if client.serve(&answers).unwrap_or(true) {
                clients.remove(&number);
                continue;
            }
            let waits = client.tls.wants_write();
            if waits != waited {
                let out = if waits { EventFlags::OUT } else { EventFlags::empty() };
                poll.modify(&client.socket, number, EventFlags::IN | out)?;
            }
        }
    }
}

fn config(bundle: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let provider = CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..aws_lc_rs::default_provider()
    };
    let certificate = CertificateDer::from_pem_file(bundle).context("the certificate")?;
    let key = PrivateKeyDer::from_pem_file(bundle).context("the key")?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// With the fields that NGINX sends: proxies parse all of them.
fn answer() -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nServer: bench\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
                Content-Type: application/octet-stream\r\nContent-Length: 1024\r\n\
                Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nConnection: keep-alive\r\nETag: \"0-400\"\r\n\
                Accept-Ranges: bytes\r\n\r\n";
    [head.as_bytes(), page()].concat()
}

fn accept_all(
    listener: &TcpListener,
    config: &Arc<ServerConfig>,
    poll: &Poll,
    clients: &mut HashMap<usize, Client>,
) -> anyhow::Result<()> {
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error).context("accept"),
        };
        socket.set_nonblocking(true)?;
        let number = usize::try_from(socket.as_raw_fd()).context("a descriptor")?;
        poll.add(&socket, number, EventFlags::IN)?;
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        // The answers of one turn to all requests of a connection (HTTP/2).
        tls.set_buffer_limit(None);
        clients.insert(number, Client { socket, tls, heard: Vec::new(), http2: None });
    }
}

impl Client {
    /// Does what can be done now. Returns whether the connection has ended.
    fn serve(&mut self, answers: &Answers) -> anyhow::Result<bool> {
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let more = self.tls.process_new_packets()?.plaintext_bytes_to_read();
        if more > 0 {
            let start = self.heard.len();
            self.heard.resize(start + more, 0);
            self.tls.reader().read_exact(&mut self.heard[start..])?;
            if self.http2.is_none() && self.tls.alpn_protocol() == Some(b"h2") {
                self.http2 = Some(Http2::default());
            }
            if let Some(http2) = &mut self.http2 {
                let mut out = Vec::new();
                http2.serve(&mut self.heard, &answers.http2_fields, page(), &mut out);
                self.tls.writer().write_all(&out)?;
            } else {
                while let Some(end) = self.heard.windows(END.len()).position(|bytes| bytes == END) {
                    self.heard.drain(..end + END.len());
                    self.tls.writer().write_all(&answers.http1)?;
                }
            }
        }
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}
