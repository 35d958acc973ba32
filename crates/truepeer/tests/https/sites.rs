//! Several sites on one address, told apart by the name that a client asks for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{anyhow, ensure};
use rustix::process::Signal;
use truepeer_testbed::servers::Nginx;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use crate::authority::Authority;
use crate::kit::curl;

pub(crate) fn tests() -> Vec<Test> {
    tests![
        clients_reach_the_site_that_they_ask_for,
        a_name_in_any_spelling_reaches_its_site,
        a_request_for_another_site_than_its_connections_gets_421,
        a_site_that_demands_certificates_is_not_reached_by_way_of_another,
        clients_that_ask_for_no_site_are_refused_where_so_configured,
        sites_come_and_go_by_reload_and_are_counted_by_name,
        a_sites_certificate_is_replaced_under_load,
    ]
}

const HERE: &str = "127.0.0.1:443";

/// Origins that say their names, truepeer before them by a file, and an authority for its sites.
struct Stand<'a> {
    bed: &'a Bed,
    authority: Authority,
    _origins: [Running; 3],
}

impl<'a> Stand<'a> {
    fn new(bed: &'a Bed) -> anyhow::Result<Self> {
        let origin = |port: u16, name: &str| {
            let says = format!("location / {{ return 200 {name}; }}");
            Nginx::default().server(format!("127.0.0.1:{port}"), "", &says).start(bed)
        };
        let origins = [origin(8001, "a")?, origin(8002, "b")?, origin(8003, "c")?];
        Ok(Self { bed, authority: Authority::new(bed, "authority")?, _origins: origins })
    }

    /// The entry of a site whose certificate has these names.
    fn site(&self, name: &str, port: u16, names: &[&str], more: &str) -> anyhow::Result<String> {
        let identity = self.authority.certify(self.bed, name, names)?;
        Ok(format!(
            "[[https]]\nlisten = \"{HERE}\"\nlisten-http = \"127.0.0.1:80\"\n\
             tls-cert = \"{}\"\ntls-key = \"{}\"\n\
             origin = \"http://127.0.0.1:{port}\"\n{more}\n",
            identity.cert, identity.key
        ))
    }

    /// `a.test` and its subdomains; `b.test`, with `more` for the second.
    fn two(&self, more: &str) -> anyhow::Result<String> {
        let a = self.site("a", 8001, &["a.test", "*.a.test"], "access-log = true")?;
        Ok(a + &self.site("b", 8002, &["b.test"], more)?)
    }

    fn start(&self, file: &str) -> anyhow::Result<Running> {
        let file = self.bed.write("truepeer.toml", format!("{file}[admin]\nlisten = \"./admin.sock\"\n"))?;
        let program = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["serve", "-c"]).arg(file);
        let truepeer = program.start(self.bed)?;
        truepeer.wait_listening(HERE)?;
        Ok(truepeer)
    }

    /// Asks as a client that trusts the authority: the answer, its status, and the connections made.
    fn ask(&self, version: &str, name: &str, more: &[&str]) -> anyhow::Result<String> {
        let to = format!("{name}:443:127.0.0.1");
        let trusting = ["--silent", "--show-error", "--max-time", "60", "--cacert", &self.authority.ca];
        Program::new("curl")
            .args(trusting)
            .args([version, "--resolve", &to, "-w", " %{http_code}\n", &format!("https://{name}/")])
            .args(more)
            .run(self.bed)
    }
}

fn clients_reach_the_site_that_they_ask_for(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("")?)?;
    for version in ["--http1.1", "--http2"] {
        for (name, expected) in
            [("a.test", "a 200\n"), ("b.test", "b 200\n"), ("x.a.test", "a 200\n"), ("B.TEST", "b 200\n")]
        {
            let said = stand.ask(version, name, &[])?;
            ensure!(said == expected, "{name}: {said}; {}", truepeer.log());
        }
        // Nobody's name, and no name: the first site.
        for url in ["https://c.test/", "https://127.0.0.1/"] {
            let said = curl(&[version, "--resolve", "c.test:443:127.0.0.1", url]).run(bed)?;
            ensure!(said == "a", "{url}: {said}");
        }
    }
    for (host, to) in [("a.test", "https://a.test/x"), ("b.test", "https://b.test/x")] {
        let said = curl(&["-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", "-H"])
            .args([&format!("Host: {host}"), "http://127.0.0.1/x"])
            .run(bed)?;
        ensure!(said == format!("308 {to}"), "{host}: {said}");
    }
    Ok(())
}

