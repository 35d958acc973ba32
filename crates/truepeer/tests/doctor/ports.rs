//! The doctor without a backend: what is there on this host, and everything about one port.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Test, Topology, client, ip_here, tests, wait_for};

use super::{Diagnosis, TRUEPEER, doctor, ended, examine, type_in};

const CLIENT: &str = "203.0.113.7:5000";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_host_that_attach_serves_is_healthy,
        a_port_that_nobody_serves_is_attached_by_what_the_doctor_says,
        a_sender_that_is_missing_is_added_without_refusing_anybody,
        a_device_that_is_not_covered_is_covered_by_what_the_doctor_says,
        a_sender_whose_header_comes_late_is_named,
        who_was_refused_lately_is_named,
        the_file_and_its_process_are_examined,
        a_listener_of_truepeer_tells_who_was_refused,
        a_listener_tells_its_own_refusals_alone,
        a_round_trip_through_a_listener_reaches_the_backend_and_alarms_nobody,
        a_round_trip_that_would_be_refused_is_not_made,
        a_round_trip_to_a_dead_backend_says_why,
        a_ban_is_tried_with_a_client_of_the_doctors_own,
        status_names_devices_that_no_attachment_covers,
        a_host_without_truepeer_shows_its_servers,
    ]
}

/// In the test's network namespace and its own mounts.
fn attach(bed: &Bed, words: &str) -> Result<()> {
    Program::new(TRUEPEER).arg("attach").args(words.split_whitespace()).run(bed).map(drop)
}

/// What is typed is the command, without the remark in brackets.
fn mend(ill: &Diagnosis) -> Result<String> {
    let command = ill.mend()?;
    Ok(command.split_once(" (").map_or(command, |(command, _)| command).to_owned())
}

fn is_echoed(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"echo")?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).context("the echo")?;
    ensure!(&answer == b"echo");
    Ok(())
}

fn session(to: &str) -> Result<TcpStream> {
    let mut stream = client::connect(to)?;
    stream.write_all(&client::v2(CLIENT, "192.0.2.1:443")?)?;
    is_echoed(&mut stream)?;
    Ok(stream)
}

fn echo(bed: &Bed) -> Result<Running> {
    Behaviour::Echo.start(bed, &["127.0.0.1:80"])
}

fn a_host_that_attach_serves_is_healthy(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _echo = echo(bed)?;
    attach(bed, "--port 80 --allow 127.0.0.1")?;
    let _open = session("127.0.0.1:80")?;
    for options in ["", "80"] {
        let well = examine(bed, options)?;
        ensure!(well.healthy && !well.text.contains("FAIL"), "{}", well.text);
        ensure!(well.line("a server on port 80/tcp")?.contains("127.0.0.1:80"), "{}", well.text);
        ensure!(
            well.line("headers to port 80/tcp")?.contains("senders 127.0.0.1/32 require; "),
            "{}",
            well.text
        );
        ensure!(
            well.line("senders of port 80/tcp")?.contains(" connections came from them, 0 from others"),
            "{}",
            well.text
        );
        ensure!(well.line("devices by which port 80/tcp")?.contains("lo"), "{}", well.text);
        ensure!(well.line("who is connected to port 80/tcp")?.contains("127.0.0.1"), "{}", well.text);
        let trip = well.line("a connection to 127.0.0.1:80 whose header names 192.0.2.1")?;
        ensure!(trip.ends_with("the server is told 192.0.2.1"), "{trip}");
        ensure!(!well.text.contains("What each way needs"), "{}", well.text);
    }
    Ok(())
}

fn a_port_that_nobody_serves_is_attached_by_what_the_doctor_says(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _echo = echo(bed)?;
    let nobody = examine(bed, "81")?;
    ensure!(
        !nobody.healthy && nobody.line("a server on port 81/tcp")?.starts_with("FAIL"),
        "{}",
        nobody.text
    );
    let mut before = client::connect("127.0.0.1:80")?;
    is_echoed(&mut before)?;
    let ill = examine(bed, "80")?;
    ensure!(!ill.healthy, "{}", ill.text);
    ensure!(ill.line("headers to port 80/tcp")?.starts_with("FAIL"), "{}", ill.text);
    type_in(bed, &mend(&ill)?)?;
    // Nobody is refused by it: neither who is connected, nor who sends no header yet.
    is_echoed(&mut before)?;
    is_echoed(&mut client::connect("127.0.0.1:80")?)?;
    session("127.0.0.1:80")?;
    let well = examine(bed, "80")?;
    ensure!(well.healthy, "{}", well.text);
    Ok(())
}

