//! Real servers, started before the attachment and never restarted: over a link with offloads and one
//! without, with every kind of header, guessed right and wrong. Each returns the client that it sees and the
//! body that it was sent.

mod forms;
mod programs;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Host, Running, Test, Topology, client};

use self::forms::{FORMS, Form};
use self::programs::SERVERS;
use crate::kit::{attach_on, converse_until, counter_on};
use crate::offloads::Offloads;

const LEN: usize = 10_000_000;

/// An unmodified server and its protocol.
struct Server {
    name: &'static str,
    /// Programs that must be installed.
    needs: &'static [&'static str],
    /// It refuses to run as root.
    is_nobodys_root: bool,
    port: u16,
    /// Starts it on all addresses of a host.
    start: fn(&Bed, &Host) -> Result<Running>,
    /// The client's request: to be named, and to get this body back.
    ask: fn(&[u8]) -> Vec<u8>,
    /// How the client ends. NGINX and Redis take a FIN as the client's departure.
    end: fn(&TcpStream) -> std::io::Result<()>,
    read: fn(&[u8]) -> Result<Answer>,
}

/// A server's answer.
struct Answer {
    /// The client that it saw.
    client: SocketAddr,
    /// The body that it received.
    body: Vec<u8>,
}

pub(crate) fn tests() -> Vec<Test> {
    let some = SERVERS.iter().enumerate().map(|(n, server)| {
        // Each form is used once with offloads and once without, by different servers.
        let form = |place: usize| FORMS[place % FORMS.len()];
        let (with, without) = (form(n), form(n + 5));
        let is_v6 = n % 2 == 0;
        test(server, "", move |stand| {
            stand.carries(Offloads::On, &[with], is_v6)?;
            stand.carries(Offloads::Off, &[without], !is_v6)
        })
    });
    let all = SERVERS.iter().map(|server| {
        let everything = |stand: &Stand<'_>| {
            for offloads in [Offloads::On, Offloads::Off] {
                stand.carries(offloads, &FORMS, false)?;
                stand.carries(offloads, &FORMS, true)?;
            }
            Ok(())
        };
        test(server, "_in_all_forms", everything).long().time_limit(Duration::from_secs(300))
    });
    some.chain(all).map(|test| test.of_group("servers")).collect()
}

fn test(
    server: &'static Server,
    suffix: &str,
    run: impl FnOnce(&Stand<'_>) -> Result<()> + Send + 'static,
) -> Test {
    let name = format!("{}_sees_its_clients{suffix}", server.name);
    let body = move |bed: &Bed| -> Result<()> {
        let line = Topology::line(&["lb", "host"])?;
        let running = (server.start)(bed, line.host("host"))?;
        let port = server.port.to_string();
        attach_on(bed, line.host("host"), &["--port", &port])?;
        run(&Stand { bed, line: &line, server })?;
        ensure!(running.is_alive(), "{}", running.log());
        Ok(())
    };
    let test = Test::new(name, body).needs_program("ethtool").time_limit(Duration::from_secs(240));
    let test = if server.is_nobodys_root { test.needs_several_users() } else { test };
    server.needs.iter().fold(test, |test, program| test.needs_program(program))
}

/// A server that was running before the attachment.
struct Stand<'a> {
    bed: &'a Bed,
    line: &'a Topology,
    server: &'static Server,
}

impl Stand<'_> {
    fn carries(&self, offloads: Offloads, forms: &[Form], is_v6: bool) -> Result<()> {
        offloads.set(self.bed, self.line.host("lb"), self.line.host("host"))?;
        let family = if is_v6 { "IPv6" } else { "IPv4" };
        forms.iter().try_for_each(|form| {
            self.carries_one(*form, is_v6)
                .with_context(|| format!("{form:?}, {family}, offloads {offloads:?}"))
        })
    }

    fn carries_one(&self, form: Form, is_v6: bool) -> Result<()> {
        let (lb, host) = (self.line.host("lb"), self.line.host("host"));
        let connect = || lb.run(|| client::connect(host.at(is_v6, self.server.port)))?;
        // Determines the guess for this sender's next header. The server sees an empty connection.
        let before = form.header_before(is_v6)?;
        drop(client::ask(&mut connect()?, &before).context("the connection before")?);

        let guessed = self.guesses()?;
        let stream = connect()?;
        let client = form.client(is_v6, &stream)?;
        let body = Pattern::bytes(LEN);
        let answer = self.exchange(stream, &form.header(is_v6)?, &body)?;
        ensure!(answer.client == client, "{} was seen", answer.client);
        let mut digest = Digest::default();
        digest.update(&answer.body);
        let report = digest.report();
        ensure!(report == Digest::of_pattern(LEN as u64), "came back: {report}");

        let (right, translated) = self.guesses()?;
        let counted = (right - guessed.0, translated - guessed.1);
        ensure!(counted == form.counted(), "guessed right, translated: {counted:?}");
        Ok(())
    }

    fn exchange(&self, stream: TcpStream, header: &[u8], body: &[u8]) -> Result<Answer> {
        let said = [header, &(self.server.ask)(body)].concat();
        let answer = converse_until(stream, &said, self.server.end)?;
        let start = || answer[..answer.len().min(200)].escape_ascii();
        (self.server.read)(&answer).with_context(|| format!("{} bytes: {}", answer.len(), start()))
    }

    fn guesses(&self) -> Result<(u64, u64)> {
        let count = |name| counter_on(self.bed, self.line.host("host"), name);
        Ok((count("guessed_right")?, count("translated")?))
    }
}

/// An address and a port in any program's notation: `1.2.3.4 5`, `[::1]:5`, `::1:5`.
fn parse_client(text: &str) -> Result<SocketAddr> {
    let (ip, port) = text.trim().rsplit_once([' ', ':']).with_context(|| format!("no client in {text:?}"))?;
    let ip: IpAddr = ip.trim_matches(['[', ']']).parse().with_context(|| text.to_owned())?;
    Ok(SocketAddr::new(ip.to_canonical(), port.parse().with_context(|| text.to_owned())?))
}
