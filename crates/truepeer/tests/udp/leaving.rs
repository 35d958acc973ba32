//! Flows that leave user space. truepeer is stopped (SIGSTOP) while their datagrams go on: what arrives then,
//! the kernel has sent on.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use truepeer_testbed::{Bed, Program, Running, Test, Topology, wait_for};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, TRUEPEER, ask, counted, hears_nothing, proxy,
    receive, send, sender_towards, socket, spp, start, start_proxy, v2, v2_with_tlvs, wait_counted,
};

pub(crate) const DIALECTS: [&str; 4] = ["every", "first", "standalone", "spp"];
const SENDERS: &str = "--allow 10.77.0.0/16 --allow fd77::/16";
/// A first round trip shows the kernel the way, and the second one finds it.
const ROUND_TRIPS: usize = 3;

pub(crate) fn tests() -> Vec<Test> {
    let mut all = truepeer_testbed::tests![
        a_flow_of_the_kernel_ends_by_silence_and_its_figures_are_whole,
        the_operator_sees_a_flow_of_the_kernel_and_ends_it,
        a_reload_judges_flows_of_the_kernel_too,
        after_kill_9_nothing_is_left_and_the_next_truepeer_serves,
        answers_follow_the_port_that_the_sender_used_last,
        a_device_that_comes_or_goes_brings_flows_back,
        flows_that_stay_are_counted_by_their_reasons,
        an_upgrade_takes_flows_of_the_kernel_over,
    ];
    for dialect in DIALECTS {
        for (place, is_far) in [("another_host", true), ("this_host", false)] {
            let name = format!("the_kernel_sends_on_what_is_for_a_backend_on_{place}_in_{dialect}");
            all.push(Test::new(name, move |bed| everywhere(bed, dialect, is_far)));
        }
        let name = format!("from_a_sender_to_a_backend_of_this_host_in_{dialect}");
        all.push(Test::new(name, move |bed| on_loopback(bed, dialect)));
    }
    let rule = "a_rule_that_counts_keeps_flows_and_one_that_comes_later_brings_them_back";
    all.push(Test::new(rule, a_rule_that_counts).needs_program("nft"));
    all
}

/// A sender's flow through truepeer.
pub(crate) struct Talk {
    pub(crate) socket: UdpSocket,
    dialect: &'static str,
    pub(crate) header: Vec<u8>,
    client: String,
    said: usize,
}

impl Talk {
    pub(crate) fn begin(dialect: &'static str, to: &str, client: &str, destination: &str) -> Result<Talk> {
        let socket = socket(if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
        socket.connect(to)?;
        let header = if dialect == "spp" { spp(client, destination)? } else { v2(client, destination)? };
        if dialect == "standalone" {
            send(&socket, &[&header])?;
        }
        Ok(Talk { socket, dialect, header, client: client.to_owned(), said: 0 })
    }

    fn has_header(&self) -> bool {
        matches!(self.dialect, "every" | "spp") || (self.dialect == "first" && self.said == 0)
    }

    pub(crate) fn say(&mut self, payload: &[u8]) -> Result<()> {
        let header = if self.has_header() { &self.header[..] } else { &[] };
        send(&self.socket, &[header, payload])?;
        self.said += 1;
        Ok(())
    }

    /// The backend answers by who it saw, and what.
    pub(crate) fn ask(&mut self, payload: &[u8]) -> Result<()> {
        self.say(payload)?;
        let answer = receive(&self.socket)?;
        let header = if self.dialect == "spp" { &self.header[..] } else { &[] };
        let expected = [header, self.client.as_bytes(), b" ", payload].concat();
        ensure!(answer == expected, "{} bytes: {:?}", answer.len(), String::from_utf8_lossy(&answer));
        Ok(())
    }

    /// Leaves user space.
    pub(crate) fn leave(&mut self) -> Result<()> {
        (0..ROUND_TRIPS).try_for_each(|n| self.ask(format!("round trip {n}").as_bytes()))
    }
}

/// Payloads of many lengths that the path takes with any header, each different.
fn payloads() -> impl Iterator<Item = Vec<u8>> {
    [0, 1, 2, 27, 28, 29, 511, 512, 513, 1000, 1023, 1199, 1200, 1350].into_iter().map(|length: usize| {
        (0..length).map(|at| u8::try_from((at * 7 + length) % 251).unwrap_or_default()).collect()
    })
}

/// Runs `work` while truepeer does nothing.
pub(crate) fn while_stopped<T>(truepeer: &Running, work: impl FnOnce() -> Result<T>) -> Result<T> {
    while_process_stopped(Pid::from_raw(truepeer.pid()).context("it runs")?, work)
}

fn while_process_stopped<T>(process: Pid, work: impl FnOnce() -> Result<T>) -> Result<T> {
    kill_process(process, Signal::STOP)?;
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    wait_for("truepeer to stand still", || {
        std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().all(is_stopped))
    })?;
    let outcome = work();
    kill_process(process, Signal::CONT)?;
    outcome
}

