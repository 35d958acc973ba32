//! The fields that name the client: `Forwarded` (RFC 7239) and the older `X-Forwarded-For`, `-Proto` and
//! `-Host`.
//!
//! A trusted sender may already name its client: the sender's own address is appended. What anybody else says
//! is replaced. There are two families, `Forwarded` and `X-Forwarded-…`. If a trusted sender names the client
//! by one, the other is not begun: it would name the sender as the client, and origins that compare them
//! refuse the request (RFC 7239 section 7.4).

use std::net::IpAddr;

use super::list::{Field, FieldList};
use super::name::FieldName;
use crate::decimal;

/// The facts to tell the origin.
#[derive(Debug, Clone, Copy)]
pub struct Forwarding<'a> {
    /// The client, as truepeer knows it.
    pub client: IpAddr,
    /// `http` or `https`: how it came.
    pub proto: &'a str,
    /// Which host it asked; empty if none.
    pub host: &'a [u8],
    /// The subject of the client's certificate, if it showed one that was verified.
    pub client_subject: Option<&'a str>,
    /// Whether the client may say itself whom it stands for.
    pub is_trusted: bool,
    /// Whether the address is told in fields; if not, it is told by the connection, and only
    /// `X-Forwarded-Proto` is written.
    pub tells_the_client: bool,
}

impl Forwarding<'_> {
    /// Whether a field of the client's goes on as it is. Those that this writes anew do not.
    #[must_use]
    pub fn keeps(&self, field: &Field<'_>) -> bool {
        match field.name {
            FieldName::ClientCert => false,
            FieldName::Forwarded | FieldName::XForwardedFor => self.is_trusted && !self.tells_the_client,
            FieldName::XForwardedProto
            | FieldName::XForwardedHost
            | FieldName::ClientHint
            | FieldName::User => self.is_trusted,
            _ => true,
        }
    }

    /// Writes the fields.
    pub fn write(&self, fields: &FieldList, out: &mut impl FieldSink) {
        let spoken = Spoken::by(self, fields);
        if self.tells_the_client && (spoken.forwarded || self.is_said(FieldName::Forwarded, fields)) {
            let value = self.begin("Forwarded", FieldName::Forwarded, fields, out);
            if spoken.forwarded {
                self.write_element(value);
            } else {
                value.truncate(value.len() - BETWEEN.len());
            }
            out.end();
        }
        if self.tells_the_client && spoken.x_forwarded {
            let value = self.begin("X-Forwarded-For", FieldName::XForwardedFor, fields, out);
            if let Some(client) = spoken.client {
                append(value, &[client, BETWEEN]);
            }
            decimal::push_address(value, self.client);
            out.end();
            if !(self.host.is_empty() || spoken.host) {
                write(out, "X-Forwarded-Host", self.host);
            }
        }
        if let Some(subject) = self.client_subject {
            write(out, "X-SSL-Client-Verify", b"SUCCESS");
            write(out, "X-SSL-Client-S-DN", subject.as_bytes());
        }
        // Not a list, as the others: whoever talked with the client knows.
        if !spoken.proto && (spoken.x_forwarded || !self.tells_the_client) {
            write(out, "X-Forwarded-Proto", spoken.other_proto.unwrap_or(self.proto).as_bytes());
        }
    }

    /// Whether a trusted sender wrote a value in this field.
    fn is_said(&self, name: FieldName, fields: &FieldList) -> bool {
        self.is_trusted && said(name, fields).next().is_some()
    }

    /// Begins a field, in one list with whatever a trusted sender wrote, in one field or several.
    fn begin<'s>(
        &self,
        start: &'static str,
        name: FieldName,
        fields: &FieldList,
        out: &'s mut impl FieldSink,
    ) -> &'s mut Vec<u8> {
        let out = out.begin(start);
        if self.is_trusted {
            said(name, fields).for_each(|value| append(out, &[value, BETWEEN]));
        }
        out
    }

    /// RFC 7239 section 4: IPv6 addresses have brackets and, as whatever is not a token, quotes.
    fn write_element(&self, out: &mut Vec<u8>) {
        let (before, after): (&[u8], &[u8]) = match self.client {
            IpAddr::V4(_) => (b"for=", b""),
            IpAddr::V6(_) => (b"for=\"[", b"]\""),
        };
        out.extend_from_slice(before);
        decimal::push_address(out, self.client);
        out.extend_from_slice(after);
        if !self.host.is_empty() {
            // A valid host has neither quotes nor backslashes.
            append(out, &[b";host=\"", self.host, b"\""]);
        }
        append(out, &[b";proto=", self.proto.as_bytes()]);
    }
}