fn a_sender_that_is_missing_is_added_without_refusing_anybody(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let hosts = Topology::line(&["lb", "server"])?;
    let (lb, server) = (hosts.host("lb"), hosts.host("server"));
    let _echo = Behaviour::Echo
        .start_program(bed, &[server.at(false, 80)], |program| program.in_netns(&server.netns))?;
    let on_server = |words: &str| {
        let script = words.replace("truepeer ", &format!("{TRUEPEER} "));
        Program::new("sh").args(["-e", "-c", &script]).in_netns(&server.netns).run(bed)
    };
    on_server("truepeer attach --port 80 --allow 10.9.9.9")?;
    let listener = server.at(false, 80).to_string();
    let mut stranger = lb.run(|| client::connect(&listener))??;
    is_echoed(&mut stranger)?;
    let ill = ended(&doctor("80").in_netns(&server.netns).start(bed)?)?;
    ensure!(!ill.healthy, "{}", ill.text);
    let missing = ill.line("no connection came from an address that --allow lists, but 1 from others")?;
    ensure!(missing.contains(&format!("--allow {0} --header {0}=optional", lb.v4)), "{missing}");
    on_server(&mend(&ill)?)?;
    is_echoed(&mut stranger)?;
    lb.run(|| session(&listener).map(drop))??;
    lb.run(|| is_echoed(&mut client::connect(&listener)?))??;
    let well = ended(&doctor("80").in_netns(&server.netns).start(bed)?)?;
    ensure!(well.healthy, "{}", well.text);
    Ok(())
}

fn a_device_that_is_not_covered_is_covered_by_what_the_doctor_says(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _echo = echo(bed)?;
    attach(bed, "--port 80 --allow 127.0.0.1 --header-timeout 7s")?;
    ip_here(&[
        "link add later type veth peer name other",
        "link set other up",
        "address add 10.7.0.1/24 dev later",
        "link set later up",
    ])?;
    let ill = examine(bed, "")?;
    if ill.line("devices by which port 80/tcp").is_ok_and(|line| line.starts_with("ok")) {
        return truepeer_testbed::skip("this kernel can't tell which devices are covered (before Linux 6.6)");
    }
    ensure!(ill.line("devices by which port 80/tcp")?.contains("later are refused"), "{}", ill.text);
    ensure!(ill.mend()?.contains("--header-timeout 7s"), "the rules stay: {}", ill.text);
    type_in(bed, &mend(&ill)?)?;
    let well = examine(bed, "")?;
    ensure!(well.healthy && well.line("devices by which port 80/tcp")?.contains("later"), "{}", well.text);
    Ok(())
}

/// As AWS NLB does: nothing comes before the client's first bytes.
fn a_sender_whose_header_comes_late_is_named(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _smtp = Behaviour::Banner.start(bed, &["127.0.0.1:25"])?;
    attach(bed, "--port 25 --allow 127.0.0.1 --header-timeout 1s")?;
    let silent = client::connect("127.0.0.1:25")?;
    wait_for("a refusal", || {
        examine(bed, "25").is_ok_and(|report| report.text.contains("no complete header in time"))
    })?;
    drop(silent);
    let named = client::connect("127.0.0.1:25")?;
    wait_for("another refusal, with what to do", || {
        examine(bed, "25").is_ok_and(|report| {
            report.line("no complete header in time").is_ok_and(|line| {
                line.contains("AWS NLB")
                    && line.contains("SMTP servers speak first")
                    && line.contains("header_placement")
            })
        })
    })?;
    drop(named);
    Ok(())
}

fn who_was_refused_lately_is_named(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _echo = echo(bed)?;
    attach(bed, "--port 80 --allow 127.0.0.0/8")?;
    for _ in 0..3 {
        let mut wrong = client::connect_from("127.0.0.5:0", "127.0.0.1:80")?;
        wrong.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut rest = Vec::new();
        let _ = wrong.read_to_end(&mut rest);
    }
    let report = examine(bed, "80")?;
    let line = report.line("127.0.0.5 to port 80/tcp")?;
    ensure!(
        line.starts_with("note")
            && line.contains("3 refused, the last ")
            && line.contains("(refused_no_header)"),
        "{line}"
    );
    Ok(())
}

const FILE: &str = "[admin]\nlisten = [\"whois:./who.sock\", \"./admin.sock\"]\n[[proxy]]\nlisten = [\"127.0.0.1:8443\"]\nipv4 = \"127.0.0.1:80\"\n\
                    allow = [\"127.0.0.1\"]\nroutes = \"auto\"\n";