pub(crate) fn at_once(options: &str) -> String {
    format!("--splice-after 0 {options}")
}

fn everywhere(bed: &Bed, dialect: &'static str, is_far: bool) -> Result<()> {
    let hosts = Topology::line(&["lb", "proxy", "backend"])?;
    let (lb, host, far) = (hosts.host("lb"), hosts.host("proxy"), hosts.host("backend"));
    let place = if is_far { far } else { host };
    let backends = [false, true].map(|v6| place.at(v6, 53).to_string());
    let backend = place.run(|| Backend::who(&backends))??;
    let options = at_once(&format!("{SENDERS} --routes auto --udp-dialect {dialect}"));
    let truepeer = proxy(&options).ipv4(&backends[0]).ipv6(&backends[1]);
    let truepeer = truepeer.with(|program| program.in_netns(&host.netns));
    let listeners = [false, true].map(|v6| host.at(v6, 5300).to_string());
    let truepeer = start(bed, truepeer, &listeners.each_ref().map(String::as_str))?;
    lb.run(|| -> Result<()> {
        for family in [0, 1] {
            let (to, destination) = (&listeners[family], DESTINATIONS[family]);
            let mut talk = Talk::begin(dialect, to, CLIENTS[family], destination)?;
            talk.leave()?;
            while_stopped(&truepeer, || payloads().try_for_each(|payload| talk.ask(&payload)))?;
            talk.ask(b"at last")?;
        }
        Ok(())
    })??;
    let both = ROUND_TRIPS + payloads().count() + 1;
    let seen = backend.seen();
    ensure!(seen.len() == 2 * both, "{} datagrams", seen.len());
    ensure!(seen.iter().all(|one| CLIENTS.contains(&one.from.to_string().as_str())));
    let both = u64::try_from(2 * both)?;
    wait_counted(&truepeer, "datagrams_up", both)?;
    wait_counted(&truepeer, "datagrams_down", both)?;
    ensure!(counted(&truepeer, "sessions_spliced")? == 2 && counted(&truepeer, "flows_opened")? == 2);
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 0);
    Ok(())
}

fn on_loopback(bed: &Bed, dialect: &'static str) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, &at_once(&format!("--udp-dialect {dialect}")))?;
    for family in [0, 1] {
        let mut talk = Talk::begin(dialect, LISTENERS[family], CLIENTS[family], DESTINATIONS[family])?;
        talk.leave()?;
        while_stopped(&truepeer, || {
            payloads().chain([vec![7; 15_000]]).try_for_each(|payload| talk.ask(&payload))
        })?;
    }
    ensure!(counted(&truepeer, "flows_opened")? == 2);
    Ok(())
}

fn a_flow_of_the_kernel_ends_by_silence_and_its_figures_are_whole(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    for dialect in ["every", "first"] {
        let options = at_once(&format!("--udp-dialect {dialect} --close-after 2s --log-format text -v 2"));
        let truepeer = start_proxy(bed, &options)?;
        let mut talk = Talk::begin(dialect, LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
        talk.leave()?;
        for _ in 0..8 {
            // Longer together than the flow may be silent.
            sleep(Duration::from_millis(500));
            talk.ask(b"0123456789")?;
        }
        ensure!(counted(&truepeer, "flows_opened")? == 1, "{}", truepeer.log());
        wait_counted(&truepeer, "flows_expired", 1)?;
        for (name, value) in [("datagrams_up", 11), ("datagrams_down", 11), ("bytes_up", 3 * 12 + 8 * 10)] {
            ensure!(counted(&truepeer, name)? == value, "{name}: {}", counted(&truepeer, name)?);
        }
        truepeer.stop()?;
    }
    Ok(())
}

fn the_operator_sees_a_flow_of_the_kernel_and_ends_it(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let truepeer = start_proxy(bed, &at_once(&format!("--admin {admin}")))?;
    let sessions = |arguments: &[&str]| {
        Program::new(TRUEPEER).arg("sessions").args(arguments).args(["--admin", &admin]).run(bed)
    };
    let mut talk = Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    (0..10).try_for_each(|_| talk.ask(&[b'x'; 100]))?;
    let listed = sessions(&["--json"])?;
    ensure!(listed.contains("\"stage\":\"spliced\"") && listed.contains("\"bytes_up\":1036"), "{listed}");
    sessions(&["--client", "192.0.2.7", "--kill"])?;
    wait_counted(&truepeer, "flows_ended_by_operator", 1)?;
    ensure!(counted(&truepeer, "bytes_up")? == 1036);
    talk.ask(b"a flow of its own")?;
    wait_counted(&truepeer, "flows_opened", 2)
}

fn a_reload_judges_flows_of_the_kernel_too(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    bed.write("allow", "127.0.0.0/8\n")?;
    let truepeer = start_proxy(bed, &at_once("--allow ./allow"))?;
    let mut talk = Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    bed.write("allow", "192.0.2.1\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:5300 (UDP) have new lists")?;
    talk.say(b"refused")?;
    hears_nothing(&talk.socket)?;
    wait_counted(&truepeer, "datagrams_refused", 1)?;
    bed.write("allow", "127.0.0.0/8\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_state("the second reload", || {
        truepeer.log().matches("127.0.0.1:5300 (UDP) have new lists").count() == 2
    })?;
    talk.leave()?;
    while_stopped(&truepeer, || talk.ask(b"in the kernel again"))
}

