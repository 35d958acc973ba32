//! Real programs see the client, however its header arrives.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use anyhow::{Context, ensure};
use truepeer_testbed::crowd::{in_parallel, nth_client};
use truepeer_testbed::servers::{Haproxy, Nginx, Postgres, Redis, Sshd, erlang, with_uvloop};
use truepeer_testbed::sockets::wait_until_sent;
use truepeer_testbed::{Bed, Program, Running, Test, User, client, tests};

use crate::bodies::{a_body_comes_back, a_file_comes_back, as_text, is_whole};
use crate::kit::{
    CLIENT4, CLIENT6, PYTHON, Talk, V4, V6, arrivals, destination_for, each_of_a_crowd_is_named,
    every_form_names_the_client, header_of, python, start, under,
};

pub(crate) fn tests() -> Vec<Test> {
    let go = tests![a_go_web_server, a_go_server_gets_headers_cut_anywhere, a_go_server_under_load];
    let mut all: Vec<Test> = go.into_iter().map(|test| test.needs_program("go")).collect();
    let python = tests![pythons_http_server, pythons_threads, pythons_asyncio, pythons_uvloop];
    all.extend(python.into_iter().map(|test| test.needs_program(PYTHON)));
    all.push(Test::new("node", node).needs_program("node"));
    all.push(Test::new("java", java).needs_program("java"));
    all.push(Test::new("erlang", erlang_server).needs_program("erlc"));
    all.extend(tests![
        nginx_with_workers,
        nginx_with_workers_and_reuseport,
        redis,
        postgres,
        postgres_in_every_form,
        postgres_on_two_addresses,
        sshd,
        sshd_in_every_form,
        an_sshd_under_load
    ]);
    all.into_iter().map(|test| test.needs_several_users().time_limit(MINUTES)).collect()
}

const MINUTES: Duration = Duration::from_secs(300);
const BOTH: [&str; 2] = [V4, V6];
const CLIENTS: [&str; 2] = [CLIENT4, CLIENT6];

/// Built without cgo: static. Its listeners are MPTCP sockets.
fn go(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    let source = "\
package main

import (
\t\"fmt\"
\t\"io\"
\t\"net/http\"
)

func main() {
\thttp.HandleFunc(\"/\", func(w http.ResponseWriter, r *http.Request) {
\t\tbody, _ := io.ReadAll(r.Body)
\t\tw.Write(body)
\t\tfmt.Fprintf(w, \"\\n%s\\n\", r.RemoteAddr)
\t})
\tfmt.Println(http.ListenAndServe(\":8080\", nil))
}
";
    let program = truepeer_testbed::go::build(bed, "server", source)?;
    start(bed, &under(Program::new(program).as_user(User::TESTER), options), &BOTH)
}

fn a_go_web_server(bed: &Bed) -> anyhow::Result<()> {
    let _go = go(bed, &[])?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Http)?;
    a_body_comes_back(V4, Talk::Http)
}

fn a_go_server_gets_headers_cut_anywhere(bed: &Bed) -> anyhow::Result<()> {
    let _go = go(bed, &[])?;
    let destination = "192.0.2.1:443";
    for header in [client::v1(CLIENT4, destination)?, client::v2(CLIENT4, destination)?] {
        for cut in 1..header.len() {
            let (first, second) = header.split_at(cut);
            let second = [second, b"GET / HTTP/1.0\r\n\r\n"].concat();
            let saw = Talk::Http.ask(V4, &[first, &second]).with_context(|| format!("cut at {cut}"))?;
            ensure!(saw.to_string() == CLIENT4, "cut at {cut}: {saw}");
        }
    }
    Ok(())
}

fn a_go_server_under_load(bed: &Bed) -> anyhow::Result<()> {
    let _go = go(bed, &[])?;
    each_of_a_crowd_is_named(V4, Talk::Http)
}

/// It waits with select() for a blocking listener.
fn pythons_http_server(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import http.server, socket
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        self.wfile.write(body + ('\\n%s %d\\n' % self.client_address[:2]).encode())
    do_POST = do_GET
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
Server(('::', 8080), Answer).serve_forever()
";
    let _python = start(bed, &python(bed, script, &[])?, &BOTH)?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Http)?;
    each_of_a_crowd_is_named(V4, Talk::Http)?;
    a_body_comes_back(V4, Talk::Http)
}

