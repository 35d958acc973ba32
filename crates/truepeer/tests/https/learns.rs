//! The origin learns the client in each of the three ways, over both families, with and without TLS, with
//! different origins.

use std::net::SocketAddr;

use anyhow::ensure;
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Running, Test, Topology, tests};

use crate::authority::{Authority, Identity};
use crate::kit::OriginVersion::{Http1, Http2};
use crate::kit::{curl, https, https_by};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        clients_own_forwarding_fields_are_not_believed,
        connections_are_shared_only_within_their_scope,
        a_header_carries_the_tls_facts,
    ];
    for (way, name) in [
        (&FORWARDED, "fields_tell_the_client"),
        (&TRANSPARENT, "the_connection_tells_the_client"),
        (&PROXY, "a_header_tells_the_client"),
    ] {
        all.push(Test::new(name, |bed| everybody_learns(bed, way, false)));
        all.push(Test::new(format!("{name}_over_tls"), |bed| everybody_learns(bed, way, true)));
    }
    all
}

/// The origin's configuration: its answer, and how it listens.
struct Way {
    mode: &'static str,
    nginx: (&'static str, &'static str),
    haproxy: (&'static str, &'static str),
}

const FORWARDED: Way = Way {
    mode: "forwarded",
    nginx: ("", "$http_x_forwarded_for"),
    haproxy: ("", "%[req.hdr(x-forwarded-for)]"),
};

const TRANSPARENT: Way = Way { mode: "transparent", nginx: ("", "$remote_addr"), haproxy: ("", "%[src]") };

const PROXY: Way = Way {
    mode: "proxy",
    nginx: ("proxy_protocol", "$proxy_protocol_addr"),
    haproxy: ("accept-proxy", "%[src]"),
};

/// An origin's place in the line of hosts, and its certificate if it uses TLS.
struct Site<'a> {
    hosts: &'a Topology,
    at: SocketAddr,
    identity: Option<&'a Identity>,
}

/// Requests from both origins over both families. Each must name the client's address (NGINX writes it
/// without brackets). With TLS their certificates are verified.
fn everybody_learns(bed: &Bed, way: &Way, over_tls: bool) -> anyhow::Result<()> {
    let hosts = Topology::line(&["client", "proxy", "backend"])?;
    let authority = Authority::new(bed, "authority")?;
    let backend = hosts.host("backend");
    let names = [backend.v4.to_string(), backend.v6.to_string()];
    let identity = authority.certify(bed, "origin", &[&names[0], &names[1]])?;
    for is_nginx in [true, false] {
        for v6 in [false, true] {
            let at = backend.at(v6, if is_nginx { 8080 } else { 8081 });
            let site = Site { hosts: &hosts, at, identity: over_tls.then_some(&identity) };
            let _origin =
                if is_nginx { start_nginx(bed, &site, way)? } else { start_haproxy(bed, &site, way)? };
            let proxy = hosts.host("proxy");
            let listen = proxy.at(v6, 443).to_string();
            let scheme = if over_tls { "https" } else { "http" };
            let mut truepeer = https(bed, &listen, &format!("{scheme}://{at}"))?
                .option("--client-address", way.mode)
                .with(|program| program.in_netns(&proxy.netns));
            if over_tls {
                truepeer = truepeer.option("--origin-ca", &authority.ca);
            }
            let truepeer = truepeer.start(bed)?;
            let client = hosts.host("client");
            let ip = client.at(v6, 0).ip();
            for version in ["--http1.1", "--http2"] {
                let answer =
                    curl(&[version, &format!("https://{listen}/")]).in_netns(&client.netns).run(bed)?;
                ensure!(answer.trim() == ip.to_string(), "{at} saw {answer:?}, not {ip}; {}", truepeer.log());
            }
        }
    }
    Ok(())
}

fn start_nginx(bed: &Bed, site: &Site<'_>, way: &Way) -> anyhow::Result<Running> {
    let (listen, variable) = way.nginx;
    let mut server = format!("location / {{ return 200 \"{variable}\\n\"; }}");
    let mut options = listen.to_owned();
    if let Some(Identity { cert, key }) = site.identity {
        server += &format!(" ssl_certificate {cert}; ssl_certificate_key {key};");
        options += " ssl";
    }
    let netns = &site.hosts.host("backend").netns;
    Nginx::default().server(site.at, &options, &server).start_with(bed, |program| program.in_netns(netns))
}

