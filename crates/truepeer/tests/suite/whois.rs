//! `truepeer whois`, held against what senders sent and backends saw.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use truepeer_policy::pseudo_ipv4;
use truepeer_testbed::servers::Haproxy;
use truepeer_testbed::{Bed, Behaviour, Program, Test, User, client, tests};

use crate::line::Line;
use crate::senders::certificate;
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, SITE_V4, Stand, TRUEPEER};
use crate::stand::{bare_proxy, header_of, knock, open_as};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        an_address_that_stands_for_a_client_tells_whose_it_is,
        secrets_of_senders_are_not_shown,
        what_is_not_found_says_where_it_was_looked_for,
        every_user_may_ask_who_its_own_peer_is_and_nothing_else,
    ];
    all.push(
        Test::new("whois_tells_what_haproxy_has_sent", whois_tells_what_haproxy_has_sent)
            .needs_program("haproxy")
            .needs_program("python3"),
    );
    all
}

const ADMIN: [&str; 2] = ["--admin", "./admin.sock"];

fn ask(bed: &Bed, address: &str) -> anyhow::Result<Vec<Value>> {
    let said = Program::new(TRUEPEER).args(["whois", address, "--json"]).args(ADMIN).run(bed)?;
    Ok(serde_json::from_str(&said)?)
}

fn ask_one(bed: &Bed, address: &str) -> anyhow::Result<Value> {
    match &ask(bed, address)?[..] {
        [one] => Ok(one.clone()),
        all => anyhow::bail!("{address}: {all:?}"),
    }
}

/// HAProxy ends TLS and logs the same values that it puts into its header.
fn whois_tells_what_haproxy_has_sent(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let backend = Behaviour::Echo
        .start_program(bed, &["127.0.0.1:80", "[::1]:80"], |echo| echo.in_netns(&line.host().netns))?;
    let _truepeer = line.start_truepeer_with(bed, 80, &ADMIN)?;
    let pem = certificate(bed)?;
    let listener = line.lb().at(false, 443);
    let config = format!(
        "listen l\n  log stdout format raw local0\n  \
         bind {listener} ssl crt {pem} ca-file {pem} verify required\n  \
         unique-id-format %ci_%cp_%Ts_%rt\n  \
         log-format \"sent %ID|%[ssl_fc_sni]|%[ssl_c_s_dn(cn)]|%[ssl_fc_protocol]|%[ssl_fc_cipher]|\
         %bi:%bp|end\"\n  server s {} send-proxy-v2-ssl-cn \
         proxy-v2-options ssl,cert-cn,cert-key,cert-sig,ssl-cipher,unique-id,crc32c,authority",
        line.listener(false)
    );
    let haproxy = Haproxy::with_config(&config, &[&listener.to_string()]);
    let haproxy = haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))?;
    let script = format!(
        "import socket, ssl, time\ncontext = ssl._create_unverified_context()\n\
         context.load_cert_chain({pem:?})\n\
         tcp = socket.create_connection(({:?}, 443), 20, ('', 4321))\n\
         tls = context.wrap_socket(tcp, server_hostname='site.example')\ntls.sendall(b'hello')\n\
         print('echoed', tls.recv(5), flush=True)\ntime.sleep(600)",
        listener.ip().to_string()
    );
    let talk = Program::new("python3").args(["-c", &script]).in_netns(&line.client().netns).start(bed)?;
    talk.wait_for_log("echoed b'hello'")?;

    let peer = line.client().at(false, 4321).to_string();
    backend.wait_for_log(&peer)?;
    let who = ask_one(bed, &peer)?;
    ensure!(who["client"] == *peer && who["shown_as"] == *peer, "{who}");
    ensure!(who["listener"] == line.listener(false).to_string(), "{who}");
    ensure!(who["why"] == "the sender's header names it" && who["kind"] == "tcp", "{who}");
    ensure!(who["age_seconds"].as_f64().is_some_and(|age| age < 600.0), "{who}");
    let by_sender = ask_one(bed, who["sender"].as_str().context("a sender")?)?;
    ensure!(by_sender["id"] == who["id"], "{by_sender}");
    let text = Program::new(TRUEPEER).args(["whois", &peer]).args(ADMIN).run(bed)?;
    ensure!(text.contains("certificate  CN=the true client\n"), "{text}");

    drop(talk);
    haproxy.wait_for_log("|end")?;
    let log = haproxy.log();
    let sent = log.lines().find_map(|line| line.split_once("sent ")).context("no line")?.1;
    let sent: Vec<&str> = sent.split('|').collect();
    let tlvs = &who["tlvs"];
    let told = ["unique_id", "authority", "ssl_cn", "ssl_version", "ssl_cipher"];
    let told: Vec<&str> = told.into_iter().map(|name| tlvs[name].as_str().unwrap_or("-")).collect();
    ensure!(told == sent[..5] && sent[1..3] == ["site.example", "the true client"], "{told:?} {sent:?}");
    ensure!(tlvs["ssl_verified"] == "yes" && tlvs["ssl_key_alg"].is_string(), "{tlvs}");
    ensure!(who["subject"] == "CN=the true client" && who["sender"] == sent[5], "{who} {sent:?}");
    Ok(())
}

