//! Plays the sender of datagrams: which dialect does a receiver understand? Does it judge each datagram by
//! itself?

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use truepeer_proto::spp::{self, Spp};
use truepeer_proto::vectors::Level;

use crate::ProbeError;
use crate::belief::{belief, is_log_trusted};
use crate::case::{self, Case};
use crate::log::Log;
use crate::receiver::Receiver;
use crate::report::{Finding, Report};
use crate::seen::Seen;
use crate::verdict::{Verdict, Want};

/// The longest header that is sent in a datagram.
const MOST: usize = 1200;

/// Where a header is in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Every,
    First,
    Standalone,
    Spp,
}

impl Dialect {
    const ALL: [Self; 4] = [Self::Every, Self::First, Self::Standalone, Self::Spp];

    fn name(self) -> &'static str {
        match self {
            Self::Every => "every: a version 2 header in each datagram",
            Self::First => "first: a header in a flow's first datagram, the others bare",
            Self::Standalone => "standalone: a header alone, then bare datagrams",
            Self::Spp => "spp: Simple Proxy Protocol",
        }
    }
}

/// Probes a receiver of datagrams. The application has to answer: `--as dns` or `--as echo`.
///
/// # Errors
/// [`ProbeError`].
pub fn probe(receiver: &Receiver) -> Result<Report, ProbeError> {
    let mut report = Report::new(format!("{} (UDP)", receiver.target), receiver.app, None);
    let Some(request) = receiver.app.datagram() else {
        report.notes.push("no answer is known for this protocol over UDP: --as dns or --as echo".to_owned());
        return Ok(report);
    };
    let mut run = Run { receiver, request, log: receiver.log.as_deref().map(Log::open).transpose()? };
    let bare = run.flow(&[request])?.0;
    report.notes.push(format!("without a header  {bare}"));
    let mut taken = Vec::new();
    for dialect in Dialect::ALL {
        let seen = run.dialect(dialect)?;
        // Where bare datagrams are answered, so is the last one of a flow. An echo of a whole datagram looks
        // like the answer of a receiver of SPP.
        let tells = match dialect {
            Dialect::Every => true,
            Dialect::First | Dialect::Standalone => bare != Seen::Taken,
            Dialect::Spp => bare != Seen::Taken || !receiver.app.is_echo(),
        };
        let shown = if tells { seen.to_string() } else { "can't be told from bare datagrams".to_owned() };
        report.notes.push(format!("{}  {shown}", dialect.name()));
        if seen == Seen::Taken && tells {
            taken.push(dialect);
        }
    }
    if taken.is_empty() {
        report.serves_bare_datagrams = bare == Seen::Taken;
        return Ok(report);
    }
    if receiver.is_stranger {
        let said = "a header is taken".to_owned();
        report.findings.push(Finding::of_rule(
            "a header from a stranger",
            "trusted",
            Some(Want::Refused),
            Verdict::Broken,
            said,
        ));
        return Ok(report);
    }
    let (verdict, said) = match bare {
        Seen::Taken => (Verdict::Broken, "answered with a header, and without one"),
        _ => (Verdict::Holds, "no answer without a header"),
    };
    report.findings.push(Finding::of_rule(
        "no header",
        "no-guess",
        Some(Want::Refused),
        verdict,
        said.to_owned(),
    ));
    if taken.contains(&Dialect::Every) && bare != Seen::Taken {
        let (verdict, said) = match taken.contains(&Dialect::First) {
            true => (Verdict::Broken, "a bare datagram is answered after one with a header"),
            false => (Verdict::Holds, "each datagram needs its header"),
        };
        report.findings.push(Finding::of_rule(
            "a bare datagram after one with a header",
            "datagram",
            Some(Want::Refused),
            verdict,
            said.to_owned(),
        ));
        run.trust_log(&mut report)?;
        for case in case::vectors().filter(|case| case.header.starts_with(b"\r\n")) {
            report.findings.extend(run.case(case)?);
        }
    }
    Ok(report)
}

struct Run<'a> {
    receiver: &'a Receiver,
    request: &'static [u8],
    log: Option<Log>,
}