/// Several threads block in accept() at once.
fn pythons_threads(bed: &Bed) -> anyhow::Result<()> {
    let script = "\
import socket, threading
listener = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
def serve():
    while True:
        connection, peer = listener.accept()
        assert connection.getpeername() == peer
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        connection.sendall(b''.join(parts) + ('\\n%s %d\\n' % peer[:2]).encode())
        connection.close()
for _ in range(4):
    threading.Thread(target=serve).start()
";
    let _python = start(bed, &python(bed, script, &[])?, &BOTH)?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

const ASYNCIO: &str = "\
import asyncio
async def answer(reader, writer):
    body = await reader.read()
    writer.write(body + ('\\n%s %d\\n' % writer.get_extra_info('peername')[:2]).encode())
    writer.close()
async def main():
    server = await asyncio.start_server(answer, '127.0.0.1', 8080)
    await server.serve_forever()
";

fn pythons_asyncio(bed: &Bed) -> anyhow::Result<()> {
    let script = format!("{ASYNCIO}asyncio.run(main())\n");
    let _python = start(bed, &python(bed, &script, &[])?, &[V4])?;
    every_form_names_the_client(&[V4], &[CLIENT4], Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

/// Its loop is libuv's.
fn pythons_uvloop(bed: &Bed) -> anyhow::Result<()> {
    let script = format!("{ASYNCIO}import uvloop\nuvloop.install()\nasyncio.run(main())\n");
    let _python = start(bed, &with_uvloop(python(bed, &script, &[])?)?, &[V4])?;
    every_form_names_the_client(&[V4], &[CLIENT4], Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

fn node(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
require('net').createServer({ allowHalfOpen: true }, socket => {
  const parts = [];
  socket.on('data', part => parts.push(part));
  socket.on('end', () => {
    socket.write(Buffer.concat(parts));
    socket.end(`\\n${socket.remoteAddress} ${socket.remotePort}\\n`);
  });
}).listen(8080, '::');
";
    let program = Program::new("node").arg(bed.write("server.js", source)?);
    let _node = start(bed, &under(program, &[]), &BOTH)?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

fn java(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
public class Server {
  public static void main(String[] args) throws Exception {
    var listener = new java.net.ServerSocket(8080);
    while (true) {
      try (var socket = listener.accept()) {
        socket.getOutputStream().write(socket.getInputStream().readAllBytes());
        var text = \"\\n\" + socket.getInetAddress().getHostAddress() + \" \" + socket.getPort() + \"\\n\";
        socket.getOutputStream().write(text.getBytes());
      }
    }
  }
}
";
    let program = Program::new("java").arg(bed.write("Server.java", source)?);
    let _java = start(bed, &under(program, &[]), &BOTH)?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

/// A shell script starts it; threads of its virtual machine poll its sockets.
fn erlang_server(bed: &Bed) -> anyhow::Result<()> {
    let source = "\
-module(who).
-export([start/0]).
start() ->
    {ok, Listener} = gen_tcp:listen(8080, [inet6, {ipv6_v6only, false}, binary, {active, false},
        {exit_on_close, false}, {reuseaddr, true}, {backlog, 1024}]),
    accept(Listener).
accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Process = spawn(fun() -> receive go -> answer(Socket, []) end end),
    ok = gen_tcp:controlling_process(Socket, Process),
    Process ! go,
    accept(Listener).
answer(Socket, Parts) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, Part} -> answer(Socket, [Parts, Part]);
        {error, closed} ->
            {ok, {Ip, Port}} = inet:peername(Socket),
            ok = gen_tcp:send(Socket, [Parts, io_lib:format(\"~n~s ~b~n\", [inet:ntoa(Ip), Port])]),
            gen_tcp:close(Socket)
    end.
";
    erlang("erlc").arg(bed.write("who.erl", source)?).run(bed)?;
    let program = erlang("erl").args(["-noshell", "-eval", "who:start()"]);
    let _erlang = start(bed, &under(program, &[]), &BOTH)?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Plain)?;
    each_of_a_crowd_is_named(V4, Talk::Plain)?;
    a_body_comes_back(V4, Talk::Plain)
}

fn nginx_with_workers(bed: &Bed) -> anyhow::Result<()> {
    nginx(bed, "ipv6only=off")
}

fn nginx_with_workers_and_reuseport(bed: &Bed) -> anyhow::Result<()> {
    nginx(bed, "ipv6only=off reuseport")
}

/// Three workers share a listener, or have one each. A late header's wake-up may reach any of them.
fn nginx(bed: &Bed, options: &str) -> anyhow::Result<()> {
    let answer = format!(
        "location / {{ return 200 \"$remote_addr $remote_port\\n\"; }}
         location /files/ {{ root {}; dav_methods PUT; create_full_put_path on; client_max_body_size 20m;
             add_header X-Client \"$remote_addr $remote_port\" always; }}",
        bed.dir().display()
    );
    let nginx = Nginx::default().workers(3).server("[::]:8080", options, &answer);
    let _nginx = nginx.start_with(bed, |program| under(program, &[]))?;
    every_form_names_the_client(&BOTH, &CLIENTS, Talk::Http)?;
    each_of_a_crowd_is_named(V4, Talk::Http)?;
    a_file_comes_back(V4)?;
    in_parallel(20, 400, |n| {
        let client = nth_client(n);
        let header = header_of(&client.to_string())?;
        let saw = Talk::Http.ask_fast(V6, &[&header[..20], &header[20..], b"GET / HTTP/1.0\r\n\r\n"])?;
        ensure!(saw == client, "{client} was seen as {saw}");
        Ok(())
    })
}

fn redis(bed: &Bed) -> anyhow::Result<()> {
    let as_tester = |program: Program| under(program.as_user(User::TESTER), &[]);
    let _redis = Redis::start_with(bed, &["127.0.0.1", "::1"], 8080, as_tester)?;
    every_form_names_the_client(&[V4], &[CLIENT4], Talk::Redis)?;
    every_form_names_the_client(&[V6], &CLIENTS, Talk::Redis)?;
    each_of_a_crowd_is_named(V4, Talk::Redis)?;
    a_body_comes_back(V4, Talk::Redis)
}

/// Every connection has its own process, which asks for its client's name there.
fn postgres_in_every_form(bed: &Bed) -> anyhow::Result<()> {
    for (address, to, clients) in [("127.0.0.1", V4, &CLIENTS[..1]), ("::1", V6, &CLIENTS[..])] {
        // Processes whose client has left end a little later.
        let run = |program: Program| under(program, &[]).args(["-c", "max_connections=300"]);
        let postgres = Postgres::start_with(bed, &[address], 8080, run)?;
        every_form_names_the_client(&[to], clients, Talk::Postgres)?;
        each_of_a_crowd_is_named(to, Talk::Postgres)?;
        a_body_comes_back(to, Talk::Postgres)?;
        postgres.stop()?;
    }
    Ok(())
}

/// Up to version 15 it waits in select() for blocking listeners and unblocks signals only there: a silent or
/// refused connection on one address must not keep it from the other, nor from ending.
fn postgres_on_two_addresses(bed: &Bed) -> anyhow::Result<()> {
    let run = |program: Program| under(program, &["--header-timeout", "10m"]);
    let postgres = Postgres::start_with(bed, &["127.0.0.1", "::1"], 8080, run)?;
    let header = header_of(CLIENT4)?;
    let served = |to: &str| {
        let saw = Talk::Postgres.ask(to, &[&header, Talk::Postgres.question()])?;
        ensure!(saw.to_string() == CLIENT4, "{saw} was seen on {to}");
        anyhow::Ok(())
    };
    for (held, good) in [(V4, V6), (V6, V4)] {
        let _silent = client::connect(held)?;
        let mut late = client::connect(held)?;
        late.write_all(&header[..20])?;
        wait_until_sent(&late)?;
        // It was sent after the late one, so its end shows that both were examined.
        let mut refused = client::connect(held)?;
        refused.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        client::read_end(&mut refused)?;
        (0..3).try_for_each(|_| served(good)).context("beside connections that are not for it")?;
        late.write_all(&header[20..])?;
        let saw = Talk::Postgres.say_and_hear(late)?;
        ensure!(saw.to_string() == CLIENT4, "{saw} was seen");
        served(held)?;
    }
    let mut refused = client::connect(V4)?;
    refused.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    client::read_end(&mut refused)?;
    postgres.stop()?;
    ensure!(postgres.log().contains("database system is shut down"), "{}", postgres.log());
    Ok(())
}

/// HAProxy is on ::1, its client on 127.0.0.1.
fn postgres(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--allow-claims", "loopback"];
    let _postgres = Postgres::start_with(bed, &["::1"], 8080, |program| under(program, &options))?;
    let _haproxy = Haproxy::default().relay("127.0.0.9:5432", V6, "send-proxy-v2").start(bed)?;
    for _ in 0..3 {
        let saw = Postgres::psql("127.0.0.9", 5432, "select host(inet_client_addr())").run(bed)?;
        ensure!(saw.trim() == "::ffff:127.0.0.1", "{saw:?}");
    }
    Ok(())
}

/// It forks for each connection and executes itself again there; run by root, because it changes users.
fn sshd(bed: &Bed) -> anyhow::Result<()> {
    let options = ["--allow-claims", "loopback"];
    let sshd = Sshd::start_with(bed, &[V6], |program| under(program, &options))?;
    let _haproxy = Haproxy::default().relay("127.0.0.9:22", V6, "send-proxy").start(bed)?;
    let saw = sshd.login("127.0.0.9", 22).run(bed)?;
    ensure!(saw.starts_with("127.0.0.1 "), "{saw:?}; {}", sshd.running.log());
    sshd.running.wait_for_log("from 127.0.0.1 port")
}

/// v1, v2, with TLVs, LOCAL and none, as for every other program. Its session is told the client. Its IPv6
/// listeners accept no IPv4, so dual stack means two listeners.
fn sshd_in_every_form(bed: &Bed) -> anyhow::Result<()> {
    let sshd = Sshd::start_with(bed, &[V4, V6], |program| under(program, &[]))?;
    let login = |to: &str, header: &[u8], arrival: usize| {
        let stand_in = LoadBalancer::start(to, header, arrival)?;
        let said = sshd.login("127.0.0.1", stand_in.port()).run(bed);
        let said = said.with_context(|| format!("arrival {arrival} of {} bytes at {to}", header.len()))?;
        anyhow::Ok(said.trim().to_owned())
    };
    for (to, clients) in [(V4, &CLIENTS[..1]), (V6, &CLIENTS[..])] {
        for named in clients {
            let destination = destination_for(named);
            let headers = [
                client::v1(named, destination)?,
                client::v2(named, destination)?,
                client::v2_with_tlvs(named, destination, &[(4, &[0; 1024])])?,
            ];
            let named: std::net::SocketAddr = named.parse()?;
            for header in &headers {
                for arrival in 0..3 {
                    let saw = login(to, header, arrival)?;
                    ensure!(saw == format!("{} 5000 8080", named.ip()), "{named} was seen as {saw}");
                }
            }
        }
        let loopback = to.parse::<std::net::SocketAddr>()?.ip().to_string();
        for arrival in 0..3 {
            let saw = login(to, &client::v2_local(), arrival)?;
            ensure!(saw.starts_with(&format!("{loopback} ")), "LOCAL was seen as {saw}");
        }
        let mut none = client::connect(to)?;
        none.write_all(b"SSH-2.0-none\r\n")?;
        let end = client::read_end(&mut none).context("a connection without a header has to end")?;
        ensure!(matches!(end, client::End::Reset | client::End::Eof), "{end:?}");
    }
    a_body_through_ssh(bed, &sshd)
}

/// To the session's program and back, encrypted: ssh itself detects a changed byte.
fn a_body_through_ssh(bed: &Bed, sshd: &Sshd) -> anyhow::Result<()> {
    let body = as_text();
    let file = bed.write(&bed.fresh_name("body"), &body)?;
    for arrival in 0..2 {
        let stand_in = LoadBalancer::start(V4, &header_of(CLIENT4)?, arrival)?;
        let session = sshd.session("127.0.0.1", stand_in.port(), "cat; echo; echo $SSH_CLIENT");
        let said = session.stdin(std::fs::File::open(&file)?).run(bed)?;
        let name = String::from_utf8_lossy(is_whole(said.as_bytes(), &body)?).into_owned();
        ensure!(name == "\n203.0.113.7 5000 8080\n", "{name:?} was seen");
    }
    Ok(())
}

/// Passes one connection on, with a header before it in one of the ways of [`arrivals`].
struct LoadBalancer {
    listener: std::net::TcpListener,
}

impl LoadBalancer {
    fn start(to: &str, header: &[u8], arrival: usize) -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let (own, to, header) = (listener.try_clone()?, to.to_owned(), header.to_vec());
        // A failure ends the connection, which the login reports. The network namespace is the test's, so the
        // thread's too.
        std::thread::spawn(move || carry_one(&own, &to, &header, arrival));
        Ok(Self { listener })
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }
}

fn carry_one(
    listener: &std::net::TcpListener,
    to: &str,
    header: &[u8],
    arrival: usize,
) -> anyhow::Result<()> {
    let (mut from, _) = listener.accept()?;
    let mut banner = [0; 256];
    let count = from.read(&mut banner)?;
    let mut server = client::connect(to)?;
    for piece in &arrivals(header, &banner[..count])[arrival] {
        server.write_all(piece)?;
        wait_until_sent(&server)?;
    }
    let (mut up, mut down) = (from.try_clone()?, server.try_clone()?);
    let ends = std::thread::spawn(move || {
        let _ = std::io::copy(&mut up, &mut down);
        down.shutdown(std::net::Shutdown::Write)
    });
    std::io::copy(&mut server, &mut from)?;
    from.shutdown(std::net::Shutdown::Both)?;
    let _ = ends.join();
    Ok(())
}

/// A newly executed process for each connection: three hundred, one after another and fifty at a time. Its
/// log names the clients. No keys are exchanged, because that would dominate the cost.
fn an_sshd_under_load(bed: &Bed) -> anyhow::Result<()> {
    const COUNT: usize = 300;
    let sshd = Sshd::start_with(bed, &[V4], |program| under(program.args(["-o", "LogLevel=VERBOSE"]), &[]))?;
    for (first, side_by_side) in [(0, 1), (COUNT, 50)] {
        in_parallel(side_by_side, COUNT, |n| {
            let mut stream = client::connect(V4)?;
            stream.write_all(&header_of(&nth_client(first + n).to_string())?)?;
            let mut banner = String::new();
            BufReader::new(&stream).read_line(&mut banner).context("the banner")?;
            ensure!(banner.starts_with("SSH-2.0-"), "{banner:?}");
            Ok(())
        })?;
    }
    let named = |n: usize| {
        let client = nth_client(n);
        format!("Connection from {} port {} on ", client.ip(), client.port())
    };
    sshd.running.wait_state("the log to name each", || {
        let log = sshd.running.log();
        (0..2 * COUNT).all(|n| log.contains(&named(n)))
    })
}