fn the_file_and_its_process_are_examined(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    bed.write("truepeer.toml", FILE)?;
    let idle = examine(bed, "-c truepeer.toml")?;
    ensure!(idle.line("the truepeer at")?.contains("type: truepeer serve -c truepeer.toml"), "{}", idle.text);
    let _serve = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    wait_for("a healthy report", || {
        examine(bed, "-c truepeer.toml").is_ok_and(|report| report.healthy && report.text.contains("serving"))
    })
    .with_context(|| examine(bed, "-c truepeer.toml").map(|report| report.text).unwrap_or_default())?;
    let well = examine(bed, "-c truepeer.toml")?;
    ensure!(
        well.line("headers to port 8443/tcp")?.contains("truepeer proxy takes them off"),
        "{}",
        well.text
    );
    ensure!(well.line("127.0.0.1:80 as 192.0.2.1")?.starts_with("ok"), "{}", well.text);
    bed.write("truepeer.toml", FILE.replace("allow =", "alow ="))?;
    let ill = examine(bed, "-c truepeer.toml")?;
    ensure!(!ill.healthy && ill.mend()? == "truepeer check -c truepeer.toml", "{}", ill.text);
    ensure!(ill.line("`alow`: there is no such key here")?.starts_with("FAIL"), "{}", ill.text);
    Ok(())
}

fn a_listener_of_truepeer_tells_who_was_refused(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    bed.write("truepeer.toml", FILE)?;
    let serve = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    serve.wait_for_log("listening on 127.0.0.1:8443")?;
    let mut stranger = client::connect_from("127.0.0.9:0", "127.0.0.1:8443")?;
    let _ = stranger.read(&mut [0]);
    wait_for("the refusal", || {
        examine(bed, "8443 -c truepeer.toml").is_ok_and(|report| {
            report.line("127.0.0.9: ").is_ok_and(|line| line.contains("sender_not_allowed"))
        })
    })
    .with_context(|| examine(bed, "8443 -c truepeer.toml").map(|report| report.text).unwrap_or_default())
}

fn serve(bed: &Bed, file: &str) -> Result<Running> {
    bed.write("truepeer.toml", format!("[log]\nlevel = \"sessions\"\n{file}"))?;
    let serve = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    serve.wait_listening("127.0.0.1:8443")?;
    wait_for("the admin socket", || {
        Program::new(TRUEPEER).args(["status", "-c", "truepeer.toml"]).run(bed).is_ok()
    })?;
    Ok(serve)
}

fn a_listener_tells_its_own_refusals_alone(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let other =
        FILE.replace("listen = [\"127.0.0.1:8443\"]", "listen = [\"127.0.0.1:8443\", \"127.0.0.1:8444\"]");
    let serve = serve(bed, &other)?;
    serve.wait_listening("127.0.0.1:8444")?;
    let mut stranger = client::connect_from("127.0.0.9:0", "127.0.0.1:8443")?;
    let _ = stranger.read(&mut [0]);
    let log = serve.log();
    let line = log.lines().find(|line| line.contains("sender_not_allowed")).context("no line about it")?;
    ensure!(line.contains("listener=127.0.0.1:8443"), "{line}");
    let its = examine(bed, "8443 -c truepeer.toml")?;
    let told = "the sender is not on the allow-list; if it is your load balancer, add it to `allow` \
        (sender_not_allowed)";
    ensure!(its.line("127.0.0.9: 1 in the last minutes, ")?.ends_with(told), "{}", its.text);
    ensure!(
        its.line("the listener 127.0.0.1:8443: 1 refused since the start: ")?.ends_with(told),
        "{}",
        its.text
    );
    let others = examine(bed, "8444 -c truepeer.toml")?;
    ensure!(!others.text.contains("127.0.0.9"), "{}", others.text);
    Ok(())
}

fn a_round_trip_through_a_listener_reaches_the_backend_and_alarms_nobody(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    for (rule, told, log_has) in [
        (
            "",
            "whose header names 192.0.2.1: it reached the backend 127.0.0.1:80, which is told 192.0.2.1",
            "truepeer-doctor",
        ),
        ("header = [\"optional\"]\n", "which is told 192.0.2.1", "truepeer-doctor"),
        ("header = [\"forbid\"]\n", "it reached the backend 127.0.0.1:80, which is told 127.0.0.1", "close="),
    ] {
        let serve = serve(bed, &FILE.replace("routes =", &format!("{rule}routes =")))?;
        let report = examine(bed, "8443 -c truepeer.toml")?;
        let trip = report.line("a connection to 127.0.0.1:8443")?;
        ensure!(report.healthy && trip.starts_with("ok") && trip.contains(told), "{rule}{}", report.text);
        // It is told apart by its client and its id, and nothing warns of it.
        bed.wait_for("the session's line", || serve.log().contains(log_has))?;
        let log = serve.log();
        ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
        let status = Program::new(TRUEPEER).args(["status", "--json", "-c", "truepeer.toml"]).run(bed)?;
        ensure!(status.contains("\"refusals\":{}"), "{status}");
        serve.stop()?;
    }
    Ok(())
}

