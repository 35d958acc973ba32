//! Shared by these tests: a certificate, truepeer with it, an origin and clients in Python.

use std::path::PathBuf;

use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Truepeer};

use crate::authority::Authority;

/// A self-signed certificate for "site", and its key.
pub(crate) struct Certificate {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    pub(crate) fn make(bed: &Bed) -> anyhow::Result<Self> {
        let made = rcgen::generate_simple_self_signed(["site".to_owned()])?;
        Ok(Self {
            cert: bed.write("site.pem", made.cert.pem())?,
            key: bed.write("site.key", made.signing_key.serialize_pem())?,
        })
    }
}

/// `truepeer https` on `listen`, with its own certificate and two workers.
pub(crate) fn https(bed: &Bed, listen: &str, origin: &str) -> anyhow::Result<Truepeer> {
    Ok(https_by(bed, listen, origin)?.option("--workers", 2))
}

/// As [`https`]; the test sets the number of workers.
pub(crate) fn https_by(bed: &Bed, listen: &str, origin: &str) -> anyhow::Result<Truepeer> {
    https_of(bed, Program::new(env!("CARGO_BIN_EXE_truepeer")).arg("https"), listen, origin)
}

/// As [`https`], with a limit of open files.
pub(crate) fn https_with_files(
    bed: &Bed,
    files: usize,
    listen: &str,
    origin: &str,
) -> anyhow::Result<Truepeer> {
    let limit = format!("--nofile={files}:{files}");
    let program = Program::new("prlimit").args([&limit, env!("CARGO_BIN_EXE_truepeer"), "https"]);
    Ok(https_of(bed, program, listen, origin)?.option("--workers", 2))
}

fn https_of(bed: &Bed, program: Program, listen: &str, origin: &str) -> anyhow::Result<Truepeer> {
    let Certificate { cert, key } = Certificate::make(bed)?;
    Ok(Truepeer::of(program)
        .listen(listen)
        .option("--cert", cert.display())
        .option("--key", key.display())
        .option("--origin", origin))
}

/// `truepeer https` on `listen`, with two workers and a certificate that clients accept who trust the
/// authority.
pub(crate) fn start_site(
    bed: &Bed,
    authority: &Authority,
    listen: &str,
    origin: &str,
    options: &[&str],
) -> anyhow::Result<Running> {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']);
    let site = authority.certify(bed, "site", &["site.test", host])?;
    let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["https", "--workers", "2"]);
    Truepeer::of(program)
        .listen(listen)
        .option("--cert", site.cert)
        .option("--key", site.key)
        .option("--origin", origin)
        .args(options)
        .start(bed)
}

/// The version of HTTP that truepeer speaks with an origin without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OriginVersion {
    Http1,
    Http2,
}

impl OriginVersion {
    /// The value of `--origin-protocol`.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "h2",
        }
    }

    /// NGINX's option of `listen`.
    pub(crate) fn nginx(self) -> &'static str {
        match self {
            Self::Http1 => "",
            Self::Http2 => "http2",
        }
    }

    /// The end of a test's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Http1 => "",
            Self::Http2 => "_from_an_http2_origin",
        }
    }
}

/// Origins with their own HTTP parsers that print what they parsed (`programs/origin.*`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlainOrigin {
    Go,
    Node,
}

impl PlainOrigin {
    pub(crate) fn start(self, bed: &Bed, port: u16) -> anyhow::Result<Running> {
        self.start_with(bed, port, &[])
    }

    /// The same with further arguments: a certificate and its key for HTTP/2 and HTTP/1.1 by TLS, `h2` for
    /// HTTP/2 without TLS.
    pub(crate) fn start_with(self, bed: &Bed, port: u16, more: &[&str]) -> anyhow::Result<Running> {
        let origin = match self {
            Self::Go => {
                let program = truepeer_testbed::go::build(bed, "origin", include_str!("programs/origin.go"))?;
                Program::new(program).arg(format!("127.0.0.1:{port}"))
            }
            Self::Node => {
                let script = bed.write("origin.js", include_str!("programs/origin.js"))?;
                Program::new("node").arg(script).args(["127.0.0.1", &port.to_string()])
            }
        };
        let origin = origin.args(more).start(bed)?;
        origin.wait_listening(format!("127.0.0.1:{port}"))?;
        Ok(origin)
    }
}