/// The backend's log has the address that it saw.
fn an_address_that_stands_for_a_client_tells_whose_it_is(bed: &Bed) -> anyhow::Result<()> {
    for (options, v4, v6, client) in [
        (&["--pseudo-ipv4"][..], BACKEND_V4, BACKEND_V4, CLIENT_V6),
        (&["--nat64-prefix", "64:ff9b::/96"], BACKEND_V6, BACKEND_V6, CLIENT_V4),
    ] {
        let truepeer = bare_proxy().listen(DOOR_V4).ipv4(v4).ipv6(v6).args(options).args(&ADMIN);
        let stand = Stand::behind(bed, Behaviour::Echo, &truepeer)?;
        let _session = open_as(client.parse()?)?;
        let shown = match client.parse()? {
            SocketAddr::V6(client) => format!("{}:5000", pseudo_ipv4(*client.ip())),
            SocketAddr::V4(_) => "[64:ff9b::cb00:7107]:5000".to_owned(),
        };
        stand.backend.wait_for_log(&shown)?;
        let address = shown.trim_end_matches(":5000").trim_matches(['[', ']']).to_owned();
        for asked in [&*shown, &address, client] {
            let who = ask_one(bed, asked)?;
            ensure!(who["client"] == client && who["shown_as"] == *shown, "{who}");
            ensure!(who["why"].as_str().is_some_and(|why| why.contains(options[0])), "{who}");
        }
        stand.truepeer.stop()?;
    }
    Ok(())
}

/// Also one whose sender need not prove itself.
fn secrets_of_senders_are_not_shown(bed: &Bed) -> anyhow::Result<()> {
    const SECRET: &str = "a-secret-of-the-balancer-0001";
    let file = bed.write("secret", SECRET)?;
    let [everybody, one] = ["", "192.0.2.0/24,"].map(|prefix| format!("{prefix}0xE5=@{}", file.display()));
    for required in [everybody, one] {
        let options = ["--require-tlv", &required, ADMIN[0], ADMIN[1]];
        let stand = Stand::with_options(bed, Behaviour::Echo, &options)?;
        let tlvs = [(0xE5, SECRET.as_bytes()), (0xE4, b"tenant-7"), (2, b"site.example")];
        let mut session = knock()?;
        session.write_all(&client::v2_with_tlvs(CLIENT_V4, SITE_V4, &tlvs)?)?;
        stand.backend.wait_for_log(CLIENT_V4)?;
        let who = ask_one(bed, CLIENT_V4)?;
        let expected = serde_json::json!({ "authority": "site.example", "tlv_0xe4": "tenant-7" });
        ensure!(who["tlvs"] == expected, "{who}");
        let sessions = Program::new(TRUEPEER).args(["sessions", "--json"]).args(ADMIN).run(bed)?;
        ensure!(sessions.contains("tenant-7") && !sessions.contains(SECRET), "{sessions}");
        stand.truepeer.stop()?;
    }
    Ok(())
}

