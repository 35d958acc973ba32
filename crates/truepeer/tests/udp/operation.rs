//! What an operator does to a truepeer that carries datagrams: lists read again, and an end in order.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Test};

use crate::kit::{
    BACKENDS, Backend, CLIENTS, DESTINATIONS, LISTENERS, TRUEPEER, ask, hears_nothing, receive, send,
    sender_towards, start_proxy, v2, wait_counted,
};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = truepeer_testbed::tests![
        lists_are_read_again_for_flows_that_are_open_too,
        flows_go_on_after_sigterm_and_no_new_ones_begin,
        the_operator_ends_the_flows_of_one_client,
        a_ban_ends_flows_and_refuses_datagrams,
        a_client_whose_flow_is_over_can_not_write_its_next_header,
        a_flow_that_a_stop_ends_has_its_line,
    ];
    let early = "datagrams_that_come_while_sockets_are_opened_are_answered";
    all.push(Test::new(early, early_datagrams).needs_program("strace"));
    all
}

/// Each bind(2) takes long, as if the machine were busy: while the first worker's socket is bound, the
/// others' are not.
fn early_datagrams(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS[..1])?;
    let strace = ["-f", "-qq", "-o", "/dev/null", "--trace=bind", "--inject=bind:delay_exit=200000"];
    let proxy = ["proxy", "-p", "udp", "--workers", "3", "-l", LISTENERS[0], "-4", BACKENDS[0]];
    let truepeer = Program::new("strace").args(strace).arg(TRUEPEER).args(proxy).start(bed)?;
    truepeer.wait_bound_udp(LISTENERS[0])?;
    let clients = (5000..5012).map(|port| {
        let (client, sender) = (format!("192.0.2.7:{port}"), sender_towards(LISTENERS[0])?);
        let header = v2(&client, DESTINATIONS[0])?;
        send(&sender, &[&header, b"early"])?;
        Ok((client, sender, header))
    });
    for (client, sender, header) in clients.collect::<Result<Vec<_>>>()? {
        ensure!(receive(&sender)? == format!("{client} early").into_bytes(), "{}", truepeer.log());
        let later = ask(&sender, &[&header, b"later"])?;
        ensure!(later == format!("{client} later").into_bytes(), "{}", truepeer.log());
    }
    Ok(())
}

