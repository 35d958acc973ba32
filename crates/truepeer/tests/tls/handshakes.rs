//! Handshakes: negotiated parameters, refusals and messages.

use std::io::Write as _;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, tests};

use crate::authority::Authority;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, Stand, python, terminating};

pub(crate) fn tests() -> Vec<Test> {
    let python = tests![
        certificates_are_chosen_by_name,
        sessions_are_resumed,
        a_required_client_certificate_is_enforced,
        new_certificates_are_used_and_open_connections_stay,
        lists_are_read_again_where_tls_is_spoken,
        an_end_without_close_notify_reaches_the_backend_as_a_reset,
        the_operator_ends_a_session,
        a_ban_ends_a_session,
        an_alert_reaches_a_client_that_goes_on_sending_through_a_tunnel,
    ];
    let openssl = tests![old_versions_and_other_suites_are_refused_with_the_reason];
    let mut all: Vec<Test> = python.into_iter().map(|test| test.needs_program("python3")).collect();
    all.extend(openssl.into_iter().map(|test| test.needs_program("openssl")));
    all.extend(tests![
        other_protocols_are_refused_by_name,
        a_silent_client_is_not_waited_for,
        wrong_files_are_named_before_anything_listens,
    ]);
    all
}

fn s_client(options: &[&str]) -> Program {
    let base = ["s_client", "-connect", DOOR_V4, "-servername", "site.test", "-brief"];
    Program::new("openssl").args(base).args(options.to_vec()).input("")
}

