//! TLS with the origin: which origins truepeer accepts, and what clients and the log say about others.

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Running, Test, tests};

use crate::authority::{Authority, Identity, Validity};
use crate::kit::{curl, https};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        an_origin_with_another_certificate_is_refused_with_the_reason,
        an_origin_whose_certificate_is_of_another_time_is_refused_with_the_reason,
        a_new_authority_for_the_origin_is_loaded,
        an_origin_is_offered_http_1_1,
        an_origin_that_speaks_no_tls_is_refused_with_the_reason,
        any_origin_is_accepted_without_verification,
        an_origin_is_verified_by_the_given_name,
    ]
}

const HERE: &str = "127.0.0.1:443";
const ORIGIN: &str = "127.0.0.1:8443";
const URL: &str = "https://127.0.0.1:8443";

fn nginx(bed: &Bed, Identity { cert, key }: &Identity) -> anyhow::Result<Running> {
    let certificate = format!("ssl_certificate {cert}; ssl_certificate_key {key};");
    Nginx::default()
        .server(ORIGIN, "ssl", &format!("{certificate} location / {{ return 200 \"$ssl_server_name\\n\"; }}"))
        .start(bed)
}

fn haproxy(bed: &Bed, Identity { cert, key }: &Identity) -> anyhow::Result<Running> {
    let both = std::fs::read_to_string(cert)? + &std::fs::read_to_string(key)?;
    let file = bed.write("both.pem", both)?;
    let answer = "http-request return status 200 content-type text/plain lf-string \"%[ssl_fc_sni]\\n\"";
    let config = format!("frontend f\n  mode http\n  bind {ORIGIN} ssl crt {}\n  {answer}\n", file.display());
    Haproxy::with_config(&config, &[ORIGIN]).start(bed)
}

const STARTS: [fn(&Bed, &Identity) -> anyhow::Result<Running>; 2] = [nginx, haproxy];

/// The status of a client's request.
fn status(bed: &Bed) -> anyhow::Result<String> {
    curl(&["--output", "/dev/null", "--write-out", "%{http_code}", "https://127.0.0.1/"]).run(bed)
}

fn an_origin_with_another_certificate_is_refused_with_the_reason(bed: &Bed) -> anyhow::Result<()> {
    let (authority, stranger) = (Authority::new(bed, "authority")?, Authority::new(bed, "stranger")?);
    let identity = authority.certify(bed, "origin", &["127.0.0.1"])?;
    for start in STARTS {
        let _origin = start(bed, &identity)?;
        for (options, said) in [
            (["--origin-ca", &authority.ca, "--origin-name", "other.test"], "not valid for name"),
            (
                ["--origin-ca", &stranger.ca, "--origin-name", "127.0.0.1"],
                "certificate's authority is not trusted",
            ),
        ] {
            let truepeer = https(bed, HERE, URL)?.args(&options).args(&["--access-log"]).start(bed)?;
            let status = status(bed)?;
            ensure!(status == "502", "{status}; {}", truepeer.log());
            truepeer.wait_for_log("can't connect to the origin: TLS")?;
            truepeer.wait_for_log(said)?;
            truepeer.wait_for_log("origin_tls")?;
        }
    }
    Ok(())
}

fn an_origin_whose_certificate_is_of_another_time_is_refused_with_the_reason(
    bed: &Bed,
) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    for (validity, said) in
        [(Validity::Over, "certificate expired"), (Validity::ToCome, "certificate not valid yet")]
    {
        let identity = authority.certify_for(bed, "origin", &["127.0.0.1"], validity)?;
        for start in STARTS {
            let _origin = start(bed, &identity)?;
            let truepeer =
                https(bed, HERE, URL)?.args(&["--origin-ca", &authority.ca, "--access-log"]).start(bed)?;
            let status = status(bed)?;
            ensure!(status == "502", "{status}; {}", truepeer.log());
            truepeer.wait_for_log("can't connect to the origin: TLS")?;
            truepeer.wait_for_log(said)?;
            truepeer.wait_for_log("origin_tls")?;
        }
    }
    Ok(())
}

