//! Senders that prove themselves to `truepeer proxy`, and truepeer as such a sender.

use std::io::Write;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::servers::Haproxy;
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, tests};

use crate::stand::{
    BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, SITE_V4, Stand, TRUEPEER, ask, bare_proxy, header_of,
    proxy_without_routes, refused, refused_from,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        an_unproved_header_is_explained_and_its_secret_never_shown,
        a_reload_changes_the_secret,
        one_sender_proves_itself_and_another_need_not,
        two_truepeers_prove_themselves_to_each_other,
        a_digest_is_refused_once_it_is_old,
        a_file_of_secrets_is_refused_by_its_line,
    ];
    let haproxy = Test::new("haproxy_proves_itself_by_its_unique_id", haproxy_proves_itself_by_its_unique_id);
    all.push(haproxy.needs_program("haproxy"));
    all
}

const KIND: u8 = 0xE5;
const ONE: &str = "a-secret-of-the-balancer-0001";
const OTHER: &str = "a-secret-of-the-balancer-0002";
const NEXT: &str = "127.0.0.1:9000";

fn proved(client: &str, secret: &str) -> anyhow::Result<Vec<u8>> {
    client::v2_with_tlvs(client, SITE_V4, &[(KIND, secret.as_bytes())])
}

fn an_unproved_header_is_explained_and_its_secret_never_shown(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("secret", ONE)?;
    let required = format!("0xE5=@{}", file.display());
    let stand = Stand::with_options(bed, Behaviour::Who, &["--require-tlv", &required])?;
    ensure!(ask(&proved(CLIENT_V4, ONE)?)? == CLIENT_V4);
    refused_from("127.0.0.2:0", &proved(CLIENT_V4, OTHER)?)?;
    stand.truepeer.wait_for_log("the value of TLV 0xe5 is another one")?;
    refused_from("127.0.0.3:0", &header_of(CLIENT_V4.parse()?)?)?;
    let log = bed.outputs().concat();
    ensure!(!log.contains(ONE) && !log.contains(OTHER), "{log}");
    let arguments = ["proxy", "--listen", DOOR_V4, "-4", BACKEND_V4, "--print-config"];
    let printed = Program::new(TRUEPEER).args(arguments).args(["--require-tlv", &required]).run(bed)?;
    ensure!(
        printed.contains("require-tlv") && printed.contains("secret\"") && !printed.contains(ONE),
        "{printed}"
    );
    Ok(())
}

/// The new secret is added, the sender changes, the old one is taken out.
fn a_reload_changes_the_secret(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("secret", ONE)?;
    let required = format!("0xE5=@{}", file.display());
    let stand = Stand::with_options(bed, Behaviour::Who, &["--require-tlv", &required])?;
    refused(&proved(CLIENT_V4, OTHER)?)?;
    // Each listener has a line of its own in the log.
    let reload = |text: String, said: &str| -> anyhow::Result<()> {
        let lines = || stand.truepeer.log().matches(said).count();
        let before = lines();
        bed.write("secret", text)?;
        stand.truepeer.signal(Signal::HUP)?;
        stand.truepeer.wait_state(said, || lines() > before)
    };
    reload(format!("{OTHER}\n{ONE}\n"), "reloaded: ")?;
    ensure!(ask(&proved("203.0.113.7:5001", ONE)?)? == "203.0.113.7:5001");
    ensure!(ask(&proved("203.0.113.7:5002", OTHER)?)? == "203.0.113.7:5002");
    // A file that is wrong leaves everything as it was.
    reload("short".to_owned(), "line 1: expected 16 to 64 characters")?;
    ensure!(ask(&proved("203.0.113.7:5003", ONE)?)? == "203.0.113.7:5003");
    reload(OTHER.to_owned(), "reloaded: ")?;
    ensure!(ask(&proved("203.0.113.7:5004", OTHER)?)? == "203.0.113.7:5004");
    refused(&proved(CLIENT_V4, ONE)?).map(drop)
}

fn one_sender_proves_itself_and_another_need_not(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("secret", ONE)?;
    let required = format!("127.0.0.8/30,0xE5=@{}", file.display());
    let _stand = Stand::with_options(bed, Behaviour::Who, &["--require-tlv", &required])?;
    let plain = header_of(CLIENT_V4.parse()?)?;
    ensure!(ask(&plain)? == CLIENT_V4);
    refused_from("127.0.0.9:0", &plain)?;
    let mut stream = client::connect_from("127.0.0.9:0", DOOR_V4)?;
    let seen = client::ask(&mut stream, &proved("203.0.113.7:5001", ONE)?)?;
    ensure!(seen.trim() == "203.0.113.7:5001", "{seen}");
    Ok(())
}

