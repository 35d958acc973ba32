//! Real UDP clients, with truepeer at both ends: the claimed client is the one seen, in each dialect.

use anyhow::ensure;
use truepeer_testbed::datagrams::Backend;
use truepeer_testbed::servers::dns::Unbound;
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, User};

use crate::kit::{CLIENT4, via};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::new();
    for dialect in ["every", "first", "standalone", "spp"] {
        for program in ["ncat", "nc"] {
            let name = format!("{program}_is_seen_as_claimed_in_{dialect}");
            let test = Test::new(name, move |bed| netcat(bed, program, dialect));
            all.push(test.needs_program(program));
        }
        if via() == "notify" {
            let name = format!("a_go_resolver_is_seen_as_claimed_in_{dialect}");
            let test = Test::new(name, move |bed| go_resolver(bed, dialect));
            all.push(test.needs_program("go").needs_program("unbound"));
        }
    }
    all.into_iter().map(Test::needs_several_users).collect()
}

const TO: &str = "127.0.0.1:5300";

fn proxy(bed: &Bed, dialect: &str) -> anyhow::Result<Running> {
    let proxy =
        Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer")).args(&["-p", "udp", "--udp-dialect", dialect]);
    let proxy = proxy.args(&["--workers", "1"]).ipv4("127.0.0.1:53").option("-l", TO).start_unready(bed)?;
    proxy.wait_for_log(&format!("listening on {TO}"))?;
    Ok(proxy)
}

fn claiming(program: Program, dialect: &str) -> Program {
    let launch = [
        "connect",
        "--via",
        via(),
        "--udp-dialect",
        dialect,
        "--from",
        CLIENT4,
        "--to",
        TO,
        "--verbose",
        "--",
    ];
    program.as_user(User::TESTER).launched_by(env!("CARGO_BIN_EXE_truepeer"), &launch)
}

/// It sends its input and prints what it receives, by write() and read() on a connected socket.
fn netcat(bed: &Bed, program: &str, dialect: &str) -> anyhow::Result<()> {
    let _backend = Backend::who(&["127.0.0.1:53"])?;
    let _proxy = proxy(bed, dialect)?;
    let (input, output) = rustix::pipe::pipe()?;
    let netcat = Program::new(program).args(["-u", "127.0.0.1", "5300"]).stdin(input);
    let netcat = claiming(netcat, dialect).start(bed)?;
    for line in ["one", "two", "three"] {
        rustix::io::write(&output, format!("{line}\n").as_bytes())?;
        netcat.wait_for_log(&format!("{CLIENT4} {line}\n"))?;
    }
    let answers: String = ["one", "two", "three"].map(|line| format!("{CLIENT4} {line}\n")).concat();
    ensure!(netcat.stdout() == answers, "{:?}", netcat.stdout());
    Ok(())
}

/// A static program: it writes to and reads from a connected non-blocking socket.
fn go_resolver(bed: &Bed, dialect: &str) -> anyhow::Result<()> {
    let unbound = Unbound::start(bed, &["127.0.0.1:53".parse()?], |program| program)?;
    let _proxy = proxy(bed, dialect)?;
    let source = "\
package main

import (
\t\"context\"
\t\"fmt\"
\t\"net\"
)

func main() {
\tdial := func(ctx context.Context, network, address string) (net.Conn, error) {
\t\treturn net.Dial(\"udp\", \"127.0.0.1:5300\")
\t}
\tresolver := net.Resolver{PreferGo: true, Dial: dial}
\tfmt.Println(resolver.LookupIP(context.Background(), \"ip4\", \"asked.test.\"))
}
";
    let program = truepeer_testbed::go::build(bed, "resolver", source)?;
    let said = claiming(Program::new(program), dialect).run(bed)?;
    ensure!(said.trim() == "[192.0.2.1] <nil>", "{said}");
    unbound.wait_state("the question", || Unbound::client_of(&unbound.log(), "asked.test").is_some())?;
    let client = Unbound::client_of(&unbound.log(), "asked.test");
    ensure!(client.as_deref() == Some("203.0.113.7"), "{client:?}");
    Ok(())
}
