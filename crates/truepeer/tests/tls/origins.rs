//! TLS towards backends of others: OpenSSL's server, verified or not.

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::authority::{Authority, Identity};
use crate::stand::bare_proxy;

const NEAR: &str = "127.0.0.1:9443";
const ORIGIN: &str = "127.0.0.1:9000";

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_backend_is_verified,
        a_backend_of_another_name_or_authority_is_refused,
        any_backend_is_taken_where_that_is_said,
        a_backend_that_asks_is_shown_our_certificate,
    ];
    all.into_iter().map(|test| test.needs_program("openssl")).collect()
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
    // By its address, as -4 has it, and by name.
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
        (["--origin-ca", &stranger.ca, "--origin-name", "site.test"], "of an authority that is not trusted"),
    ] {
        let near = near(bed, &options)?;
        let mut stream = client::connect(NEAR)?;
        ensure!(client::read_end(&mut stream)? == client::End::Reset, "{}", near.log());
        near.wait_for_log("TLS with the backend 127.0.0.1:9000 for 127.0.0.1:")?;
        near.wait_for_log(said)?;
    }
    Ok(())
}

fn any_backend_is_taken_where_that_is_said(bed: &Bed) -> anyhow::Result<()> {
    let stranger = Authority::new(bed, "stranger")?;
    let _origin = openssl(bed, &stranger.certify(bed, "site", &["site.test"])?)?;
    let near = near(bed, &["--origin-insecure"])?;
    ensure!(reversed("abc")? == "cba", "{}", near.log());
    near.wait_for_log("--origin-insecure: the backends' certificates are not verified")
}

fn a_backend_that_asks_is_shown_our_certificate(bed: &Bed) -> anyhow::Result<()> {
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