impl Run<'_> {
    fn dialect(&self, dialect: Dialect) -> Result<Seen, ProbeError> {
        let header = case::datagram()?;
        let headed = [header.as_slice(), self.request].concat();
        let (seen, _) = match dialect {
            Dialect::Every => self.flow(&[&headed])?,
            Dialect::First => self.flow(&[&headed, self.request])?,
            Dialect::Standalone => self.flow(&[&header, self.request])?,
            Dialect::Spp => {
                let header =
                    Spp { client: (Ipv4Addr::new(192, 0, 2, 77), 40077).into(), proxy: self.receiver.target };
                let mut bytes = [0; spp::LEN];
                spp::encode(&header, &mut bytes).map_err(std::io::Error::other)?;
                self.flow(&[&[bytes.as_slice(), self.request].concat()])?
            }
        };
        Ok(seen)
    }

    /// Sends datagrams from one socket. Whether the last is answered tells; the answers of earlier ones are
    /// awaited first. Returns the socket's address, too.
    fn flow(&self, datagrams: &[&[u8]]) -> Result<(Seen, IpAddr), ProbeError> {
        let target = self.receiver.target;
        let any: IpAddr =
            if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let from = SocketAddr::new(self.receiver.from.unwrap_or(any), 0);
        let socket = UdpSocket::bind(from).map_err(|error| ProbeError::Bind(from, error))?;
        socket.connect(target).map_err(|error| ProbeError::Connect(target, error))?;
        let mut seen = Seen::Silent;
        for datagram in datagrams {
            let sent = socket.send(datagram);
            seen = match sent {
                Ok(_) => self.answer(&socket)?,
                Err(_) => Seen::Refused("port unreachable".to_owned()),
            };
        }
        Ok((seen, socket.local_addr()?.ip().to_canonical()))
    }

    /// A datagram that is not answered is sent once more: the network may have lost it.
    fn insist(&self, datagram: &[u8]) -> Result<(Seen, IpAddr), ProbeError> {
        match self.flow(&[datagram])? {
            (Seen::Refused(_), _) => self.flow(&[datagram]),
            answered => Ok(answered),
        }
    }

    /// The log judges only if it names the client of a plain header.
    fn trust_log(&mut self, report: &mut Report) -> Result<(), ProbeError> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.skip()?;
        let header = case::datagram()?;
        let own = self.insist(&[header.as_slice(), self.request].concat())?.1;
        let Some(log) = &mut self.log else { return Ok(()) };
        let believed = log.news(Some(case::client()))?;
        if !is_log_trusted(report, &believed, own, self.receiver.target.ip(), &header) {
            self.log = None;
        }
        Ok(())
    }

    fn answer(&self, socket: &UdpSocket) -> Result<Seen, ProbeError> {
        let (deadline, mut buffer) = (Instant::now() + self.receiver.patience, [0; 2048]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Seen::Refused("no answer".to_owned()));
            }
            socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            match socket.recv(&mut buffer) {
                Ok(length) => return Ok(self.judge(&buffer[..length])),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(_) => return Ok(Seen::Refused("port unreachable".to_owned())),
            }
        }
    }

    fn judge(&self, answer: &[u8]) -> Seen {
        // An SPP receiver's answers carry the header, too.
        let answer = if answer.starts_with(&self.request[..2]) {
            answer
        } else {
            answer.get(spp::LEN..).unwrap_or(answer)
        };
        let is_right = match self.receiver.app.is_dns() {
            // The identity, and the bit of a response. FORMERR is the answer to a query that begins wrongly.
            true => {
                answer.starts_with(&self.request[..2])
                    && answer.get(2).is_some_and(|flags| flags & 0x80 != 0)
                    && answer.get(3).is_some_and(|code| code & 0x0f != 1)
            }
            false => answer == self.request,
        };
        if is_right { Seen::Taken } else { Seen::Leaked(format!("answered {} other bytes", answer.len())) }
    }

    /// A vector as a datagram: what is TCP there is UDP here.
    fn case(&mut self, mut case: Case) -> Result<Option<Finding>, ProbeError> {
        let is_of_tcp = case.want == Want::Nothing || case.rule.id == "signature";
        // A checksum is over the transport as well. What is longer than a segment would be fragmented.
        if is_of_tcp || case.name.contains("CRC32C") || case.header.len() > MOST {
            return Ok(None);
        }
        if let Some(byte) = case.header.get_mut(13).filter(|byte| **byte & 0x0f == 1) {
            *byte += 1;
        }
        if let Some(log) = &mut self.log {
            log.skip()?;
        }
        let datagram = [case.header.as_slice(), self.request].concat();
        let (seen, own) =
            if case.want == Want::Taken { self.insist(&datagram)? } else { self.flow(&[&datagram])? };
        let level = if case.name.contains("UDP") { Level::May } else { case.level };
        let (mut verdict, mut said, mut believed) =
            (Verdict::of(case.want, level, &seen), seen.to_string(), Vec::new());
        if let (Seen::Taken, Some(log)) = (&seen, &mut self.log) {
            believed = log.news(case.client.right(own))?;
            if let Some(wrong) = belief(&case, own, &believed) {
                (verdict, said) = wrong;
            }
        }
        Ok(Some(Finding::of_case(&case, verdict, said, believed)))
    }
}
