//! The servers: how each is started and queried, and how its answer is parsed.

use std::fs;
use std::net::{Shutdown, SocketAddr, TcpStream};

use anyhow::{Context, Result, ensure};
use truepeer_testbed::servers::{Nginx, Postgres, Redis};
use truepeer_testbed::{Bed, Host, Program, Running};

use super::{Answer, Server, parse_client};
use crate::io_uring;

/// The servers written here: they send the client in a line, then echo.
const ECHO: Server = Server {
    name: "",
    needs: &[],
    is_nobodys_root: false,
    port: 80,
    start: start_io_uring,
    ask: <[u8]>::to_vec,
    end: |stream| stream.shutdown(Shutdown::Write),
    read: read_echo,
};

pub(super) static SERVERS: [Server; 8] = [
    Server { name: "go", needs: &["go"], start: start_go, ..ECHO },
    Server {
        name: "nginx",
        needs: &["nginx"],
        start: start_nginx,
        ask: ask_nginx,
        end: has_ended,
        read: read_nginx,
        ..ECHO
    },
    Server { name: "node", needs: &["node"], start: start_node, ..ECHO },
    Server { name: "java", needs: &["java"], start: start_java, ..ECHO },
    Server { name: "python", needs: &["python3"], start: start_python, ..ECHO },
    Server {
        name: "redis",
        needs: &["redis-server"],
        start: start_redis,
        ask: ask_redis,
        end: has_ended,
        read: read_redis,
        ..ECHO
    },
    Server {
        name: "postgresql",
        needs: &["postgres"],
        is_nobodys_root: true,
        port: 5432,
        start: start_postgres,
        ask: ask_postgres,
        end: has_ended,
        read: read_postgres,
    },
    Server { name: "io_uring", start: start_io_uring, ..ECHO },
];

/// The requests, including the last one.
fn has_ended(_: &TcpStream) -> std::io::Result<()> {
    Ok(())
}

fn read_echo(answer: &[u8]) -> Result<Answer> {
    let (line, body) = split(answer, b"\n")?;
    Ok(Answer { client: parse_client(str::from_utf8(line)?)?, body: body.to_vec() })
}

/// Splits at the first of these bytes.
fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Result<(&'a [u8], &'a [u8])> {
    let place = bytes.windows(at.len()).position(|window| window == at);
    let place = place.with_context(|| format!("no {} in it", at.escape_ascii()))?;
    Ok((&bytes[..place], &bytes[place + at.len()..]))
}

fn start_source(bed: &Bed, host: &Host, runner: &[&str], file: &str, source: &str) -> Result<Running> {
    let file = bed.write(file, source)?;
    let program = Program::new(runner[0]).args(&runner[1..]).arg(file).in_netns(&host.netns);
    listening(program.start(bed)?, host)
}

fn listening(server: Running, host: &Host) -> Result<Running> {
    server.wait_listening(host.at(false, 80))?;
    server.wait_listening(host.at(true, 80))?;
    Ok(server)
}

/// Static (no cgo). Its listeners are MPTCP sockets where the kernel supports them.
fn start_go(bed: &Bed, host: &Host) -> Result<Running> {
    const SOURCE: &str = "\
package main

import (
\t\"fmt\"
\t\"io\"
\t\"net\"
\t\"syscall\"
)

func main() {
\tlistener, err := net.Listen(\"tcp\", \":80\")
\tif err != nil {
\t\tpanic(err)
\t}
\traw, _ := listener.(*net.TCPListener).SyscallConn()
\traw.Control(func(fd uintptr) {
\t\tprotocol, _ := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_PROTOCOL)
\t\tfmt.Println(\"listens by protocol\", protocol)
\t})
\tfor {
\t\tconn, err := listener.Accept()
\t\tif err != nil {
\t\t\tpanic(err)
\t\t}
\t\tgo func() {
\t\t\tdefer conn.Close()
\t\t\tpeer := conn.RemoteAddr().(*net.TCPAddr)
\t\t\tfmt.Fprintf(conn, \"%s %d\\n\", peer.IP, peer.Port)
\t\t\tio.Copy(conn, conn)
\t\t}()
\t}
}
";
    const IPPROTO_MPTCP: &str = "listens by protocol 262\n";
    let program = truepeer_testbed::go::build(bed, "server", SOURCE)?;
    let server = listening(Program::new(program).in_netns(&host.netns).start(bed)?, host)?;
    server.wait_for_log("listens by protocol")?;
    let has_mptcp = host.run(|| fs::read_to_string("/proc/sys/net/mptcp/enabled"))?;
    let is_on = has_mptcp.is_ok_and(|enabled| enabled.trim() == "1");
    ensure!(!is_on || server.log().contains(IPPROTO_MPTCP), "{}", server.log());
    Ok(server)
}

fn start_node(bed: &Bed, host: &Host) -> Result<Running> {
    const SOURCE: &str = "\
require('net').createServer({ allowHalfOpen: true }, socket => {
  socket.on('error', () => {});
  socket.write(`${socket.remoteAddress} ${socket.remotePort}\\n`);
  socket.pipe(socket);
}).listen(80, '::');
";
    start_source(bed, host, &["node"], "server.js", SOURCE)
}

fn start_java(bed: &Bed, host: &Host) -> Result<Running> {
    const SOURCE: &str = "\
public class Server {
  public static void main(String[] args) throws Exception {
    var listener = new java.net.ServerSocket(80);
    while (true) {
      var socket = listener.accept();
      new Thread(() -> {
        try (socket) {
          var line = socket.getInetAddress().getHostAddress() + \" \" + socket.getPort() + \"\\n\";
          socket.getOutputStream().write(line.getBytes());
          socket.getInputStream().transferTo(socket.getOutputStream());
        } catch (java.io.IOException e) {
          System.err.println(e);
        }
      }).start();
    }
  }
}
";
    start_source(bed, host, &["java"], "Server.java", SOURCE)
}

