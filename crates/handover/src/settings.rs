//! The settings of the command line as a text that survives fork and exec in an environment variable.
//!
//! Each line is a word and its value, named like the options. A missing line means the default.

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;
use core::time::Duration;

use truepeer_policy::{Claims, HeaderRule, HeaderTimes, PrefixSet, Proof, Senders};
use truepeer_proto::{Limits, Versions};

/// The rules of a program under `truepeer run`.
#[derive(Debug, Clone)]
pub struct RunSettings {
    /// Which senders may connect.
    pub allow: PrefixSet,
    /// Whether their connections start with a header.
    pub header: HeaderRule,
    /// The rules of specific senders; the longest prefix wins.
    pub exceptions: Vec<(PrefixSet, HeaderRule)>,
    /// By which TLVs senders prove themselves. The text has the secrets' SHA-256: it is in an environment.
    pub proofs: Vec<(PrefixSet, Proof)>,
    /// Which clients may be claimed, and which are refused.
    pub claims: Claims,
    /// The accepted header versions, and the maximum length.
    pub limits: Limits,
    /// How long a sender may take for its header.
    pub header_times: HeaderTimes,
    /// The listeners to which the rules apply.
    pub listeners: Listeners,
    /// The answer of `getsockname` on a connection whose header names the destination.
    pub destination: Destination,
    /// Whether to log each connection.
    pub verbose: bool,
}

/// The same defaults as `truepeer proxy`: loopback senders only, a header required within five seconds.
impl Default for RunSettings {
    fn default() -> Self {
        Self {
            allow: PrefixSet::loopback(),
            header: HeaderRule::Require,
            exceptions: Vec::new(),
            proofs: Vec::new(),
            claims: Claims::default(),
            limits: Limits::default(),
            header_times: HeaderTimes::default(),
            listeners: Listeners::default(),
            destination: Destination::default(),
            verbose: false,
        }
    }
}

impl RunSettings {
    /// Whether some senders may send a header or none.
    pub fn has_optional(&self) -> bool {
        let mut rules = self.exceptions.iter().map(|(_, rule)| *rule).chain([self.header]);
        rules.any(|rule| rule == HeaderRule::Optional)
    }

    /// Whether no sender's header is taken.
    pub fn takes_no_header(&self) -> bool {
        let mut rules = self.exceptions.iter().map(|(_, rule)| *rule).chain([self.header]);
        rules.all(|rule| rule == HeaderRule::Forbid)
    }
}

impl RunSettings {
    /// The allow-list and the header rules.
    pub fn senders(&self) -> Senders {
        let mut senders = Senders::new(self.allow.clone(), self.header);
        for (prefixes, rule) in &self.exceptions {
            senders.set_rule(prefixes, *rule);
        }
        self.proofs.iter().for_each(|(prefixes, proof)| senders.set_proof(prefixes, proof));
        senders
    }
}

/// The answer of `getsockname`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Destination {
    /// The socket's own address.
    #[default]
    Socket,
    /// The address that the client connected to, from the header.
    Header,
}

/// The listeners to which the rules apply: all by default. Others are left alone, an application's admin port
/// for example.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listeners {
    /// Listeners with this port, on any address.
    pub ports: Vec<u16>,
    /// Listeners with this address and port; a wildcard address matches only itself.
    pub addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Whether the rules apply to connections to `local`, which may be the listener's or the connection's own
    /// address.
    pub fn has(&self, local: SocketAddr) -> bool {
        (self.ports.is_empty() && self.addresses.is_empty())
            || self.ports.contains(&local.port())
            || self.addresses.iter().any(|listed| same(*listed, local))
    }

    /// Whether the rules apply to any connection of a listener on `local`: one on all addresses has
    /// connections to each, of which [`Self::has`] decides.
    pub fn may_have(&self, local: SocketAddr) -> bool {
        let mut ports = self.addresses.iter().map(SocketAddr::port);
        self.has(local) || (local.ip().is_unspecified() && ports.any(|port| port == local.port()))
    }

    /// Whether the rules apply to all listeners.
    pub fn all(&self) -> bool {
        self.ports.is_empty() && self.addresses.is_empty()
    }
}