fn what_is_not_found_says_where_it_was_looked_for(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::with_options(bed, Behaviour::Echo, &ADMIN)?;
    let _session = open_as(CLIENT_V4.parse()?)?;
    stand.backend.wait_for_log(CLIENT_V4)?;
    let waiting = knock()?;
    let sender = waiting.local_addr()?.to_string();
    bed.wait_for("the session", || ask(bed, &sender).is_ok())?;
    let who = ask_one(bed, &sender)?;
    ensure!(who["client"].is_null() && who["why"] == "its header has not come yet", "{who}");
    let pins = bed.dir().join("bpf/truepeer").display().to_string();
    let fails = |arguments: &[&str], parts: &[&str]| -> anyhow::Result<()> {
        let whois = Program::new(TRUEPEER).arg("whois").args(arguments).start(bed)?;
        ensure!(!whois.wait_end()?.success());
        let log = whois.log();
        ensure!(parts.iter().all(|part| log.contains(part)), "{arguments:?}: {log}");
        Ok(())
    };
    let admin = [ADMIN[0], ADMIN[1]];
    fails(
        &["203.0.113.7:5001", admin[0], admin[1]],
        &[
            "203.0.113.7:5001 is not found:\n",
            "with other ports: 203.0.113.7:5000",
            "truepeer run keeps no table",
        ],
    )?;
    fails(&["254.237.119.6", admin[0], admin[1]], &["--pseudo-ipv4 shows IPv6 clients"])?;
    fails(&["64:ff9b::cb00:7107", admin[0], admin[1]], &["it stands for 203.0.113.7 (NAT64)"])?;
    fails(&["203.0.113.9", "--pins", &pins], &["truepeer attach: nothing is attached"])?;
    fails(&["203.0.113.9", "--admin", "./nobody.sock"], &["no truepeer answers at ./nobody.sock"])?;
    fails(&["client.example", admin[0], admin[1]], &["expected ADDRESS or ADDRESS:PORT"])
}

fn every_user_may_ask_who_its_own_peer_is_and_nothing_else(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--admin", "whois:./whois.sock", ADMIN[0], ADMIN[1]];
    let stand = Stand::with_options(bed, Behaviour::Echo, &options)?;
    let mut session = knock()?;
    session.write_all(&header_of(CLIENT_V4.parse()?)?)?;
    stand.backend.wait_for_log(CLIENT_V4)?;
    let mode = std::fs::metadata(bed.dir().join("whois.sock"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o666, "{mode:o}");
    let curl = |socket: &str, method: &str, target: &str| {
        let options = ["-s", "-w", " %{http_code}", "-X", method, "--unix-socket", socket];
        let curl = Program::new("curl").args(options).arg(format!("http://t{target}"));
        curl.as_user(User::TESTER).run(bed)
    };
    ensure!(curl("admin.sock", "GET", "/status").is_err(), "another user may not connect there");
    let said = curl("whois.sock", "GET", "/whois?address=203.0.113.7:5000")?;
    ensure!(said.starts_with("[{\"client\":\"203.0.113.7:5000\"") && said.ends_with(" 200"), "{said}");
    let said = curl("whois.sock", "GET", "/whois?address=203.0.113.7:5001")?;
    ensure!(said == "203.0.113.7:5001: no open session has this address\n 404", "{said}");
    for (method, target) in [
        ("GET", "/whois?address=203.0.113.7"),
        ("GET", "/sessions"),
        ("GET", "/status"),
        ("GET", "/"),
        ("POST", "/bans?client=203.0.113.7"),
        ("POST", "/whois?address=203.0.113.7:5000"),
        ("POST", "/reload"),
        ("DELETE", "/sessions/tcp-0-0-0"),
    ] {
        let said = curl("whois.sock", method, target)?;
        ensure!(said.ends_with(" 403"), "{method} {target}: {said}");
    }
    let whois = Program::new(TRUEPEER).args(["whois", CLIENT_V4, "--admin", "whois:./whois.sock"]);
    let said = whois.as_user(User::TESTER).run(bed)?;
    ensure!(said.starts_with("client       203.0.113.7:5000\n"), "{said}");
    Ok(())
}