fn two_truepeers_prove_themselves_to_each_other(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let (ones, others) = (bed.write("one", ONE)?, bed.write("other", OTHER)?);
    for (port, how) in [(5000, ""), (5001, "hmac:")] {
        let [one, other] = [&ones, &others].map(|file| format!("0xE5={how}@{}", file.display()));
        let far = bare_proxy().listen(NEXT).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
        let far = far.option("--require-tlv", &one).start(bed)?;
        let near = |tlv: &str| {
            let near = proxy_without_routes().listen(DOOR_V4).ipv4(NEXT).ipv6(NEXT);
            near.option("--send-proxy", "v2").option("--send-tlv", tlv).start(bed)
        };
        let client = format!("203.0.113.7:{port}");
        let near_right = near(&one)?;
        // truepeer's own TLV takes the place of the sender's.
        ensure!(ask(&proved(&client, OTHER)?)? == client);
        near_right.stop()?;
        let _near_wrong = near(&other)?;
        refused(&header_of(client.parse()?)?)?;
        far.wait_for_log("the value of TLV 0xe5 is another one")?;
    }
    Ok(())
}

fn a_digest_is_refused_once_it_is_old(bed: &Bed) -> anyhow::Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let file = bed.write("key", ONE)?;
    let tlv = format!("0xE5=hmac:@{}", file.display());
    // A header that somebody has read long ago.
    let text = truepeer_policy::Secrets::parse(ONE.as_bytes())?;
    let sent = truepeer_policy::SentTlv::keyed(KIND, &text, || std::time::Duration::from_secs(1_700_000_000));
    let truepeer_policy::SentValue::Digest(time) = sent.value() else { anyhow::bail!("no digest") };
    let addresses = truepeer_proto::Addresses::Inet {
        transport: truepeer_proto::Transport::Stream,
        source: CLIENT_V4.parse()?,
        destination: SITE_V4.parse()?,
    };
    let mut buffer = [0; 256];
    let encoder = truepeer_proto::V2Encoder::new(&mut buffer, truepeer_proto::Command::Proxy, &addresses)?;
    let len = encoder.finish_with_digest(KIND, time, |signed| sent.mac(signed))?;
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    let truepeer = truepeer.option("--require-tlv", &tlv).start(bed)?;
    refused(&buffer[..len])?;
    truepeer.wait_for_log("behind this host's time: compare the clocks of both hosts")
}

fn a_file_of_secrets_is_refused_by_its_line(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("secret", format!("{ONE}\nnot so long\n"))?;
    let tlv = format!("0xE5=@{}", file.display());
    let truepeer = bare_proxy().listen(DOOR_V4).ipv4(BACKEND_V4).option("--require-tlv", &tlv);
    let truepeer = truepeer.start_unready(bed)?;
    ensure!(!truepeer.wait_end()?.success());
    let log = truepeer.log();
    ensure!(log.contains("line 2: expected visible ASCII") && !log.contains("not so long"), "{log}");
    Ok(())
}

/// HAProxy before 2.9 can send a text of its own only as the connection's unique id.
fn haproxy_proves_itself_by_its_unique_id(bed: &Bed) -> anyhow::Result<()> {
    let file = bed.write("secret", ONE)?;
    let required = format!("0x05=@{}", file.display());
    let stand = Stand::with_options(
        bed,
        Behaviour::Who,
        &["--require-tlv", &required, "--allow-claims", "loopback"],
    )?;
    let config = |secret: &str, port: u16| {
        format!(
            "listen l{port}\n  bind 127.0.0.1:{port}\n  unique-id-format {secret}\n  \
             server s {DOOR_V4} send-proxy-v2 proxy-v2-options unique-id\n"
        )
    };
    let config = config(ONE, 9001) + &config(OTHER, 9002);
    let _haproxy = Haproxy::with_config(&config, &["127.0.0.1:9001", "127.0.0.1:9002"]).start(bed)?;
    let mut right = client::connect_from("127.0.0.1:5000", "127.0.0.1:9001")?;
    ensure!(client::ask(&mut right, b"x")?.trim() == "127.0.0.1:5000");
    let mut wrong = client::connect("127.0.0.1:9002")?;
    wrong.write_all(b"x")?;
    client::read_end(&mut wrong)?;
    stand.truepeer.wait_for_log("the value of TLV 0x05 is another one")?;
    ensure!(!bed.outputs().concat().contains(ONE), "{:?}", bed.outputs());
    Ok(())
}