/// A connection to a wildcard listener has a specific address.
fn same(listed: SocketAddr, local: SocketAddr) -> bool {
    let ip: IpAddr = listed.ip().to_canonical();
    listed.port() == local.port() && (ip.is_unspecified() || ip == local.ip().to_canonical())
}

/// A text that [`RunSettings`] can't be read from: nothing of it is used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a setting of truepeer run: {0:?}")]
pub struct SettingsError(String);

impl SettingsError {
    pub(crate) fn about(line: &str) -> Self {
        Self(line.to_owned())
    }
}

impl FromStr for RunSettings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let mut settings = Self { allow: PrefixSet::new(), ..Self::default() };
        for line in text.lines() {
            let (word, value) = line.split_once(' ').unwrap_or((line, ""));
            settings.set(word, value).ok_or_else(|| SettingsError(line.to_owned()))?;
        }
        Ok(settings)
    }
}

impl RunSettings {
    fn set(&mut self, word: &str, value: &str) -> Option<()> {
        match word {
            "allow" => self.allow.extend(&prefixes(value)?),
            "header" => match value.split_once('=') {
                None => self.header = value.parse().ok()?,
                Some((senders, rule)) => self.exceptions.push((prefixes(senders)?, rule.parse().ok()?)),
            },
            "require-tlv" => self.proofs.push(proof(value)?),
            "header-max" => self.limits.max_len = value.parse().ok()?,
            "header-timeout-ms" => self.header_times.timeout = Duration::from_millis(value.parse().ok()?),
            "header-wait-ms" => self.header_times.wait = Duration::from_millis(value.parse().ok()?),
            "versions" => self.limits.versions = versions(value)?,
            "allow-claims" => self.claims.allow.extend(&prefixes(value)?),
            "deny-clients" => self.claims.deny.extend(&prefixes(value)?),
            "port" => self.listeners.ports.push(value.parse().ok()?),
            "listen" => self.listeners.addresses.push(value.parse().ok()?),
            "destination" => self.destination = destination(value)?,
            "verbose" => self.verbose = true,
            "" => {}
            _ => return None,
        }
        Some(())
    }
}

fn prefixes(text: &str) -> Option<PrefixSet> {
    let mut all = PrefixSet::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        all.extend(&word.parse().ok()?);
    }
    Some(all)
}

/// `TYPE,SHA-256…=PREFIXES`, in hexadecimal.
fn proof(text: &str) -> Option<(PrefixSet, Proof)> {
    let (proof, senders) = text.split_once('=')?;
    let mut words = proof.split(',');
    let kind = u8::from_str_radix(words.next()?, 16).ok()?;
    let digests: Option<Vec<_>> = words.map(digest).collect();
    Some((prefixes(senders)?, Proof::of_digests(kind, digests?)))
}

fn digest(text: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    (text.len() == 64).then_some(digest)
}

fn versions(text: &str) -> Option<Versions> {
    match text {
        "1" => Some(Versions::V1),
        "2" => Some(Versions::V2),
        "1,2" => Some(Versions::BOTH),
        _ => None,
    }
}

fn destination(text: &str) -> Option<Destination> {
    match text {
        "socket" => Some(Destination::Socket),
        "header" => Some(Destination::Header),
        _ => None,
    }
}