/// As clients may write it in the handshake and in a request.
fn a_name_in_any_spelling_reaches_its_site(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("")?)?;
    let named = |name| ["-servername", name].to_vec();
    for (sni, host, expected) in [
        (named("B.Test"), "B.TEST:443", "\r\n\r\nb"),
        (named("b.test"), "b.test.", "\r\n\r\nb"),
        (named("b.test."), "b.test", "\r\n\r\nb"),
        (named("Y.A.Test"), "y.a.test", "\r\n\r\na"),
        // An address is no name.
        (named("127.0.0.1"), "127.0.0.1", "\r\n\r\na"),
        (vec!["-noservername"], "127.0.0.1", "\r\n\r\na"),
        (vec!["-noservername"], "b.test", "HTTP/1.1 421 "),
        (named("127.0.0.1"), "B.TEST.:443", "HTTP/1.1 421 "),
        (named("b.test."), "a.test", "HTTP/1.1 421 "),
    ] {
        let said = Program::new("openssl")
            .args(["s_client", "-quiet", "-connect", HERE])
            .args(&sni)
            .input(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"))
            .run(bed)?;
        ensure!(said.contains(expected), "{sni:?}, {host}: {said}; {}", truepeer.log());
    }
    Ok(())
}

/// Clients of HTTP/2 may use a connection for each name that its certificate has, and others.
fn a_request_for_another_site_than_its_connections_gets_421(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("")?)?;
    for version in ["--http1.1", "--http2"] {
        for (name, host, expected) in [
            ("a.test", "b.test", "421"),
            ("b.test", "a.test:443", "421"),
            ("b.test", "y.a.test", "421"),
            ("a.test", "y.a.test", "a 200"),
            // No site has it: it stays where its connection led.
            ("b.test", "c.test", "b 200"),
        ] {
            let said = stand.ask(version, name, &["-H", &format!("Host: {host}")])?;
            ensure!(said.trim_end().ends_with(expected), "{name}, {host}: {said}; {}", truepeer.log());
            ensure!(expected != "421" || !said.starts_with(['a', 'b']), "{said}");
        }
        // As the next one of the same client.
        let again = ["-H", "Host: b.test", "--next", "--cacert", &stand.authority.ca, "--silent"];
        let again = [&again[..], &[version, "-w", " %{http_code}", "https://a.test/"]].concat();
        let said = stand.ask(version, "a.test", &again)?;
        ensure!(said.contains(" 421\n") && said.ends_with("a 200"), "{said}; {}", truepeer.log());
    }
    truepeer.wait_for_log("misdirected")
}

fn a_site_that_demands_certificates_is_not_reached_by_way_of_another(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let authority = &stand.authority;
    let truepeer = stand.start(&stand.two(&format!("client-ca = \"{}\"", authority.ca))?)?;
    let client = authority.certify(bed, "client", &["client.test"])?;
    for version in ["--http1.1", "--http2"] {
        let said = stand.ask(version, "a.test", &["-H", "Host: b.test"])?;
        ensure!(said.trim_end().ends_with("421"), "{said}");
        ensure!(stand.ask(version, "b.test", &[]).is_err(), "{}", truepeer.log());
        let said = stand.ask(version, "b.test", &["--cert", &client.cert, "--key", &client.key])?;
        ensure!(said == "b 200\n", "{said}; {}", truepeer.log());
    }
    truepeer.wait_for_log("a client certificate is required")
}

