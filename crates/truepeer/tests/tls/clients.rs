//! The client that the backend sees: one that connects directly, one named by a header, one behind HAProxy.

use anyhow::ensure;
use truepeer_proto::{Decoded, Limits, decode};
use truepeer_testbed::servers::{Haproxy, curl};
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, tests};

use crate::authority::Authority;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, DOOR_V6, Stand, python, terminating};

pub(crate) fn tests() -> Vec<Test> {
    let python = tests![
        the_backend_sees_clients_that_come_directly,
        a_header_before_the_handshake_names_the_client,
        an_unexpected_header_is_reported_as_not_tls,
        the_backend_gets_the_tls_facts,
        whois_names_the_certificates_subject,
    ];
    let mut all: Vec<Test> = python.into_iter().map(|test| test.needs_program("python3")).collect();
    all.push(
        Test::new(
            "haproxy_sends_the_header_before_the_clients_tls",
            haproxy_sends_the_header_before_the_clients_tls,
        )
        .needs_program("python3")
        .needs_program("haproxy"),
    );
    all.push(
        Test::new("curl_reads_a_page_through_tls", curl_reads_a_page_through_tls).needs_program("python3"),
    );
    all.push(
        Test::new("a_go_client_closes_each_way_by_itself", a_go_client_closes_each_way_by_itself)
            .needs_program("go"),
    );
    all
}

/// Reads the line of a backend that names the client, and prints it with the TLS parameters.
const BANNER: &str = "
def banner(tls):
    line = b''
    while not line.endswith(b'\\n'): line += tls.recv(100)
    close(tls)
    return line.decode().strip().removeprefix('SSH-2.0-testbed ')
";

fn the_backend_sees_clients_that_come_directly(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &[])?;
    let script = format!(
        "{BANNER}
print(banner(open(source=('127.0.0.9', 5000))))
print(banner(open(('::1', 8443), source=('::1', 5001))))"
    );
    let seen = python(&stand.authority, &script).run(bed)?;
    let seen: Vec<_> = seen.lines().collect();
    ensure!(
        matches!(seen[..], [v4, v6] if v4.starts_with("127.0.0.9:") && v6.starts_with("[::1]:")),
        "{seen:?}"
    );
    stand.truepeer.wait_for_log("tls=\"TLSv1.3 TLS_AES_256_GCM_SHA384 sni=site.test\"")
}

fn a_header_before_the_handshake_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &["--header", "require"])?;
    let script =
        format!("{BANNER}\nfor header in sys.argv[2:]: print(banner(open(first=bytes.fromhex(header))))");
    let headers = [
        client::v1("203.0.113.7:5000", "192.0.2.1:443")?,
        client::v2("203.0.113.7:5001", "192.0.2.1:443")?,
        client::v2("[2001:db8::7]:5002", "[2001:db8::1]:443")?,
    ];
    let seen = python(&stand.authority, &script).args(headers.iter().map(|header| hex(header))).run(bed)?;
    let expected = ["203.0.113.7:5000", "203.0.113.7:5001", "[2001:db8::7]:5002"];
    ensure!(seen.lines().eq(expected), "{seen}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn an_unexpected_header_is_reported_as_not_tls(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &[])?;
    let mut stream = client::connect(DOOR_V4)?;
    std::io::Write::write_all(&mut stream, &client::v1("203.0.113.7:5000", "192.0.2.1:443")?)?;
    client::read_end(&mut stream)?;
    stand.truepeer.wait_for_log("the connection starts with a PROXY header; is --header require missing?")?;
    ensure!(!stand.backend.log().contains("accepted"), "{}", stand.backend.log());
    Ok(())
}

fn haproxy_sends_the_header_before_the_clients_tls(bed: &Bed) -> anyhow::Result<()> {
    // The client is on this host, whose addresses must not be claimed by default.
    let options = ["--header", "require", "--allow-claims", "192.0.2.9"];
    let stand = Stand::new(bed, Behaviour::Banner, &options)?;
    let _haproxy = Haproxy::default().relay("127.0.0.1:7000", DOOR_V4, "send-proxy-v2").start(bed)?;
    truepeer_testbed::ip_here(&["address add 192.0.2.9/32 dev lo"])?;
    let script = format!("{BANNER}\nprint(banner(open(('127.0.0.1', 7000), source=('192.0.2.9', 0))))");
    let seen = python(&stand.authority, &script).run(bed)?;
    ensure!(seen.starts_with("192.0.2.9:"), "{seen}; {}", stand.truepeer.log());
    Ok(())
}

