//! TLS towards other programs' backends: OpenSSL's server, verified or not.

use anyhow::ensure;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::authority::{Authority, Identity, Validity};
use crate::stand::bare_proxy;

const NEAR: &str = "127.0.0.1:9443";
const ORIGIN: &str = "127.0.0.1:9000";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_backend_is_verified,
        a_backend_of_another_name_or_authority_is_refused,
        a_backend_whose_certificate_is_of_another_time_is_refused,
        a_self_signed_backend_certificate_is_accepted_if_named,
        any_backend_is_accepted_without_verification,
        a_backend_that_requests_a_certificate_gets_one,
    ];
    let mut all: Vec<_> = all.into_iter().map(|test| test.needs_program("openssl")).collect();
    let offered = Test::new(
        "backends_are_offered_the_configured_protocols",
        backends_are_offered_the_configured_protocols,
    );
    all.push(offered.needs_program("python3"));
    all.push(Test::new(
        "a_backend_that_speaks_nothing_of_it_says_so",
        a_backend_without_a_common_protocol_is_reported,
    ));
    all
}

/// Sends lines back in reverse.
fn openssl(bed: &Bed, identity: &Identity) -> anyhow::Result<Running> {
    openssl_with(bed, identity, &[])
}

fn openssl_with(bed: &Bed, identity: &Identity, options: &[&str]) -> anyhow::Result<Running> {
    let server =
        Program::new("openssl").args(["s_server", "-accept", ORIGIN, "-rev", "-quiet"]).args(options);
    let server = server.args(["-cert", &identity.cert, "-key", &identity.key]).start(bed)?;
    server.wait_listening(ORIGIN)?;
    Ok(server)
}

fn near(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    bare_proxy()
        .listen(NEAR)
        .ipv4(ORIGIN)
        .args(&["--header", "forbid", "--origin-tls"])
        .args(options)
        .start(bed)
}

fn reversed(line: &str) -> anyhow::Result<String> {
    use std::io::{BufRead as _, BufReader, Write as _};
    let mut stream = client::connect(NEAR)?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}

fn a_backend_is_verified(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    // By its address, as in -4, and by name.
    for (options, name) in [(&[][..], "127.0.0.1"), (&["--origin-name", "site.test"][..], "site.test")] {
        let _origin = openssl(bed, &authority.certify(bed, "site", &[name])?)?;
        let near = near(bed, &[&["--origin-ca", &authority.ca], options].concat())?;
        let answer = reversed("abc")?;
        ensure!(answer == "cba", "{answer:?}; {}", near.log());
    }
    Ok(())
}

fn a_backend_of_another_name_or_authority_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let (authority, stranger) = (Authority::new(bed, "authority")?, Authority::new(bed, "stranger")?);
    let _origin = openssl(bed, &authority.certify(bed, "site", &["site.test"])?)?;
    for (options, said) in [
        (["--origin-ca", &authority.ca, "--origin-name", "other.test"], "not valid for name"),
        (
            ["--origin-ca", &stranger.ca, "--origin-name", "site.test"],
            "certificate's authority is not trusted",
        ),
    ] {
        let near = near(bed, &options)?;
        let mut stream = client::connect(NEAR)?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", near.log());
        near.wait_for_log("TLS with the backend 127.0.0.1:9000 for 127.0.0.1:")?;
        near.wait_for_log(said)?;
    }
    Ok(())
}

fn a_backend_whose_certificate_is_of_another_time_is_refused(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    for (validity, said) in
        [(Validity::Over, "certificate expired"), (Validity::ToCome, "certificate not valid yet")]
    {
        let _origin = openssl(bed, &authority.certify_for(bed, "site", &["site.test"], validity)?)?;
        let near = near(bed, &["--origin-ca", &authority.ca, "--origin-name", "site.test"])?;
        let mut stream = client::connect(NEAR)?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", near.log());
        near.wait_for_log("TLS with the backend 127.0.0.1:9000 for 127.0.0.1:")?;
        near.wait_for_log(said)?;
    }
    Ok(())
}

/// Also prints the protocols that each client offers, and chooses the best.
const CHOOSING: &str = r"
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:3])
if sys.argv[3:]: context.set_alpn_protocols(sys.argv[3:])
listener = socket.create_server(('127.0.0.1', 9000))
while True:
    stream = context.wrap_socket(listener.accept()[0], server_side=True)
    stream.sendall(('chosen %s\n' % stream.selected_alpn_protocol()).encode())
    stream.unwrap().close()
";