fn old_versions_and_other_suites_are_refused_with_the_reason(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--tls-min", "1.3", "--tls-suite", "TLS_AES_128_GCM_SHA256"];
    let stand = Stand::new(bed, Behaviour::Echo, &options)?;
    ensure!(s_client(&["-tls1_2"]).run(bed).is_err(), "TLS 1.2 was spoken");
    stand.truepeer.wait_for_log("no TLS version in common; --tls-min names the oldest")?;
    ensure!(
        s_client(&["-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]).run(bed).is_err(),
        "ChaCha20 was spoken"
    );
    bed.wait_for("two refusals", || {
        // The second is not logged: it has the same reason within a minute.
        stand.truepeer.signal(Signal::USR1).is_ok() && stand.truepeer.log().contains("tls_incompatible=2")
    })?;
    s_client(&["-ciphersuites", "TLS_AES_128_GCM_SHA256"]).run(bed)?;
    stand.truepeer.wait_for_log("tls=\"TLSv1.3 TLS_AES_128_GCM_SHA256 sni=site.test\"")
}

/// Alert, FIN, and no reset, although bytes are left unread.
fn an_alert_reaches_a_client_that_goes_on_sending_through_a_tunnel(bed: &Bed) -> anyhow::Result<()> {
    const CLIENT: &str = r"
import socket, ssl, sys
context = ssl._create_unverified_context()
plain = socket.create_connection(sys.argv[1].split(':'), 60)
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = context.wrap_bio(incoming, outgoing, server_hostname='site.test')
while True:
    try:
        tls.do_handshake()
        break
    except ssl.SSLWantReadError:
        plain.sendall(outgoing.read())
        incoming.write(plain.recv(65536))
plain.sendall(outgoing.read() + b'\x17\x03\x03\x00\x20' + bytes(32) + bytes(300_000))
while piece := plain.recv(65536): incoming.write(piece)
incoming.write_eof()
try:
    while tls.read(65536): pass
except ssl.SSLError as error: print(error.reason)
";
    let stand = Stand::new(bed, Behaviour::Echo, &[])?;
    let said = Program::new("python3").args(["-c", CLIENT, DOOR_V4]).run(bed)?;
    ensure!(said.trim() == "SSLV3_ALERT_BAD_RECORD_MAC", "{said}; {}", stand.truepeer.log());
    Ok(())
}

fn certificates_are_chosen_by_name(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let authority = Authority::new(bed, "authority")?;
    let wild = authority.certify(bed, "wild", &["*.wild.test"])?;
    let _truepeer =
        terminating(bed, &authority)?.args(&["--tls-cert", &wild.cert, "--tls-key", &wild.key]).start(bed)?;
    let script = "
for name in ('site.test', 'a.wild.test', 'a.b.wild.test', 'unknown.test'):
    try:
        tls = open(name=name)
        print(dict(part[0] for part in tls.getpeercert()['subject'])['commonName'])
        close(tls)
    except ssl.SSLCertVerificationError: print('another')";
    let shown = python(&authority, script).run(bed)?;
    ensure!(shown.lines().eq(["site", "wild", "another", "another"]), "{shown}");
    Ok(())
}

fn sessions_are_resumed(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &[])?;
    let script = "
for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
    for ticket in (0, ssl.OP_NO_TICKET):
        context = ssl.create_default_context(cafile=sys.argv[1])
        context.minimum_version = context.maximum_version = version
        context.options |= ticket
        session, reused = None, []
        for _ in range(2):
            tls = open(context=context, session=session)
            tls.recv(100)
            reused.append(tls.session_reused)
            session = tls.session
            close(tls)
        print(*reused)";
    let reused = python(&stand.authority, script).run(bed)?;
    // OpenSSL accepts no TLS 1.3 ticket if configured so.
    let lines: Vec<_> = reused.lines().collect();
    ensure!(lines[..3] == ["False True"; 3], "{reused}");
    stand.truepeer.wait_for_log(" resumed\"")
}

fn a_required_client_certificate_is_enforced(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Banner.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let (authority, stranger) = (Authority::new(bed, "authority")?, Authority::new(bed, "stranger")?);
    let (alice, mallory) =
        (authority.certify(bed, "alice", &["a.test"])?, stranger.certify(bed, "mallory", &["m.test"])?);
    let truepeer = terminating(bed, &authority)?.args(&["--client-ca", &authority.ca]).start(bed)?;
    let script = "
for identity in (None, sys.argv[2:4], sys.argv[4:6]):
    context = ssl.create_default_context(cafile=sys.argv[1])
    if identity: context.load_cert_chain(*identity)
    try:
        tls = open(context=context)
        print('served' if tls.recv(100) else 'closed')
        close(tls)
    except OSError: print('refused')";
    let served =
        python(&authority, script).args([alice.cert, alice.key, mallory.cert, mallory.key]).run(bed)?;
    ensure!(served.lines().eq(["refused", "served", "refused"]), "{served}");
    truepeer.wait_for_log("a client certificate is required, and none was sent")?;
    truepeer.wait_for_log("client=\\\"CN=alice,O=Testbed\\\"")
}

fn lists_are_read_again_where_tls_is_spoken(bed: &Bed) -> anyhow::Result<()> {
    bed.write("allow", "127.0.0.0/8\n")?;
    let stand = Stand::new(bed, Behaviour::Echo, &["--allow", "./allow"])?;
    let script = "
before = open()
print('open', flush=True)
while not os.path.exists('go'): time.sleep(.02)
before.sendall(b'still there')
assert before.recv(100) == b'still there'
close(before)
try: print(open())
except OSError: print('refused', flush=True)";
    let client = python(&stand.authority, script).start(bed)?;
    client.wait_for_log("open")?;
    bed.write("allow", "192.0.2.1\n")?;
    stand.truepeer.signal(Signal::HUP)?;
    stand.truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:8443 have new lists")?;
    bed.write("go", "")?;
    ensure!(client.wait_end()?.success() && client.log().contains("refused"), "{}", client.log());
    Ok(())
}

fn new_certificates_are_used_and_open_connections_stay(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Echo, &[])?;
    // Prints its certificate's number, waits for the file, and prints that of a new connection.
    let script = "
before = open()
number = before.getpeercert()['serialNumber']
print('open', flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(.02)
before.sendall(b'still there')
assert before.recv(100) == b'still there'
close(before)
after = open()
print('same' if after.getpeercert()['serialNumber'] == number else 'new', flush=True)
close(after)";
    let reload = |said: &str| -> anyhow::Result<()> {
        stand.truepeer.signal(Signal::HUP)?;
        stand.truepeer.wait_for_log(said)
    };
    for (round, expected) in [(0, "same"), (1, "new")] {
        let go = bed.dir().join(format!("go-{round}"));
        let client = python(&stand.authority, script).arg(&go).start(bed)?;
        client.wait_for_log("open")?;
        if round == 0 {
            bed.write("site.pem", "not a certificate")?;
            reload("site.pem: it contains no certificate")?;
        } else {
            stand.authority.certify(bed, "site", &["site.test"])?;
            reload("have new certificates")?;
        }
        bed.write(&format!("go-{round}"), "")?;
        client.wait_for_log(expected)?;
        ensure!(client.wait_end()?.success(), "{}", client.log());
    }
    Ok(())
}

fn other_protocols_are_refused_by_name(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Echo, &[])?;
    let mut stream = client::connect(DOOR_V4)?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: site.test\r\n\r\n")?;
    client::read_end(&mut stream)?;
    stand.truepeer.wait_for_log("not TLS: the first bytes look like HTTP request")?;
    ensure!(!stand.backend.log().contains("accepted"), "{}", stand.backend.log());
    Ok(())
}

