//! What `truepeer https` negotiates, as TLS scanners test it, and what the origin learns of it.

use std::io::Write as _;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, client, ip_here, tests};

use crate::authority::{Authority, Validity};
use crate::kit::start_site;

pub(crate) fn tests() -> Vec<Test> {
    let python = tests![
        versions_are_1_2_and_1_3,
        suites_are_those_that_are_safe,
        a_chosen_suite_is_the_only_one_offered,
        sessions_are_resumed_in_both_versions,
        certificates_are_chosen_by_the_requested_name,
        unknown_protocols_are_refused,
        the_origin_learns_whose_certificate_was_verified,
        a_subject_can_not_write_fields,
        a_client_without_a_certificate_is_refused_where_one_is_required,
        a_header_before_the_handshake_names_the_client,
        a_new_authority_for_clients_is_loaded,
        an_authority_is_trusted_whatever_its_own_dates,
    ];
    let mut all: Vec<Test> = python.into_iter().map(|test| test.needs_program("python3")).collect();
    let openssl = tests![
        openssl_resumes_again_and_again,
        certificates_are_chosen_by_the_types_of_keys_that_a_client_knows,
        a_certificate_for_an_address_serves_clients_that_know_only_its_type_of_key,
        a_client_that_knows_no_algorithm_of_the_key_gets_an_alert,
        a_first_try_needs_no_certificate,
        early_data_for_another_server_is_skipped,
    ];
    all.extend(openssl.into_iter().map(|test| test.needs_program("openssl")));
    all.push(
        Test::new("haproxy_passes_tls_on_behind_its_header", haproxy_passes_tls_on_behind_its_header)
            .needs_program("haproxy")
            .needs_program("python3"),
    );
    all.push(Test::new("other_protocols_are_not_answered", other_protocols_are_not_answered));
    all
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8080";
const URL: &str = "http://127.0.0.1:8080";

/// NGINX, which answers with this; truepeer before it, with these options and a certificate for site.test.
struct Stand {
    truepeer: Running,
    _origin: Running,
    authority: Authority,
}

impl Stand {
    fn new(bed: &Bed, answer: &str, options: &[&str]) -> anyhow::Result<Stand> {
        Stand::with(bed, answer, |_| Ok(options.iter().map(|&option| option.to_owned()).collect()))
    }

    /// Options that need the authority's files.
    fn with(
        bed: &Bed,
        answer: &str,
        options: impl FnOnce(&Authority) -> anyhow::Result<Vec<String>>,
    ) -> anyhow::Result<Stand> {
        let answer = format!("location / {{ return 200 \"{answer}\\n\"; }}");
        let origin = Nginx::default().server(ORIGIN, "", &answer).start(bed)?;
        let authority = Authority::new(bed, "authority")?;
        let options = options(&authority)?;
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        let truepeer = start_site(bed, &authority, HERE, URL, &options)?;
        Ok(Stand { truepeer, _origin: origin, authority })
    }

    /// Runs a client in Python and returns its lines.
    fn python(&self, bed: &Bed, script: &str, args: &[&str]) -> anyhow::Result<Vec<String>> {
        let script = format!("{PRELUDE}\n{script}");
        let program = Program::new("python3").args(["-c", &script, &self.authority.ca]).args(args);
        let said = program.run(bed).map_err(|error| error.context(self.truepeer.log()))?;
        Ok(said.lines().map(str::to_owned).collect())
    }
}

/// `open()` performs a handshake with truepeer, `ask()` returns NGINX's answer.
const PRELUDE: &str = r"
import socket, ssl, sys, warnings
warnings.simplefilter('ignore') # that a version is old
def trusting(): return ssl.create_default_context(cafile=sys.argv[1])
def open(context=None, name='site.test', first=b'', to=('127.0.0.1', 443), source=None, session=None):
    plain = socket.create_connection(to, 60, source)
    plain.sendall(first)
    return (context or trusting()).wrap_socket(plain, server_hostname=name, session=session)
def ask(tls, fields=''):
    tls.sendall(('GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n%s\r\n' % fields).encode())
    answer = b''
    while True:
        data = tls.recv(65536)
        if not data: break
        answer += data
    if not answer: raise EOFError
    head, body = answer.split(b'\r\n\r\n', 1)
    assert head.startswith(b'HTTP/1.1 200 '), answer
    return body.decode().strip()
# If the alert does not arrive before the end, Python reports the end alone.
def refused(*args, **more):
    try: ask(open(*args, **more))
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError, EOFError): return True
    return False
