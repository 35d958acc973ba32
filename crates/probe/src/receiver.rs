//! Plays the sender: what does a receiver make of each header?

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use truepeer_proto::vectors::Level;
use truepeer_proto::{Decoded, Limits, V2_SIGNATURE, decode};

use crate::ProbeError;
use crate::app::App;
use crate::belief::{belief, is_log_trusted};
use crate::case::{self, Case, Plain};
use crate::log::Log;
use crate::report::{Finding, Report, Takes};
use crate::seen::Seen;
use crate::talk::{End, Line};
use crate::verdict::{Verdict, Want};

/// The receiver, and how it is probed.
#[derive(Debug, Clone)]
pub struct Receiver {
    /// Where it listens.
    pub target: SocketAddr,
    /// The protocol of the application.
    pub app: App,
    /// The address that connections come from.
    pub from: Option<IpAddr>,
    /// How long an answer is waited for.
    pub patience: Duration,
    /// A file that names the application's clients.
    pub log: Option<PathBuf>,
    /// This machine is no sender: a header that is taken is a failure, and nothing else is looked at.
    pub is_stranger: bool,
}

/// PROXY 2: "at least 3 seconds to cover a TCP retransmit".
const AT_LEAST: Duration = Duration::from_secs(3);
/// Between two parts of a header that is cut.
const PAUSE: Duration = Duration::from_millis(20);
/// A relay that dials as the client can't use an address and port again at once. On loopback, Linux lets it
/// after a second.
const AGAIN: Duration = Duration::from_millis(1500);
/// How long a process takes to end.
const DEATH: Duration = Duration::from_millis(100);
/// Lengths of a header: the least segment of PROXY 2, and room for a client's certificate.
const LENGTHS: [usize; 3] = [case::SEGMENT, 4096, 16384];
/// No protocol begins so.
const GARBAGE: &[u8] = b"\x7f no header \x7f\r\n\r\n";

/// Probes a receiver over TCP.
///
/// # Errors
/// [`ProbeError`], if nothing listens or a connection can't be made.
pub fn probe(receiver: &Receiver) -> Result<Report, ProbeError> {
    let line =
        Line { target: receiver.target, from: receiver.from, app: receiver.app, patience: receiver.patience };
    let mut run = Run {
        line,
        log: receiver.log.as_deref().map(Log::open).transpose()?,
        by_silence: false,
        greeted: None,
        clients: BTreeSet::new(),
    };
    let bare = run.seen(&[if receiver.app.is_none() { GARBAGE } else { b"" }])?.0;
    run.by_silence = receiver.app.is_none() && matches!(bare, Seen::Refused(_));
    let (v1, v2) = (run.seen(&[&Plain::V1.header()?])?.0, run.seen(&[&Plain::V2.header()?])?.0);
    let takes = Takes { bare, versions: [(Plain::V1, v1), (Plain::V2, v2)] };
    let mut report = Report::new(receiver.target.to_string(), receiver.app, Some(takes));
    if receiver.is_stranger {
        report.findings = as_stranger(&report)?;
        return Ok(report);
    }
    let taken = report.taken();
    if taken.is_empty() {
        return Ok(report);
    }
    report.findings.push(guesses(&report));
    report.findings.push(run.waits()?);
    run.trust_log(&taken, &mut report)?;
    // Before the vectors: one of them may end the receiver.
    for &plain in &taken {
        for make in [Plain::header, Plain::header6] {
            report.findings.push(run.cuts(plain, make)?);
        }
        if plain == Plain::V2 {
            for length in LENGTHS {
                report.findings.push(run.long(length)?);
            }
        }
    }
    for case in case::vectors() {
        let speaks = taken.iter().any(|plain| plain.speaks(&case.header));
        let is_header = case.rule.id != "signature";
        if !speaks && is_header {
            continue;
        }
        if case.rule.id == "v2-addresses" && !run.outlives(&case)? {
            let said = "the receiver accepts no connections after this header alone".to_owned();
            report.findings.push(Finding::of_case(&case, Verdict::Broken, said, Vec::new()));
            soften_unknown(&mut report);
            return Ok(report);
        }
        report.findings.extend(run.case(case)?);
    }
    report.findings.extend(run.greets());
    soften_unknown(&mut report);
    Ok(report)
}

struct Run {
    line: Line,
    log: Option<Log>,
    /// A refusal shows as an end, so that an open connection means that the header was taken.
    by_silence: bool,
    /// The first header that is not valid, and after which the application greeted nevertheless.
    greeted: Option<Vec<u8>>,
    /// The clients of the vectors that were taken.
    clients: BTreeSet<SocketAddr>,
}