fn a_silent_client_is_not_waited_for(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Echo, &["--tls-timeout", "500ms"])?;
    client::read_end(&mut client::connect(DOOR_V4)?)?;
    stand.truepeer.wait_for_log("no TLS handshake within 0.5 s")
}

fn an_end_without_close_notify_reaches_the_backend_as_a_reset(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Echo, &[])?;
    let script = "
tls = open()
tls.sendall(b'half')
assert tls.recv(4) == b'half'
os.close(tls.detach())";
    python(&stand.authority, script).run(bed)?;
    stand.truepeer.wait_for_log("close=\"truncated_by_client\"")?;
    stand.backend.wait_for_log(" reset 4")
}

fn the_operator_ends_a_session(bed: &Bed) -> anyhow::Result<()> {
    ends_with(bed, &["sessions", "--client", "127.0.0.1", "--kill"], "ended_by_operator")
}

fn a_ban_ends_a_session(bed: &Bed) -> anyhow::Result<()> {
    ends_with(bed, &["ban", "127.0.0.1"], "banned")
}

/// The command ends an open session, whose line says so.
fn ends_with(bed: &Bed, command: &[&str], close: &str) -> anyhow::Result<()> {
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let stand = Stand::new(bed, Behaviour::Echo, &["--admin", &admin])?;
    // Python's TLS reports a reset as an end, so the script reads from the socket below it.
    let script = "
tls = open()
tls.sendall(b'open')
assert tls.recv(4) == b'open'
print('open', flush=True)
tcp = socket.socket(fileno=tls.detach())
tcp.settimeout(20)
try:
    while tcp.recv(4096): pass
    print('fin', flush=True)
except ConnectionResetError: print('rst', flush=True)";
    let client = python(&stand.authority, script).start(bed)?;
    client.wait_for_log("open")?;
    Program::new(env!("CARGO_BIN_EXE_truepeer")).args(command).args(["--admin", &admin]).run(bed)?;
    client.wait_for_log("rst")?;
    stand.truepeer.wait_for_log(&format!("close=\"{close}\""))?;
    stand.backend.wait_for_log(" reset 4")
}

fn wrong_files_are_named_before_anything_listens(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    let other = authority.certify(bed, "other", &["other.test"])?;
    let text = bed.write("text.pem", "no certificate")?.to_string_lossy().into_owned();
    let proxy = || crate::stand::bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V4);
    let site = authority.certify(bed, "site", &["site.test"])?;
    let refuses = |options: &[&str], said: &str| -> anyhow::Result<()> {
        let truepeer = proxy().args(options).start_unready(bed)?;
        ensure!(truepeer.wait_end()?.code() == Some(2), "{}", truepeer.log());
        ensure!(truepeer.log().contains(said), "{said}: {}", truepeer.log());
        Ok(())
    };
    for (options, said) in [
        (["--tls-cert", &text, "--tls-key", &site.key], "it contains no certificate"),
        (["--tls-cert", &site.cert, "--tls-key", &text], "it contains no private key (expected a line"),
        (["--tls-cert", &site.cert, "--tls-key", &other.key], "the key does not belong to the certificate"),
        (["--tls-cert", "/nowhere.pem", "--tls-key", &site.key], "--tls-cert /nowhere.pem: No such file"),
    ] {
        refuses(&options, said)?;
    }
    let lacks_key = |option: &str, key: &str| {
        format!(
            "{option} {}: it contains no private key (expected a line -----BEGIN PRIVATE KEY-----); name the key's file with {key} FILE",
            site.cert
        )
    };
    refuses(&["--tls-cert", &site.cert], &lacks_key("--tls-cert", "--tls-key"))?;
    refuses(&["--origin-tls", "--origin-cert", &site.cert], &lacks_key("--origin-cert", "--origin-key"))
}