/// What stands between the elements of a list.
const BETWEEN: &[u8] = b", ";

/// The values in the fields that are `name`. In `Forwarded`, quotes that do not end would swallow what is
/// appended.
fn said(name: FieldName, fields: &FieldList) -> impl Iterator<Item = &[u8]> {
    let is_usable = move |value: &[u8]| name != FieldName::Forwarded || ends_its_quotes(value);
    fields.values(name).filter(move |value| !value.is_empty() && is_usable(value))
}

fn ends_its_quotes(value: &[u8]) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in value {
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && is_quoted && !is_escaped;
    }
    !is_quoted
}

/// What a trusted sender says of its client, and hence the families to which the sender is appended. A family
/// that does not name the client, beside one that does, stays as it came.
struct Spoken<'a> {
    forwarded: bool,
    x_forwarded: bool,
    /// The client's address by neither family, but by a field such as `X-Real-IP`.
    client: Option<&'a [u8]>,
    /// The host is named.
    host: bool,
    /// The protocol is named in one of the families, or as `other_proto` in a field such as
    /// `X-Forwarded-Ssl`.
    proto: bool,
    other_proto: Option<&'static str>,
}

impl<'a> Spoken<'a> {
    fn by(forwarding: &Forwarding<'_>, fields: &'a FieldList) -> Self {
        use FieldName::{Forwarded, XForwardedFor, XForwardedHost, XForwardedProto};
        let says = |name| forwarding.is_said(name, fields);
        let has_forwarded = says(Forwarded);
        let names = |start: &[u8]| {
            let mut parts =
                said(Forwarded, fields).flat_map(|value| value.split(|byte| b",;".contains(byte)));
            let begins = |part: &[u8]| part.get(..start.len()).is_some_and(|b| b.eq_ignore_ascii_case(start));
            has_forwarded && parts.any(|part| begins(part.trim_ascii()))
        };
        let is_trusted = forwarding.is_trusted;
        let hints = || fields.iter().filter(move |field| is_trusted && field.name == FieldName::ClientHint);
        let (by_forwarded, by_x) = (names(b"for="), says(XForwardedFor));
        let client = if by_forwarded || by_x { None } else { hints().find_map(|field| address_in(&field)) };
        let has_x = [XForwardedHost, XForwardedProto].into_iter().any(says);
        let (forwarded, x_forwarded) = match (by_forwarded, by_x || client.is_some()) {
            (false, false) => (has_forwarded || !has_x, has_x || !has_forwarded),
            families => families,
        };
        Self {
            forwarded,
            x_forwarded,
            client,
            host: says(XForwardedHost) || names(b"host="),
            proto: says(XForwardedProto) || names(b"proto="),
            other_proto: hints().find_map(|field| proto_in(&field)),
        }
    }
}

/// The client's address in a field such as `X-Real-IP`.
fn address_in<'a>(hint: &Field<'a>) -> Option<&'a [u8]> {
    let is_address = std::str::from_utf8(hint.value).is_ok_and(|text| text.parse::<IpAddr>().is_ok());
    (is_address && hint.names_the_clients_address()).then_some(hint.value)
}