fn after_kill_9_nothing_is_left_and_the_next_truepeer_serves(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, &at_once(""))?;
    let mut talk = Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    truepeer.signal(Signal::KILL)?;
    truepeer.wait_end()?;
    bed.wait_for("the programs to go", || programs_on_loopback().is_ok_and(|count| count == 0))?;
    // The kernel says that nobody is there.
    let _ = talk.say(b"to nobody").and_then(|()| receive(&talk.socket));
    let truepeer = start_proxy(bed, &at_once(""))?;
    talk.leave()?;
    while_stopped(&truepeer, || talk.ask(b"in the kernel again"))?;
    ensure!(programs_on_loopback()? == 2);
    truepeer.stop()?;
    ensure!(programs_on_loopback()? == 0);
    Ok(())
}

/// At tc, in both directions.
fn programs_on_loopback() -> Result<usize> {
    use aya::programs::{SchedClassifier, TcAttachType};
    let mut count = 0;
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        count += SchedClassifier::query_tcx("lo", direction)?.1.len();
    }
    Ok(count)
}

fn answers_follow_the_port_that_the_sender_used_last(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, &at_once(""))?;
    let mut talks = Vec::new();
    for _ in 0..3 {
        talks.push(Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?);
    }
    talks[0].leave()?;
    while_stopped(&truepeer, || {
        for round in 0..9 {
            talks[round % 3].ask(format!("round {round}").as_bytes())?;
        }
        Ok(())
    })?;
    ensure!(counted(&truepeer, "flows_opened")? == 1);
    // With TLVs it is user space's, and so is the way back for this answer.
    let header = v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, b"x")])?;
    let other = sender_towards(LISTENERS[0])?;
    ensure!(ask(&other, &[&header, b"by hand"])? == format!("{} by hand", CLIENTS[0]).as_bytes());
    while_stopped(&truepeer, || talks[1].ask(b"and back"))
}