";

fn lines(expected: &[&str], said: &[String], truepeer: &Running) -> anyhow::Result<()> {
    ensure!(said == expected, "{said:?}, not {expected:?}; {}", truepeer.log());
    Ok(())
}

fn versions_are_1_2_and_1_3(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let script = r"
for version in ('TLSv1_2', 'TLSv1_3'):
    context = trusting()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    print(open(context).version(), ask(open(context)))
# Today's libraries do not speak the older ones any more: a ClientHello by hand, of SSL 3.0, TLS 1.0 and 1.1.
for minor in (0, 1, 2):
    version, suites = bytes([3, minor]), bytes.fromhex('c009c00ac013c014002f0035000a0005')
    hello = version + bytes(32) + b'\0' + len(suites).to_bytes(2, 'big') + suites + b'\x01\0'
    message = b'\x01' + len(hello).to_bytes(3, 'big') + hello
    plain = socket.create_connection(('127.0.0.1', 443), 60)
    plain.sendall(b'\x16' + version + len(message).to_bytes(2, 'big') + message)
    answer = b''
    while data := plain.recv(100): answer += data
    # One record, a fatal alert.
    print(answer[0], answer[5], len(answer))";
    let said = stand.python(bed, script, &[])?;
    lines(&["TLSv1.2 fine", "TLSv1.3 fine", "21 2 7", "21 2 7", "21 2 7"], &said, &stand.truepeer)?;
    stand.truepeer.wait_for_log("tls_incompatible")
}

/// Every suite that the client's library supports, one by one. The certificate has an elliptic curve key.
fn suites_are_those_that_are_safe(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let script = r"
every = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
every.set_ciphers('ALL:COMPLEMENTOFALL:@SECLEVEL=0')
names = [suite['name'] for suite in every.get_ciphers()]
spoken = []
for name in names:
    if name.startswith('TLS_'): continue # of 1.3
    context = trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(name + ':@SECLEVEL=0')
    if not refused(context): spoken.append(name)
print(len(names) > 50)
print(*sorted(spoken))
print(open().cipher()[0], open().compression())";
    let said = stand.python(bed, script, &[])?;
    let expected = [
        "True",
        "ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_AES_256_GCM_SHA384 None",
    ];
    lines(&expected, &said, &stand.truepeer)
}