fn backends_are_offered_the_configured_protocols(bed: &Bed) -> anyhow::Result<()> {
    let Identity { cert, key } = Authority::new(bed, "authority")?.certify(bed, "site", &["site.test"])?;
    for (offered, spoken, chosen) in [
        (&[][..], &["h2", "http/1.1"][..], "None"),
        (&["http/1.1"], &["h2", "http/1.1"], "http/1.1"),
        (&["spdy/3", "h2"], &["http/1.1", "h2"], "h2"),
        (&["h2", "http/1.1"], &["http/1.1", "h2"], "http/1.1"),
        // A backend without ALPN answers nothing, which is no refusal.
        (&["h2"], &[], "None"),
    ] {
        let origin = Program::new("python3").args(["-c", CHOOSING, &cert, &key]).args(spoken).start(bed)?;
        origin.wait_listening(ORIGIN)?;
        let mut options = vec!["--origin-insecure"];
        offered.iter().for_each(|name| options.extend(["--origin-alpn", name]));
        let near = near(bed, &options)?;
        let answer = reversed("")?;
        ensure!(answer == format!("chosen {chosen}"), "{offered:?}, {spoken:?}: {answer}; {}", near.log());
    }
    Ok(())
}

/// NGINX supports HTTP, and refuses clients that offer only other protocols.
fn a_backend_without_a_common_protocol_is_reported(bed: &Bed) -> anyhow::Result<()> {
    let Identity { cert, key } = Authority::new(bed, "authority")?.certify(bed, "site", &["site.test"])?;
    let certificate = format!("ssl_certificate {cert}; ssl_certificate_key {key}; return 200 fine;");
    let _origin = Nginx::default().server(ORIGIN, "ssl", &certificate).start(bed)?;
    let near = near(bed, &["--origin-insecure", "--origin-alpn", "imap"])?;
    let mut stream = client::connect(NEAR)?;
    ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", near.log());
    near.wait_for_log("the other end supports none of the offered protocols; --origin-alpn names them")?;
    near.wait_for_log("origin_tls")
}

/// The openssl line of the guide creates such a certificate.
fn a_self_signed_backend_certificate_is_accepted_if_named(bed: &Bed) -> anyhow::Result<()> {
    let make = |file: &str| -> anyhow::Result<Identity> {
        let [cert, key] =
            ["pem", "key"].map(|kind| bed.dir().join(format!("{file}.{kind}")).display().to_string());
        let guide = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=site.test \
                     -addext subjectAltName=DNS:site.test";
        Program::new("openssl")
            .args(guide.split_whitespace())
            .args(["-keyout", &key, "-out", &cert])
            .run(bed)?;
        Ok(Identity { cert, key })
    };
    let (site, other) = (make("site")?, make("other")?);
    let _origin = openssl(bed, &site)?;
    {
        let near = near(bed, &["--origin-ca", &site.cert, "--origin-name", "site.test"])?;
        let answer = reversed("abc")?;
        ensure!(answer == "cba", "{answer:?}; {}", near.log());
    }
    for (ca, name, said) in [
        (&site.cert, "other.test", "not valid for name"),
        (
            &other.cert,
            "site.test",
            "an authority's certificate (CA:TRUE), and it is not trusted itself; --origin-ca names the authorities",
        ),
    ] {
        let near = near(bed, &["--origin-ca", ca, "--origin-name", name])?;
        let mut stream = client::connect(NEAR)?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", near.log());
        near.wait_for_log(said)?;
    }
    Ok(())
}

fn any_backend_is_accepted_without_verification(bed: &Bed) -> anyhow::Result<()> {
    let stranger = Authority::new(bed, "stranger")?;
    let _origin = openssl(bed, &stranger.certify(bed, "site", &["site.test"])?)?;
    let near = near(bed, &["--origin-insecure"])?;
    ensure!(reversed("abc")? == "cba", "{}", near.log());
    near.wait_for_log("--origin-insecure: the backends' certificates are not verified")
}

fn a_backend_that_requests_a_certificate_gets_one(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    let us = authority.certify(bed, "us", &["us.test"])?;
    let asks = ["-Verify", "1", "-verify_return_error", "-CAfile", &authority.ca];
    let _origin = openssl_with(bed, &authority.certify(bed, "site", &["site.test"])?, &asks)?;
    let usual = ["--origin-ca", &authority.ca, "--origin-name", "site.test"];
    {
        let _without = near(bed, &usual)?;
        ensure!(reversed("abc").map_or(true, |answer| answer.is_empty()), "it was taken without");
    }
    let near = near(bed, &[&usual[..], &["--origin-cert", &us.cert, "--origin-key", &us.key]].concat())?;
    let answer = reversed("abc")?;
    ensure!(answer == "cba", "{answer:?}; {}", near.log());
    Ok(())
}
