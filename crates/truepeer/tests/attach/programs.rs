//! Real servers that were started before the attachment, and a real sender.

use anyhow::{Result, ensure};
use truepeer_testbed::servers::{Haproxy, Nginx, Postgres, Redis, curl};
use truepeer_testbed::{Bed, Test, Topology, client, tests};

use crate::io_uring::a_running_io_uring_server_names_the_client;
use crate::kit::{attach_on, header, session, start};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![
        a_running_io_uring_server_names_the_client,
        haproxy_and_a_running_nginx,
        a_running_redis_names_the_client,
    ];
    all.push(
        Test::new("a_running_postgresql_names_the_client", a_running_postgresql_names_the_client)
            .needs_program("postgres")
            .needs_program("haproxy")
            .needs_several_users(),
    );
    all
}

/// HAProxy as the sender, with health checks and requests; NGINX as the running server.
fn haproxy_and_a_running_nginx(bed: &Bed) -> Result<()> {
    let _nginx = Nginx::default().who(&["0.0.0.0:80", "[::]:80"]).start(bed)?;
    start(bed, &[])?;
    let _haproxy = Haproxy::default()
        .relay("127.0.0.1:81", "127.0.0.1:80", "send-proxy")
        .relay("127.0.0.1:82", "127.0.0.1:80", "send-proxy-v2")
        .relay("127.0.0.1:83", "[::1]:80", "send-proxy-v2")
        .start(bed)?;
    for port in [81, 82, 83] {
        let curl = curl(&format!("http://127.0.0.1:{port}/")).args(["--interface", "127.0.0.7"]);
        // A client on loopback, which must not be claimed by default.
        ensure!(curl.run(bed).is_err(), "a claim of loopback was let through on {port}");
    }
    start(bed, &["--allow-claims", "loopback"])?;
    for port in [81, 82, 83] {
        let curl = curl(&format!("http://127.0.0.1:{port}/")).args(["--interface", "127.0.0.7"]);
        let seen = Nginx::seen(&curl.run(bed)?)?;
        ensure!(seen.ip().to_canonical().to_string() == "127.0.0.7", "NGINX saw {seen} behind {port}");
    }
    Ok(())
}

fn a_running_redis_names_the_client(bed: &Bed) -> Result<()> {
    let _redis = Redis::start(bed, &["127.0.0.1", "::1"], 80)?;
    start(bed, &[])?;
    let mut stream = session(&header("203.0.113.1:1001")?)?;
    let answer = client::ask(&mut stream, b"CLIENT INFO\r\nQUIT\r\n")?;
    ensure!(answer.contains(" addr=203.0.113.1:1001 "), "{answer:?}");
    Ok(())
}

/// Behind HAProxy on the sender's host; the client is on that host's loopback.
fn a_running_postgresql_names_the_client(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _postgres = host.run(|| Postgres::start(bed, &["0.0.0.0"], 5432))??;
    attach_on(bed, host, &["--port", "5432", "--allow-claims", "loopback"])?;
    let _haproxy = lb.run(|| {
        Haproxy::default().relay("127.0.0.1:5433", host.at(false, 5432), "send-proxy-v2").start(bed)
    })??;
    let question = "select host(inet_client_addr())";
    for _ in 0..2 {
        let answer = lb.run(|| Postgres::psql("127.0.0.1", 5433, question).run(bed))??;
        ensure!(answer.trim() == "127.0.0.1", "{answer}");
    }
    Ok(())
}