impl Run {
    fn seen(&mut self, pieces: &[&[u8]]) -> Result<(Seen, IpAddr), ProbeError> {
        if let Some(log) = &mut self.log {
            log.skip()?;
        }
        let talk = self.line.talk(pieces, PAUSE)?;
        let header = pieces.concat();
        let mut seen = Seen::of(self.line.app, &header, &talk);
        let decoded = decode(&header, Limits::default());
        let has_greeted = self.line.app.speaks_first() && self.line.app.greets(&talk.greeting);
        if has_greeted && !talk.greeting.is_empty() && decoded.is_err() && seen != Seen::Taken {
            self.greeted.get_or_insert(header.clone());
        }
        if self.by_silence && seen == Seen::Silent && is_whole(&header) {
            seen = Seen::Taken;
        }
        Ok((seen, talk.own))
    }

    /// The log judges only if it names the client of a plain header.
    fn trust_log(&mut self, taken: &[Plain], report: &mut Report) -> Result<(), ProbeError> {
        let Some(plain) = taken.first() else { return Ok(()) };
        let header = plain.header()?;
        let own = self.seen(&[&header])?.1;
        let Some(log) = &mut self.log else { return Ok(()) };
        let believed = log.news(Some(case::client()))?;
        if !is_log_trusted(report, &believed, own, self.line.target.ip(), &header) {
            self.log = None;
        }
        Ok(())
    }

    /// A parser that reads beyond the header shows itself when nothing follows.
    fn outlives(&self, case: &Case) -> Result<bool, ProbeError> {
        self.line.wait(&case.header, self.line.patience)?;
        // An ending process closes its sockets one after the other.
        sleep(DEATH);
        match self.line.wait(b"", Duration::from_millis(1)) {
            Err(ProbeError::Connect(_, error)) if is_refusal(&error) => Ok(false),
            // An error of this host, such as a lack of ports, says nothing of the receiver.
            talk => talk.map(|_| true),
        }
    }

    fn case(&mut self, case: Case) -> Result<Option<Finding>, ProbeError> {
        if case.want == Want::Nothing {
            return self.incomplete(case);
        }
        let (mut seen, mut own) = self.seen(&[&case.header])?;
        let is_refused = |seen: &Seen| case.want == Want::Taken && matches!(seen, Seen::Refused(_));
        if is_refused(&seen) {
            sleep(AGAIN);
            (seen, own) = self.seen(&[&case.header])?;
        }
        let mut verdict = Verdict::of(case.want, case.level, &seen);
        let (mut said, mut believed) = (seen.to_string(), Vec::new());
        let client = client_of(&case.header);
        if is_refused(&seen) && client.is_some_and(|client| self.clients.contains(&client)) {
            verdict = Verdict::Unknown;
            said.push_str(
                "; it took another header with this client, and may have to wait to dial as it again",
            );
        }
        self.clients.extend(client.filter(|_| seen == Seen::Taken));
        if let (Seen::Taken, Some(log)) = (&seen, &mut self.log) {
            believed = log.news(case.client.right(own))?;
            if let Some(wrong) = belief(&case, own, &believed) {
                (verdict, said) = wrong;
            }
        }
        Ok(Some(Finding::of_case(&case, verdict, said, believed)))
    }

    /// Part of a header: nothing may be answered yet. Only a server that speaks first shows it.
    fn incomplete(&self, case: Case) -> Result<Option<Finding>, ProbeError> {
        if !self.line.app.speaks_first() {
            return Ok(None);
        }
        let heard = self.line.wait(&case.header, self.line.patience)?.answer;
        let seen = if self.line.app.greets(&heard) && !heard.is_empty() { Seen::Taken } else { Seen::Silent };
        let said = if seen == Seen::Taken { "the application greeted" } else { "nothing was answered" };
        Ok(Some(Finding::of_case(
            &case,
            Verdict::of(case.want, Level::Must, &seen),
            said.to_owned(),
            Vec::new(),
        )))
    }

    /// A server that speaks first may not greet after an invalid header, even if it then refuses all.
    fn greets(&self) -> Option<Finding> {
        let (verdict, said) = match &self.greeted {
            Some(_) => (Verdict::Broken, "the application greeted"),
            None => (Verdict::Holds, "no greeting"),
        };
        let name = "a greeting after a header that is not valid";
        let finding = Finding::of_rule(name, "complete", Some(Want::Nothing), verdict, said.to_owned());
        let header = self.greeted.clone().unwrap_or_default();
        self.line.app.speaks_first().then(|| finding.with_bytes(&header))
    }

    /// A silent sender has three seconds, and no answer before its header.
    fn waits(&self) -> Result<Finding, ProbeError> {
        let talk = self.line.wait(b"", AT_LEAST + Duration::from_millis(200))?;
        let name = "nothing is sent for 3 s";
        if !talk.answer.is_empty() {
            let said = "the application spoke before the header".to_owned();
            return Ok(Finding::of_rule(name, "complete", Some(Want::Nothing), Verdict::Broken, said));
        }
        let (verdict, said) = match talk.end {
            End::Open => (Verdict::Holds, "waits".to_owned()),
            _ if talk.took < AT_LEAST => {
                (Verdict::Advised, format!("ended after {} ms", talk.took.as_millis()))
            }
            _ => (Verdict::Holds, "ended after 3 s".to_owned()),
        };
        Ok(Finding::of_rule(name, "timeout", Some(Want::Nothing), verdict, said))
    }

