//! Failed handshakes: the other end gets the reason, even while the only worker is busy.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, tests};

use crate::authority::{Authority, Identity, Validity};
use crate::kit::{curl, https_by, origin};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        clients_get_the_reason_why_their_certificates_are_refused,
        origins_get_the_reason_why_their_certificates_are_refused,
        an_alert_reaches_a_client_that_goes_on_sending
    ];
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

const HERE: &str = "127.0.0.1:443";
/// How many of them must get it.
const ATTEMPTS: usize = 8;

/// `truepeer https` with one worker.
fn lonely(bed: &Bed, origin: &str) -> anyhow::Result<Truepeer> {
    Ok(https_by(bed, HERE, origin)?.option("--workers", 1))
}

/// Endless downloads by four clients with the given certificate and key, until the file `enough` exists.
const LOAD: &str = r"
import http.client, os, ssl, sys, threading
context = ssl._create_unverified_context()
if len(sys.argv) > 1: context.load_cert_chain(*sys.argv[1:])
def load():
    client = http.client.HTTPSConnection('127.0.0.1', 443, timeout=60, context=context)
    while not os.path.exists('enough'):
        client.request('GET', '/8000000')
        response = client.getresponse()
        while response.read(65536): pass
        print('loaded', flush=True)
for _ in range(4): threading.Thread(target=load).start()
";

fn load(bed: &Bed, args: &[&str]) -> anyhow::Result<Running> {
    let load = Program::new("python3").args(["-c", LOAD]).args(args).start(bed)?;
    load.wait_for_log("loaded")?;
    Ok(load)
}

fn end(bed: &Bed, load: &Running, truepeer: &Running) -> anyhow::Result<()> {
    ensure!(load.is_alive(), "the load has ended: {}", load.log());
    bed.write("enough", "")?;
    ensure!(load.wait_end()?.success(), "{}; {}", load.log(), truepeer.log());
    Ok(())
}

/// Presents a certificate, sends a request at once as TLS 1.3 clients do, and prints what it receives.
const SHOWING: &str = r"
import socket, ssl, sys
for version in 'TLSv1_2', 'TLSv1_3':
    for _ in range(int(sys.argv[1])):
        context = ssl._create_unverified_context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
        context.load_cert_chain(*sys.argv[2:])
        plain = socket.create_connection(('127.0.0.1', 443), 60)
        try:
            stream = context.wrap_socket(plain, server_hostname='site')
            stream.sendall(b'GET /1 HTTP/1.1\r\nHost: site\r\n\r\n')
            heard = 'an answer' if stream.recv(1) else 'the end'
        except ssl.SSLError as error: heard = error.reason
        except OSError as error: heard = repr(error)
        print(version, heard, flush=True)
";

