//! Several entries in one process, and what a reload changes in them.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::ensure;
use rustix::process::Signal;
use truepeer_testbed::datagrams::{self, Backend};
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, client, tests};

use crate::operation::rules as rule_exists;
use crate::stand::{BACKEND_V4, BACKEND_V6, CLIENT_V4, DOOR_V4, TRUEPEER, header_of};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        one_process_serves_tcp_udp_and_https,
        listeners_of_both_families_share_a_port,
        the_wildcard_of_ipv6_takes_ipv4_whatever_the_kernel_does_by_default,
        a_reload_opens_and_closes_listeners_and_sessions_go_on,
        a_reload_that_fails_leaves_everything_as_it_was,
        a_header_never_leads_to_a_listener_that_a_reload_has_opened,
        a_reload_adds_flows_to_a_process_that_had_none,
        a_reload_changes_the_log_level,
        a_reload_says_what_waits_for_the_next_start,
        changed_files_are_a_reason_to_reload,
        a_sigterm_drains_all_entries,
    ]
}

pub(crate) const GATE: &str = "127.0.0.1:5300";
pub(crate) const DNS: &str = "127.0.0.1:53";
const OTHER_DOOR: &str = "127.0.0.1:8444";

pub(crate) const TCP: &str = r#"
[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "127.0.0.1:8000"
ipv6 = "[::1]:8000"
routes = "auto"
"#;

pub(crate) const UDP: &str = r#"
[[proxy]]
protocol = "udp"
listen = ["127.0.0.1:5300"]
ipv4 = "127.0.0.1:53"
routes = "auto"
"#;

const OTHER_TCP: &str = r#"
[[proxy]]
listen = ["127.0.0.1:8444"]
ipv4 = "127.0.0.1:8000"
send-proxy = "v1"
"#;

pub(crate) const TEXT_LOG: &str = "[log]\nlevel = \"info\"\nformat = \"text\"\n";

fn write(bed: &Bed, tables: &[&str]) -> anyhow::Result<()> {
    bed.write("truepeer.toml", tables.concat())?;
    Ok(())
}

pub(crate) fn serve(bed: &Bed, tables: &[&str]) -> anyhow::Result<Running> {
    write(bed, tables)?;
    Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)
}

fn reload(truepeer: &Running, says: &str) -> anyhow::Result<()> {
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log(says)
}

pub(crate) fn session_at(listener: &str, client: &str) -> anyhow::Result<TcpStream> {
    let mut stream = client::connect(listener)?;
    stream.write_all(&header_of(client.parse()?)?)?;
    goes_on(&mut stream)?;
    Ok(stream)
}

pub(crate) fn goes_on(session: &mut TcpStream) -> anyhow::Result<()> {
    session.write_all(b"x")?;
    session.read_exact(&mut [0])?;
    Ok(())
}

/// One datagram as this client, there and back.
pub(crate) fn ask_by_udp(client: &str, payload: &[u8]) -> anyhow::Result<()> {
    let sender = datagrams::sender_towards(GATE)?;
    let answer = datagrams::ask(&sender, &[&datagrams::v2(client, "198.51.100.1:53")?, payload])?;
    ensure!(answer == payload, "{answer:?}");
    Ok(())
}

fn one_process_serves_tcp_udp_and_https(bed: &Bed) -> anyhow::Result<()> {
    let echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let dns = Backend::echo(&[DNS])?;
    let certificate = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
    bed.write("site.pem", certificate.cert.pem() + &certificate.signing_key.serialize_pem())?;
    let https = "[[https]]\nlisten = [\"127.0.0.1:8445\"]\ntls-cert = [\"site.pem\"]\norigin = \"http://127.0.0.1:8001\"\n";
    let truepeer = serve(bed, &[TEXT_LOG, TCP, UDP, https])?;
    truepeer.wait_listening("127.0.0.1:8445")?;
    truepeer.wait_for_log(&format!("listening on {GATE}"))?;
    session_at(DOOR_V4, CLIENT_V4)?;
    ensure!(echo.log().contains(CLIENT_V4), "{}", echo.log());
    ask_by_udp("203.0.113.7:4000", b"question")?;
    dns.saw_last("203.0.113.7:4000", b"question")?;
    let curl = ["-sk", "-o", "/dev/null", "-w", "%{http_code}", "https://127.0.0.1:8445/"];
    let status = Program::new("curl").args(curl).run(bed)?;
    ensure!(status == "502", "nothing listens at the origin: {status}");
    Ok(())
}