fn lists_are_read_again_for_flows_that_are_open_too(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    bed.write("allow", "127.0.0.0/8\n")?;
    bed.write("deny", "198.51.100.0/24\n")?;
    let truepeer = start_proxy(bed, "--allow ./allow --deny-clients ./deny")?;
    let sender = sender_towards(LISTENERS[0])?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    ask(&sender, &[&header, b"before"])?;
    bed.write("deny", "10.0.0.0/33\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("not reloaded, everything stays as it was: --deny-clients ./deny: line 1: ")?;
    ask(&sender, &[&header, b"still"])?;
    bed.write("deny", "")?;
    bed.write("allow", "192.0.2.1\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_for_log("reloaded: new sessions of listener 127.0.0.1:5300 (UDP) have new lists")?;
    send(&sender, &[&header, b"after"])?;
    hears_nothing(&sender)?;
    bed.write("allow", "127.0.0.0/8\n")?;
    truepeer.signal(Signal::HUP)?;
    truepeer.wait_state("the third reload", || {
        truepeer.log().matches("127.0.0.1:5300 (UDP) have new lists").count() == 2
    })?;
    let seen = ask(&sender, &[&header, b"again"])?;
    ensure!(seen == format!("{} again", CLIENTS[0]).into_bytes(), "{}", String::from_utf8_lossy(&seen));
    Ok(())
}

fn flows_go_on_after_sigterm_and_no_new_ones_begin(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "--close-after 2s")?;
    let sender = sender_towards(LISTENERS[0])?;
    let header = v2(CLIENTS[0], DESTINATIONS[0])?;
    ask(&sender, &[&header, b"before"])?;
    truepeer.signal(Signal::TERM)?;
    truepeer
        .wait_for_log("stopping: nothing new is taken, 0 sessions and 1 flows open may go on for 30 s")?;
    ask(&sender, &[&header, b"still"])?;
    send(&sender, &[&v2("192.0.2.8:5000", DESTINATIONS[0])?, b"new"])?;
    hears_nothing(&sender)?;
    // The last flow is forgotten after its silence, long before the 30 s are over.
    ensure!(truepeer.wait_end()?.code() == Some(0), "{}", truepeer.log());
    ensure!(truepeer.log().contains("stopping with 0 sessions open"), "{}", truepeer.log());
    Ok(())
}

fn a_flow_that_a_stop_ends_has_its_line(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let truepeer = start_proxy(bed, "-v 1 --drain-timeout 0s")?;
    let sender = sender_towards(LISTENERS[0])?;
    ask(&sender, &[&v2(CLIENTS[0], DESTINATIONS[0])?, b"before"])?;
    truepeer.signal(Signal::TERM)?;
    ensure!(truepeer.wait_end()?.code() == Some(0), "{}", truepeer.log());
    let log = truepeer.log();
    let line = log.lines().find(|line| line.contains(CLIENTS[0])).unwrap_or_default();
    let parts = ["datagrams_up=1", "bytes_up=6", "close=\"stopping\""];
    ensure!(parts.iter().all(|part| line.contains(part)), "{log}");
    Ok(())
}

fn a_ban_ends_flows_and_refuses_datagrams(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let truepeer = start_proxy(bed, &format!("-v 1 --admin {admin}"))?;
    let operator =
        |arguments: &[&str]| Program::new(TRUEPEER).args(arguments).args(["--admin", &admin]).run(bed);
    let clients = [CLIENTS[0], "192.0.2.8:5000"];
    let open = |client| -> Result<_> {
        let (sender, header) = (sender_towards(LISTENERS[0])?, v2(client, DESTINATIONS[0])?);
        ask(&sender, &[&header, b"before"])?;
        Ok((sender, header))
    };
    let [banned, kept] = [open(clients[0])?, open(clients[1])?];
    operator(&["ban", "192.0.2.7", "--for", "1h"])?;
    wait_counted(&truepeer, "flows_ended_by_operator", 1)?;
    truepeer.wait_for_log("close=\"banned\"")?;
    send(&banned.0, &[&banned.1, b"after"])?;
    hears_nothing(&banned.0)?;
    ask(&kept.0, &[&kept.1, b"after"])?;
    operator(&["unban", "192.0.2.7"])?;
    let seen = ask(&banned.0, &[&banned.1, b"again"])?;
    ensure!(seen == format!("{} again", clients[0]).into_bytes(), "{}", String::from_utf8_lossy(&seen));
    Ok(())
}

/// Their sender passes on what they send as it is, and has written the only header already.
fn a_client_whose_flow_is_over_can_not_write_its_next_header(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let denied = "192.0.2.9:5000";
    bed.write("deny", "192.0.2.9\n")?;
    for (dialect, end) in [("first", "ban"), ("standalone", "kill"), ("first", "evict"), ("first", "deny")] {
        let arguments = format!("-v 1 --admin {admin} --deny-clients ./deny --max-flows 1 --workers 1");
        let truepeer = start_proxy(bed, &format!("{arguments} --udp-dialect {dialect}"))?;
        let open = |client| -> Result<_> {
            let sender = sender_towards(LISTENERS[0])?;
            ask(&sender, &[&v2(client, DESTINATIONS[0])?, b"before"])?;
            Ok(sender)
        };
        let operator = |words: &[&str]| Program::new(TRUEPEER).args(words).args(["--admin", &admin]).run(bed);
        let sender = if end == "deny" { sender_towards(LISTENERS[0])? } else { open(CLIENTS[0])? };
        let said = match end {
            "ban" => (operator(&["ban", "192.0.2.7", "--for", "1h"])?, "its flow was ended by a ban").1,
            "kill" => (operator(&["sessions", "--client", "192.0.2.7", "--kill"])?, "its flow was ended ").1,
            "evict" => (open("192.0.2.8:5000")?, "its flow was forgotten to make room").1,
            _ => (send(&sender, &[&v2(denied, DESTINATIONS[0])?, b"before"])?, "--deny-clients lists it").1,
        };
        if end != "deny" {
            truepeer.wait_for_log("datagrams_up=1")?;
        }
        send(&sender, &[&v2("192.0.2.66:6666", DESTINATIONS[0])?, b"forged"])?;
        hears_nothing(&sender)?;
        truepeer.wait_for_log(said)?;
        truepeer.stop()?;
    }
    Ok(())
}

fn the_operator_ends_the_flows_of_one_client(bed: &Bed) -> Result<()> {
    let _backend = Backend::who(&BACKENDS)?;
    let admin = bed.dir().join("admin").to_string_lossy().into_owned();
    let truepeer = start_proxy(bed, &format!("--admin {admin}"))?;
    let operator = |arguments: &[&str]| {
        Program::new(TRUEPEER).arg("sessions").args(arguments).args(["--admin", &admin]).run(bed)
    };
    let clients = [CLIENTS[0], "192.0.2.8:5000"];
    let flows = clients.map(|client| -> Result<_> {
        let (sender, header) = (sender_towards(LISTENERS[0])?, v2(client, DESTINATIONS[0])?);
        ask(&sender, &[&header, b"before"])?;
        Ok((sender, header))
    });
    let [ended, kept] = flows;
    let (ended, kept) = (ended?, kept?);
    operator(&["--client", "192.0.2.7", "--kill"])?;
    wait_counted(&truepeer, "flows_ended_by_operator", 1)?;
    let listed = operator(&[])?;
    ensure!(!listed.contains(clients[0]) && listed.contains(clients[1]), "{listed}");
    // The flow of the other client is the same as before; the next datagram of this one opens another.
    for (client, (sender, header)) in clients.iter().zip([&ended, &kept]) {
        let seen = ask(sender, &[header, b"after"])?;
        ensure!(seen == format!("{client} after").into_bytes(), "{}", String::from_utf8_lossy(&seen));
    }
    wait_counted(&truepeer, "flows_opened", 3)
}