/// curl, which accepts the test's certificate and prints the response.
pub(crate) fn curl(args: &[&str]) -> Program {
    Program::new("curl").args(["--silent", "--show-error", "--insecure", "--max-time", "60"]).args(args)
}

/// An origin in Python: GET /N returns N bytes (HEAD: their length), POST the digest of its body. Each
/// request is a line on its output.
const ORIGIN: &str = r#"
import hashlib, http.server, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = 'HTTP/1.1', True
    def log_message(self, *_): pass
    def answer(self, body):
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        print(f'request {self.path}\n', end='', flush=True) # in one write: threads do it at the same time
        self.answer(b'x' * int(self.path[1:] or 0))
    def do_HEAD(self):
        self.send_response(200)
        self.send_header('Content-Length', self.path[1:])
        self.end_headers()
    def do_POST(self):
        print(f'request {self.path}\n', end='', flush=True) # in one write: threads do it at the same time
        digest, length = hashlib.sha256(), self.headers.get('Content-Length')
        left = int(length or 0)
        while left > 0:
            piece = self.rfile.read(min(left, 65536))
            digest.update(piece)
            left -= len(piece)
        while length is None:
            size = int(self.rfile.readline(), 16)
            digest.update(self.rfile.read(size))
            self.rfile.readline()
            if size == 0: break
        self.answer(digest.hexdigest().encode())
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
Server(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"#;

/// Starts [`ORIGIN`].
pub(crate) fn origin(bed: &Bed, port: u16) -> anyhow::Result<Running> {
    let origin = Program::new("python3").args(["-c", ORIGIN]).arg(port.to_string()).start(bed)?;
    origin.wait_listening(format!("127.0.0.1:{port}"))?;
    Ok(origin)
}

/// The same in this version: NGINX in front of it speaks HTTP/2, and passes bodies on as they come. The
/// origin itself is the first.
pub(crate) fn origin_in(bed: &Bed, port: u16, version: OriginVersion) -> anyhow::Result<Vec<Running>> {
    if version == OriginVersion::Http1 {
        return Ok(vec![origin(bed, port)?]);
    }
    Ok(vec![origin(bed, port + 1000)?, http2_front(bed, port, port + 1000)?])
}

/// NGINX, which speaks HTTP/2 on `port` for an origin on the port `behind`, and passes bodies on as they
/// come.
pub(crate) fn http2_front(bed: &Bed, port: u16, behind: u16) -> anyhow::Result<Running> {
    let directives = format!(
        "client_max_body_size 0; location / {{ proxy_pass http://127.0.0.1:{behind}; proxy_http_version 1.1; \
         proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 10m; proxy_send_timeout 10m; }}"
    );
    let directives = format!("client_body_timeout 10m; send_timeout 10m; {directives}");
    Nginx::default().server(format!("127.0.0.1:{port}"), OriginVersion::Http2.nginx(), &directives).start(bed)
}

/// `connect()` for clients in Python; its argument is offered by ALPN.
pub(crate) const CONNECT: &str = r"
import socket, ssl
context = ssl._create_unverified_context()
def connect(protocol=None):
    if protocol: context.set_alpn_protocols([protocol])
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    return context.wrap_socket(plain, server_hostname='site')
";

/// Runs a client in Python to its end. `connect()` opens a TLS connection to port 443 here.
pub(crate) fn python_client(bed: &Bed, script: &str) -> anyhow::Result<String> {
    Program::new("python3").args(["-c", &format!("{CONNECT}{script}")]).run(bed)
}