fn start_python(bed: &Bed, host: &Host) -> Result<Running> {
    const SOURCE: &str = "\
import asyncio
async def answer(reader, writer):
    writer.write(('%s %d\\n' % writer.get_extra_info('peername')[:2]).encode())
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(answer, None, 80)
    await server.serve_forever()
asyncio.run(main())
";
    start_source(bed, host, &["python3"], "server.py", SOURCE)
}

fn start_io_uring(bed: &Bed, host: &Host) -> Result<Running> {
    if let Some(reason) = io_uring::is_missing() {
        return truepeer_testbed::skip(reason);
    }
    listening(io_uring::program("multishot", "[::]:80")?.in_netns(&host.netns).start(bed)?, host)
}

/// A body that was put there can be fetched.
fn start_nginx(bed: &Bed, host: &Host) -> Result<Running> {
    let files = bed.dir().join("files");
    fs::create_dir_all(&files)?;
    let directives = format!(
        "root {}; dav_methods PUT; client_max_body_size 0; sendfile on; add_header X-Client $remote_addr:$remote_port always;",
        files.display()
    );
    let nginx =
        Nginx::default().server("0.0.0.0:80", "", &directives).server("[::]:80", "ipv6only=on", &directives);
    host.run(|| nginx.start(bed))?
}

fn ask_nginx(body: &[u8]) -> Vec<u8> {
    let put = format!("PUT /body HTTP/1.1\r\nHost: host\r\nContent-Length: {}\r\n\r\n", body.len());
    [put.as_bytes(), body, b"GET /body HTTP/1.1\r\nHost: host\r\nConnection: close\r\n\r\n"].concat()
}

fn read_nginx(answer: &[u8]) -> Result<Answer> {
    let (put, rest) = split(answer, b"\r\n\r\n")?;
    let (got, body) = split(rest, b"\r\n\r\n")?;
    let clients = [put, got].map(|head| -> Result<SocketAddr> {
        let head = str::from_utf8(head)?;
        ensure!(head.starts_with("HTTP/1.1 20"), "{head}");
        parse_client(
            head.split("X-Client: ").nth(1).and_then(|rest| rest.lines().next()).context("a client")?,
        )
    });
    let [put, got] = clients;
    let client = put?;
    ensure!(client == got?, "{client} for the first request only");
    Ok(Answer { client, body: body.to_vec() })
}

fn start_redis(bed: &Bed, host: &Host) -> Result<Running> {
    host.run(|| Redis::start(bed, &["0.0.0.0", "::"], 80))?
}

/// RESP 2.
fn ask_redis(body: &[u8]) -> Vec<u8> {
    let set = format!("CLIENT INFO\r\n*3\r\n$3\r\nSET\r\n$4\r\nbody\r\n${}\r\n", body.len());
    [set.as_bytes(), body, b"\r\nGET body\r\nQUIT\r\n"].concat()
}

fn read_redis(answer: &[u8]) -> Result<Answer> {
    let (info, rest) = split(answer, b"\r\n+OK\r\n$")?;
    let (_, address) = split(info, b" addr=")?;
    let (address, _) = split(address, b" ")?;
    let (len, rest) = split(rest, b"\r\n")?;
    let len: usize = str::from_utf8(len)?.parse()?;
    ensure!(rest.get(len..) == Some(b"\r\n+OK\r\n"), "no end behind {len} bytes");
    Ok(Answer { client: parse_client(str::from_utf8(address)?)?, body: rest[..len].to_vec() })
}

fn start_postgres(bed: &Bed, host: &Host) -> Result<Running> {
    host.run(|| Postgres::start(bed, &["*"], 5432))?
}

/// The protocol's version 3.0: a startup message, a query, the end. Its text can't contain arbitrary bytes,
/// so the body is sent as digits.
fn ask_postgres(body: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let start = b"\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    let digits =
        body.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    let mut query = b"select host(inet_client_addr()) || ' ' || inet_client_port(), '".to_vec();
    query.extend(digits);
    query.extend(b"'\0");
    [message(b"", start), message(b"Q", &query), message(b"X", b"")].concat()
}

/// A message: its type, its length including the length field, and its contents.
fn message(kind: &[u8], content: &[u8]) -> Vec<u8> {
    let len = u32::try_from(content.len() + 4).unwrap_or_default().to_be_bytes();
    [kind, &len, content].concat()
}

fn read_postgres(answer: &[u8]) -> Result<Answer> {
    let mut rest = answer;
    loop {
        let (kind, len) = (rest.first().context("no row")?, rest.get(1..5).context("no length")?);
        let len = u32::from_be_bytes(len.try_into()?) as usize;
        let content = rest.get(5..=len).context("cut short")?;
        match kind {
            b'D' => return read_row(content),
            b'E' => anyhow::bail!("{}", content.escape_ascii()),
            _ => rest = &rest[len + 1..],
        }
    }
}

/// The number of columns, and each one's length and text.
fn read_row(row: &[u8]) -> Result<Answer> {
    let column = |at: usize| -> Result<&[u8]> {
        let len = u32::from_be_bytes(row.get(at..at + 4).context("a column's length")?.try_into()?) as usize;
        row.get(at + 4..at + 4 + len).context("a column")
    };
    let client = column(2)?;
    let digits = column(2 + 4 + client.len())?;
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let byte = |pair: &[u8]| Some(value(pair[0])? << 4 | value(*pair.get(1)?)?);
    let body = digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>().context("no digits")?;
    Ok(Answer { client: parse_client(str::from_utf8(client)?)?, body })
}
