//! Certificates from an ACME authority: Let's Encrypt's own test server, with its faults.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, skip, workspace_dir};

use crate::authority::Authority;
use crate::kit::curl;

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work)
            .needs_program("nginx")
            .needs_program("openssl")
            .time_limit(Duration::from_secs(180))
    };
    vec![
        test("a_certificate_is_issued_by_http", |bed| issued(bed, true)),
        test("a_certificate_is_issued_by_tls", |bed| issued(bed, false)),
        test("a_certificate_is_renewed_without_a_failed_handshake", renewed),
        test("an_authority_that_is_down_is_asked_again_and_the_certificate_stays", down),
        test("an_external_account_is_bound", external),
        test("what_the_authority_refuses_is_explained", explained),
        test("sites_get_certificates_of_their_own_by_reload", reloaded),
    ]
}

const HERE: &str = "127.0.0.1:443";
const DIRECTORY: &str = "https://127.0.0.1:14000/dir";

/// Pebble, an origin, and names that lead here.
struct Stand<'a> {
    bed: &'a Bed,
    /// What signs the certificate of Pebble's own server.
    authority: Authority,
    config: String,
    _names: Running,
    _origin: Running,
}

fn tool(name: &str) -> PathBuf {
    workspace_dir().join("target/tools/pebble").join(name)
}

impl<'a> Stand<'a> {
    /// `more`: keys of Pebble's configuration.
    fn new(bed: &'a Bed, more: &str) -> anyhow::Result<Self> {
        if !tool("pebble").exists() {
            return skip("Pebble is not built (make pebble, with Go)");
        }
        let authority = Authority::new(bed, "authority")?;
        let identity = authority.certify(bed, "pebble", &["127.0.0.1"])?;
        let config = format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
            "certificate": "{}", "privateKey": "{}", "httpPort": 80, "tlsPort": 443, "ocspResponderURL": "",
            {more} "retryAfter": {{"authz": 1, "order": 1}}}}}}"#,
            identity.cert, identity.key
        );
        let names = Program::new(tool("pebble-challtestsrv"))
            .args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", "", "-dns01", "127.0.0.1:8053"])
            .args([
                "-http01",
                "",
                "-https01",
                "",
                "-tlsalpn01",
                "",
                "-doh",
                "",
                "-management",
                "127.0.0.1:8055",
            ])
            .start(bed)?;
        names.wait_listening("127.0.0.1:8055")?;
        let origin =
            Nginx::default().server("127.0.0.1:8080", "", "location / { return 200 fine; }").start(bed)?;
        Ok(Self { bed, authority, config, _names: names, _origin: origin })
    }

    /// Starts Pebble. `rejects`: of a hundred nonces that are good.
    fn pebble(&self, rejects: usize) -> anyhow::Result<Running> {
        let file = self.bed.write("pebble.json", &self.config)?;
        let pebble = Program::new("env")
            .arg(format!("PEBBLE_WFE_NONCEREJECT={rejects}"))
            .args(["PEBBLE_VA_NOSLEEP=1", "PEBBLE_AUTHZREUSE=0"])
            .arg(tool("pebble"))
            .args(["-dnsserver", "127.0.0.1:8053", "-config"])
            .arg(file)
            .start(self.bed)?;
        pebble.wait_listening("127.0.0.1:14000")?;
        pebble.wait_listening("127.0.0.1:15000")?;
        Ok(pebble)
    }

    fn truepeer(&self, names: &str, options: &[&str]) -> anyhow::Result<Running> {
        let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["https", "--workers", "1"]);
        Truepeer::of(program)
            .listen(HERE)
            .option("--origin", "http://127.0.0.1:8080")
            .option("--acme", names)
            .option("--acme-directory", DIRECTORY)
            .option("--acme-ca", &self.authority.ca)
            .option("--acme-state", self.state().display())
            .args(options)
            .start(self.bed)
    }

    fn state(&self) -> PathBuf {
        self.bed.dir().join("state")
    }

    /// The root of the certificates that Pebble issues.
    fn root(&self) -> anyhow::Result<String> {
        let root = Program::new("curl")
            .args(["--silent", "--fail", "--cacert", &self.authority.ca, "https://127.0.0.1:15000/roots/0"])
            .run(self.bed)?;
        Ok(self.bed.write("root.pem", root)?.to_string_lossy().into_owned())
    }

    /// Asks as a client that trusts this root.
    fn ask(&self, root: &str, name: &str) -> anyhow::Result<String> {
        let to = format!("{name}:443:127.0.0.1");
        let args = ["--silent", "--show-error", "--max-time", "20", "--cacert", root, "--resolve", &to];
        Program::new("curl").args(args).arg(format!("https://{name}/")).run(self.bed)
    }
}

