//! The receiver's own log: which client it believes in.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::ProbeError;

/// A growing file, read from where the last case ended.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
}

/// A log is written this long after the answer, at most.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Of one case's lines, no more is read.
const MOST: usize = 1 << 16;

impl Log {
    pub(crate) fn open(path: &Path) -> Result<Self, ProbeError> {
        let not = |error| ProbeError::Log(path.display().to_string(), error);
        let mut file = File::open(path).map_err(not)?;
        file.seek(SeekFrom::End(0)).map_err(not)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The addresses that were written since the last call. Waits until `awaited` is among them: a line of an
    /// earlier connection may come late.
    pub(crate) fn news(&mut self, awaited: Option<IpAddr>) -> Result<Vec<IpAddr>, ProbeError> {
        let deadline = Instant::now() + PATIENCE;
        let mut text = Vec::new();
        loop {
            let room = MOST.saturating_sub(text.len()) as u64;
            let read = (&self.file).take(room).read_to_end(&mut text);
            read.map_err(|error| ProbeError::Log(self.path.display().to_string(), error))?;
            let found = addresses(&String::from_utf8_lossy(&text));
            if awaited.is_none_or(|ip| found.contains(&ip)) || Instant::now() > deadline {
                return Ok(found);
            }
            sleep(Duration::from_millis(10));
        }
    }

    /// Forgets what was written until now.
    pub(crate) fn skip(&mut self) -> Result<(), ProbeError> {
        let end = self.file.seek(SeekFrom::End(0));
        end.map(drop).map_err(|error| ProbeError::Log(self.path.display().to_string(), error))
    }
}

/// The addresses in a text, alone or with a port, each once.
pub(crate) fn addresses(text: &str) -> Vec<IpAddr> {
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || c == ':' || c == '.'));
    let mut seen = HashSet::new();
    words.flat_map(readings).filter(|ip| seen.insert(*ip)).collect()
}

/// The addresses that a word may mean. HAProxy writes an IPv6 address and its port without brackets, so
/// 2001:db8::1:80 is either an address or one with a port: nobody is accused for the other reading.
fn readings(word: &str) -> impl Iterator<Item = IpAddr> + use<> {
    // "12" and "::" are numbers and punctuation, and a time is no address.
    let is_long = |text: &&str| text.len() > 2;
    let word = Some(word.trim_end_matches(['.', ':'])).filter(is_long);
    let whole = word.and_then(|word| {
        let with_port = || word.parse().map(|address: SocketAddr| address.ip());
        word.parse::<IpAddr>().or_else(|_| with_port()).ok()
    });
    let bare = word.and_then(|word| word.rsplit_once(':')).filter(|(_, port)| port.parse::<u16>().is_ok());
    let bare = bare.map(|(address, _)| address).filter(is_long);
    let bare = bare.and_then(|address| address.parse::<Ipv6Addr>().ok()).map(IpAddr::V6);
    [whole, bare].into_iter().flatten().map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn addresses_are_found_in_the_logs_of_servers() {
        let found =
            |text: &str| addresses(text).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(
            found(r#"192.0.2.1 - - [28/Nov/2026:15:00:01 +0000] "GET / HTTP/1.1" 200 5"#),
            "192.0.2.1"
        );
        assert_eq!(found("connect from unknown[192.0.2.11]"), "192.0.2.11");
        assert_eq!(found("from=[2001:db8::1]:4000 to [::ffff:198.51.100.2]"), "2001:db8::1 198.51.100.2");
        assert_eq!(found("client 192.0.2.1:56324, at 12:30:01, version 1.2.3"), "192.0.2.1");
        assert_eq!(found("2001:db8::7:56324 [28/Nov/2026:15:00:01.000] l s/s"), "2001:db8::7");
        assert_eq!(found("2001:db8::1:80 [28/Nov/2026:15:00:01.000] l s/s"), "2001:db8::1:80 2001:db8::1");
        assert_eq!(found("192.0.2.1 by 192.0.2.2 for 192.0.2.1"), "192.0.2.1 192.0.2.2");
    }
}
