//! `truepeer ban`, `unban` and `bans`, before a running proxy.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, tests, workspace_dir};

use crate::serve::{DNS, TCP, TEXT_LOG, ask_by_udp, goes_on, session_at};
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, CLIENT_V6, DOOR_V4, Stand, TRUEPEER};
use crate::stand::{header_of, knock, refused};
use crate::upgrade::{FILE, start, upgrade};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_ban_ends_what_is_open_and_refuses_what_is_new,
        a_ban_ends_by_itself,
        reload_and_upgrade_keep_bans,
        a_ban_that_is_kept_outlives_a_restart,
        a_ban_beside_a_file_with_an_error_is_set_or_fails,
        a_load_balancer_that_is_banned_serves_its_clients,
        a_hundred_thousand_bans_are_set_at_once,
        whoever_may_not_write_to_the_socket_may_not_ban,
    ];
    all.push(
        Test::new("fail2ban_bans_and_unbans_by_the_packages_action", by_fail2ban)
            .needs_program("fail2ban-server"),
    );
    all
}

/// A command for the truepeer of the bed.
fn operate(bed: &Bed, arguments: &[&str]) -> anyhow::Result<String> {
    Program::new(TRUEPEER).args(arguments).args(["--admin", "./admin.sock"]).run(bed)
}

fn session(client: &str) -> anyhow::Result<TcpStream> {
    session_at(DOOR_V4, client)
}

fn is_refused(client: &str) -> anyhow::Result<()> {
    refused(&header_of(client.parse()?)?).map(drop)
}

fn is_reset_within_a_second(session: &mut TcpStream) -> anyhow::Result<()> {
    session.set_read_timeout(Some(Duration::from_secs(1)))?;
    let end = session.read(&mut [0]).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    Ok(())
}

fn a_ban_ends_what_is_open_and_refuses_what_is_new(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--admin", "./admin.sock"];
    let Stand { truepeer, backend } = Stand::with_options(bed, Behaviour::Echo, &options)?;
    let (mut v4, mut v6) = (session(CLIENT_V4)?, session(CLIENT_V6)?);
    let mut other = session("203.0.113.8:5000")?;
    let said = operate(bed, &["ban", "203.0.113.7", "--for", "1h", "--why", "five wrong passwords"])?;
    ensure!(said == "203.0.113.7 is banned for 1h00m\n", "{said}");
    let shorter = ["ban", "203.0.113.7", "198.51.100.7", "--for", "1m", "--why", "another"];
    let said = operate(bed, &shorter)?;
    let expected = "2 clients are banned for 1m00s at least: other bans of 1 of them end later\n";
    ensure!(said == expected, "{said}");
    operate(bed, &["unban", "198.51.100.7"])?;
    is_reset_within_a_second(&mut v4)?;
    backend.wait_for_log("203.0.113.7:5000 reset")?;
    truepeer.wait_for_log("close=\"banned\"")?;
    is_refused("203.0.113.7:5001")?;
    truepeer.wait_for_log("the client 203.0.113.7:5001 (from 127.0.0.1:")?;
    goes_on(&mut v6)?;

    operate(bed, &["ban", "2001:db8::/64", "--port", "8443"])?;
    is_reset_within_a_second(&mut v6)?;
    is_refused(CLIENT_V6)?;
    operate(bed, &["ban", "203.0.113.8", "--port", "443"])?;
    goes_on(&mut other)?;
    session("203.0.113.8:5001")?;

    let listed = operate(bed, &["bans", "--json"])?;
    let listed: serde_json::Value = serde_json::from_str(&listed)?;
    let ban = &listed[0];
    ensure!(listed.as_array().is_some_and(|all| all.len() == 3), "{listed}");
    let (since, until) = (ban["since"].as_u64().context("since")?, ban["until"].as_u64().context("until")?);
    ensure!(ban["client"] == "203.0.113.7" && until - since == 3600, "{ban}");
    ensure!(ban["by"] == 0 && ban["why"] == "five wrong passwords" && ban["port"].is_null(), "{ban}");
    let table = operate(bed, &["bans"])?;
    ensure!(table.contains("five wrong passwords") && table.contains("2001:db8::/64"), "{table}");

    let said = operate(bed, &["unban", "203.0.113.7"])?;
    ensure!(said == "203.0.113.7 is no longer banned\n", "{said}");
    session("203.0.113.7:5002")?;
    let said = operate(bed, &["unban", "203.0.113.7"])?;
    ensure!(said == "203.0.113.7 is not banned\n", "{said}");
    let said = operate(bed, &["unban", "--all"])?;
    ensure!(said == "2 bans lifted\n", "{said}");
    session("[2001:db8::7]:5001").map(drop)
}