impl fmt::Display for RunSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "allow {}", self.allow)?;
        writeln!(f, "header {}", self.header)?;
        for (senders, rule) in &self.exceptions {
            writeln!(f, "header {senders}={rule}")?;
        }
        for (senders, proof) in &self.proofs {
            write!(f, "require-tlv {:02x}", proof.kind())?;
            for digest in proof.digests().unwrap_or_default() {
                f.write_str(",")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
            }
            writeln!(f, "={senders}")?;
        }
        writeln!(f, "header-max {}", self.limits.max_len)?;
        writeln!(f, "header-timeout-ms {}", self.header_times.timeout.as_millis())?;
        writeln!(f, "header-wait-ms {}", self.header_times.wait.as_millis())?;
        let versions = match self.limits.versions {
            versions if versions == Versions::V1 => "1",
            versions if versions == Versions::V2 => "2",
            _ => "1,2",
        };
        writeln!(f, "versions {versions}")?;
        writeln!(f, "allow-claims {}", self.claims.allow)?;
        writeln!(f, "deny-clients {}", self.claims.deny)?;
        for port in &self.listeners.ports {
            writeln!(f, "port {port}")?;
        }
        for address in &self.listeners.addresses {
            writeln!(f, "listen {address}")?;
        }
        if self.destination == Destination::Header {
            writeln!(f, "destination header")?;
        }
        if self.verbose {
            writeln!(f, "verbose")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(settings: &RunSettings) -> RunSettings {
        settings.to_string().parse().unwrap()
    }

    #[test]
    fn every_setting_survives_its_text() {
        let mut settings = RunSettings {
            allow: "10.0.0.0/8".parse().unwrap(),
            header: HeaderRule::Forbid,
            exceptions: vec![(PrefixSet::loopback(), HeaderRule::Optional)],
            proofs: vec![(PrefixSet::any(), Proof::of_digests(0xE5, vec![[7; 32], [0xab; 32]]))],
            limits: Limits { max_len: 107, versions: Versions::V1 },
            header_times: HeaderTimes {
                timeout: Duration::from_millis(1500),
                wait: Duration::from_millis(20),
            },
            destination: Destination::Header,
            verbose: true,
            ..RunSettings::default()
        };
        settings.claims.allow = "::1".parse().unwrap();
        settings.claims.deny = "192.0.2.0/24".parse().unwrap();
        settings.listeners.ports = vec![80, 443];
        settings.listeners.addresses = vec!["[::1]:53".parse().unwrap()];
        let read = round(&settings);
        assert_eq!(read.to_string(), settings.to_string());
        assert_eq!(read.exceptions, settings.exceptions);
        assert_eq!(read.proofs[0].0, PrefixSet::any());
        assert_eq!(read.proofs[0].1.digests(), Some(&[[7; 32], [0xab; 32]][..]));
        assert_eq!(read.header_times, settings.header_times);
        assert_eq!(read.claims.deny, settings.claims.deny);
        assert_eq!(read.listeners, settings.listeners);
        assert_eq!(round(&RunSettings::default()).to_string(), RunSettings::default().to_string());
    }

    /// An empty or truncated environment variable must not allow anything.
    #[test]
    fn a_text_fails_closed() {
        assert!("".parse::<RunSettings>().unwrap().allow.is_empty());
        for wrong in [
            "allow 10.0.0.0/33",
            "header maybe",
            "versions 3",
            "window open",
            "port 70000",
            "require-tlv e5,00=any",
            "require-tlv e5",
        ] {
            assert_eq!(wrong.parse::<RunSettings>().unwrap_err(), SettingsError(wrong.to_owned()));
        }
    }

    #[test]
    fn listeners_are_meant_by_port_or_address() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(Listeners::default().has(address("10.0.0.1:80")));
        let some =
            Listeners { ports: vec![443], addresses: vec![address("127.0.0.1:80"), address("[::]:53")] };
        for (local, has) in [
            ("10.0.0.1:443", true),
            ("127.0.0.1:80", true),
            ("[::ffff:127.0.0.1]:80", true),
            ("10.0.0.1:80", false),
            ("[2001:db8::1]:53", true),
            ("127.0.0.1:8080", false),
        ] {
            assert_eq!(some.has(address(local)), has, "{local}");
            assert_eq!(some.may_have(address(local)), has, "{local}");
        }
        assert!(some.may_have(address("0.0.0.0:80")) && some.may_have(address("[::]:80")));
        assert!(!some.has(address("0.0.0.0:80")) && !some.may_have(address("0.0.0.0:8080")));
    }
}