fn a_device_that_comes_or_goes_brings_flows_back(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    truepeer_testbed::ip_here(&["link add one type veth peer name two", "addr add 10.9.9.9/24 dev one"])?;
    let truepeer = start_proxy(bed, &at_once(""))?;
    let mut talk = Talk::begin("first", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.dialect = "every";
    talk.leave()?;
    truepeer_testbed::ip_here(&["addr del 10.9.9.9/24 dev one", "link del one"])?;
    for round in 0..20 {
        sleep(Duration::from_millis(50));
        talk.ask(format!("round {round}").as_bytes())?;
    }
    while_stopped(&truepeer, || talk.ask(b"in the kernel again"))
}

fn flows_that_stay_are_counted_by_their_reasons(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let with_tlvs = v2_with_tlvs(CLIENTS[0], DESTINATIONS[0], &[(4, b"x")])?;
    let plain = v2(CLIENTS[0], DESTINATIONS[0])?;
    let rows: [(&str, &[u8], &str); 4] = [
        ("", &with_tlvs, "header"),
        ("--mark 7", &plain, "mark"),
        ("--send-proxy v2", &plain, "send_proxy"),
        ("--splice off", &plain, ""),
    ];
    for (options, header, reason) in rows {
        let truepeer = start_proxy(bed, &at_once(&format!("--admin {admin} {options}")))?;
        let sender = sender_towards(LISTENERS[0])?;
        (0..3).try_for_each(|_| ask(&sender, &[header, b"?"]).map(drop))?;
        let stayed = counted(&truepeer, "sessions_not_spliced")?;
        ensure!((stayed, counted(&truepeer, "sessions_spliced")?) == (u64::from(!reason.is_empty()), 0));
        let status = Program::new(TRUEPEER).args(["status", "--json", "--admin", &admin]).run(bed)?;
        ensure!(reason.is_empty() || status.contains(&format!("\"{reason}\":1")), "{options}: {status}");
        truepeer.stop()?;
    }
    Ok(())
}

fn an_upgrade_takes_flows_of_the_kernel_over(bed: &Bed) -> Result<()> {
    let listener = LISTENERS[0];
    let backend = Backend::who(&BACKENDS)?;
    let text = format!(
        "drain-timeout = \"20s\"\n[admin]\nlisten = [\"./admin.sock\"]\n[[proxy]]\nprotocol = \"udp\"\n\
         listen = [\"{listener}\"]\nipv4 = \"{}\"\nroutes = \"auto\"\nudp-dialect = \"first\"\n\
         splice-after = \"0\"\n",
        BACKENDS[0]
    );
    bed.write("truepeer.toml", text)?;
    let truepeer = |command: &str| Program::new(TRUEPEER).args([command, "-c", "truepeer.toml"]);
    let running = truepeer("serve").start(bed)?;
    running.wait_for_log(&format!("listening on {listener}"))?;
    let mut talk = Talk::begin("first", listener, CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    let mut process = None;
    for round in 1..4 {
        let is_over = AtomicBool::new(false);
        let new = std::thread::scope(|scope| -> Result<Pid> {
            let asking = scope.spawn(|| -> Result<()> {
                while !is_over.load(Ordering::Relaxed) {
                    talk.ask(b"0123456789")?;
                }
                Ok(())
            });
            let said = truepeer("upgrade").run(bed);
            is_over.store(true, Ordering::Relaxed);
            asking.join().map_err(|_| anyhow::anyhow!("a panic"))??;
            let said = said?;
            let new = said.split(' ').nth(1).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
            new.context(said)
        })?;
        let go_on = running.log().matches("1 of 1 flows go on").count();
        ensure!(go_on == round, "{}", running.log());
        // On a busy machine none may have passed the new process yet.
        for _ in 0..8 {
            talk.ask(b"0123456789")?;
        }
        while_process_stopped(new, || talk.ask(b"0123456789"))?;
        process = Some(new);
    }
    let said = talk.said;
    ensure!(backend.seen().len() == said, "{} of {said}", backend.seen().len());
    let listed = Program::new(TRUEPEER).args(["sessions", "--json", "--admin", "./admin.sock"]).run(bed)?;
    let bytes = ROUND_TRIPS * 12 + (said - ROUND_TRIPS) * 10;
    ensure!(listed.contains(&format!("\"bytes_up\":{bytes}")), "{said} datagrams, {listed}");
    kill_process(process.context("a new process")?, Signal::TERM)?;
    Ok(())
}

fn a_rule_that_counts(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let nft = |rule: &str| Program::new("nft").arg(rule).run(bed);
    nft("table inet t { chain c { type filter hook input priority 0; udp dport 9 counter; }; }")?;
    let truepeer = start_proxy(bed, &at_once(""))?;
    let mut talk = Talk::begin("every", LISTENERS[0], CLIENTS[0], DESTINATIONS[0])?;
    talk.leave()?;
    while_stopped(&truepeer, || talk.ask(b"past a rule that is for others"))?;
    nft("add rule inet t c udp dport 53 counter")?;
    let came_back = || -> Result<bool> {
        talk.socket.set_read_timeout(Some(Duration::from_millis(300)))?;
        let is_answered = while_stopped(&truepeer, || Ok(talk.ask(b"?").is_ok()))?;
        talk.socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        if !is_answered {
            receive(&talk.socket)?;
        }
        Ok(!is_answered)
    };
    let mut came_back = came_back;
    bed.wait_for("the flow to come back", || came_back().unwrap_or(false))?;
    talk.ask(b"counted")?;
    let counter = nft("list chain inet t c")?;
    ensure!(counter.contains("udp dport 53 counter packets"), "{counter}");
    ensure!(counted(&truepeer, "sessions_not_spliced")? == 1);
    Ok(())
}
