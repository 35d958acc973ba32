//! The library in place of libproxyproto's two, as its documentation shows (seed 003).

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::servers::{Haproxy, erlang};
use truepeer_testbed::{Bed, Program, Running, Test, client, tests};

use crate::{PYTHON, listen, python, truepeer};

const LISTENER: &str = "127.0.0.1:9090";

pub(crate) fn tests() -> Vec<Test> {
    let mut all: Vec<Test> =
        tests![netcat_sees_the_client, netcat_sees_the_client_over_ipv6, netcat_sees_haproxys_client]
            .into_iter()
            .map(|test| test.needs_program("nc"))
            .collect();
    let python = tests![
        versions_are_chosen_by_the_variable,
        a_header_may_be_demanded,
        getpeername_may_be_left_alone,
        the_sender_has_its_documented_defaults,
        an_invalid_value_ends_the_program,
    ];
    all.extend(python.into_iter().map(|test| test.needs_program(PYTHON).needs_several_users()));
    let erlang = Test::new("fifty_streams_through_erlangs_echo", erlangs_echo);
    all.push(erlang.needs_program("erlc").time_limit(Duration::from_secs(300)));
    all
}

/// The library under all its names.
fn libraries(bed: &Bed) -> anyhow::Result<PathBuf> {
    let dir = bed.dir().join("lib");
    truepeer(&["run", "--unpack"]).arg(&dir).run(bed)?;
    Ok(dir)
}

fn preloading(bed: &Bed, program: Program, name: &str) -> anyhow::Result<Program> {
    Ok(program.env("LD_PRELOAD", libraries(bed)?.join(name)))
}

fn netcat(bed: &Bed, args: &[&str]) -> anyhow::Result<Running> {
    preloading(bed, Program::new("nc").args(args), "libproxyproto.so")?.start(bed)
}

/// `LD_PRELOAD=libproxyproto.so nc -vvvv -k -l 9090`, and the sender beside it.
fn netcat_sees_the_client(bed: &Bed) -> anyhow::Result<()> {
    let server = netcat(bed, &["-vvvv", "-n", "-k", "-l", "9090"])?;
    server.wait_listening("0.0.0.0:9090")?;
    let sender = Program::new("nc").args(["-N", "127.0.0.1", "9090"]).input("hello\n");
    let sender = sender.env("LIBPROXYPROTO_ADDR", "8.8.8.8").env("LIBPROXYPROTO_PORT", "4321");
    preloading(bed, sender, "libproxyproto_connect.so")?.run(bed)?;
    server.wait_for_log("hello")?;
    server.wait_for_log("8.8.8.8 4321")?;
    server.wait_for_log("running as libproxyproto")?;
    server.wait_for_log("guessed")
}

/// `nc -vvvv -n -6 -k -l 9090`.
fn netcat_sees_the_client_over_ipv6(bed: &Bed) -> anyhow::Result<()> {
    let server = netcat(bed, &["-vvvv", "-n", "-6", "-k", "-l", "9090"])?;
    server.wait_listening("[::]:9090")?;
    let sender = Program::new("nc").args(["-6", "-v", "-N", "::1", "9090"]).input("hello\n");
    let sender = sender.env("LIBPROXYPROTO_ADDR", "2001:4860:4860::8888").env("LIBPROXYPROTO_PORT", "4321");
    preloading(bed, sender, "libproxyproto_connect.so")?.run(bed)?;
    server.wait_for_log("hello")?;
    server.wait_for_log("2001:4860:4860::8888 4321")
}

/// `server test 127.0.0.1:9090 send-proxy-v2`.
fn netcat_sees_haproxys_client(bed: &Bed) -> anyhow::Result<()> {
    let server = netcat(bed, &["-vvvv", "-n", "-k", "-l", "9090"])?;
    server.wait_listening("0.0.0.0:9090")?;
    let _haproxy = Haproxy::default().relay("127.0.0.1:8080", LISTENER, "send-proxy-v2").start(bed)?;
    let mut stream = client::connect_from("127.0.0.9:4000", "127.0.0.1:8080")?;
    std::io::Write::write_all(&mut stream, b"hello\n")?;
    server.wait_for_log("hello")?;
    server.wait_for_log("127.0.0.9 4000")
}

/// The benchmark of its documentation, literally, except that the test replaces tcpkali.
fn erlangs_echo(bed: &Bed) -> anyhow::Result<()> {
    const PINGS: &[u8] = b"PING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\nPING\r\n";
    let source = "\
-module(echo).

-export([start/0, start/1]).

start() ->
    start(1122).

start(Port) ->
    {ok, S} = gen_tcp:listen(Port, [
        binary,
        {reuseaddr, true},
        {backlog, 1024}
    ]),
    accept(S).

accept(LS) ->
    {ok, S} = gen_tcp:accept(LS),
    Pid = spawn(fun() -> recv(S) end),
    _ = gen_tcp:controlling_process(S, Pid),
    accept(LS).

recv(S) ->
    receive
        {tcp, S, Data} ->
            gen_tcp:send(S, Data),
            recv(S);
        {tcp_closed, S} ->
            ok;
        Error ->
            error_logger:error_report([{socket, S}, {error, Error}])
    end.
";
    erlang("erlc").arg(bed.write("echo.erl", source)?).run(bed)?;
    let echo = erlang("erl").args(["-noshell", "-eval", "echo:start()"]);
    let echo = preloading(bed, echo, "libproxyproto.so")?.start(bed)?;
    echo.wait_listening("0.0.0.0:1122")?;
    in_parallel(50, 50, |n| {
        let mut stream = client::connect("127.0.0.1:1122")?;
        let uid = n + 1;
        let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {uid} 25578\r\n");
        stream.write_all(header.as_bytes())?;
        let mut back = vec![0; PINGS.len()];
        for _ in 0..100 {
            stream.write_all(PINGS)?;
            stream.read_exact(&mut back)?;
            ensure!(back == PINGS, "{:?}", back.escape_ascii().to_string());
        }
        Ok(())
    })
}

