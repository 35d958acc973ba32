//! Real, unmodified backends behind HAProxy and truepeer: each names the client in its own way.

use std::net::SocketAddr;

use anyhow::ensure;
use truepeer_testbed::servers::{Haproxy, Nginx, Postgres, Redis, Sshd, curl};
use truepeer_testbed::{Bed, Running, Test, client};

use crate::line::Line;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("nginx_sees_the_client", nginx_sees_the_client).needs_program("nginx"),
        Test::new("openssh_logs_the_client", openssh_logs_the_client)
            .needs_program("sshd")
            .needs_several_users(),
        Test::new("redis_lists_the_client", redis_lists_the_client).needs_program("redis-server"),
        Test::new("postgresql_knows_the_client", postgresql_knows_the_client)
            .needs_program("postgres")
            .needs_several_users(),
    ]
    .into_iter()
    .map(|test| test.needs_program("haproxy"))
    .collect()
}

/// HAProxy on `port` of the load balancer, for clients of both families, over IPv4 to truepeer.
fn start_haproxy(bed: &Bed, line: &Line, port: u16) -> anyhow::Result<Running> {
    let [v4, v6] = [false, true].map(|v6| line.lb().at(v6, port));
    let haproxy = Haproxy::default().relay(v4, line.listener(false), "send-proxy-v2").relay(
        v6,
        line.listener(false),
        "send-proxy-v2",
    );
    haproxy.start_with(bed, |program| program.in_netns(&line.lb().netns))
}

fn nginx_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let nginx = Nginx::default().who(&["127.0.0.1:80", "[::1]:80"]);
    let _nginx = nginx.start_with(bed, |program| program.in_netns(&line.host().netns))?;
    let _truepeer = line.start_truepeer(bed, 80)?;
    let _haproxy = start_haproxy(bed, &line, 80)?;
    for (v6, port) in [(false, 4321), (true, 4322)] {
        let url = format!("http://{}/", line.lb().at(v6, 80));
        let answer =
            line.run_as_client(bed, curl(&url).args(["--local-port", &format!("{port}")]).arg("--globoff"))?;
        let expected = line.client().at(v6, port);
        ensure!(Nginx::seen(&answer)? == expected, "{expected} was seen as {answer:?}");
    }
    Ok(())
}

/// fail2ban reads this log. The server sends first.
fn openssh_logs_the_client(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let sshd = line.host().run(|| Sshd::start(bed, &["127.0.0.1:22", "[::1]:22"]))??;
    let _truepeer = line.start_truepeer(bed, 22)?;
    let _haproxy = start_haproxy(bed, &line, 22)?;
    for v6 in [false, true] {
        let login = sshd.login(&line.lb().at(v6, 22).ip().to_string(), 22);
        let answer = line.run_as_client(bed, login)?;
        let client = line.client().at(v6, 0).ip().to_string();
        let mut words = answer.split_whitespace();
        ensure!(words.next() == Some(&client), "{client} was seen as {answer:?}");
        let port = words.next().unwrap_or_default();
        sshd.running.wait_for_log(&format!("Accepted publickey for tester from {client} port {port} "))?;
    }
    Ok(())
}

fn redis_lists_the_client(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let _redis = line.host().run(|| Redis::start(bed, &["127.0.0.1", "::1"], 6379))??;
    let _truepeer = line.start_truepeer(bed, 6379)?;
    let _haproxy = start_haproxy(bed, &line, 6379)?;
    for v6 in [false, true] {
        let (me, list): (SocketAddr, String) = line.client().run(|| -> anyhow::Result<_> {
            let mut stream = client::connect(line.lb().at(v6, 6379))?;
            Ok((stream.local_addr()?, client::ask(&mut stream, b"CLIENT LIST\r\nQUIT\r\n")?))
        })??;
        ensure!(list.contains(&format!(" addr={me} ")), "{me} is not in {list:?}");
    }
    Ok(())
}

fn postgresql_knows_the_client(bed: &Bed) -> anyhow::Result<()> {
    let line = Line::lay()?;
    let _postgres = line.host().run(|| Postgres::start(bed, &["127.0.0.1", "::1"], 5432))??;
    let _truepeer = line.start_truepeer(bed, 5432)?;
    let _haproxy = start_haproxy(bed, &line, 5432)?;
    for v6 in [false, true] {
        let listener = line.lb().at(v6, 5432);
        let question = "select host(inet_client_addr())";
        let answer =
            line.run_as_client(bed, Postgres::psql(&listener.ip().to_string(), listener.port(), question))?;
        ensure!(answer.trim() == line.client().at(v6, 0).ip().to_string(), "{answer:?}");
    }
    Ok(())
}