fn a_ban_ends_by_itself(bed: &Bed) -> anyhow::Result<()> {
    let _stand = Stand::with_options(bed, Behaviour::Echo, &["--admin", "./admin.sock"])?;
    let began = Instant::now();
    operate(bed, &["ban", CLIENT_V4.rsplit_once(':').context("no port")?.0, "--for", "2s"])?;
    is_refused(CLIENT_V4)?;
    bed.wait_for("the end of the ban", || {
        operate(bed, &["bans", "--json"]).is_ok_and(|bans| bans.trim() == "[]")
    })?;
    let lasted = began.elapsed();
    ensure!(lasted > Duration::from_secs(1), "{lasted:?}");
    session(CLIENT_V4).map(drop)
}

fn reload_and_upgrade_keep_bans(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let old = start(bed)?;
    let mut before = session(CLIENT_V4)?;
    ask_by_udp(CLIENT_V4, b"before")?;
    operate(bed, &["ban", "203.0.113.9", "--for", "1h", "--why", "kept"])?;
    let file = std::fs::read_to_string(bed.dir().join("truepeer.toml"))?;
    bed.write("truepeer.toml", file.replace("level = \"info\"", "level = \"sessions\""))?;
    old.signal(Signal::HUP)?;
    old.wait_for_log("reloaded: the log level has changed")?;
    is_refused("203.0.113.9:5000")?;
    let listed = operate(bed, &["bans", "--json"])?;

    let new = upgrade(bed)?;
    ensure!(operate(bed, &["bans", "--json"])? == listed, "{}", new.log());
    is_refused("203.0.113.9:5001")?;
    ensure!(ask_by_udp("203.0.113.9:5002", b"question").is_err());
    goes_on(&mut before)?;
    ask_by_udp("203.0.113.7:5003", b"question")?;
    operate(bed, &["unban", "203.0.113.9"])?;
    ask_by_udp("203.0.113.9:5004", b"question")?;
    session("203.0.113.9:5005").map(drop)
}

/// With this bed's own /var/lib.
fn a_ban_that_is_kept_outlives_a_restart(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    bed.write("truepeer.toml", FILE)?;
    let lib = bed.dir().join("lib");
    std::fs::create_dir(&lib)?;
    let script = format!("mount --bind {} /var/lib && exec \"$@\"", lib.display());
    let program = |arguments: &[&str]| {
        Program::new("unshare").args(["-m", "sh", "-c", &script, "sh", TRUEPEER]).args(arguments)
    };
    let operate = |arguments: &[&str]| program(arguments).args(["--admin", "./admin.sock"]).run(bed);
    let serve = || -> anyhow::Result<Running> {
        let truepeer = program(&["serve", "-c", "truepeer.toml"]).start(bed)?;
        truepeer.wait_listening(DOOR_V4)?;
        truepeer.wait_for_log("admin: listening on")?;
        Ok(truepeer)
    };
    let stop = |truepeer: Running| -> anyhow::Result<()> {
        truepeer.signal(Signal::TERM)?;
        truepeer.wait_end().map(drop)
    };
    let first = serve()?;
    operate(&["ban", "203.0.113.7", "--why", "not kept"])?;
    operate(&["ban", "203.0.113.8", "203.0.113.9", "--for", "1h", "--keep", "--why", "kept for an hour"])?;
    stop(first)?;
    let second = serve()?;
    session(CLIENT_V4).map(drop)?;
    is_refused("203.0.113.8:5000")?;
    let listed = operate(&["bans"])?;
    ensure!(listed.matches("kept for an hour").count() == 2 && !listed.contains("not kept"), "{listed}");
    operate(&["unban", "203.0.113.8"])?;
    stop(second)?;
    let _third = serve()?;
    session("203.0.113.8:5001").map(drop)?;
    is_refused("203.0.113.9:5000")
}

/// The system's file, while it is being edited, and the usual socket. Both are this bed's own.
fn a_ban_beside_a_file_with_an_error_is_set_or_fails(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    for directory in ["run/truepeer", "lib", "etc/truepeer"] {
        std::fs::create_dir_all(bed.dir().join(directory))?;
    }
    bed.write("etc/truepeer/truepeer.toml", [TEXT_LOG, TCP].concat())?;
    let at = |name: &str| bed.dir().join(name).display().to_string();
    // The bed is below /run.
    let binds = [("lib", "/var/lib"), ("etc", "/etc"), ("run", "/run")];
    let binds = binds.map(|(own, place)| format!("mount --bind {} {place} && ", at(own))).concat();
    let program = |arguments: &[&str]| {
        let script = format!("{binds} exec \"$@\"");
        Program::new("unshare").args(["-m", "sh", "-c", &script, "sh", TRUEPEER]).args(arguments)
    };
    let truepeer = program(&["serve"]).start(bed)?;
    truepeer.wait_for_log("admin: listening on")?;
    session(CLIENT_V4)?;
    bed.write("etc/truepeer/truepeer.toml", format!("{TCP}[[proxy\n"))?;
    let said = program(&["ban", "203.0.113.7", "--keep"]).run(bed)?;
    ensure!(said == "203.0.113.7 is banned until truepeer unban\n", "{said}");
    is_refused("203.0.113.7:5001")?;
    // Nobody knows where the process listens then.
    std::fs::rename(bed.dir().join("run/truepeer/admin.sock"), bed.dir().join("run/truepeer/other.sock"))?;
    let failed = program(&["ban", "203.0.113.8", "--keep"]).start(bed)?;
    ensure!(!failed.wait_end()?.success(), "{}", failed.log());
    ensure!(failed.log().contains("see truepeer check"), "{}", failed.log());
    session("203.0.113.8:5000").map(drop)
}

