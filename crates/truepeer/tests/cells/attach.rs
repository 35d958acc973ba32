//! `truepeer attach` on the backend's host, behind a router.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use truepeer_testbed::matrix::ByAttach;
use truepeer_testbed::{Bed, Behaviour, Host, Program};

use crate::conversation::{finish_all, named_all, open_with};
use crate::{Net, SESSIONS, TRUEPEER};

const PORT: u16 = 80;

pub(crate) fn command(bed: &Bed, host: &Host, args: &[&str]) -> Result<Program> {
    Ok(ByAttach::new(TRUEPEER).command(bed, args)?.in_netns(&host.netns))
}

pub(crate) fn tcp(bed: &Bed, net: Net) -> Result<()> {
    let hosts = net.hosts()?;
    let host = hosts.host("backend");
    let at = host.at(net.v6, PORT);
    let backend = Behaviour::Echo.start_program(bed, &[at], |program| program.in_netns(&host.netns))?;
    command(bed, host, &["--allow", "any", "--port", &PORT.to_string()])?.run(bed)?;
    // The kernel guesses a header's length by that of the one before. Where it is wrong, it changes numbers.
    let sessions = (0..SESSIONS).map(|number| {
        let tlvs: &[(u8, &[u8])] = if number % 2 == 0 { &[] } else { &[(5, b"unique")] };
        open_with(net, hosts.host("sender"), at, 5000 + number, tlvs)
    });
    let mut sessions = sessions.collect::<Result<Vec<_>>>()?;
    let status: Value = serde_json::from_str(&command(bed, host, &["status", "--json"])?.run(bed)?)?;
    let open = |kind: &str| status["ports"][0][kind].as_u64().context("a port's state");
    let (translated, untouched) = (open("translated")?, open("untouched")?);
    let is_so = translated > 0 && translated + untouched == u64::from(SESSIONS);
    ensure!(is_so, "{translated} sessions are translated, {untouched} need not be: {status}");
    finish_all(&mut sessions)?;
    named_all(&backend, &sessions)
}