    /// A header in two segments, cut at every byte.
    fn cuts(
        &mut self,
        plain: Plain,
        make: fn(Plain) -> Result<Vec<u8>, ProbeError>,
    ) -> Result<Finding, ProbeError> {
        let (mut taken, mut refused, mut silent, mut leak) = (0, Vec::new(), 0, None);
        let length = make(plain)?.len();
        for cut in 1..length {
            let header = make(plain)?;
            match self.seen(&[&header[..cut], &header[cut..]])?.0 {
                Seen::Taken => taken += 1,
                Seen::Refused(how) => refused.push((cut, how)),
                Seen::Silent => silent += 1,
                Seen::Leaked(how) => leak = leak.or(Some((cut, how))),
            }
        }
        let name = format!("{} in two segments, {length} bytes cut at every byte", plain.name());
        let all = length - 1;
        let (verdict, said) = match (&leak, refused.first()) {
            (Some((cut, how)), _) => (Verdict::Broken, format!("leaked after {cut} bytes: {how}")),
            (None, Some((cut, how))) => (
                Verdict::Permitted,
                format!("{} of {all} refused, first after {cut} bytes: {how}", refused.len()),
            ),
            (None, None) if silent > 0 => (Verdict::Unknown, format!("no answer at {silent} of {all} cuts")),
            (None, None) => (Verdict::Holds, format!("taken at all {taken} cuts")),
        };
        let rule = if leak.is_some() { "complete" } else { "partial" };
        Ok(Finding::of_rule(&name, rule, None, verdict, said).with_bytes(&make(plain)?))
    }

    fn long(&mut self, length: usize) -> Result<Finding, ProbeError> {
        let header = case::long(length)?;
        let seen = self.seen(&[&header])?.0;
        let verdict = Verdict::of(Want::Taken, case::extended(length), &seen);
        let name = format!("version 2 of {length} bytes, filled by a NOOP");
        Ok(Finding::of_rule(&name, "tlv-skip", Some(Want::Taken), verdict, seen.to_string())
            .with_bytes(&header[..31]))
    }
}

/// Whether nothing more can come of a header, valid or not. A receiver that is sent less may wait for the
/// rest: "the receiver must wait for the CRLF sequence" (PROXY 2.1).
fn is_whole(header: &[u8]) -> bool {
    match header.strip_prefix(&V2_SIGNATURE) {
        Some(&[_, _, high, low, ref rest @ ..]) => rest.len() >= usize::from(u16::from_be_bytes([high, low])),
        Some(_) => false,
        None => header.ends_with(b"\r\n"),
    }
}

/// Whether the other side takes no connections.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | TimedOut)
}

/// The client that a header names.
fn client_of(header: &[u8]) -> Option<SocketAddr> {
    match decode(header, Limits::default()) {
        Ok(Decoded::Done { header, .. }) => header.client(),
        _ => None,
    }
}

/// PROXY 2: "MUST not try to guess".
fn guesses(report: &Report) -> Finding {
    let bare = report.takes.as_ref().map_or(Seen::Silent, |takes| takes.bare.clone());
    let verdict = match bare {
        Seen::Taken => Verdict::Broken,
        Seen::Silent => Verdict::Unknown,
        Seen::Refused(_) | Seen::Leaked(_) => Verdict::Holds,
    };
    let said = if bare == Seen::Taken {
        "served without a header, and with one".to_owned()
    } else {
        bare.to_string()
    };
    Finding::of_rule("no header", "no-guess", Some(Want::Refused), verdict, said)
}

/// A receiver that takes no UNKNOWN at all goes against one SHOULD, and can't ignore what follows it.
fn soften_unknown(report: &mut Report) {
    let refuses = |finding: &Finding| finding.rule.id == "v1-unknown" && finding.verdict == Verdict::Advised;
    if report.findings.iter().any(refuses) {
        let rest = report.findings.iter_mut().filter(|finding| finding.rule.id == "v1-unknown-rest");
        rest.filter(|finding| finding.verdict == Verdict::Broken)
            .for_each(|finding| finding.verdict = Verdict::Advised);
    }
}

/// Whoever is no sender should not be able to name a client.
fn as_stranger(report: &Report) -> Result<Vec<Finding>, ProbeError> {
    let versions = report.takes.iter().flat_map(|takes| &takes.versions);
    versions
        .map(|(plain, seen)| -> Result<Finding, ProbeError> {
            let verdict = match seen {
                Seen::Taken => Verdict::Broken,
                Seen::Silent => Verdict::Unknown,
                Seen::Refused(_) | Seen::Leaked(_) => Verdict::Holds,
            };
            let name = format!("{} from a stranger", plain.name());
            let header = plain.header()?;
            let said = seen.to_string();
            Ok(Finding::of_rule(&name, "trusted", Some(Want::Refused), verdict, said).with_bytes(&header))
        })
        .collect()
}