/// Kept connections would continue, so none are kept here.
fn a_new_authority_for_the_origin_is_loaded(bed: &Bed) -> anyhow::Result<()> {
    let (first, second) = (Authority::new(bed, "first")?, Authority::new(bed, "second")?);
    let trusted = bed.write("trusted.pem", std::fs::read(&first.ca)?)?;
    let truepeer = https(bed, HERE, URL)?
        .option("--origin-ca", trusted.display())
        .option("--origin-keepalive", 0)
        .start(bed)?;
    let with = |authority: &Authority, expected: &str| -> anyhow::Result<()> {
        let _origin = nginx(bed, &authority.certify(bed, "origin", &["127.0.0.1"])?)?;
        let status = status(bed)?;
        ensure!(status == expected, "{status} instead of {expected}; {}", truepeer.log());
        Ok(())
    };
    with(&first, "200")?;
    with(&second, "502")?;
    std::fs::copy(&second.ca, &trusted)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("have new certificates")?;
    with(&first, "502")?;
    with(&second, "200")?;
    std::fs::write(&trusted, "no authority")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("stays as it was: --origin-ca ")?;
    with(&first, "502")?;
    with(&second, "200")
}

fn an_origin_is_offered_http_1_1(bed: &Bed) -> anyhow::Result<()> {
    let Identity { cert, key } = Authority::new(bed, "authority")?.certify(bed, "origin", &["127.0.0.1"])?;
    let answer = format!(
        "ssl_certificate {cert}; ssl_certificate_key {key}; location / {{ return 200 \"$ssl_alpn_protocol $server_protocol\"; }}"
    );
    let _origin = Nginx::default().server(ORIGIN, "ssl http2", &answer).start(bed)?;
    let _truepeer = https(bed, HERE, URL)?.args(&["--origin-insecure"]).start(bed)?;
    for version in ["--http1.1", "--http2"] {
        let said = curl(&[version, "https://127.0.0.1/"]).run(bed)?;
        ensure!(said == "http/1.1 HTTP/1.1", "{said}");
    }
    Ok(())
}

fn an_origin_that_speaks_no_tls_is_refused_with_the_reason(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    let _origin = Nginx::default().server(ORIGIN, "", "location / { return 200 plain; }").start(bed)?;
    let truepeer = https(bed, HERE, URL)?.option("--origin-ca", &authority.ca).start(bed)?;
    let status = status(bed)?;
    ensure!(status == "502", "{status}; {}", truepeer.log());
    truepeer.wait_for_log("can't connect to the origin: TLS")
}

fn any_origin_is_accepted_without_verification(bed: &Bed) -> anyhow::Result<()> {
    let identity = Authority::new(bed, "stranger")?.certify(bed, "origin", &["other.test"])?;
    for start in STARTS {
        let _origin = start(bed, &identity)?;
        let truepeer = https(bed, HERE, URL)?.args(&["--origin-insecure"]).start(bed)?;
        let status = status(bed)?;
        ensure!(status == "200", "{status}; {}", truepeer.log());
        truepeer.wait_for_log("--origin-insecure: the backends' certificates are not verified")?;
    }
    Ok(())
}

/// The name is also sent in the handshake: the origin may have several certificates.
fn an_origin_is_verified_by_the_given_name(bed: &Bed) -> anyhow::Result<()> {
    let authority = Authority::new(bed, "authority")?;
    let identity = authority.certify(bed, "origin", &["app.test"])?;
    for start in STARTS {
        let _origin = start(bed, &identity)?;
        let options = ["--origin-ca", &authority.ca, "--origin-name", "app.test"];
        let truepeer = https(bed, HERE, URL)?.args(&options).start(bed)?;
        let answer = curl(&["https://127.0.0.1/"]).run(bed)?;
        ensure!(answer.trim() == "app.test", "{answer}; {}", truepeer.log());
    }
    Ok(())
}