/// `check` and `serve` agree: the wildcard of IPv6 leaves IPv4 to the other listener, as in NGINX and
/// HAProxy.
fn listeners_of_both_families_share_a_port(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    let certificate = rcgen::generate_simple_self_signed(["site.test".to_owned()])?;
    bed.write("site.pem", certificate.cert.pem() + &certificate.signing_key.serialize_pem())?;
    let https = |listen: &str| {
        format!(
            "[[https]]\nlisten = [{listen}]\ntls-cert = [\"site.pem\"]\norigin = \"http://127.0.0.1:8001\"\n"
        )
    };
    let tcp = |listen: &str| TCP.replace("\"127.0.0.1:8443\"", listen);
    let udp = |listen: &str| UDP.replace("\"127.0.0.1:5300\"", listen);
    let both = |port: &str| format!("\"0.0.0.0:{port}\", \"[::]:{port}\"");
    let reversed = |port: &str| format!("\"[::]:{port}\", \"127.0.0.1:{port}\"");
    let all = [TEXT_LOG, &tcp(&both("8443")), &udp(&reversed("5300")), &https(&reversed("8445"))];
    let truepeer = serve(bed, &all)?;
    Program::new(TRUEPEER).args(["check", "-c", "truepeer.toml"]).run(bed)?;
    let serves = |listeners: &[&str]| -> anyhow::Result<()> {
        for listener in listeners {
            truepeer.wait_listening(listener)?;
            session_at(listener, CLIENT_V4)?;
        }
        Ok(())
    };
    serves(&[DOOR_V4, "[::1]:8443"])?;
    truepeer.wait_for_log("listening on [::]:5300")?;
    truepeer.wait_for_log("listening on 127.0.0.1:5300")?;
    ask_by_udp("203.0.113.7:4000", b"question")?;
    for listener in ["127.0.0.1:8445", "[::1]:8445"] {
        truepeer.wait_listening(listener)?;
        let url = format!("https://{listener}/");
        let status =
            Program::new("curl").args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", &url]).run(bed)?;
        ensure!(status == "502", "nothing listens at the origin: {status}");
    }
    // One that takes both families, and back.
    write(bed, &[TEXT_LOG, &tcp("\"[::]:8443\"")])?;
    reload(&truepeer, "reloaded")?;
    serves(&[DOOR_V4, "[::1]:8443"])?;
    write(bed, &[TEXT_LOG, &tcp(&both("8443"))])?;
    truepeer.signal(Signal::HUP)?;
    bed.wait_for("a second reload", || truepeer.log().matches("listening on 0.0.0.0:8443").count() == 2)?;
    serves(&[DOOR_V4, "[::1]:8443"])
}

/// `:PORT` is every address, as the options say.
fn the_wildcard_of_ipv6_takes_ipv4_whatever_the_kernel_does_by_default(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let _dns = Backend::echo(&[DNS])?;
    std::fs::write("/proc/sys/net/ipv6/bindv6only", "1")?;
    let tcp = TCP.replace("127.0.0.1:8443", ":8443");
    let udp = UDP.replace("127.0.0.1:5300", ":5300");
    let truepeer = serve(bed, &[TEXT_LOG, &tcp, &udp])?;
    truepeer.wait_for_log("listening on [::]:5300")?;
    for listener in [DOOR_V4, "[::1]:8443"] {
        truepeer.wait_listening(listener)?;
        session_at(listener, CLIENT_V4)?;
    }
    ask_by_udp("203.0.113.7:4000", b"question")
}

