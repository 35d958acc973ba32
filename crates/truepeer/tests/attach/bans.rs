//! `truepeer ban` where no process runs: in the kernel's own tables.

use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use truepeer_testbed::{Bed, Program, Test, Topology, client, tests};

use crate::cgroups::Cgroup;
use crate::containers::serve_in;
use crate::kit::{
    LISTENER, attach, command, counter, counter_on, echo, header, is_answered, longer_header, session, start,
    who,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_ban_ends_connections_and_refuses_new_ones_without_a_process,
        bans_end_by_themselves_also_inside_each_other,
        bans_are_kept_when_ports_are_attached_again,
        a_load_balancer_that_is_banned_serves_its_clients,
        a_ban_reaches_the_network_namespaces_of_containers,
        a_hundred_thousand_bans_are_set_at_once,
    ]
    .into_iter()
    .map(|test| test.of_group("bans"))
    .collect()
}

/// A command for what is attached in this bed.
pub(crate) fn operate(bed: &Bed, arguments: &[&str]) -> Result<String> {
    let pins = bed.dir().join("bpf/truepeer").display().to_string();
    Program::new(env!("CARGO_BIN_EXE_truepeer")).args(arguments).args(["--pins", &pins]).run(bed)
}

fn listed(bed: &Bed) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&operate(bed, &["bans", "--json"])?)?)
}

fn is_refused(client: &str) -> Result<()> {
    let mut stream = session(&header(client)?)?;
    let end = client::read_end(&mut stream)?;
    ensure!(end == client::End::Reset, "{client}: {end:?}");
    Ok(())
}

/// A connection that works.
fn served(header: &[u8]) -> Result<TcpStream> {
    let mut stream = session(header)?;
    is_answered(&mut stream)?;
    Ok(stream)
}

fn is_reset(stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let end = stream.read(&mut [0]).map_err(|error| error.kind());
    ensure!(end == Err(ErrorKind::ConnectionReset), "{end:?}");
    Ok(())
}

fn a_ban_ends_connections_and_refuses_new_ones_without_a_process(bed: &Bed) -> Result<()> {
    let _server = echo(bed)?;
    start(bed, &[])?;
    // Translated and not: the header's length was guessed wrongly, and rightly.
    let mut open = [
        served(&header("203.0.113.7:1001")?)?,
        served(&header("203.0.113.7:1002")?)?,
        served(&longer_header("203.0.113.7:1003")?)?,
    ];
    let mut kept = served(&header("203.0.113.8:1001")?)?;
    let said = operate(bed, &["ban", "203.0.113.7", "--for", "1h", "--why", "five wrong passwords"])?;
    ensure!(said == "203.0.113.7 is banned for 1h00m\n", "{said}");
    let said = operate(bed, &["ban", "203.0.113.7", "--for", "1m", "--why", "another"])?;
    ensure!(said == "203.0.113.7 is banned for 1m00s at least: another ban ends later\n", "{said}");
    open.iter_mut().try_for_each(is_reset)?;
    is_refused("203.0.113.7:1004")?;
    let mut mapped = session(&client::v2("[::ffff:203.0.113.7]:1005", "[2001:db8::80]:80")?)?;
    ensure!(client::read_end(&mut mapped)? == client::End::Reset);
    is_answered(&mut kept)?;
    drop(served(&header("203.0.113.9:1001")?)?);
    ensure!(counter(bed, "refused_banned")? == 2 && counter(bed, "refused_denied")? == 0);
    let bans = listed(bed)?;
    let [ban] = &bans[..] else { anyhow::bail!("{bans:?}") };
    let (since, until) = (ban["since"].as_u64().context("since")?, ban["until"].as_u64().context("until")?);
    ensure!(ban["client"] == "203.0.113.7" && (3599..=3601).contains(&(until - since)), "{ban}");
    ensure!(ban["by"] == 0 && ban["why"] == "five wrong passwords" && ban["port"].is_null(), "{ban}");
    let table = operate(bed, &["bans"])?;
    ensure!(table.contains("203.0.113.7") && table.contains("five wrong passwords"), "{table}");
    // Another port, and this one.
    operate(bed, &["ban", "203.0.113.8", "--port", "81"])?;
    is_answered(&mut kept)?;
    operate(bed, &["ban", "203.0.113.0/24", "--port", "80"])?;
    is_reset(&mut kept)?;
    is_refused("203.0.113.9:1002")?;
    let said = operate(bed, &["unban", "203.0.113.7"])?;
    ensure!(said == "203.0.113.7 is no longer banned\n", "{said}");
    is_refused("203.0.113.7:1006")?;
    let said = operate(bed, &["unban", "203.0.113.0/24"])?;
    ensure!(said == "203.0.113.0/24 is no longer banned\n", "{said}");
    drop(served(&header("203.0.113.7:1007")?)?);
    // That of port 81, which is not attached.
    ensure!(operate(bed, &["unban", "--all"])? == "1 bans lifted\n");
    ensure!(listed(bed)?.is_empty());
    Ok(())
}