fn clients_that_ask_for_no_site_are_refused_where_so_configured(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("unknown-host = \"refuse\"")?)?;
    for name in ["c.test", "127.0.0.1"] {
        let refused = curl(&["--resolve", "c.test:443:127.0.0.1", &format!("https://{name}/")]).run(bed);
        let refused = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refused.contains("unrecognized name"), "{name}: {refused}; {}", truepeer.log());
    }
    // Of the same complaint, the log has the first one of a minute.
    truepeer.wait_for_log("(SNI): c.test")?;
    truepeer.wait_for_log("tls_unknown_name")?;
    for version in ["--http1.1", "--http2"] {
        let said = stand.ask(version, "a.test", &["-H", "Host: c.test"])?;
        ensure!(said.trim_end().ends_with("421"), "{said}");
        ensure!(stand.ask(version, "b.test", &[])? == "b 200\n");
    }
    Ok(())
}

fn sites_come_and_go_by_reload_and_are_counted_by_name(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("")?)?;
    for name in ["a.test", "b.test", "b.test"] {
        ensure!(stand.ask("--http2", name, &[])? != "");
    }
    let status = || {
        let program = Program::new(env!("CARGO_BIN_EXE_truepeer"));
        program.args(["status", "--admin", "./admin.sock"]).run(bed)
    };
    for line in [
        "https tcp 127.0.0.1:443: ",
        "127.0.0.1:443 a.test: 0 open, 1 requests",
        "127.0.0.1:443 b.test: 0 open, 2 requests",
    ] {
        truepeer.wait_state(line, || status().is_ok_and(|status| status.contains(line)))?;
    }
    // The order changes, one goes, one comes: each keeps its own counters.
    let (b, c) = (stand.site("b", 8002, &["b.test"], "")?, stand.site("c", 8003, &["c.test"], "")?);
    let file = format!("{c}{b}[admin]\nlisten = \"./admin.sock\"\n");
    bed.write("truepeer.toml", file)?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("have new first site c.test, site c.test, site b.test, no site a.test")?;
    for (name, expected) in [("b.test", "b 200\n"), ("c.test", "c 200\n")] {
        let said = stand.ask("--http2", name, &[])?;
        ensure!(said == expected, "{name}: {said}; {}", truepeer.log());
    }
    for line in [
        "127.0.0.1:443 a.test: 0 open, 1 requests",
        "127.0.0.1:443 b.test: 0 open, 3 requests",
        "127.0.0.1:443 c.test: 0 open, 1 requests",
    ] {
        truepeer.wait_state(line, || status().is_ok_and(|status| status.contains(line)))?;
    }
    ensure!(
        status()?.lines().any(|line| line.contains("a.test") && line.ends_with(", closed")),
        "{}",
        status()?
    );
    // Two sites of one name: everything stays.
    bed.write("truepeer.toml", format!("{b}{b}"))?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("has the name b.test;")?;
    ensure!(stand.ask("--http2", "c.test", &[])? == "c 200\n");
    Ok(())
}

fn a_sites_certificate_is_replaced_under_load(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed)?;
    let truepeer = stand.start(&stand.two("")?)?;
    let (is_over, asked) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    thread::scope(|scope| {
        let clients = [("a.test", "a 200\n"), ("b.test", "b 200\n")].into_iter().zip(&asked);
        let clients = clients.map(|((name, expected), asked)| {
            let (stand, truepeer, is_over) = (&stand, &truepeer, &is_over);
            scope.spawn(move || -> anyhow::Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    let said = stand.ask("--http2", name, &[])?;
                    ensure!(said == expected, "{name}: {said}; {}", truepeer.log());
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let clients: Vec<_> = clients.collect();
        let replaced = (1..=5).try_for_each(|round| {
            let new = stand.authority.certify(bed, "b", &["b.test"])?;
            truepeer.signal(Signal::HUP)?;
            truepeer.wait_state("the new certificate", || {
                truepeer.log().matches("have new site b.test").count() == round
            })?;
            let print = "openssl x509 -noout -sha256 -fingerprint";
            let shown = format!("openssl s_client -connect {HERE} -servername b.test </dev/null | {print}");
            let shown = Program::new("sh").args(["-c", &shown]).run(bed)?;
            let wanted = Program::new("sh").args(["-c", &format!("{print} <{}", new.cert)]).run(bed)?;
            ensure!(shown == wanted, "{shown} is not {wanted}");
            truepeer.wait_state("requests by it", || {
                asked.iter().all(|asked| asked.load(Ordering::Relaxed) >= 2 * round)
            })
        });
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        replaced
    })
}
