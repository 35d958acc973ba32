//! The protocols by which a receiver shows that it took a header: a request that follows the header, and the
//! answer of an application that saw the request alone.

use std::fmt;
use std::str::FromStr;

/// The application's protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct App(&'static Facts);

#[derive(PartialEq, Eq)]
struct Facts {
    name: &'static str,
    /// How its greeting begins, if the server speaks first.
    greeting: Option<&'static [u8]>,
    request: &'static [u8],
    right: Right,
}

/// The answers of an application that has read the request and nothing before it.
#[derive(PartialEq, Eq)]
enum Right {
    /// There is no request.
    None,
    /// The request itself.
    Same,
    /// One of these beginnings.
    Begins(&'static [&'static [u8]]),
    /// A status other than 400, which is also the answer to a header that was not taken off.
    Http,
    /// A binary packet of this type at this byte.
    Byte(usize, u8),
}

const MQTT: &[u8] = b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04tpro";
/// The name servers of the root, recursion desired.
const DNS: &[u8] = b"\x00\x11\x54\x70\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01";

const APPS: &[Facts] = &[
    Facts { name: "none", greeting: None, request: b"", right: Right::None },
    Facts { name: "echo", greeting: None, request: b"truepeer probe: echo this\r\n", right: Right::Same },
    Facts {
        name: "http",
        greeting: None,
        request: b"GET / HTTP/1.1\r\nHost: truepeer-probe.invalid\r\nConnection: close\r\n\r\n",
        right: Right::Http,
    },
    Facts {
        name: "smtp",
        greeting: Some(b"220"),
        request: b"EHLO truepeer-probe.invalid\r\n",
        right: Right::Begins(&[b"250"]),
    },
    Facts { name: "ftp", greeting: Some(b"220"), request: b"FEAT\r\n", right: Right::Begins(&[b"211"]) },
    Facts {
        name: "imap",
        greeting: Some(b"* OK"),
        request: b"a1 CAPABILITY\r\n",
        right: Right::Begins(&[b"* CAPABILITY"]),
    },
    Facts { name: "pop3", greeting: Some(b"+OK"), request: b"CAPA\r\n", right: Right::Begins(&[b"+OK"]) },
    Facts {
        name: "ssh",
        greeting: Some(b"SSH-2.0-"),
        request: b"SSH-2.0-truepeer_probe\r\n",
        // SSH_MSG_KEXINIT (RFC 4253, 7.1).
        right: Right::Byte(5, 20),
    },
    Facts {
        name: "redis",
        greeting: None,
        request: b"PING\r\n",
        right: Right::Begins(&[b"+PONG", b"-NOAUTH"]),
    },
    // CONNACK.
    Facts { name: "mqtt", greeting: None, request: MQTT, right: Right::Byte(0, 0x20) },
    // A response with this identity, behind its length.
    Facts { name: "dns", greeting: None, request: DNS, right: Right::Byte(2, 0x54) },
    // SSLRequest.
    Facts {
        name: "postgresql",
        greeting: None,
        request: b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        right: Right::Begins(&[b"S", b"N"]),
    },
];

impl App {
    /// No protocol: only closed connections are seen.
    pub const NONE: Self = Self(&APPS[0]);

    /// The names, for a message.
    pub fn names() -> String {
        APPS.iter().map(|facts| facts.name).collect::<Vec<_>>().join("|")
    }

    pub(crate) fn is_none(self) -> bool {
        self.0.right == Right::None
    }

    pub(crate) fn is_echo(self) -> bool {
        self.0.right == Right::Same
    }

    pub(crate) fn is_dns(self) -> bool {
        self.0.name == "dns"
    }

    pub(crate) fn speaks_first(self) -> bool {
        self.0.greeting.is_some()
    }

    /// Whether the greeting is whole: SMTP and FTP mark lines that others follow with a hyphen.
    pub(crate) fn has_greeted(self, said: &[u8]) -> bool {
        let last = said.strip_suffix(b"\n").and_then(|lines| lines.rsplit(|byte| *byte == b'\n').next());
        last.is_some_and(|line| line.get(3) != Some(&b'-') || line.starts_with(b"SSH-"))
    }

    /// Whether a server that speaks first serves the connection.
    pub(crate) fn greets(self, greeting: &[u8]) -> bool {
        self.0.greeting.is_none_or(|begin| greeting.starts_with(begin))
    }

    pub(crate) fn request(self) -> &'static [u8] {
        self.0.request
    }

    /// The request of a protocol that also goes over UDP.
    pub(crate) fn datagram(self) -> Option<&'static [u8]> {
        match self.0.name {
            "echo" => Some(self.0.request),
            "dns" => Some(&DNS[2..]),
            _ => None,
        }
    }

    /// Whether this is the answer to the request alone. `None`: it may become so.
    pub(crate) fn answers(self, answer: &[u8]) -> Option<bool> {
        let begins = |begin: &[u8]| match answer.len() < begin.len() {
            true if begin.starts_with(answer) => None,
            true => Some(false),
            false => Some(answer.starts_with(begin)),
        };
        match self.0.right {
            Right::None => None,
            Right::Same if answer.len() > self.0.request.len() => Some(false),
            Right::Same => begins(self.0.request),
            Right::Begins(all) => {
                let told: Vec<Option<bool>> = all.iter().map(|begin| begins(begin)).collect();
                match told.contains(&Some(true)) {
                    false if told.contains(&None) => None,
                    is_right => Some(is_right),
                }
            }
            Right::Http => match begins(b"HTTP/1.") {
                Some(true) => answer.get(9..12).map(|status| status != b"400"),
                other => other,
            },
            Right::Byte(at, value) => answer.get(at).map(|byte| *byte == value),
        }
    }
}

impl fmt::Display for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl FromStr for App {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let facts = APPS.iter().find(|facts| facts.name == text);
        facts.map(Self).ok_or_else(|| format!("expected {}", Self::names()))
    }
}

#[cfg(test)]
mod tests {
    use super::App;

    #[test]
    fn an_answer_is_right_wrong_or_not_there_yet() {
        let says = |app: &str, answer: &[u8]| app.parse::<App>().expect(app).answers(answer);
        assert_eq!(says("http", b"HTTP/1.1 20"), None);
        assert_eq!(says("http", b"HTTP/1.1 404 Not Found"), Some(true));
        assert_eq!(says("http", b"HTTP/1.1 400 Bad Request"), Some(false));
        assert_eq!(says("http", b"<html>"), Some(false));
        assert_eq!(says("echo", b"truepeer probe: echo this\r\n"), Some(true));
        assert_eq!(says("echo", b"PROXY TCP4"), Some(false));
        assert_eq!(says("echo", b"truepeer pro"), None);
        assert_eq!(says("redis", b"-NOAUTH Authentication required."), Some(true));
        assert_eq!(says("redis", b"-"), None);
        assert_eq!(says("redis", b"-ERR unknown command 'PROXY'"), Some(false));
        assert_eq!(says("dns", b"\x00\x30\x54\x70"), Some(true));
        assert_eq!(says("none", b"anything"), None);
    }

    #[test]
    fn a_name_that_is_none_is_answered_with_all() {
        let error = "gopher".parse::<App>().expect_err("unknown");
        assert!(error.starts_with("expected none|echo|http|smtp|"), "{error}");
    }
}
