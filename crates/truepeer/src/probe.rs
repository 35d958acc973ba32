//! `truepeer probe`: from words to a probe, and from its reports to an exit status.

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::process::ExitCode;

use anyhow::Context as _;
use truepeer_config::spec::{ProbeArgs, defaults};
use truepeer_probe::{App, Listening, NotPermitted, Receiver, Report};
use truepeer_sys::{output, tell};

/// Nothing could be told.
const UNKNOWN: u8 = 3;
/// The command line is wrong.
const USAGE: u8 = 2;

/// Status 1 is the other side's fault alone, so this side's errors have others.
pub(crate) fn probe(args: &ProbeArgs) -> ExitCode {
    judge(args).unwrap_or_else(|error| {
        tell!("error: {error:#}");
        if error.is::<NotPermitted>() { USAGE.into() } else { UNKNOWN.into() }
    })
}

fn judge(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let patience = args.patience.unwrap_or(defaults::PROBE_PATIENCE);
    if let Some(address) = args.listen {
        let count = args.count.map_or(1, std::num::NonZeroUsize::get);
        let listening = Listening { address, is_udp: args.udp, count, patience };
        return listen(&listening, args.json);
    }
    let target = args.target.as_ref().context("expected HOST:PORT or --listen PORT")?.to_string();
    let target = target.to_socket_addrs().with_context(|| format!("can't resolve {target}"))?.next();
    let target: SocketAddr = target.context("the name has no address")?;
    truepeer_probe::permit(target, &args.yes_i_may)?;
    let app = match args.app.as_deref().map_or(Ok(App::NONE), str::parse) {
        Ok(app) => app,
        Err(expected) => {
            tell!("error: --as {}: {expected}", args.app.as_deref().unwrap_or_default());
            return Ok(USAGE.into());
        }
    };
    let receiver = Receiver {
        target,
        app,
        from: args.from,
        patience,
        log: args.client_log.clone(),
        is_stranger: args.stranger,
    };
    let report = if args.udp {
        truepeer_probe::probe_datagrams(&receiver)?
    } else {
        truepeer_probe::probe_receiver(&receiver)?
    };
    show(&report, args.json)?;
    Ok(report.status().into())
}

fn listen(listening: &Listening, json: bool) -> anyhow::Result<ExitCode> {
    let mut worst = 0;
    let ready = |address: SocketAddr| tell!("waiting for a sender on {address}");
    truepeer_probe::probe_sender(listening, ready, |report| {
        worst = worst.max(report.status());
        show(report, json)
    })?;
    Ok(worst.into())
}

fn show(report: &Report, json: bool) -> std::io::Result<()> {
    let mut out = output::stdout();
    if json {
        writeln!(out, "{}", report.json())?
    } else {
        write!(out, "{report}")?
    }
    out.flush()
}