fn a_reload_opens_and_closes_listeners_and_sessions_go_on(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP])?;
    truepeer.wait_listening(DOOR_V4)?;
    let mut first = session_at(DOOR_V4, CLIENT_V4)?;
    write(bed, &[TEXT_LOG, TCP, OTHER_TCP])?;
    reload(&truepeer, "reloaded: listener 127.0.0.1:8444 was opened")?;
    goes_on(&mut first)?;
    let mut second = session_at(OTHER_DOOR, "203.0.113.8:5000")?;
    write(bed, &[TEXT_LOG, OTHER_TCP])?;
    reload(&truepeer, "reloaded: listener 127.0.0.1:8443 was closed; its open sessions go on")?;
    ensure!(client::connect(DOOR_V4).is_err(), "a closed listener accepts");
    goes_on(&mut first)?;
    goes_on(&mut second)?;
    ensure!(rule_exists(bed)?, "the open session needs its rules");
    session_at(OTHER_DOOR, "203.0.113.9:5000").map(drop)
}

fn a_reload_that_fails_leaves_everything_as_it_was(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP])?;
    truepeer.wait_listening(DOOR_V4)?;
    let mut open = session_at(DOOR_V4, CLIENT_V4)?;
    write(bed, &[TEXT_LOG, TCP, "[[proxy]]\nlisten = [\"127.0.0.1:99999\"]\n"])?;
    reload(&truepeer, "not reloaded, everything stays as it was: truepeer.toml:")?;
    // The address of the last entry is taken: the one before it is closed again.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8446")?;
    let taken = OTHER_TCP.replace("8444", "8446");
    write(bed, &[TEXT_LOG, TCP, OTHER_TCP, &taken])?;
    reload(&truepeer, "everything stays as it was: can't listen on 127.0.0.1:8446")?;
    ensure!(client::connect(OTHER_DOOR).is_err(), "a listener of a plan that failed is open");
    goes_on(&mut open)?;
    session_at(DOOR_V4, "203.0.113.9:5000").map(drop)
}

fn a_header_never_leads_to_a_listener_that_a_reload_has_opened(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let chosen = format!("{TCP}dynamic-destination = true\ndynamic-allow = [\"loopback\"]\n");
    let truepeer = serve(bed, &[TEXT_LOG, &chosen])?;
    truepeer.wait_listening(DOOR_V4)?;
    write(bed, &[TEXT_LOG, &chosen, OTHER_TCP])?;
    reload(&truepeer, "reloaded: listener 127.0.0.1:8444 was opened")?;
    session_at(OTHER_DOOR, CLIENT_V4)?;
    let mut stream = client::connect(DOOR_V4)?;
    stream.write_all(&client::v2(CLIENT_V4, OTHER_DOOR)?)?;
    truepeer.wait_for_log("destination_loops")
}

/// The limits follow the listeners: a process without UDP reserves no descriptors for flows.
fn a_reload_adds_flows_to_a_process_that_had_none(bed: &Bed) -> anyhow::Result<()> {
    let _dns = Backend::echo(&[DNS])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP])?;
    truepeer.wait_listening(DOOR_V4)?;
    write(bed, &[TEXT_LOG, TCP, UDP])?;
    reload(&truepeer, "reloaded: listener 127.0.0.1:5300 (UDP) was opened")?;
    for port in 4000..4020 {
        ask_by_udp(&format!("203.0.113.7:{port}"), b"question")?;
    }
    truepeer.signal(Signal::USR1)?;
    truepeer.wait_for_log("flows_evicted=0")
}

fn a_reload_changes_the_log_level(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP])?;
    truepeer.wait_listening(DOOR_V4)?;
    drop(session_at(DOOR_V4, CLIENT_V4)?);
    // Its line is written before it is counted as ended.
    truepeer.wait_state("the end of the first session", || {
        truepeer.signal(Signal::USR1).is_ok() && truepeer.log().contains(" sessions=0 ")
    })?;
    write(bed, &[&TEXT_LOG.replace("info", "sessions"), TCP])?;
    reload(&truepeer, "reloaded: the log level has changed")?;
    drop(session_at(DOOR_V4, "203.0.113.9:5000")?);
    truepeer.wait_for_log("203.0.113.9:5000")?;
    ensure!(!truepeer.log().contains(CLIENT_V4), "{}", truepeer.log());
    Ok(())
}