fn issued(bed: &Bed, by_http: bool) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let pebble = stand.pebble(20)?;
    let options: &[&str] = if by_http { &["--listen-http", "127.0.0.1:80"] } else { &[] };
    let truepeer = stand.truepeer("a.test,www.a.test", options)?;
    // Until there is one, handshakes fail, and the log says why.
    truepeer.wait_for_log("acme: a new certificate for a.test, www.a.test")?;
    let root = stand.root()?;
    for name in ["a.test", "www.a.test"] {
        let said = stand.ask(&root, name)?;
        ensure!(said == "fine", "{name}: {said}; {}", truepeer.log());
    }
    ensure!(pebble.log().contains("validate w/ HTTP") == by_http, "{}", pebble.log());
    if by_http {
        let other =
            curl(&["-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1/.well-known/acme-challenge/x"]);
        ensure!(other.run(bed)? == "308", "the answers end with the order");
    } else {
        // The same handshake by a stranger, and one by a client that knows the protocol among others.
        let offer = |protocols: &str| {
            let asked = ["s_client", "-connect", HERE, "-servername", "a.test", "-alpn", protocols];
            Program::new("openssl").args(asked).input("").run(bed)
        };
        ensure!(offer("acme-tls/1").is_err(), "{}", truepeer.log());
        let said = offer("acme-tls/1,http/1.1")?;
        ensure!(said.contains("ALPN protocol: http/1.1"), "{said}");
    }
    // The next start has it at once, without the authority, and for its owner alone.
    drop(pebble);
    drop(truepeer);
    let truepeer = stand.truepeer("a.test,www.a.test", options)?;
    ensure!(stand.ask(&root, "a.test")? == "fine", "{}", truepeer.log());
    let modes = Program::new("sh").args(["-c", "stat -c '%a %n' state state/*"]).run(bed)?;
    for line in modes.lines() {
        ensure!(line.starts_with(if line.ends_with(" state") { "700 " } else { "600 " }), "{modes}");
    }
    ensure!(modes.lines().count() == 4, "an account, a certificate and a lock: {modes}");
    Ok(())
}

/// A client asks again and again, while certificates live for 12 seconds.
fn renewed(bed: &Bed) -> anyhow::Result<()> {
    let stand =
        Stand::new(bed, r#""profiles": {"default": {"description": "short", "validityPeriod": 12}},"#)?;
    let _pebble = stand.pebble(20)?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("acme: a new certificate")?;
    let root = stand.root()?;
    let renewals = || truepeer.log().matches("acme: a new certificate").count();
    let mut asked = 0;
    truepeer.wait_state("three renewals", || {
        renewals() >= 4 || {
            asked += 1;
            stand.ask(&root, "a.test").is_err()
        }
    })?;
    ensure!(renewals() >= 4, "request {asked} met a certificate that is over: {}", truepeer.log());
    ensure!(stand.ask(&root, "a.test")? == "fine");
    Ok(())
}

fn down(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("can't reach 127.0.0.1")?;
    truepeer.wait_for_log("there is none")?;
    let refused = curl(&["--resolve", "a.test:443:127.0.0.1", "https://a.test/"]).run(bed);
    ensure!(refused.is_err(), "there is no certificate: {refused:?}");
    truepeer.wait_for_log("truepeer has no certificate yet")?;
    // All else is served meanwhile.
    let redirect =
        curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", "Host: a.test", "http://127.0.0.1/"]);
    ensure!(redirect.run(bed)? == "308");
    // The authority is there again: a reload does not wait for the next attempt's time, nor does a start.
    drop(truepeer);
    let _pebble = stand.pebble(0)?;
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:80"])?;
    truepeer.wait_for_log("acme: a new certificate")?;
    let root = stand.root()?;
    ensure!(stand.ask(&root, "a.test")? == "fine");
    Ok(())
}

fn external(bed: &Bed) -> anyhow::Result<()> {
    let key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W";
    let more =
        format!(r#""externalAccountBindingRequired": true, "externalAccountMACKeys": {{"kid-1": "{key}"}},"#);
    let stand = Stand::new(bed, &more)?;
    let _pebble = stand.pebble(0)?;
    let http = ["--listen-http", "127.0.0.1:80"];
    let truepeer = stand.truepeer("a.test", &http)?;
    truepeer.wait_for_log("it wants an account of its own first: eab-id and eab-key")?;
    drop(truepeer);
    let file = bed.write("eab.key", format!("{key}\n"))?.to_string_lossy().into_owned();
    let truepeer = stand
        .truepeer("a.test", &[&http[..], &["--acme-eab-id", "kid-1", "--acme-eab-key", &file]].concat())?;
    truepeer.wait_for_log("acme: a new certificate")
}

fn explained(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, r#""domainBlocklist": ["blocked.test"],"#)?;
    let _pebble = stand.pebble(0)?;
    let http = ["--listen-http", "127.0.0.1:80"];
    let truepeer = stand.truepeer("blocked.test", &http)?;
    truepeer.wait_for_log("it certifies no such name")?;
    drop(truepeer);
    // It asks by port 80, where nobody listens.
    let truepeer = stand.truepeer("a.test", &["--listen-http", "127.0.0.1:81"])?;
    truepeer.wait_for_log("a.test: the authority could not check it")?;
    truepeer.wait_for_log("its port 80 (http-01) can be reached")?;
    truepeer.wait_for_log("tried again in 60 s")?;
    Ok(())
}

fn reloaded(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, "")?;
    let _pebble = stand.pebble(0)?;
    let site = |name: &str| {
        format!(
            "[[https]]\nlisten = \"{HERE}\"\nlisten-http = \"127.0.0.1:80\"\n\
             origin = \"http://127.0.0.1:8080\"\nacme = \"{name}\"\n"
        )
    };
    let table = format!(
        "[acme]\ndirectory = \"{DIRECTORY}\"\nca = \"{}\"\nstate = \"./state\"\nemail = \"admin@a.test\"\n",
        stand.authority.ca
    );
    let file = bed.write("truepeer.toml", format!("{table}{}", site("a.test")))?;
    let truepeer = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["serve", "-c"]).arg(file).start(bed)?;
    truepeer.wait_for_log("acme: a new certificate for a.test")?;
    let root = stand.root()?;
    ensure!(stand.ask(&root, "a.test")? == "fine", "{}", truepeer.log());
    bed.write("truepeer.toml", format!("{table}{}{}", site("a.test"), site("b.test")))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("acme: a new certificate for b.test")?;
    for name in ["a.test", "b.test"] {
        ensure!(stand.ask(&root, name)? == "fine", "{name}: {}", truepeer.log());
    }
    ensure!(truepeer.log().matches("a new certificate for a.test").count() == 1, "{}", truepeer.log());
    Ok(())
}
