//! Tests of the test bed itself.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;

use truepeer_testbed::account::{account_of, data_of};
use truepeer_testbed::{
    Bed, Behaviour, Program, Test, Topology, User, WAIT_LIMIT, client, sockets, tests, workspace_dir,
};

fn a_test_has_a_network_of_its_own(bed: &Bed) -> anyhow::Result<()> {
    let links = Program::new("ip").args(["-o", "link"]).run(bed)?;
    anyhow::ensure!(links.lines().count() == 1 && links.contains("lo:"), "more than lo: {links}");
    let mut stream = {
        let _backend = Behaviour::Who.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
        client::connect("[::1]:80")?
    };
    // The backend ends with its handle, and so do its connections.
    anyhow::ensure!(client::read_end(&mut stream).is_ok());
    anyhow::ensure!(client::connect("[::1]:80").is_err());
    Ok(())
}

fn who_backends_answer_with_getpeername(bed: &Bed) -> anyhow::Result<()> {
    let backend = Behaviour::Who.start(bed, &["127.0.0.1:80"])?;
    let mut stream = client::connect_from("127.0.0.9:4000", "127.0.0.1:80")?;
    anyhow::ensure!(client::ask(&mut stream, b"?")? == "127.0.0.9:4000\n");
    backend.wait_for_log("127.0.0.9:4000 eof 1")
}

fn an_account_is_given_of_connections_that_are_reset(bed: &Bed) -> anyhow::Result<()> {
    let backend = Behaviour::Account.start(bed, &["127.0.0.1:80"])?;
    let client: SocketAddr = "127.0.0.9:4000".parse()?;
    let mut stream = client::connect_from(client, "127.0.0.1:80")?;
    let data = data_of(client, 1000);
    stream.write_all(&data)?;
    sockets::wait_until_read(&stream)?;
    client::reset(stream)?;
    backend.wait_for_log(&account_of(client, &data).replacen(' ', " reset ", 1))
}

fn a_counted_session_is_answered_before_its_end(bed: &Bed) -> anyhow::Result<()> {
    let backend = Behaviour::Counted.start(bed, &["127.0.0.1:80"])?;
    let client: SocketAddr = "127.0.0.9:4000".parse()?;
    let mut stream = client::connect_from(client, "127.0.0.1:80")?;
    let mut data = data_of(client, 1000);
    data[..8].copy_from_slice(&1000_u64.to_be_bytes());
    stream.write_all(&data)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    anyhow::ensure!(answer.trim() == account_of(client, &data), "{answer}");
    stream.write_all(b"more")?;
    drop(stream);
    data.extend(b"more");
    backend.wait_for_log(&account_of(client, &data).replacen(' ', " eof ", 1))
}

fn hosts_in_a_line_reach_each_other(bed: &Bed) -> anyhow::Result<()> {
    let line = Topology::line(&["client", "lb", "proxy", "backend"])?;
    let (from, to) = (line.host("client"), line.host("backend"));
    let addresses = [to.at(false, 80), to.at(true, 80)];
    let _who = Behaviour::Who.start_program(bed, &addresses, |program| program.in_netns(&to.netns))?;
    for (address, v6) in addresses.iter().zip([false, true]) {
        let seen = from.run(|| client::ask(&mut client::connect(address)?, b""))??;
        let seen: SocketAddr = seen.trim().parse()?;
        anyhow::ensure!(seen.ip() == from.at(v6, 0).ip(), "{seen}");
    }
    Ok(())
}

fn a_plain_user_has_only_the_capability_it_is_given(bed: &Bed) -> anyhow::Result<()> {
    let status =
        Program::new("cat").arg("/proc/self/status").as_user(User::TESTER).with_capabilities(&["net_raw"]);
    let status = status.limit("nofile=512").run(bed)?;
    for line in ["CapEff:\t0000000000002000", "CapBnd:\t0000000000002000", "Uid:\t61000"] {
        anyhow::ensure!(status.contains(line), "{line} is not in\n{status}");
    }
    let limits = Program::new("cat").arg("/proc/self/limits").limit("nofile=512").run(bed)?;
    anyhow::ensure!(limits.lines().any(|line| line.starts_with("Max open files") && line.contains("512")));
    Ok(())
}

/// Without `block_child_signal` the read was interrupted in 10 runs of 10.
fn programs_that_end_interrupt_no_read(bed: &Bed) -> anyhow::Result<()> {
    let (near, mut far) = UnixStream::pair()?;
    far.set_read_timeout(Some(WAIT_LIMIT))?;
    let reading = thread::spawn(move || far.read(&mut [0]));
    for _ in 0..20 {
        let programs =
            (0..10).map(|_| Program::new("true").start(bed)).collect::<anyhow::Result<Vec<_>>>()?;
        programs.iter().try_for_each(|program| program.wait_end().map(drop))?;
    }
    drop(near);
    let read = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
    anyhow::ensure!(matches!(read, Ok(0)), "{read:?}");
    let mask = Program::new("grep").args(["SigBlk", "/proc/self/status"]).run(bed)?;
    anyhow::ensure!(mask.trim() == "SigBlk:\t0000000000000000", "{mask}");
    Ok(())
}

/// In a bed `lo` is up, as on any machine.
fn a_network_in_use_is_not_changed(bed: &Bed) -> anyhow::Result<()> {
    let scripts = workspace_dir().join("scripts");
    let found = |program: Program| program.run(bed).map_err(|error| format!("{error:#}"));
    let guard = scripts.join("new-network.sh");
    let refused = found(Program::new(&guard).args(["the right way"]));
    anyhow::ensure!(
        refused.as_ref().is_err_and(|said| said.contains("Start it by the right way")),
        "{refused:?}"
    );
    let new = found(Program::new("unshare").arg("--net").arg(&guard));
    anyhow::ensure!(new.is_ok(), "{new:?}");
    let pages = Program::new("python3")
        .args(["-B", "-c", "import hosts; hosts.network_up()"])
        .env("PYTHONPATH", scripts.join("situations"))
        .env("TRUEPEER_SITUATIONS_ROOT", "/nonexistent")
        .env("TRUEPEER_SITUATIONS_LOGS", "/nonexistent");
    let refused = found(pages);
    anyhow::ensure!(
        refused.as_ref().is_err_and(|said| said.contains("scripts/situations.sh")),
        "{refused:?}"
    );
    let links = Program::new("ip").args(["-o", "link"]).run(bed)?;
    anyhow::ensure!(links.lines().count() == 1, "{links}");
    Ok(())
}

fn main() -> ExitCode {
    let mut all = tests![
        a_test_has_a_network_of_its_own,
        a_network_in_use_is_not_changed,
        who_backends_answer_with_getpeername,
        an_account_is_given_of_connections_that_are_reset,
        a_counted_session_is_answered_before_its_end,
        hosts_in_a_line_reach_each_other,
        programs_that_end_interrupt_no_read,
    ];
    all.push(
        Test::new(
            "a_plain_user_has_only_the_capability_it_is_given",
            a_plain_user_has_only_the_capability_it_is_given,
        )
        .needs_several_users(),
    );
    truepeer_testbed::main(all)
}