fn a_chosen_suite_is_the_only_one_offered(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--tls-min", "1.3", "--tls-suite", "TLS_AES_128_GCM_SHA256"];
    let stand = Stand::new(bed, "fine", &options)?;
    let script = r"
old = trusting()
old.maximum_version = ssl.TLSVersion.TLSv1_2
print(open().cipher()[0], ask(open()), refused(old))";
    lines(&["TLS_AES_128_GCM_SHA256 fine True"], &stand.python(bed, script, &[])?, &stand.truepeer)?;
    let s_client = ["s_client", "-connect", HERE, "-brief", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"];
    let other = Program::new("openssl").args(s_client).input("").run(bed);
    ensure!(other.is_err(), "another suite was spoken: {other:?}");
    Ok(())
}

fn sessions_are_resumed_in_both_versions(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let script = r"
for version in ('TLSv1_2', 'TLSv1_3'):
    context = trusting()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    session, reused = None, []
    for _ in range(4):
        tls = open(context, session=session)
        assert ask(tls) == 'fine'
        reused.append(tls.session_reused)
        session = tls.session
    print(*reused)";
    let said = stand.python(bed, script, &[])?;
    lines(&["False True True True"; 2], &said, &stand.truepeer)
}

fn openssl_resumes_again_and_again(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let args = ["s_client", "-connect", HERE, "-servername", "site.test", "-tls1_2", "-reconnect"];
    let trust = ["-CAfile", &stand.authority.ca, "-verify_return_error"];
    let said = Program::new("openssl").args(args).args(trust).input("Q\n").run(bed)?;
    let (new, reused) = (said.matches("New, TLSv1.2").count(), said.matches("Reused, TLSv1.2").count());
    ensure!((new, reused) == (1, 5), "{new} new, {reused} reused: {said}");
    Ok(())
}

fn certificates_are_chosen_by_the_requested_name(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with(bed, "$http_host", |authority| {
        let mut options = Vec::new();
        for (file, names) in [("wild", &["*.wild.test"][..]), ("two", &["one.test", "two.test"])] {
            let identity = authority.certify(bed, file, names)?;
            options.extend(["--cert".to_owned(), identity.cert, "--key".to_owned(), identity.key]);
        }
        Ok(options)
    })?;
    let script = r"
for name in ('site.test', 'a.wild.test', 'one.test', 'two.test', 'TWO.test', 'a.b.wild.test', 'wild.test', 'unknown.test', None):
    context = trusting()
    context.check_hostname = False
    tls = open(context, name=name)
    print(name, dict(part[0] for part in tls.getpeercert()['subject'])['commonName'])";
    let said = stand.python(bed, script, &[])?;
    let expected = [
        "site.test site",
        "a.wild.test wild",
        "one.test two",
        "two.test two",
        "TWO.test two",
        "a.b.wild.test site",
        "wild.test site",
        "unknown.test site",
        "None site",
    ];
    lines(&expected, &said, &stand.truepeer)
}

/// Whether the client names the site, another one, or none. The name is known from a wildcard, too.
fn certificates_are_chosen_by_the_types_of_keys_that_a_client_knows(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with(bed, "fine", |authority| {
        let mut options = Vec::new();
        for (file, name) in [("rsa", "site.test"), ("rsa_wild", "*.site.test"), ("other", "other.test")] {
            let rsa = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj"];
            let (cert, key) = (format!("{file}.pem"), format!("{file}.key"));
            let files = ["-keyout", &key, "-out", &cert];
            let name = format!("subjectAltName=DNS:{name}");
            let openssl = Program::new("openssl").args(rsa).arg(format!("/CN={file}")).args(files);
            openssl.args(["-addext", &name]).run(bed)?;
            options.extend(["--cert".to_owned(), cert, "--key".to_owned(), key]);
        }
        let identity = authority.certify(bed, "ecdsa_www", &["www.site.test"])?;
        options.extend(["--cert".to_owned(), identity.cert, "--key".to_owned(), identity.key]);
        Ok(options)
    })?;
    let mut said = Vec::new();
    for name in ["site.test", "unknown.test", "www.site.test", "other.test", ""] {
        for (algorithms, version) in [
            ("RSA+SHA256", "-tls1_2"),
            ("rsa_pss_rsae_sha256", "-tls1_3"),
            ("ECDSA+SHA256", "-tls1_2"),
            ("ECDSA+SHA256", "-tls1_3"),
        ] {
            let named = if name.is_empty() { vec!["-noservername"] } else { vec!["-servername", name] };
            let client = Program::new("openssl")
                .args(["s_client", "-connect", HERE, version, "-sigalgs", algorithms])
                .args(named)
                .input("Q\n")
                .start(bed)?;
            client.wait_end()?;
            let output = client.stdout();
            let subject = output.lines().find_map(|line| line.strip_prefix("subject="));
            let subject = subject.and_then(|subject| subject.rsplit('=').next()).unwrap_or("none");
            said.push(format!("{name} {algorithms} {}", subject.trim()));
        }
    }
    let expected = [
        ("site.test", "rsa", "site"),
        ("unknown.test", "rsa", "site"),
        ("www.site.test", "rsa_wild", "ecdsa_www"),
        ("other.test", "other", "none"),
        ("", "rsa", "site"),
    ];
    let expected: Vec<_> = expected
        .iter()
        .flat_map(|(name, rsa, ecdsa)| {
            let (first, second) =
                (format!("{name} RSA+SHA256 {rsa}"), format!("{name} rsa_pss_rsae_sha256 {rsa}"));
            [first, second, format!("{name} ECDSA+SHA256 {ecdsa}"), format!("{name} ECDSA+SHA256 {ecdsa}")]
        })
        .collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    lines(&expected, &said, &stand.truepeer)
}

/// Clients of an IP address send no name, and no host name leads to the first certificate. One for another
/// host is better than none: its clients may send no name, either.
fn a_certificate_for_an_address_serves_clients_that_know_only_its_type_of_key(
    bed: &Bed,
) -> anyhow::Result<()> {
    for name in ["IP:127.0.0.1", "DNS:elsewhere.test"] {
        let stand = Stand::with(bed, "fine", |_| {
            let new = ["req", "-x509", "-nodes", "-days", "2", "-newkey", "rsa:2048", "-subj", "/CN=rsa"];
            let files = ["-keyout", "rsa.key", "-out", "rsa.pem", "-addext"];
            let name = format!("subjectAltName={name}");
            Program::new("openssl").args(new).args(files).arg(name).run(bed)?;
            Ok(["--cert", "rsa.pem", "--key", "rsa.key"].map(str::to_owned).to_vec())
        })?;
        let client = Program::new("openssl")
            .args(["s_client", "-connect", HERE, "-tls1_2", "-noservername", "-sigalgs", "RSA+SHA256"])
            .input("Q\n")
            .start(bed)?;
        client.wait_end()?;
        ensure!(client.stdout().contains("CN = rsa"), "{name}: {}; {}", client.log(), stand.truepeer.log());
    }
    Ok(())
}

/// In TLS 1.2 rustls ends such a handshake without an alert of its own.
fn a_client_that_knows_no_algorithm_of_the_key_gets_an_alert(bed: &Bed) -> anyhow::Result<()> {
    let new = ["req", "-x509", "-nodes", "-days", "2", "-newkey", "ed25519", "-subj", "/CN=ed"];
    Program::new("openssl").args(new).args(["-keyout", "ed.key", "-out", "ed.pem"]).run(bed)?;
    let truepeer = Truepeer::of(Program::new(env!("CARGO_BIN_EXE_truepeer")).arg("https"))
        .listen(HERE)
        .option("--cert", "ed.pem")
        .option("--key", "ed.key")
        .option("--origin", URL)
        .start(bed)?;
    for version in ["-tls1_2", "-tls1_3"] {
        let client = Program::new("openssl")
            .args(["s_client", "-connect", HERE, version, "-sigalgs", "ECDSA+SHA256"])
            .input("Q\n")
            .start(bed)?;
        client.wait_end()?;
        ensure!(client.log().contains("alert handshake failure"), "{version}: {}", client.log());
    }
    truepeer.wait_for_log("the client knows no signature algorithm of the certificate's key")?;
    Ok(())
}

/// RFC 8446 4.2.10. A site that has moved here: its clients have the old server's tickets.
fn early_data_for_another_server_is_skipped(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let old = stand.authority.certify(bed, "old", &["site.test"])?;
    let server = Program::new("openssl")
        .args(["s_server", "-accept", "127.0.0.1:8443", "-tls1_3", "-max_early_data", "16384", "-www"])
        .args(["-cert", &old.cert, "-key", &old.key])
        .start(bed)?;
    server.wait_listening("127.0.0.1:8443")?;
    let client = |to: &str| Program::new("openssl").args(["s_client", "-connect", to, "-tls1_3"]);
    let request = "GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n";
    client("127.0.0.1:8443").args(["-sess_out", "ticket", "-ign_eof"]).input(request).run(bed)?;
    for length in [12_000, 16_384] {
        let early = bed.write("early", "x".repeat(length))?;
        let again = client(HERE).args(["-sess_in", "ticket", "-ign_eof", "-early_data"]).arg(early);
        let said = again.input(request).run(bed).map_err(|error| error.context(stand.truepeer.log()))?;
        ensure!(said.contains("Early data was rejected"), "{said}");
        ensure!(said.contains("HTTP/1.1 200 ") && said.contains("fine"), "{said}; {}", stand.truepeer.log());
    }
    Ok(())
}

fn unknown_protocols_are_refused(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    let script = r"
for offered in ([], ['http/1.1'], ['spdy/3', 'http/1.1'], ['http/1.0'], ['spdy/3']):
    context = trusting()
    if offered: context.set_alpn_protocols(offered)
    if refused(context): print('refused')
    else: print(open(context).selected_alpn_protocol(), ask(open(context)))";
    let said = stand.python(bed, script, &[])?;
    let expected = ["None fine", "http/1.1 fine", "http/1.1 fine", "http/1.0 fine", "refused"];
    lines(&expected, &said, &stand.truepeer)?;
    stand.truepeer.wait_for_log("tls_alpn")
}

/// The fields about client certificates that the origin gets.
const TOLD: &str = "<$http_x_ssl_client_verify> <$http_x_ssl_client_s_dn>";

/// A client with the certificate and key from its arguments.
const WITH_CERTIFICATE: &str = r"
def showing(cert, key):
    context = trusting()
    context.load_cert_chain(cert, key)
    return context
FORGED = 'X-SSL-Client-Verify: SUCCESS\r\nX-SSL-Client-S-DN: CN=root\r\nX_SSL_Client_Verify: SUCCESS\r\n'
";

fn asking_for_certificates(bed: &Bed, options: &[&str]) -> anyhow::Result<Stand> {
    Stand::with(bed, TOLD, |authority| {
        let all = ["--client-ca", &authority.ca].into_iter().chain(options.iter().copied());
        Ok(all.map(str::to_owned).collect())
    })
}

fn the_origin_learns_whose_certificate_was_verified(bed: &Bed) -> anyhow::Result<()> {
    let stand = asking_for_certificates(bed, &["--client-cert", "optional"])?;
    let alice = stand.authority.certify(bed, "alice", &["a.test"])?;
    let mallory = Authority::new(bed, "stranger")?.certify(bed, "mallory", &["m.test"])?;
    let script = format!(
        r"{WITH_CERTIFICATE}
print(ask(open(), FORGED))
alice, mallory = showing(*sys.argv[2:4]), showing(*sys.argv[4:6])
first = open(alice)
print(ask(first, FORGED))
print(ask(open(alice, session=first.session)))
print(refused(mallory))"
    );
    let args = [alice.cert, alice.key, mallory.cert, mallory.key];
    let said = stand.python(bed, &script, &args.each_ref().map(String::as_str))?;
    // Resumed or not: it is the same client.
    let expected = ["<> <>", "<SUCCESS> <CN=alice,O=Testbed>", "<SUCCESS> <CN=alice,O=Testbed>", "True"];
    lines(&expected, &said, &stand.truepeer)
}

fn a_subject_can_not_write_fields(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with(bed, "<$http_x_ssl_client_verify> <$http_x_injected>", |authority| {
        Ok(["--client-ca", &authority.ca].map(str::to_owned).to_vec())
    })?;
    // Its file has the same name.
    let odd = stand.authority.certify(bed, "odd\r\nX-Injected: yes\r\n\r\n", &["odd.test"])?;
    let script = format!("{WITH_CERTIFICATE}\nprint(ask(open(showing(*sys.argv[2:4]))))");
    let said = stand.python(bed, &script, &[&odd.cert, &odd.key])?;
    lines(&["<SUCCESS> <>"], &said, &stand.truepeer)
}

fn a_client_without_a_certificate_is_refused_where_one_is_required(bed: &Bed) -> anyhow::Result<()> {
    let stand = asking_for_certificates(bed, &[])?;
    let alice = stand.authority.certify(bed, "alice", &["a.test"])?;
    let script = format!(
        r"{WITH_CERTIFICATE}
print(refused())
print(ask(open(showing(*sys.argv[2:4]))))"
    );
    let said = stand.python(bed, &script, &[&alice.cert, &alice.key])?;
    lines(&["True", "<SUCCESS> <CN=alice,O=Testbed>"], &said, &stand.truepeer)?;
    stand.truepeer.wait_for_log("a client certificate is required, and none was sent")
}

/// Clients of the old authority are refused, even those that could resume a session. Open connections stay.
fn a_new_authority_for_clients_is_loaded(bed: &Bed) -> anyhow::Result<()> {
    let stand = asking_for_certificates(bed, &[])?;
    let alice = stand.authority.certify(bed, "alice", &["a.test"])?;
    let other = Authority::new(bed, "other")?;
    let bob = other.certify(bed, "bob", &["b.test"])?;
    let script = format!(
        r"{WITH_CERTIFICATE}
import os, time
# Clients trust the site whatever becomes of the file: it is the authority for clients that changes.
known = trusting()
def showing(cert, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=KNOWN)
    context.load_cert_chain(cert, key)
    return context
KNOWN = open_file(sys.argv[1])
def kept(tls):
    tls.sendall(b'GET / HTTP/1.1\r\nHost: site.test\r\n\r\n')
    answer = b''
    while not answer.endswith(b'>\n'): answer += tls.recv(65536)
    return answer.startswith(b'HTTP/1.1 200 ')
def reloaded(name):
    print('next', flush=True)
    while not os.path.exists(name): time.sleep(.01)
alice, bob = showing(*sys.argv[2:4]), showing(*sys.argv[4:6])
staying = open(alice)
print(kept(staying), refused(bob))
reloaded('changed')
print(refused(alice), refused(alice, session=staying.session), ask(open(bob)), kept(staying))
reloaded('broken')
print(refused(alice), ask(open(bob)), kept(staying))"
    )
    .replace("open_file(sys.argv[1])", "__import__('pathlib').Path(sys.argv[1]).read_text()");
    let client = Program::new("python3")
        .args(["-c", &format!("{PRELUDE}\n{script}"), &stand.authority.ca])
        .args([alice.cert, alice.key, bob.cert, bob.key])
        .start(bed)?;
    let truepeer = &stand.truepeer;
    client.wait_state("the first round", || client.stdout().matches("next").count() == 1)?;
    std::fs::copy(&other.ca, &stand.authority.ca)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("have new certificates")?;
    bed.write("changed", "")?;
    client.wait_state("the second round", || client.stdout().matches("next").count() == 2)?;
    std::fs::write(&stand.authority.ca, "no authority")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("stays as it was: --client-ca ")?;
    bed.write("broken", "")?;
    ensure!(client.wait_end()?.success(), "{}; {}", client.log(), truepeer.log());
    let said: Vec<_> = client.stdout().lines().filter(|line| *line != "next").map(str::to_owned).collect();
    let bobs = "<SUCCESS> <CN=bob,O=Testbed>";
    lines(&["True True", &format!("True True {bobs} True"), &format!("True {bobs} True")], &said, truepeer)
}

/// An authority in the file is trusted whatever its own dates (RFC 5280, 6.1.1 d). The dates of the clients'
/// certificates count.
fn an_authority_is_trusted_whatever_its_own_dates(bed: &Bed) -> anyhow::Result<()> {
    let old = Authority::of(bed, "old", Validity::Over)?;
    let stand = Stand::with(bed, TOLD, |_| Ok(["--client-ca", &old.ca].map(str::to_owned).to_vec()))?;
    let alice = old.certify(bed, "alice", &["a.test"])?;
    let late = old.certify_for(bed, "late", &["a.test"], Validity::Over)?;
    let script = format!(
        "{WITH_CERTIFICATE}\nprint(ask(open(showing(*sys.argv[2:4]))), refused(showing(*sys.argv[4:6])))"
    );
    let args = [alice.cert, alice.key, late.cert, late.key];
    let said = stand.python(bed, &script, &args.each_ref().map(String::as_str))?;
    lines(&["<SUCCESS> <CN=alice,O=Testbed> True"], &said, &stand.truepeer)
}

fn a_header_before_the_handshake_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let headers =
        [client::v1("203.0.113.7:5000", "192.0.2.1:443")?, client::v2("203.0.113.7:5001", "192.0.2.1:443")?];
    let headers: Vec<String> =
        headers.iter().map(|header| header.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let headers: Vec<_> = headers.iter().map(String::as_str).collect();
    for (mode, expected) in [("forwarded", "127.0.0.1 <203.0.113.7>"), ("transparent", "203.0.113.7 <>")] {
        let options = ["--header", "require", "--client-address", mode];
        let stand = Stand::new(bed, "$remote_addr <$http_x_forwarded_for>", &options)?;
        let script = r"
for header in sys.argv[2:]: print(ask(open(first=bytes.fromhex(header))))
print(refused())";
        let said = stand.python(bed, script, &headers)?;
        lines(&[expected, expected, "True"], &said, &stand.truepeer)?;
        stand.truepeer.wait_for_log("the first bytes look like: TLS (ClientHello)")?;
    }
    Ok(())
}

fn haproxy_passes_tls_on_behind_its_header(bed: &Bed) -> anyhow::Result<()> {
    // The client is on this host, whose addresses must not be claimed by default.
    let options = ["--header", "require", "--allow-claims", "192.0.2.9"];
    let stand = Stand::new(bed, "$http_x_forwarded_for", &options)?;
    let _haproxy = Haproxy::default().relay("127.0.0.1:7000", HERE, "send-proxy-v2").start(bed)?;
    ip_here(&["address add 192.0.2.9/32 dev lo"])?;
    let script = "print(ask(open(to=('127.0.0.1', 7000), source=('192.0.2.9', 0))))";
    lines(&["192.0.2.9"], &stand.python(bed, script, &[])?, &stand.truepeer)
}

fn other_protocols_are_not_answered(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "fine", &[])?;
    for (first, reason) in [
        (&b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n"[..], "look like HTTP request"),
        // A ClientHello of SSL 2.0, and a meaningless record of SSL 3.0.
        (b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80", ""),
        (b"\x16\x03\x00\x00\x05\x01\x00\x00\x01\x03", ""),
        (&[0; 64], ""),
    ] {
        let mut stream = client::connect(HERE)?;
        stream.write_all(first)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        // At most an alert, then the end or a reset.
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        ensure!(!answer.starts_with(b"HTTP") && answer.len() < 100, "{answer:?}");
        stand.truepeer.wait_for_log(reason)?;
    }
    // It still serves.
    ensure!(stand.truepeer.is_alive());
    let curl = ["https://127.0.0.1/", "--http1.1"];
    ensure!(crate::kit::curl(&curl).run(bed)?.trim() == "fine", "{}", stand.truepeer.log());
    Ok(())
}

/// `--tls-cert self`: the log has what openssl shows, and a reload makes no other certificate.
fn a_first_try_needs_no_certificate(bed: &Bed) -> anyhow::Result<()> {
    let _origin = Nginx::default().server(ORIGIN, "", "location / { return 200 \"served\"; }").start(bed)?;
    let options = ["https", "-l", HERE, "--tls-cert", "self", "--origin", URL];
    let truepeer = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(options).start(bed)?;
    truepeer.wait_for_log("listening on 127.0.0.1:443")?;
    let shown = || {
        let script = format!(
            "openssl s_client -connect {HERE} </dev/null 2>/dev/null | openssl x509 -noout -fingerprint -sha256 -ext subjectAltName"
        );
        Program::new("sh").args(["-c", &script]).run(bed)
    };
    let first = shown()?;
    ensure!(first.contains("IP Address:127.0.0.1, DNS:localhost"), "{first}");
    let fingerprint =
        first.lines().find_map(|line| line.split_once("Fingerprint=")).map_or("?", |(_, shown)| shown);
    let told = format!("the certificate is for 127.0.0.1, localhost; its SHA-256 is {fingerprint}");
    ensure!(truepeer.log().contains(&told), "no {told:?} in {}", truepeer.log());
    ensure!(truepeer.log().contains("no client trusts this certificate"), "{}", truepeer.log());
    let served = Program::new("curl").args(["-sk", "https://localhost/"]).run(bed)?;
    ensure!(served == "served", "{served}");
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("nothing has changed")?;
    ensure!(shown()? == first, "{}", shown()?);
    Ok(())
}