/// Answers with the address from accept(), the one from getpeername(), and the bytes read.
const SERVER: &str = "\
import socket
listener = socket.create_server(('127.0.0.1', 9090))
while True:
    connection, peer = listener.accept()
    data = b''
    while part := connection.recv(4096):
        data += part
    try:
        later = connection.getpeername()[0]
    except OSError as error:
        later = error
    connection.sendall(b'%s %s ' % (peer[0].encode(), str(later).encode()) + data)
    connection.close()
";

fn server(bed: &Bed, variables: &[(&str, &str)]) -> anyhow::Result<Running> {
    let program =
        variables.iter().fold(python(bed, SERVER)?, |program, (name, value)| program.env(name, value));
    let running = preloading(bed, program, "libproxyproto.so")?.start(bed)?;
    running.wait_listening(LISTENER)?;
    Ok(running)
}

/// Returns the server's answer, or an empty one if the server never saw the connection.
fn ask(bytes: &[u8]) -> String {
    let asked =
        client::connect_from("127.0.0.9:0", LISTENER).and_then(|mut stream| client::ask(&mut stream, bytes));
    asked.unwrap_or_default()
}

fn headers() -> anyhow::Result<[Vec<u8>; 2]> {
    let (from, to) = ("203.0.113.7:5000", "192.0.2.1:443");
    Ok([client::v1(from, to)?, client::v2(from, to)?])
}

fn versions_are_chosen_by_the_variable(bed: &Bed) -> anyhow::Result<()> {
    let [v1, v2] = headers()?;
    for (version, takes_v1, takes_v2) in
        [("0", false, false), ("1", true, false), ("2", false, true), ("3", true, true)]
    {
        let running = server(bed, &[("LIBPROXYPROTO_VERSION", version)])?;
        for (header, taken) in [(&v1, takes_v1), (&v2, takes_v2)] {
            let said = ask(&[header.as_slice(), b"data"].concat());
            let as_client = said == "203.0.113.7 203.0.113.7 data";
            // A header of another version is data, as in libproxyproto: headers are optional.
            let as_sender = said.starts_with("127.0.0.9 127.0.0.9 ") && said.len() > header.len();
            ensure!(if taken { as_client } else { as_sender }, "version {version}: {said:?}");
        }
        ensure!(ask(b"data") == "127.0.0.9 127.0.0.9 data", "version {version}: no header");
        running.stop()?;
    }
    Ok(())
}

fn a_header_may_be_demanded(bed: &Bed) -> anyhow::Result<()> {
    let running =
        server(bed, &[("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", "1"), ("LIBPROXYPROTO_DEBUG", "1")])?;
    ensure!(ask(b"data").is_empty());
    running.wait_for_log("no valid PROXY header from 127.0.0.9:")?;
    ensure!(ask(&headers()?.concat()).starts_with("203.0.113.7 203.0.113.7 "));
    ensure!(!running.log().contains("guessed"), "{}", running.log());
    running.wait_for_log("203.0.113.7:5000 by 127.0.0.9:")
}

fn getpeername_may_be_left_alone(bed: &Bed) -> anyhow::Result<()> {
    let _running = server(bed, &[("LIBPROXYPROTO_GETPEERNAME_CACHE", "0")])?;
    let said = ask(&[headers()?[0].as_slice(), b"data"].concat());
    ensure!(said == "203.0.113.7 127.0.0.9 data", "{said:?}");
    Ok(())
}

/// Version 2, from 127.0.0.1:8080.
fn the_sender_has_its_documented_defaults(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import socket
connection = socket.create_connection(('127.0.0.1', 9090))
connection.shutdown(socket.SHUT_WR)
";
    for (version, expected) in [
        (None, client::v2("127.0.0.1:8080", LISTENER)?),
        (Some("1"), client::v1("127.0.0.1:8080", LISTENER)?),
        (Some("0"), Vec::new()),
    ] {
        let listener = listen(bed, LISTENER)?;
        let program = python(bed, script)?;
        let program = match version {
            Some(version) => program.env("LIBPROXYPROTO_VERSION", version),
            None => program,
        };
        preloading(bed, program, "libproxyproto_connect.so")?.run(bed)?;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut listener.accept()?.0, &mut bytes)?;
        ensure!(bytes == expected, "{version:?}: {:?}", bytes.escape_ascii().to_string());
    }
    Ok(())
}

/// The alternative would be to trust every sender.
fn an_invalid_value_ends_the_program(bed: &Bed) -> anyhow::Result<()> {
    for (name, variable, value) in [
        ("libproxyproto.so", "LIBPROXYPROTO_VERSION", "4"),
        ("libproxyproto_connect.so", "LIBPROXYPROTO_ADDR", "nowhere"),
        ("libproxyproto_connect.so", "LIBPROXYPROTO_PORT", "70000"),
        ("libtruepeer.so", "TRUEPEER_RUN", "window open"),
    ] {
        let program = Program::new("true").env(variable, value);
        let running = preloading(bed, program, name)?.start(bed)?;
        ensure!(!running.wait_end()?.success(), "{variable}={value}");
        ensure!(running.stderr().contains(variable), "{}", running.stderr());
    }
    Ok(())
}