fn start_haproxy(bed: &Bed, site: &Site<'_>, way: &Way) -> anyhow::Result<Running> {
    let (bind, sample) = way.haproxy;
    let mut options = bind.to_owned();
    if let Some(Identity { cert, key }) = site.identity {
        let both = std::fs::read_to_string(cert)? + &std::fs::read_to_string(key)?;
        options += &format!(" ssl crt {}", bed.write("both.pem", both)?.display());
    }
    let config = answering(site.at, &options, sample);
    let netns = &site.hosts.host("backend").netns;
    Haproxy::with_config(&config, &[&site.at.to_string()]).start_with(bed, |program| program.in_netns(netns))
}

/// HAProxy's configuration that answers every request with `sample`.
fn answering(at: SocketAddr, bind: &str, sample: &str) -> String {
    format!(
        "frontend f\n  mode http\n  bind {at} {bind}\n  http-request return status 200 content-type text/plain lf-string \"{sample}\"\n"
    )
}

fn a_header_carries_the_tls_facts(bed: &Bed) -> anyhow::Result<()> {
    let origin = "127.0.0.1:8081";
    let config = answering(origin.parse()?, "accept-proxy", "%[src] %[fc_pp_authority]");
    let _origin = Haproxy::with_config(&config, &[origin]).start(bed)?;
    let truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8081")?
        .option("--client-address", "proxy")
        .start(bed)?;
    let answer = curl(&["--resolve", "site:443:127.0.0.1", "--interface", "127.0.0.9", "https://site/"]);
    let answer = answer.run(bed)?;
    ensure!(answer.trim() == "127.0.0.9 site", "{answer}; {}", truepeer.log());
    Ok(())
}

/// Two clients, the first one twice, with two requests each time. NGINX numbers its connections.
fn connections_are_shared_only_within_their_scope(bed: &Bed) -> anyhow::Result<()> {
    let seen = "location / { return 200 \"$connection\\n\"; }";
    // Whether each of the three visits used the connection of the first.
    let ways = [
        ("forwarded", "", [true, true, true]),
        ("transparent", "", [true, false, true]),
        ("proxy", "proxy_protocol", [true, false, false]),
    ];
    let all = [Http1, Http2].into_iter().flat_map(|version| ways.map(|way| (version, way)));
    for (version, (mode, listen, shared)) in all {
        let listen = format!("{} {listen}", version.nginx());
        let _origin = Nginx::default().server("127.0.0.1:8080", &listen, seen).start(bed)?;
        // One worker, because each worker has its own pool.
        let truepeer = https_by(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?
            .option("--workers", 1)
            .option("--origin-protocol", version.option())
            .option("--client-address", mode)
            .start(bed)?;
        let mode = format!("{mode} {version:?}");
        let mut by_visit = Vec::new();
        for client in ["127.0.0.2", "127.0.0.3", "127.0.0.2"] {
            let twice = ["https://127.0.0.1/", "https://127.0.0.1/", "--http1.1", "--interface", client];
            let answer = curl(&twice).run(bed)?;
            let numbers: Vec<_> = answer.lines().map(str::to_owned).collect();
            ensure!(numbers.len() == 2 && numbers[0] == numbers[1], "{mode}: {answer}; {}", truepeer.log());
            by_visit.push(numbers[0].clone());
        }
        let is_first: Vec<_> = by_visit.iter().map(|number| *number == by_visit[0]).collect();
        ensure!(is_first == shared, "{mode}: {by_visit:?}; {}", truepeer.log());
    }
    Ok(())
}

fn clients_own_forwarding_fields_are_not_believed(bed: &Bed) -> anyhow::Result<()> {
    let said = "$http_x_forwarded_for $http_x_real_ip $http_forwarded $http_x_forwarded_proto";
    let answer = format!("underscores_in_headers on; location / {{ return 200 \"{said}\\n\"; }}");
    let _origin = Nginx::default().server("127.0.0.1:8080", "", &answer).start(bed)?;
    let _truepeer = https(bed, "127.0.0.1:443", "http://127.0.0.1:8080")?.start(bed)?;
    let answer =
        curl(&["https://127.0.0.1/", "-H", "X-Forwarded-For: 192.0.2.1", "-H", "X_Forwarded_For: 192.0.2.1"])
            .args([
                "-H",
                "X-Real-IP: 192.0.2.1",
                "-H",
                "Forwarded: for=192.0.2.1",
                "-H",
                "X-Forwarded-Proto: http",
            ])
            .args(["-H", "Connection: X-Forwarded-For, close"])
            .run(bed)?;
    ensure!(answer.trim() == "127.0.0.1  for=127.0.0.1;host=\"127.0.0.1\";proto=https https", "{answer:?}");
    Ok(())
}