/// The programs find the longest prefix alone.
fn bans_end_by_themselves_also_inside_each_other(bed: &Bed) -> Result<()> {
    let _server = echo(bed)?;
    start(bed, &[])?;
    operate(bed, &["ban", "203.0.113.7", "--for", "2s"])?;
    operate(bed, &["ban", "203.0.113.0/28", "--for", "1s"])?;
    operate(bed, &["ban", "203.0.113.0/24", "--for", "1h"])?;
    operate(bed, &["ban", "198.51.100.7", "--for", "2s"])?;
    is_refused("198.51.100.7:1001")?;
    bed.wait_for("the end of the short bans", || listed(bed).is_ok_and(|bans| bans.len() == 1))?;
    drop(served(&header("198.51.100.7:1002")?)?);
    is_refused("203.0.113.7:1001")?;
    is_refused("203.0.113.8:1001")?;
    is_refused("203.0.113.77:1001")?;
    operate(bed, &["unban", "203.0.113.0/24"])?;
    drop(served(&header("203.0.113.7:1002")?)?);
    Ok(())
}

fn bans_are_kept_when_ports_are_attached_again(bed: &Bed) -> Result<()> {
    let _server = echo(bed)?;
    start(bed, &[])?;
    operate(bed, &["ban", "203.0.113.7"])?;
    start(bed, &["--header", "optional"])?;
    is_refused("203.0.113.7:1001")?;
    attach(bed, &["add", "--port", "81"])?;
    is_refused("203.0.113.7:1002")?;
    // Whoever connects without a header is a client.
    let mut direct = served(b"")?;
    operate(bed, &["ban", "127.0.0.1"])?;
    is_reset(&mut direct)?;
    attach(bed, &["detach"])?;
    let ban = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["ban", "203.0.113.7", "--pins"]);
    let ban = ban.arg(bed.dir().join("bpf/truepeer")).start(bed)?;
    ensure!(!ban.wait_end()?.success() && ban.log().contains("nothing is attached"), "{}", ban.log());
    Ok(())
}

fn a_load_balancer_that_is_banned_serves_its_clients(bed: &Bed) -> Result<()> {
    let _server = echo(bed)?;
    start(bed, &["--allow-claims", "127.0.0.1"])?;
    let mut before = served(&header("203.0.113.7:1001")?)?;
    let mut local = served(&client::v2_local())?;
    operate(bed, &["ban", "127.0.0.0/8"])?;
    is_answered(&mut before)?;
    is_answered(&mut local)?;
    drop(served(&header("203.0.113.7:1002")?)?);
    drop(served(&client::v2_local())?);
    // It names itself.
    drop(served(&header("127.0.0.1:1003")?)?);
    Ok(())
}

fn a_ban_reaches_the_network_namespaces_of_containers(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let cgroup = Cgroup::make("container")?;
    let server = serve_in(bed, &cgroup.0, &host.netns, "0.0.0.0:80")?;
    command(bed, &["--port", "80", "--allow", "any", "--pid", &server.pid().to_string()])?.run(bed)?;
    let at = host.at(false, 80);
    let connect = || -> Result<TcpStream> { lb.run(|| client::connect(at))? };
    let mut open = connect()?;
    std::io::Write::write_all(&mut open, &header("203.0.113.7:1001")?)?;
    server.wait_for_log("203.0.113.7:1001")?;
    operate(bed, &["ban", "203.0.113.7", "--for", "1h"])?;
    is_reset(&mut open)?;
    ensure!(who(lb, at, &header("203.0.113.7:1002")?).is_err());
    ensure!(who(lb, at, &header("203.0.113.8:1001")?)? == "203.0.113.8:1001");
    ensure!(counter_on(bed, host, "refused_banned")? == 1);
    operate(bed, &["unban", "203.0.113.7"])?;
    ensure!(who(lb, at, &header("203.0.113.7:1003")?)? == "203.0.113.7:1003");
    Ok(())
}

fn a_hundred_thousand_bans_are_set_at_once(bed: &Bed) -> Result<()> {
    let listener = TcpListener::bind(LISTENER)?;
    start(bed, &[])?;
    let hosts = (0..100_000_u32).map(|n| std::net::Ipv4Addr::from_bits(0xc612_0000 + n).to_string());
    let nets = (0..100_u32).map(|n| format!("2001:db8:{n:x}::/48"));
    bed.write("list", hosts.chain(nets).collect::<Vec<_>>().join("\n"))?;
    let mut banned = session(&header("198.18.1.134:1001")?)?;
    let (_server, seen) = listener.accept()?;
    ensure!(seen.to_string() == "198.18.1.134:1001");
    let began = Instant::now();
    operate(bed, &["ban", "./list", "--for", "1h"])?;
    println!("{} ms for 100,100 bans", began.elapsed().as_millis());
    is_reset(&mut banned)?;
    is_refused("198.18.0.0:1001")?;
    is_refused("198.19.134.159:1001")?;
    ensure!(listed(bed)?.len() == 100_100);
    ensure!(operate(bed, &["unban", "./list"])? == "100,100 bans lifted\n");
    ensure!(listed(bed)?.is_empty());
    Ok(())
}
