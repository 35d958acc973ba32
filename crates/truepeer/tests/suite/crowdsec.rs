//! `truepeer crowdsec` between CrowdSec's own local API and a running proxy.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests};

use crate::serve::{goes_on, session_at};
use crate::stand::{CLIENT_V4, CLIENT_V6, DOOR_V4, Stand, TRUEPEER, header_of, refused};

pub(crate) fn tests() -> Vec<Test> {
    tests![whom_crowdsec_bans_is_refused_until_it_bans_no_more]
        .into_iter()
        .map(|test| test.needs_program("crowdsec").needs_program("cscli"))
        .collect()
}

const KEY: &str = "a-key-of-the-local-api-0001";

fn cscli(bed: &Bed, arguments: &[&str]) -> anyhow::Result<String> {
    Program::new("cscli").args(["-c", "cs/config.yaml"]).args(arguments).run(bed)
}

/// The local API alone, with a key.
fn start_crowdsec(bed: &Bed) -> anyhow::Result<Running> {
    for directory in ["cs/data", "cs/hub", "cs/notifications", "cs/plugins", "lib"] {
        std::fs::create_dir_all(bed.dir().join(directory))?;
    }
    let at = bed.dir().join("cs").display().to_string();
    let config = format!(
        "common: {{daemonize: false, log_media: stdout, log_level: info, working_dir: .}}\n\
         config_paths: {{config_dir: {at}, data_dir: {at}/data, hub_dir: {at}/hub, \
         simulation_path: {at}/simulation.yaml, index_path: {at}/hub/.index.json, \
         notification_dir: {at}/notifications, plugin_dir: {at}/plugins}}\n\
         cscli: {{output: human}}\n\
         db_config: {{log_level: info, type: sqlite, db_path: {at}/data/crowdsec.db}}\n\
         api:\n  client: {{credentials_path: {at}/client.yaml}}\n  \
         server: {{log_level: info, listen_uri: \"127.0.0.1:8080\", profiles_path: {at}/profiles.yaml}}\n\
         prometheus: {{enabled: false}}\n"
    );
    bed.write("cs/config.yaml", config)?;
    bed.write("cs/simulation.yaml", "simulation: false\n")?;
    bed.write("cs/hub/.index.json", "{}")?;
    bed.write("cs/client.yaml", "")?;
    let profile =
        "name: all\nfilters: [\"true\"]\ndecisions: [{type: ban, duration: 4h}]\non_success: break\n";
    bed.write("cs/profiles.yaml", profile)?;
    let credentials = format!("{at}/client.yaml");
    cscli(bed, &["machines", "add", "here", "--password", "a-password-0001", "-f", &credentials])?;
    cscli(bed, &["bouncers", "add", "truepeer", "-k", KEY])?;
    let api = Program::new("crowdsec").args(["-c", "cs/config.yaml", "-no-cs"]).start(bed)?;
    api.wait_listening("127.0.0.1:8080")?;
    Ok(api)
}

/// With this bed's own /var/lib, and so its own list of kept bans.
fn follow(bed: &Bed) -> anyhow::Result<Running> {
    let script = format!("mount --bind {} /var/lib && exec \"$@\"", bed.dir().join("lib").display());
    let follow = Program::new("unshare").args(["-m", "sh", "-c", &script, "sh", TRUEPEER, "crowdsec"]);
    follow.args(["--key", "@./key", "--admin", "./admin.sock"]).start(bed)
}

fn session(client: &str) -> anyhow::Result<TcpStream> {
    session_at(DOOR_V4, client)
}

fn is_refused(client: &str) -> bool {
    client.parse().is_ok_and(|client| header_of(client).and_then(|header| refused(&header)).is_ok())
}

fn is_reset(session: &mut TcpStream) -> anyhow::Result<()> {
    session.set_read_timeout(Some(Duration::from_secs(1)))?;
    let end = session.read(&mut [0]).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    Ok(())
}

fn bans(bed: &Bed) -> String {
    Program::new(TRUEPEER).args(["bans", "--admin", "./admin.sock"]).run(bed).unwrap_or_default()
}

fn whom_crowdsec_bans_is_refused_until_it_bans_no_more(bed: &Bed) -> anyhow::Result<()> {
    let _stand = Stand::with_options(bed, Behaviour::Echo, &["--admin", "./admin.sock"])?;
    let _api = start_crowdsec(bed)?;
    let decide = |arguments: &[&str]| cscli(bed, &[&["decisions"], arguments].concat());
    let (mut v4, mut v6) = (session(CLIENT_V4)?, session(CLIENT_V6)?);
    let mut other = session("203.0.113.8:5000")?;
    decide(&["add", "-i", "203.0.113.7", "-d", "1h", "-R", "five wrong passwords"])?;
    decide(&["add", "-i", "203.0.113.9", "-d", "1h", "-t", "captcha"])?;

    bed.write("key", "another-key-0001\n")?;
    let refused = follow(bed)?;
    ensure!(!refused.wait_end()?.success() && refused.log().contains("refuses the key"), "{}", refused.log());
    bed.write("key", format!("{KEY}\n"))?;
    let first = follow(bed)?;
    bed.wait_for("the first ban", || bans(bed).contains("crowdsec: five wrong passwords"))?;
    is_reset(&mut v4)?;
    ensure!(is_refused("203.0.113.7:5001"));
    // What comes later, and a range.
    decide(&["add", "-r", "2001:db8::/32", "-d", "1h"])?;
    bed.wait_for("the second ban", || bans(bed).contains("2001:db8::/32"))?;
    is_reset(&mut v6)?;
    goes_on(&mut other)?;
    session("203.0.113.9:5000")?;
    let kept = std::fs::read_to_string(bed.dir().join("lib/truepeer-bans/list"))?;
    ensure!(kept.lines().count() == 2, "{kept}");
    decide(&["delete", "-i", "203.0.113.7"])?;
    bed.wait_for("its end", || !bans(bed).contains("203.0.113.7"))?;
    session("203.0.113.7:5002")?;

    // What ends while nobody follows.
    first.signal(Signal::TERM)?;
    first.wait_end()?;
    decide(&["delete", "-r", "2001:db8::/32"])?;
    ensure!(is_refused("[2001:db8::7]:5001"));
    let second = follow(bed)?;
    bed.wait_for("the end of the second ban", || !bans(bed).contains("2001:db8::/32"))?;
    session("[2001:db8::7]:5002")?;
    ensure!(!second.log().contains(KEY), "{}", second.log());
    let kept = std::fs::read_to_string(bed.dir().join("lib/truepeer-bans/list"))?;
    ensure!(kept.is_empty(), "{kept}");
    Ok(())
}