fn clients_get_the_reason_why_their_certificates_are_refused(bed: &Bed) -> anyhow::Result<()> {
    let _origin = origin(bed, 8080)?;
    let (authority, stranger) = (Authority::new(bed, "authority")?, Authority::new(bed, "stranger")?);
    let alice = authority.certify(bed, "alice", &["a.test"])?;
    let truepeer = lonely(bed, "http://127.0.0.1:8080")?.args(&["--client-ca", &authority.ca]).start(bed)?;
    let load = load(bed, &[&alice.cert, &alice.key])?;
    let refused = [
        (authority.certify_for(bed, "late", &["a.test"], Validity::Over)?, "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        (
            authority.certify_for(bed, "early", &["a.test"], Validity::ToCome)?,
            "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        ),
        (stranger.certify(bed, "mallory", &["a.test"])?, "TLSV1_ALERT_UNKNOWN_CA"),
    ];
    for (Identity { cert, key }, alert) in refused {
        let said =
            Program::new("python3").args(["-c", SHOWING, &ATTEMPTS.to_string(), &cert, &key]).run(bed)?;
        for version in ["TLSv1_2", "TLSv1_3"] {
            let heard = said.matches(&format!("{version} {alert}\n")).count();
            ensure!(heard == ATTEMPTS, "{alert}: {said}; {}", truepeer.log());
        }
    }
    end(bed, &load, &truepeer)
}

/// In the handshake, and after it by HTTP/1.1 and HTTP/2: alert, FIN, and no reset, although bytes are left
/// unread.
fn an_alert_reaches_a_client_that_goes_on_sending(bed: &Bed) -> anyhow::Result<()> {
    const CLIENT: &str = r"
import socket, ssl
def heard(plain):
    said = b''
    while piece := plain.recv(65536): said += piece
    return said
MORE = bytes(300_000)
def alert(protocol):
    context = ssl._create_unverified_context()
    context.set_alpn_protocols([protocol])
    if protocol == 'unknown': context.maximum_version = ssl.TLSVersion.TLSv1_2 # its alert is not encrypted
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname='site')
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            plain.sendall(outgoing.read() + (MORE if protocol == 'unknown' else b''))
            if protocol == 'unknown': return print(protocol, heard(plain)[-2:].hex())
            incoming.write(plain.recv(65536))
    if protocol == 'h2': tls.write(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    plain.sendall(outgoing.read() + b'\x17\x03\x03\x00\x20' + bytes(32) + MORE)
    incoming.write(heard(plain))
    incoming.write_eof()
    while tls.read(65536): pass
for protocol in 'unknown', 'http/1.1', 'h2':
    try: alert(protocol)
    except ssl.SSLError as error: print(protocol, error.reason)
";
    let _origin = origin(bed, 8080)?;
    let truepeer = lonely(bed, "http://127.0.0.1:8080")?.start(bed)?;
    let said = Program::new("python3").args(["-c", CLIENT]).run(bed)?;
    // A fatal alert, no_application_protocol.
    let (unknown, bad) = ("0278", "SSLV3_ALERT_BAD_RECORD_MAC");
    let expected = format!("unknown {unknown}\nhttp/1.1 {bad}\nh2 {bad}\n");
    ensure!(said == expected, "{said}; {}", truepeer.log());
    Ok(())
}

/// Performs handshakes with every client and prints what it receives. Port 8443 uses TLS; 8080 doesn't, for
/// the load.
const ORIGIN: &str = r"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
listener = socket.create_server(('127.0.0.1', 8443), backlog=64)
print('listening', flush=True)
while True:
    plain, _ = listener.accept()
    plain.settimeout(60)
    try:
        stream = context.wrap_socket(plain, server_side=True)
        heard = 'a request' if stream.recv(1) else 'the end'
    except ssl.SSLError as error: heard = error.reason
    except OSError as error: heard = repr(error)
    print('heard', heard, flush=True)
";

/// The load goes through a second listener of the same worker. Its origin uses no TLS.
fn origins_get_the_reason_why_their_certificates_are_refused(bed: &Bed) -> anyhow::Result<()> {
    let (authority, stranger) = (Authority::new(bed, "authority")?, Authority::new(bed, "stranger")?);
    let here = &["127.0.0.1"];
    for (identity, alert, said) in [
        (
            authority.certify_for(bed, "late", here, Validity::Over)?,
            "SSLV3_ALERT_CERTIFICATE_EXPIRED",
            "certificate expired",
        ),
        (
            authority.certify_for(bed, "early", here, Validity::ToCome)?,
            "SSLV3_ALERT_CERTIFICATE_EXPIRED",
            "certificate not valid yet",
        ),
        (stranger.certify(bed, "mallory", here)?, "TLSV1_ALERT_UNKNOWN_CA", "is not trusted"),
        (
            authority.certify(bed, "other", &["other.test"])?,
            "SSLV3_ALERT_BAD_CERTIFICATE",
            "not valid for name",
        ),
    ] {
        let origin =
            Program::new("python3").args(["-c", ORIGIN, &identity.cert, &identity.key]).start(bed)?;
        origin.wait_for_log("listening")?;
        let options = ["--origin-ca", &authority.ca, "--access-log"];
        let truepeer = lonely(bed, "https://127.0.0.1:8443")?.args(&options).start(bed)?;
        // Many at once: each is load for the others.
        let ask: Vec<_> = (0..ATTEMPTS)
            .map(|_| {
                let args = ["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/1"];
                curl(&args).start(bed)
            })
            .collect::<Result<_, _>>()?;
        for ask in ask {
            ensure!(ask.wait_end()?.success() && ask.stdout() == "502", "{}; {}", ask.log(), truepeer.log());
        }
        let heard = format!("heard {alert}\n");
        origin.wait_state(&heard, || origin.stdout().matches(&heard).count() == ATTEMPTS)?;
        truepeer.wait_for_log("can't connect to the origin: TLS")?;
        truepeer.wait_for_log(said)?;
        truepeer.wait_for_log("origin_tls")?;
    }
    Ok(())
}
