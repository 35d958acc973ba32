//! Each preconfigured server starts, answers, and names the client that connected.

use std::io::{Read, Write};
use std::process::ExitCode;

use truepeer_testbed::servers::{Haproxy, Nginx, Postgres, Redis, Sshd, curl, nc};
use truepeer_testbed::{Bed, Behaviour, Test, client};

fn haproxy_relays_with_a_header(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &["127.0.0.1:80"])?;
    let _haproxy = Haproxy::default()
        .relay("127.0.0.1:1", "127.0.0.1:80", "send-proxy")
        .relay("[::1]:2", "127.0.0.1:80", "send-proxy-v2")
        .start(bed)?;
    let answer = client::ask(&mut client::connect_from("127.0.0.9:5000", "127.0.0.1:1")?, b"hello")?;
    anyhow::ensure!(answer == "PROXY TCP4 127.0.0.9 127.0.0.1 5000 1\r\nhello", "{answer:?}");
    let mut stream = client::connect_from("[::1]:5001", "[::1]:2")?;
    stream.write_all(b"hi")?;
    let mut bytes = vec![0; 54];
    stream.read_exact(&mut bytes)?;
    anyhow::ensure!(bytes == [client::v2("[::1]:5001", "[::1]:2")?, b"hi".to_vec()].concat(), "{bytes:?}");
    Ok(())
}

fn nginx_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _nginx = Nginx::default().who(&["127.0.0.1:80", "[::1]:80"]).start(bed)?;
    let answer =
        curl("http://127.0.0.1/").args(["--interface", "127.0.0.7", "--local-port", "4000"]).run(bed)?;
    anyhow::ensure!(Nginx::seen(&answer)? == "127.0.0.7:4000".parse()?, "{answer}");
    anyhow::ensure!(Nginx::seen(&curl("http://[::1]/").run(bed)?)?.is_ipv6());
    Ok(())
}

fn nginx_stream_sends_a_header(bed: &Bed) -> anyhow::Result<()> {
    let _echo = Behaviour::Echo.start(bed, &["127.0.0.1:80"])?;
    let _nginx = Nginx::default()
        .relay("127.0.0.1:1", "127.0.0.1:80", "proxy_protocol on; proxy_half_close on;")
        .start(bed)?;
    let answer = nc("127.0.0.1", 1, b"hello").args(["-s", "127.0.0.9"]).run(bed)?;
    anyhow::ensure!(
        answer.starts_with("PROXY TCP4 127.0.0.9 127.0.0.1 ") && answer.ends_with("\r\nhello"),
        "{answer:?}"
    );
    Ok(())
}

fn redis_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _redis = Redis::start(bed, &["127.0.0.1", "::1"], 6379)?;
    let mut stream = client::connect_from("127.0.0.9:4000", "127.0.0.1:6379")?;
    let answer = client::ask(&mut stream, b"CLIENT INFO\r\nQUIT\r\n")?;
    anyhow::ensure!(answer.contains(" addr=127.0.0.9:4000 "), "{answer:?}");
    Ok(())
}

fn postgres_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let _postgres = Postgres::start(bed, &["127.0.0.1", "::1"], 5432)?;
    for host in ["127.0.0.1", "::1"] {
        let answer = Postgres::psql(host, 5432, "select host(inet_client_addr())").run(bed)?;
        anyhow::ensure!(answer.trim() == host, "{answer:?}");
    }
    Ok(())
}

fn sshd_names_the_client(bed: &Bed) -> anyhow::Result<()> {
    let sshd = Sshd::start(bed, &["127.0.0.1:22", "[::1]:22"])?;
    let answer = sshd.login("::1", 22).run(bed)?;
    anyhow::ensure!(answer.starts_with("::1 ") && answer.trim().ends_with(" 22"), "{answer:?}");
    sshd.running.wait_for_log("Accepted publickey for tester from ::1 port ")
}

fn main() -> ExitCode {
    truepeer_testbed::main(vec![
        Test::new("haproxy_relays_with_a_header", haproxy_relays_with_a_header),
        Test::new("nginx_names_the_client", nginx_names_the_client),
        Test::new("nginx_stream_sends_a_header", nginx_stream_sends_a_header),
        Test::new("redis_names_the_client", redis_names_the_client),
        Test::new("postgres_names_the_client", postgres_names_the_client).needs_several_users(),
        Test::new("sshd_names_the_client", sshd_names_the_client).needs_several_users(),
    ])
}