fn a_reload_says_what_waits_for_the_next_start(bed: &Bed) -> anyhow::Result<()> {
    let truepeer = serve(bed, &["workers = 1\nconfine = \"off\"\n", TEXT_LOG, TCP])?;
    truepeer.wait_listening(DOOR_V4)?;
    write(
        bed,
        &["workers = 2\n", "[admin]\nlisten = [\"./admin.sock\"]\n", &TEXT_LOG.replace("text", "json"), TCP],
    )?;
    reload(&truepeer, "reloaded: workers: the change takes effect when truepeer is started again")?;
    for what in ["confine and user", "the log format", "the admin sockets"] {
        truepeer.wait_for_log(&format!("reloaded: {what}: the change takes effect when"))?;
    }
    Ok(())
}

fn a_sigterm_drains_all_entries(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let truepeer = serve(bed, &[TEXT_LOG, TCP, OTHER_TCP])?;
    truepeer.wait_listening(OTHER_DOOR)?;
    truepeer.wait_listening(DOOR_V4)?;
    let mut first = session_at(DOOR_V4, CLIENT_V4)?;
    let mut second = session_at(OTHER_DOOR, "203.0.113.8:5000")?;
    truepeer.signal(Signal::TERM)?;
    // Without the number: a worker that is just trying accept() holds a place, too.
    truepeer.wait_for_log("stopping: nothing new is taken, ")?;
    for listener in [DOOR_V4, OTHER_DOOR] {
        truepeer.wait_state("the listeners to close", || client::connect(listener).is_err())?;
    }
    goes_on(&mut first)?;
    goes_on(&mut second)?;
    drop((first, second));
    ensure!(truepeer.wait_end()?.code() == Some(0) && !rule_exists(bed)?, "{}", truepeer.log());
    Ok(())
}

/// Lists and the file itself; written in two pieces, renamed into place, with an error, and removed.
fn changed_files_are_a_reason_to_reload(bed: &Bed) -> anyhow::Result<()> {
    const WATCHED: &str = "reload-on-change = true\n";
    let _echo = Behaviour::Echo.start(bed, &[BACKEND_V4, BACKEND_V6])?;
    let listed = TCP.replace("routes", "deny-clients = [\"./deny\"]\nroutes");
    bed.write("deny", "198.51.100.1\n")?;
    let truepeer = serve(bed, &[WATCHED, TEXT_LOG, &listed])?;
    truepeer.wait_listening(DOOR_V4)?;
    let mut open = session_at(DOOR_V4, CLIENT_V4)?;
    bed.write("new", "203.0.113.7\n")?;
    std::fs::rename(bed.dir().join("new"), bed.dir().join("deny"))?;
    truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:8443 have new lists")?;
    ensure!(session_at(DOOR_V4, "203.0.113.7:5001").is_err(), "a refused client is served");
    goes_on(&mut open)?;

    bed.write("deny", "nonsense")?;
    truepeer.wait_for_log("not reloaded, everything stays as it was: ")?;
    write(bed, &[WATCHED, TEXT_LOG, &listed, OTHER_TCP])?;
    truepeer.wait_state("the second failure", || truepeer.log().matches("not reloaded").count() == 2)?;
    std::fs::remove_file(bed.dir().join("deny"))?;
    truepeer.wait_state("the third failure", || truepeer.log().matches("not reloaded").count() == 3)?;
    bed.write("deny", "198.51.100.1\n")?;
    truepeer.wait_for_log("reloaded: listener 127.0.0.1:8444 was opened")?;
    goes_on(&mut open)?;
    session_at(OTHER_DOOR, "203.0.113.7:5002")?;
    ensure!(truepeer.log().matches("not reloaded").count() == 3, "each reason is said once");
    Ok(())
}