/// The protocol in a field such as `X-Forwarded-Scheme` or `X-Forwarded-Ssl`.
fn proto_in(hint: &Field<'_>) -> Option<&'static str> {
    const WORDS: [(&str, [&str; 3]); 2] = [("https", ["https", "on", "1"]), ("http", ["http", "off", "0"])];
    let is_said = |word: &&str| hint.value.eq_ignore_ascii_case(word.as_bytes());
    let found = WORDS.iter().find(|(_, words)| words.iter().any(is_said))?;
    hint.names_a_protocol().then_some(found.0)
}

/// Takes fields one after the other.
pub trait FieldSink {
    /// Begins a field. The caller appends its value to the vector, which may hold other text before it, and
    /// then calls [`Self::end`].
    fn begin(&mut self, name: &'static str) -> &mut Vec<u8>;

    /// The value is whole.
    fn end(&mut self);
}

/// The lines of a head of HTTP/1.
impl FieldSink for Vec<u8> {
    fn begin(&mut self, name: &'static str) -> &mut Vec<u8> {
        append(self, &[name.as_bytes(), b": "]);
        self
    }

    fn end(&mut self) {
        self.extend_from_slice(b"\r\n");
    }
}

fn write(out: &mut impl FieldSink, name: &'static str, value: &[u8]) {
    out.begin(name).extend_from_slice(value);
    out.end();
}

fn append(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let mut list = FieldList::default();
        fields.iter().for_each(|(name, value)| list.push(name.as_bytes(), value.as_bytes()));
        list
    }

    fn forwarding(client: &str, is_trusted: bool) -> Forwarding<'_> {
        Forwarding {
            client: client.parse().unwrap(),
            proto: "https",
            host: b"a.example:8443",
            client_subject: None,
            is_trusted,
            tells_the_client: true,
        }
    }

    /// The fields for the origin: those that are kept, and those that are written.
    fn told(forwarding: Forwarding<'_>, fields: &FieldList) -> Vec<String> {
        let kept = fields.iter().filter(|field| forwarding.keeps(field));
        let mut out = Vec::new();
        for field in kept {
            out.extend_from_slice(&[field.spelt, b": ", field.value, b"\r\n"].concat());
        }
        forwarding.write(fields, &mut out);
        String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn strangers_cannot_say_who_they_are() {
        let claims = list(&[
            ("X-Forwarded-For", "127.0.0.1"),
            ("Forwarded", "for=127.0.0.1"),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-Host", "evil"),
            ("X-Forwarded-Port", "1"),
            ("X-Real-IP", "127.0.0.1"),
            ("CF-Connecting-IP", "127.0.0.1"),
            ("X-Client-Verify", "SUCCESS"),
            ("X-SSL-Client-Verify", "SUCCESS"),
            ("Accept", "*/*"),
        ]);
        assert_eq!(
            told(forwarding("192.0.2.1", false), &claims),
            [
                "Accept: */*",
                "Forwarded: for=192.0.2.1;host=\"a.example:8443\";proto=https",
                "X-Forwarded-For: 192.0.2.1",
                "X-Forwarded-Host: a.example:8443",
                "X-Forwarded-Proto: https",
            ]
        );
    }

    /// As origins read them behind a proxy that authenticates users: each would be taken for one who has.
    #[test]
    fn strangers_cannot_say_who_has_authenticated_them() {
        let names = "Remote-User Remote-Groups Remote-Email Remote-Name X-Remote-User X-Remote-Group X-Remote-Extra-Scopes \
                     X-Forwarded-User X-Forwarded-Preferred-Username X-Forwarded-Email X-Forwarded-Groups \
                     X-Forwarded-Access-Token X-Auth-Request-User X-Auth-Request-Email X-Auth-Request-Preferred-Username \
                     X-Authenticated-User X-Authenticated-Userid X-WebAuth-User X-WEBAUTH-EMAIL X-authentik-username \
                     X-Vouch-User X-Pomerium-Jwt-Assertion X-Pomerium-Claim-Email X-Goog-IAP-JWT-Assertion \
                     X-Goog-Authenticated-User-Email Cf-Access-Jwt-Assertion Cf-Access-Authenticated-User-Email \
                     X-Amzn-Oidc-Data X-Amzn-Oidc-Identity X-MS-Client-Principal X-MS-Client-Principal-Name \
                     Tailscale-User-Login X-Consumer-Username X-Consumer-Custom-ID X-Credential-Identifier \
                     X-Credential-Username X-Userinfo X-ID-Token X-Sucuri-ClientIP CloudFront-Viewer-Address \
                     Ali-CDN-Real-IP Cdn-Src-IP X-Forward-For X-Forward-Proto \
                     X-Webobjects-Remote-User OAM-Remote-User OIDC-Claim-Email Auth-User SM-User SM-Universalid iv-user \
                     iv-groups iv-remote-address X-Anonymous-Consumer Tailscale-App-Capabilities \
                     X-MS-Token-AAD-Id-Token SM-UserLoginName SM-ServerSessionID X-Remote-Uid \
                     X-Amzn-Lattice-Identity WL-Proxy-Client-Cert WL-Proxy-SSL X-SSL-Subject X-SSL-Issuer \
                     X-Vercel-Proxied-For CF-Pseudo-IPv4 X-Auth-User X-Auth-Username X-Token-User-Email \
                     X-Envoy-Internal X-SSL-Client-S-DN X-SSL-Client-CN SSL-Client-Cert X-SSL-Cert X-Client-DN X-Client-Cert \
                     X-Amzn-Mtls-Clientcert X-Forwarded-Client-Cert X-Forwarded-Tls-Client-Cert \
                     X-Tls-Client-Subject X-Auth-Email X-Auth-Subject X-Auth-Roles X-Auth-Groups \
                     X-Token-Subject X-Proxy-User X-Proxy-Roles X-Proxy-Remote-User Proxy-User \
                     X-Endpoint-API-Userinfo X-Apigateway-Api-Userinfo X-JWT-Assertion X-Remote-Email \
                     X-Remote-Name X-Remote-Roles Remote-Uid X-RStudio-Username X-ProxiedEntitiesChain \
                     X-Spinnaker-User X-SSO-User X-OIDC-Claim-Sub X-Authelia-User CAS-User CT-Remote-User \
                     Mellon-NameID Osso-User-Dn Shib-Session-ID SM-AuthType X-Appengine-User-Email \
                     Webauth-User";
        let ours =
            ["Forwarded: for=192.0.2.1;host=\"a.example:8443\";proto=https", "X-Forwarded-For: 192.0.2.1"];
        for name in names.split_whitespace() {
            assert_eq!(told(forwarding("192.0.2.1", false), &list(&[(name, "admin")]))[..2], ours, "{name}");
            let variable = name.replace('-', "_");
            assert_eq!(FieldName::of(variable.as_bytes()), FieldName::LookAlike, "{variable}");
        }
        for (name, value) in
            [("Remote-User", "ann"), ("X-Auth-Request-User", "ann"), ("X-Consumer-Username", "ann")]
        {
            let told = told(forwarding("192.0.2.1", true), &list(&[(name, value)]));
            assert_eq!(told[0], format!("{name}: {value}"), "a trusted sender's");
        }
        // Fields that change a request's meaning but name no client are left to the origin.
        for name in [
            "X-Original-URL",
            "X-Rewrite-URL",
            "X-HTTP-Method-Override",
            "X-Auth-Token",
            "X-User-Id",
            "User-Agent",
        ] {
            let told = told(forwarding("192.0.2.1", false), &list(&[(name, "x")]));
            assert_eq!(told[0], format!("{name}: x"));
        }
    }

    #[test]
    fn trusted_senders_are_added_to_what_they_say() {
        let claims = list(&[
            ("X-Forwarded-For", "203.0.113.7, 10.0.0.1"),
            ("X-Forwarded-For", "10.0.0.2"),
            ("Forwarded", "for=203.0.113.7"),
            ("X-Forwarded-Proto", "http"),
            ("X-Real-IP", "203.0.113.7"),
            ("Client-Cert", ":x:"),
        ]);
        assert_eq!(
            told(forwarding("2001:db8::1", true), &claims),
            [
                "X-Forwarded-Proto: http",
                "X-Real-IP: 203.0.113.7",
                "Forwarded: for=203.0.113.7, for=\"[2001:db8::1]\";host=\"a.example:8443\";proto=https",
                "X-Forwarded-For: 203.0.113.7, 10.0.0.1, 10.0.0.2, 2001:db8::1",
                "X-Forwarded-Host: a.example:8443",
            ]
        );
    }

    #[test]
    fn a_host_that_a_trusted_sender_names_stands_alone() {
        let empty = list(&[("X-Forwarded-Host", ""), ("X-Forwarded-Proto", ""), ("X-Forwarded-For", "a")]);
        let told_of_empty = told(forwarding("192.0.2.1", true), &empty);
        for ours in ["X-Forwarded-Host: a.example:8443", "X-Forwarded-Proto: https"] {
            assert!(told_of_empty.iter().any(|line| line == ours), "{told_of_empty:?}");
        }
        let claims = list(&[("X-Forwarded-Host", "front.example"), ("X-Forwarded-For", "")]);
        assert_eq!(
            told(forwarding("192.0.2.1", true), &claims),
            ["X-Forwarded-Host: front.example", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https",]
        );
    }

    /// Spring would take the sender for the client, and Symfony refuses two families that disagree.
    #[test]
    fn a_trusted_sender_that_speaks_one_family_gets_no_other() {
        let client = || forwarding("192.0.2.1", true);
        assert_eq!(
            told(client(), &list(&[("X-Forwarded-For", "203.0.113.7")])),
            [
                "X-Forwarded-For: 203.0.113.7, 192.0.2.1",
                "X-Forwarded-Host: a.example:8443",
                "X-Forwarded-Proto: https"
            ]
        );
        assert_eq!(
            told(client(), &list(&[("Forwarded", "for=203.0.113.7;proto=http;host=front.example")])),
            ["Forwarded: for=203.0.113.7;proto=http;host=front.example, \
                 for=192.0.2.1;host=\"a.example:8443\";proto=https"]
        );
        for name in ["X-Forwarded-Proto", "X-Forwarded-Host"] {
            let told = told(client(), &list(&[(name, "front.example"), ("Forwarded", "")]));
            assert!(!told.iter().any(|line| line.starts_with("Forwarded")), "{told:?}");
        }
        let by_connection = || Forwarding { tells_the_client: false, ..client() };
        for (forwarded, proto) in [
            ("for=203.0.113.7;proto=http", None),
            ("for=203.0.113.7, for=a; Proto=http", None),
            ("for=203.0.113.7", Some("X-Forwarded-Proto: https")),
            ("for=\"_proto=\"", Some("X-Forwarded-Proto: https")),
        ] {
            let told = told(by_connection(), &list(&[("Forwarded", forwarded)]));
            assert_eq!(told.get(1).map(String::as_str), proto, "{told:?}");
        }
        // A stranger's words change nothing.
        let stranger = told(forwarding("192.0.2.1", false), &list(&[("X-Forwarded-For", "203.0.113.7")]));
        assert_eq!(stranger.len(), 4, "{stranger:?}");
    }

    /// The family that names the client decides; what the other one says stays as it is.
    #[test]
    fn what_is_written_beside_a_trusted_senders_words_does_not_contradict_them() {
        let ours = "for=192.0.2.1;host=\"a.example:8443\";proto=https";
        let appended = format!("Forwarded: for=203.0.113.7, {ours}");
        for (claims, expected) in [
            // Forwarded names the client.
            (
                &[("Forwarded", "for=203.0.113.7"), ("X-Forwarded-Proto", "http")][..],
                &["X-Forwarded-Proto: http", appended.as_str()][..],
            ),
            (
                &[("Forwarded", "for=203.0.113.7"), ("X-Forwarded-Host", "front")],
                &["X-Forwarded-Host: front", appended.as_str()],
            ),
            // X-Forwarded-For does.
            (
                &[
                    ("X-Forwarded-For", "203.0.113.7"),
                    ("Forwarded", "proto=http;host=front"),
                    ("Forwarded", "by=_x"),
                ],
                &["Forwarded: proto=http;host=front, by=_x", "X-Forwarded-For: 203.0.113.7, 192.0.2.1"],
            ),
            // Another field does.
            (
                &[("X-Real-IP", "203.0.113.7")],
                &[
                    "X-Real-IP: 203.0.113.7",
                    "X-Forwarded-For: 203.0.113.7, 192.0.2.1",
                    "X-Forwarded-Host: a.example:8443",
                    "X-Forwarded-Proto: https",
                ],
            ),
            (
                &[
                    ("CF-Connecting-IP", "2001:db8::7"),
                    ("X-Forwarded-Proto", "http"),
                    ("X-Forwarded-Host", "front"),
                ],
                &[
                    "CF-Connecting-IP: 2001:db8::7",
                    "X-Forwarded-Proto: http",
                    "X-Forwarded-Host: front",
                    "X-Forwarded-For: 2001:db8::7, 192.0.2.1",
                ],
            ),
            (
                &[
                    ("X-Real-IP", "203.0.113.9"),
                    ("X-Forwarded-For", "203.0.113.7"),
                    ("X-Forwarded-Host", "front"),
                    ("X-Forwarded-Proto", "http"),
                ],
                &[
                    "X-Real-IP: 203.0.113.9",
                    "X-Forwarded-Host: front",
                    "X-Forwarded-Proto: http",
                    "X-Forwarded-For: 203.0.113.7, 192.0.2.1",
                ],
            ),
            // The protocol by another field.
            (
                &[("X-Forwarded-For", "a"), ("X-Forwarded-Ssl", "off"), ("X-Forwarded-Host", "front")],
                &[
                    "X-Forwarded-Ssl: off",
                    "X-Forwarded-Host: front",
                    "X-Forwarded-For: a, 192.0.2.1",
                    "X-Forwarded-Proto: http",
                ],
            ),
            // Not an address, and not the client's.
            (
                &[
                    ("X-Real-IP", "unknown"),
                    ("X-Azure-SocketIP", "203.0.113.7"),
                    ("X-Forwarded-Proto", "http"),
                    ("X-Forwarded-Host", "front"),
                ],
                &[
                    "X-Real-IP: unknown",
                    "X-Azure-SocketIP: 203.0.113.7",
                    "X-Forwarded-Proto: http",
                    "X-Forwarded-Host: front",
                    "X-Forwarded-For: 192.0.2.1",
                ],
            ),
        ] {
            assert_eq!(told(forwarding("192.0.2.1", true), &list(claims)), expected, "{claims:?}");
        }
        let both =
            [("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=203.0.113.7;proto=http;host=front")];
        let told = told(forwarding("192.0.2.1", true), &list(&both));
        assert_eq!(told.len(), 2, "{told:?}");
    }

    /// They would swallow the sender's own address.
    #[test]
    fn quotes_that_do_not_end_are_not_added_to() {
        for value in ["for=\"[2001:db8::7]", "for=\"a\\\"", "for=a;host=\"b\"c\""] {
            let told = told(forwarding("192.0.2.1", true), &list(&[("Forwarded", value)]));
            assert_eq!(told[0], "Forwarded: for=192.0.2.1;host=\"a.example:8443\";proto=https", "{value}");
        }
        let escaped = told(forwarding("192.0.2.1", true), &list(&[("Forwarded", "for=\"_a\\\\\"")]));
        assert!(escaped[0].starts_with("Forwarded: for=\"_a\\\\\", for=192.0.2.1;"), "{escaped:?}");
    }

    #[test]
    fn no_host_is_told_where_none_was_asked() {
        for is_trusted in [false, true] {
            let forwarding = Forwarding { host: b"", ..forwarding("192.0.2.1", is_trusted) };
            assert_eq!(
                told(forwarding, &list(&[])),
                [
                    "Forwarded: for=192.0.2.1;proto=https",
                    "X-Forwarded-For: 192.0.2.1",
                    "X-Forwarded-Proto: https"
                ]
            );
        }
    }

    #[test]
    fn a_verified_certificate_is_named() {
        let forwarding = Forwarding {
            client_subject: Some("CN=ann"),
            tells_the_client: false,
            ..forwarding("192.0.2.1", true)
        };
        assert_eq!(
            told(forwarding, &list(&[("X-SSL-Client-S-DN", "CN=eve"), ("X-SSL-Client-Verify", "SUCCESS")])),
            ["X-SSL-Client-Verify: SUCCESS", "X-SSL-Client-S-DN: CN=ann", "X-Forwarded-Proto: https"]
        );
    }

    #[test]
    fn where_the_connection_tells_the_client_only_the_protocol_is_written() {
        let forwarding = Forwarding { tells_the_client: false, ..forwarding("192.0.2.1", false) };
        assert_eq!(told(forwarding, &list(&[("X-Forwarded-For", "1.1.1.1")])), ["X-Forwarded-Proto: https"]);
    }
}