fn a_round_trip_that_would_be_refused_is_not_made(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    for (from, to, code) in [
        ("allow = [\"127.0.0.1\"]", "allow = [\"10.9.9.9\"]", "(sender_not_allowed)"),
        ("routes =", "deny-clients = [\"192.0.2.0/24\"]\nroutes =", "(client_denied)"),
    ] {
        let serve = serve(bed, &FILE.replace(from, to))?;
        let report = examine(bed, "8443 -c truepeer.toml")?;
        let trip = report.line("a connection to 127.0.0.1:8443")?;
        ensure!(
            trip.starts_with("skip") && trip.contains("so none was made") && trip.contains(code),
            "{trip}"
        );
        ensure!(!serve.log().contains("WARN"), "{}", serve.log());
        serve.stop()?;
    }
    Ok(())
}

fn a_ban_is_tried_with_a_client_of_the_doctors_own(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    let _serve = serve(bed, FILE)?;
    let report = examine(bed, "8443 --try -c truepeer.toml")?;
    let ban = report.line("a ban of 192.0.2.1, whom the header names")?;
    let refused = ban.contains("its next connection was refused") && ban.contains("(client_banned)");
    ensure!(report.healthy && ban.starts_with("ok") && refused, "{}", report.text);
    let bans = Program::new(TRUEPEER).args(["bans", "--json", "-c", "truepeer.toml"]).run(bed)?;
    ensure!(bans.trim() == "[]", "{bans}");
    let _open = session("127.0.0.1:8443")?;
    Ok(())
}

fn a_round_trip_to_a_dead_backend_says_why(bed: &Bed) -> Result<()> {
    let _serve = serve(bed, FILE)?;
    let report = examine(bed, "8443 -c truepeer.toml")?;
    let trip = report.line("a connection to 127.0.0.1:8443")?;
    ensure!(!report.healthy && trip.starts_with("FAIL"), "{}", report.text);
    ensure!(
        trip.contains("the backend could not be connected to") && trip.contains("(connect_failed)"),
        "{trip}"
    );
    Ok(())
}

fn status_names_devices_that_no_attachment_covers(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let _echo = echo(bed)?;
    let attach = "[[attach]]\nport = [\"80\"]\nallow = [\"127.0.0.1\"]\ndev = [\"lo\"]\n";
    let _serve = serve(bed, &format!("{FILE}{attach}"))?;
    let status =
        |more: &[&str]| Program::new(TRUEPEER).args(["status", "-c", "truepeer.toml"]).args(more).run(bed);
    bed.wait_for("the attachment", || status(&[]).is_ok_and(|said| said.contains("attach 80/tcp")))?;
    ensure!(!status(&[])?.contains("not covered"), "{}", status(&[])?);
    ip_here(&[
        "link add later type veth peer name other",
        "link set other up",
        "address add 10.7.0.1/24 dev later",
        "link set later up",
    ])?;
    let said = status(&[])?;
    if examine(bed, "80").is_ok_and(|report| report.text.contains("devices by which port 80/tcp\n")) {
        return truepeer_testbed::skip("this kernel can't tell which devices are covered (before Linux 6.6)");
    }
    // The other end has an address as well: fe80::….
    let line = said.lines().find(|line| line.starts_with("attach: not covered: ")).context(said.clone())?;
    let refused = "; connections that come in there are refused (refused_unjudged)";
    ensure!(line.contains("later") && line.ends_with(refused), "{said}");
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])?)?;
    let uncovered = json["attachments"][0]["uncovered"].as_array().context(json.to_string())?;
    ensure!(uncovered.iter().any(|device| device == "later"), "{json}");
    Ok(())
}

fn a_host_without_truepeer_shows_its_servers(bed: &Bed) -> Result<()> {
    let _echo = Behaviour::Echo.start(bed, &["0.0.0.0:8080"])?;
    let report = examine(bed, "-c /nonexistent/truepeer.toml")?;
    ensure!(
        !report.healthy && report.line("/nonexistent/truepeer.toml")?.starts_with("FAIL"),
        "{}",
        report.text
    );
    let report = examine(bed, "")?;
    ensure!(report.healthy, "{}", report.text);
    ensure!(report.line("port 8080")?.ends_with("type: truepeer doctor 8080"), "{}", report.text);
    Ok(())
}