/// fail2ban has read its address in a log.
fn a_load_balancer_that_is_banned_serves_its_clients(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--admin", "./admin.sock"];
    let Stand { truepeer: _truepeer, backend } = Stand::with_options(bed, Behaviour::Echo, &options)?;
    let mut before = session(CLIENT_V4)?;
    let ban = Program::new(TRUEPEER).args(["ban", "127.0.0.0/8", "--admin", "./admin.sock"]).start(bed)?;
    ban.wait_end()?;
    let note = "127.0.0.0/8 has a sender of 127.0.0.1:8443 (--allow): the clients that it names are served as before";
    ensure!(ban.log().contains(note), "{}", ban.log());
    goes_on(&mut before)?;
    session("203.0.113.8:5000")?;
    // LOCAL: the load balancer looks whether the backend lives.
    let mut local = knock()?;
    local.write_all(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")?;
    goes_on(&mut local)?;
    backend.wait_for_log("203.0.113.8:5000")
}

/// It takes 2.7 s on a processor of its own, and twice that beside builds.
fn a_hundred_thousand_bans_are_set_at_once(bed: &Bed) -> anyhow::Result<()> {
    let _stand = Stand::with_options(bed, Behaviour::Echo, &["--admin", "./admin.sock"])?;
    let mut kept = session(CLIENT_V4)?;
    let mut banned = session("198.18.1.134:5000")?;
    let list: String =
        (0..100_000_u32).map(|n| format!("{}\n", std::net::Ipv4Addr::from_bits(0xc612_0000 + n))).collect();
    bed.write("list", list)?;
    let began = Instant::now();
    let said = operate(bed, &["ban", "./list", "--for", "1h"])?;
    println!("{} ms for 100,000 bans", began.elapsed().as_millis());
    ensure!(said == "100,000 clients are banned for 1h00m\n", "{said}");
    is_reset_within_a_second(&mut banned)?;
    goes_on(&mut kept)?;
    is_refused("198.18.0.0:5000")?;
    is_refused("198.19.134.159:5000")?;
    session("198.19.134.160:5000")?;
    let listed: Vec<serde_json::Value> = serde_json::from_str(&operate(bed, &["bans", "--json"])?)?;
    ensure!(listed.len() == 100_000);
    ensure!(operate(bed, &["unban", "./list"])? == "100,000 bans lifted\n");
    session("198.18.0.0:5001").map(drop)
}

fn whoever_may_not_write_to_the_socket_may_not_ban(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--admin", "./admin.sock", "--admin", "127.0.0.1:9000"];
    let _stand = Stand::with_options(bed, Behaviour::Echo, &options)?;
    let curl = |options: &[&str]| {
        Program::new("curl").args(["-s", "-w", " %{http_code}", "-X", "POST"]).args(options).run(bed)
    };
    let said = curl(&["http://127.0.0.1:9000/bans?client=203.0.113.7"])?;
    ensure!(said.contains("nothing changed; use the unix socket") && said.ends_with(" 403"), "{said}");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s", "--unix-socket"];
    let other = Program::new("setpriv").args(user).args([
        "admin.sock",
        "-X",
        "POST",
        "http://t/bans?client=203.0.113.7",
    ]);
    ensure!(other.run(bed).is_err());
    ensure!(operate(bed, &["bans", "--json"])?.trim() == "[]");
    // Whatever comes over the socket is looked at again.
    for (query, part) in [
        ("", "expected client=ADDRESS"),
        ("client=0.0.0.0/0", "ban everybody"),
        ("client=x", "is not a client"),
        ("client=192.0.2.7&for=0", "for=0: expected seconds"),
        ("client=192.0.2.7&for=-1", "for=-1: expected seconds"),
        ("client=192.0.2.7&port=0", "port=0: expected a port"),
        ("client=192.0.2.7&why=a%0Ab", "why: expected at most 200 bytes in one line"),
        ("client=192.0.2.7&who=0", "who: expected client, for, port or why"),
    ] {
        let said = curl(&["--unix-socket", "admin.sock", &format!("http://t/bans?{query}")])?;
        ensure!(said.contains(part) && said.ends_with(" 400"), "{query}: {said}");
    }
    // The end of a ban may be beyond any clock.
    let longest = format!("http://t/bans?client=192.0.2.7&for={}", u64::MAX);
    let said = curl(&["--unix-socket", "admin.sock", &longest])?;
    ensure!(said.ends_with(" 200"), "{said}");
    ensure!(operate(bed, &["bans", "--json"])?.contains("\"until\":null"));
    ensure!(operate(bed, &["unban", "192.0.2.7"])? == "192.0.2.7 is no longer banned\n");
    session(CLIENT_V4).map(drop)
}

/// A log with five wrong passwords of each family. The list of kept bans is this bed's own.
fn by_fail2ban(bed: &Bed) -> anyhow::Result<()> {
    let _stand = Stand::with_options(bed, Behaviour::Echo, &["--admin", "./admin.sock"])?;
    let (mut v4, mut v6) = (session(CLIENT_V4)?, session(CLIENT_V6)?);
    let mut other = session("203.0.113.8:5000")?;
    let at = |name: &str| bed.dir().join(name).display().to_string();
    for directory in ["f2b/action.d", "f2b/filter.d", "lib"] {
        std::fs::create_dir_all(bed.dir().join(directory))?;
    }
    let action = workspace_dir().join("deploy/fail2ban/truepeer.conf");
    std::fs::copy(&action, bed.dir().join("f2b/action.d/truepeer.conf"))?;
    let own = format!(
        "[Definition]\nloglevel = INFO\nlogtarget = {}\nsyslogsocket = auto\nsocket = {}\npidfile = {}\ndbfile = None\n",
        at("f2b.log"),
        at("f2b.sock"),
        at("f2b.pid")
    );
    bed.write("f2b/fail2ban.conf", own)?;
    bed.write("f2b/filter.d/passwords.conf", "[Definition]\nfailregex = ^ wrong password of <HOST>$\n")?;
    let jail = format!(
        "[passwords]\nenabled = true\nbackend = polling\nfilter = passwords\nlogpath = {}\nmaxretry = 5\nfindtime = 600\n\
         bantime = 600\naction = truepeer[options=\"--admin {}\"]\n",
        at("passwords"),
        at("admin.sock")
    );
    bed.write("f2b/jail.conf", jail)?;
    bed.write("passwords", "")?;
    let programs = std::path::Path::new(TRUEPEER).parent().context("no directory")?;
    let script = format!(
        "mount --bind {} /var/lib && export PATH={}:$PATH && exec \"$@\"",
        at("lib"),
        programs.display()
    );
    let server = Program::new("unshare").args(["-m", "sh", "-c", &script, "sh", "fail2ban-server"]);
    let _server = server.args(["-c", &at("f2b"), "-f", "start"]).start(bed)?;
    let fail2ban = |arguments: &[&str]| {
        Program::new("fail2ban-client").args(["-c", &at("f2b")]).args(arguments).run(bed)
    };
    bed.wait_for("fail2ban", || fail2ban(&["status", "passwords"]).is_ok())?;
    let mut log = std::fs::OpenOptions::new().append(true).open(bed.dir().join("passwords"))?;
    for _ in 0..5 {
        let now = Program::new("date").arg("+%Y-%m-%d %H:%M:%S").run(bed)?;
        for client in ["203.0.113.7", "2001:db8::7"] {
            log.write_all(format!("{} wrong password of {client}\n", now.trim()).as_bytes())?;
        }
    }
    bed.wait_for("the bans", || {
        operate(bed, &["bans"]).is_ok_and(|bans| bans.matches("fail2ban: passwords").count() == 2)
    })?;
    is_reset_within_a_second(&mut v4)?;
    is_reset_within_a_second(&mut v6)?;
    is_refused("203.0.113.7:5001")?;
    is_refused("[2001:db8::7]:5001")?;
    goes_on(&mut other)?;
    let kept = std::fs::read_to_string(bed.dir().join("lib/truepeer-bans/list"))?;
    let until_the_end = |line: &str| {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        matches!(numbers[..], [since, until, ..] if until - since == 660)
    };
    ensure!(kept.lines().count() == 2 && kept.lines().all(until_the_end), "{kept}");
    operate(bed, &["ban", "203.0.113.7", "--why", "of another"])?;
    fail2ban(&["unban", "--all"])?;
    session("[2001:db8::7]:5002")?;
    is_refused("203.0.113.7:5002")?;
    operate(bed, &["unban", "203.0.113.7", "--why", "of another"])?;
    session("203.0.113.7:5002")?;
    let kept = std::fs::read_to_string(bed.dir().join("lib/truepeer-bans/list"))?;
    ensure!(kept.is_empty(), "{kept}");
    Ok(())
}