/// `--send-proxy v2`: version, suite, name and the client's certificate follow the addresses.
fn the_backend_gets_the_tls_facts(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let authority = Authority::new(bed, "authority")?;
    let alice = authority.certify(bed, "alice", &["alice.test"])?;
    let _truepeer = terminating(bed, &authority)?
        .args(&[
            "--client-ca",
            &authority.ca,
            "--client-cert",
            "optional",
            "--send-proxy",
            "v2",
            "--tls-alpn",
            "h2",
        ])
        .start(bed)?;
    let script = "
def header(*identity):
    context = ssl.create_default_context(cafile=sys.argv[1])
    context.set_alpn_protocols(['h2'])
    if identity: context.load_cert_chain(*identity)
    tls = open(context=context)
    head = b''
    while len(head) < 16: head += tls.recv(16 - len(head))
    length = 16 + int.from_bytes(head[14:16], 'big')
    while len(head) < length: head += tls.recv(length - len(head))
    close(tls)
    return head.hex()
print(header())
print(header(sys.argv[2], sys.argv[3]))";
    let headers = python(&authority, script).args([alice.cert, alice.key]).run(bed)?;
    let headers: Vec<_> = headers.lines().map(unhex).collect();
    ensure!(headers.len() == 2, "{headers:?}");
    for (bytes, named) in headers.iter().zip([None, Some(b"alice".as_slice())]) {
        let Decoded::Done { header, .. } = decode(bytes, Limits::default())? else {
            anyhow::bail!("{bytes:?}")
        };
        let tlvs = header.tlvs;
        ensure!(tlvs.alpn() == Some(b"h2"), "{tlvs:?}");
        let raw = |kind| tlvs.value(kind).unwrap_or_default();
        ensure!(raw(truepeer_proto::tlv::AUTHORITY) == b"site.test", "{tlvs:?}");
        let ssl = tlvs.ssl().ok_or_else(|| anyhow::anyhow!("no SSL in {tlvs:?}"))?;
        ensure!(ssl.is_tls() && ssl.is_client_verified() == named.is_some(), "{ssl:?}");
        let value = raw(truepeer_proto::tlv::SSL);
        let contains = |part: &[u8]| value.windows(part.len()).any(|window| window == part);
        ensure!(contains(b"TLSv1.3") && contains(b"TLS_AES_256_GCM_SHA384"), "{value:?}");
        ensure!(named.is_none_or(contains), "{value:?}");
    }
    Ok(())
}

/// Of a connection whose TLS ends at truepeer.
fn whois_names_the_certificates_subject(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let authority = Authority::new(bed, "authority")?;
    let alice = authority.certify(bed, "alice", &["alice.test"])?;
    let options = ["--client-ca", &authority.ca, "--client-cert", "required", "--admin", "./admin.sock"];
    let _truepeer = terminating(bed, &authority)?.args(&options).start(bed)?;
    let script = "
context.load_cert_chain(sys.argv[2], sys.argv[3])
tls = open(source=('127.0.0.9', 5000))
tls.sendall(b'x')
print('echoed', tls.recv(1), tls.version(), tls.cipher()[0], flush=True)
time.sleep(600)";
    let talk = python(&authority, script).args([alice.cert, alice.key]).start(bed)?;
    talk.wait_for_log("echoed b'x' TLSv1.3 TLS_AES_256_GCM_SHA384")?;
    let whois = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["whois", "127.0.0.9:5000", "--json"]);
    let who: serde_json::Value = serde_json::from_str(&whois.args(&options[4..]).run(bed)?)?;
    let one = &who[0];
    ensure!(one["subject"] == "CN=alice,O=Testbed" && one["kind"] == "tls", "{who}");
    let tlvs = &one["tlvs"];
    ensure!(tlvs["authority"] == "site.test" && tlvs["ssl_cn"] == "alice", "{tlvs}");
    ensure!(tlvs["ssl_version"] == "TLSv1.3" && tlvs["ssl_verified"] == "yes", "{tlvs}");
    ensure!(one["why"].as_str().is_some_and(|why| why.starts_with("no header came")), "{one}");
    Ok(())
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.trim().as_bytes();
    digits.chunks(2).filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn curl_reads_a_page_through_tls(bed: &Bed) -> anyhow::Result<()> {
    bed.write("www/page", "a page")?;
    let www = bed.dir().join("www");
    let server = Program::new("python3").args(["-m", "http.server", "8000", "--bind", "127.0.0.1"]).dir(&www);
    let server = server.start(bed)?;
    server.wait_listening(BACKEND_V4)?;
    let authority = Authority::new(bed, "authority")?;
    let _truepeer = terminating(bed, &authority)?.start(bed)?;
    let page = curl("https://site.test:8443/page")
        .args([
            "--cacert",
            &authority.ca,
            "--resolve",
            "site.test:8443:127.0.0.1",
            "--interface",
            "127.0.0.9",
        ])
        .run(bed)?;
    ensure!(page == "a page", "{page}");
    server.wait_for_log("127.0.0.9 - - ")
}

/// Go's CloseWrite sends only a close_notify: the answer still arrives.
fn a_go_client_closes_each_way_by_itself(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Who, &[])?;
    let source = "package main

import (
\t\"crypto/tls\"
\t\"crypto/x509\"
\t\"fmt\"
\t\"io\"
\t\"os\"
)

func main() {
\tpem, _ := os.ReadFile(os.Args[1])
\troots := x509.NewCertPool()
\troots.AppendCertsFromPEM(pem)
\tfor _, listener := range os.Args[2:] {
\t\tfor _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
\t\t\tc, err := tls.Dial(\"tcp\", listener, &tls.Config{RootCAs: roots, ServerName: \"site.test\", MinVersion: version, MaxVersion: version})
\t\t\tif err != nil { fmt.Println(err); os.Exit(1) }
\t\t\tfmt.Fprint(c, \"hello\")
\t\t\tc.CloseWrite()
\t\t\tanswer, err := io.ReadAll(c)
\t\t\tfmt.Println(tls.VersionName(version), string(answer) == c.LocalAddr().String() || len(answer) > 0, err)
\t\t\tc.Close()
\t\t}
\t}
}
";
    let program = truepeer_testbed::go::build(bed, "client", source)?;
    let said = Program::new(&program).args([stand.authority.ca.as_str(), DOOR_V4, DOOR_V6]).run(bed)?;
    let expected = ["TLS 1.2 true <nil>", "TLS 1.3 true <nil>", "TLS 1.2 true <nil>", "TLS 1.3 true <nil>"];
    ensure!(said.lines().eq(expected), "{said}; {}", stand.truepeer.log());
    bed.wait_for("four finished sessions", || stand.truepeer.log().matches("close=\"finished\"").count() == 4)
}
