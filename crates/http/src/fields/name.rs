//! The field names that mean something to a proxy.

/// A field name, as far as we treat it differently from others. Names are compared without regard to case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldName {
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Connection`.
    Connection,
    /// Of one connection only, by RFC 9110 section 7.6.1 or by custom: `Keep-Alive`, `Proxy-Connection`,
    /// `Proxy-Authorization`, `Proxy-Authenticate`, `HTTP2-Settings`; `Close`, which is reserved (RFC 9112
    /// section 12.1); and `Proxy`, which nobody has defined, but which CGI makes `HTTP_PROXY` of, by
    /// which programs choose a proxy of their own ("httpoxy").
    OneHop,
    /// `TE`.
    Te,
    /// `Trailer`.
    Trailer,
    /// `Upgrade`.
    Upgrade,
    /// `Expect`.
    Expect,
    /// `Forwarded` (RFC 7239).
    Forwarded,
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `X-Forwarded-Proto`.
    XForwardedProto,
    /// `X-Forwarded-Host`.
    XForwardedHost,
    /// Another field that names the client or its way, as load balancers, clouds and frameworks write it: any
    /// name with `forwarded` in it, `…-Client-IP`, `…-Connecting-IP`, `X-Real-IP` and others.
    ClientHint,
    /// The user, as an authenticating proxy tells it to origins: `Remote-User`, `X-Auth-Request-…`,
    /// `X-WebAuth-…` and others. An origin that reads one believes it.
    User,
    /// A fact of the client's certificate, which only truepeer may write: `Client-Cert`, `Client-Cert-Chain`,
    /// `X-SSL-Client-…`, `SSL-Client-…`, `X-Client-Cert…`, `X-Client-Verify`, `X-ARR-ClientCert` and
    /// others.
    ClientCert,
    /// Not one of the above, but an origin that makes variables of names (CGI, WSGI, PHP) may take it for
    /// one, since `-` and `_` (and `.` and others) become the same letter there: `X_Forwarded_For`,
    /// `Content_Length`.
    LookAlike,
    /// Fields that no trailer may carry and no `Connection` may name, although a proxy just passes them on.
    Guarded,
    /// Any other.
    Other,
}

impl FieldName {
    /// The kind of `name`, which need not be a valid name.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        if name.iter().all(|&byte| PLAIN[usize::from(byte)]) { known(name) } else { look_alike(name) }
    }

    /// Whether the field says who the client is, so that nobody but us and trusted senders may send it.
    #[must_use]
    pub fn names_the_client(self) -> bool {
        matches!(
            self,
            Self::Forwarded
                | Self::XForwardedFor
                | Self::XForwardedProto
                | Self::XForwardedHost
                | Self::ClientHint
                | Self::User
                | Self::ClientCert
        )
    }
}

/// [`is_plain`] of each byte value. A table, because each byte of each name is checked.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = u8::MIN;
    while byte < u8::MAX {
        plain[byte as usize] = is_plain(byte);
        byte += 1;
    }
    plain
};

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// Compares the length first, because it differs for most unknown names.
fn known(name: &[u8]) -> FieldName {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    match name.len() {
        2 if is("te") => FieldName::Te,
        4 if is("host") => FieldName::Host,
        5 if is("proxy") || is("close") => FieldName::OneHop,
        6 if is("expect") => FieldName::Expect,
        6 if is("cookie") => FieldName::Guarded,
        7 if is("trailer") => FieldName::Trailer,
        7 if is("upgrade") => FieldName::Upgrade,
        9 if is("forwarded") => FieldName::Forwarded,
        10 if is("connection") => FieldName::Connection,
        10 if is("keep-alive") => FieldName::OneHop,
        10 if is("set-cookie") => FieldName::Guarded,
        11 if is("client-cert") => FieldName::ClientCert,
        12 if is("content-type") => FieldName::Guarded,
        13 if is("authorization") || is("content-range") || is("cache-control") => FieldName::Guarded,
        14 if is("content-length") => FieldName::ContentLength,
        14 if is("http2-settings") => FieldName::OneHop,
        15 if is("x-forwarded-for") => FieldName::XForwardedFor,
        16 if is("x-forwarded-host") => FieldName::XForwardedHost,
        16 if is("proxy-connection") => FieldName::OneHop,
        16 if is("content-encoding") => FieldName::Guarded,
        17 if is("x-forwarded-proto") => FieldName::XForwardedProto,
        17 if is("transfer-encoding") => FieldName::TransferEncoding,
        17 if is("client-cert-chain") => FieldName::ClientCert,
        18 if is("proxy-authenticate") => FieldName::OneHop,
        19 if is("proxy-authorization") => FieldName::OneHop,
        _ if is_client_cert(name) => FieldName::ClientCert,
        _ if is_client_hint(name) => FieldName::ClientHint,
        _ if is_user(name) => FieldName::User,
        _ => FieldName::Other,
    }
}

fn is_client_cert(name: &[u8]) -> bool {
    const BEGINNINGS: [&str; 6] = [
        "x-ssl-client-",
        "ssl-client-",
        "x-client-cert",
        "x-tls-client-",
        "x-amzn-mtls-",
        "wl-proxy-client-cert",
    ];
    const NAMES: [&str; 6] =
        ["x-client-verify", "x-arr-clientcert", "x-ssl-cert", "x-ssl-subject", "x-ssl-issuer", "x-client-dn"];
    matches!(name.first(), Some(b'x' | b'X' | b's' | b'S' | b'w' | b'W'))
        && is_one_of(name, &NAMES, &BEGINNINGS)
}

/// Fields by which origins take a request for an authenticated user's: by custom (`Remote-User`, which WSGI,
/// Django and Grafana are told to read), and by proxies, clouds and gateways: oauth2-proxy, Authelia,
/// authentik, Vouch, Pomerium, Google's IAP, Cloudflare Access, AWS' load balancers, Azure's App Service,
/// Tailscale, Kong, Kubernetes' API, OpenID Connect in Apache, WebSEAL, SiteMinder. (`X-Forwarded-User` and
/// its like are [`FieldName::ClientHint`] by their name.)
fn is_user(name: &[u8]) -> bool {
    // Most names are told by their first letter.
    let (names, beginnings): (&[&str], &[&str]) = match name.first().map(u8::to_ascii_lowercase) {
        Some(b'x') => (&X_NAMES, &X_BEGINNINGS),
        Some(b'r') => (&["remote-user", "remote-group", "remote-groups", "remote-email", "remote-name"], &[]),
        Some(b'a') => (&["auth-user"], &[]),
        Some(b'c') => (&[], &["cf-access-"]),
        Some(b'i') => (&[], &["iv-"]),
        Some(b'o') => (&["oam-remote-user"], &["oidc-"]),
        Some(b's') => (&[], &["sm-user", "sm-universalid", "sm-serversession"]),
        Some(b't') => (&[], &["tailscale-user-", "tailscale-app-"]),
        _ => (&[], &[]),
    };
    is_one_of(name, names, beginnings)
}

const X_NAMES: [&str; 7] = [
    "x-userinfo",
    "x-id-token",
    "x-remote-group",
    "x-remote-groups",
    "x-remote-uid",
    "x-anonymous-consumer",
    "x-amzn-lattice-identity",
];

const X_BEGINNINGS: [&str; 18] = [
    "x-auth-user",
    "x-token-user-",
    "x-ms-token-",
    "x-remote-user",
    "x-remote-extra-",
    "x-webobjects-remote-user",
    "x-auth-request-",
    "x-authenticated-",
    "x-webauth-",
    "x-authentik-",
    "x-vouch-",
    "x-pomerium-",
    "x-goog-iap-",
    "x-goog-authenticated-",
    "x-amzn-oidc-",
    "x-ms-client-principal",
    "x-consumer-",
    "x-credential-",
];

fn is_one_of(name: &[u8], names: &[&str], beginnings: &[&str]) -> bool {
    beginnings.iter().any(|start| begins(name, start))
        || names.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

fn is_client_hint(name: &[u8]) -> bool {
    const ENDS: [&str; 9] = [
        "-client-ip",
        "-clientip",
        "-real-ip",
        "-src-ip",
        "-connecting-ip",
        "-connecting-ipv6",
        "-viewer-address",
        "-proxied-for",
        "-pseudo-ipv4",
    ];
    const BEGINNINGS: [&str; 2] = ["x-forward-", "cloudfront-viewer-"];
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    let is_listed = match name.len() {
        6 => is("x-host"),
        8 => is("x-scheme"),
        9 => is("client-ip"),
        11 => is("x-remote-ip") || is("remote-addr"),
        12 => is("x-url-scheme") || is("wl-proxy-ssl"),
        13 => is("x-remote-addr"),
        14 => is("x-proxyuser-ip"),
        15 => is("front-end-https") || is("x-original-host"),
        16 => is("x-originating-ip") || is("x-azure-socketip") || is("x-envoy-internal"),
        19 => is("x-appengine-user-ip"),
        24 => is("x-envoy-external-address"),
        25 => is("x-nf-client-connection-ip"),
        _ => false,
    };
    is_listed
        || ENDS.iter().any(|end| ends(name, end))
        || BEGINNINGS.iter().any(|start| begins(name, start))
        || contains(name, "forwarded")
}

fn contains(name: &[u8], part: &str) -> bool {
    let Some(&first) = part.as_bytes().first().filter(|_| name.len() >= part.len()) else {
        return part.is_empty();
    };
    memchr::memchr2_iter(first, first.to_ascii_uppercase(), name).any(|at| begins(&name[at..], part))
}

fn ends(name: &[u8], suffix: &str) -> bool {
    let start = name.len().checked_sub(suffix.len());
    start.and_then(|at| name.get(at..)).is_some_and(|end| end.eq_ignore_ascii_case(suffix.as_bytes()))
}

fn begins(name: &[u8], prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}

#[cold]
fn look_alike(name: &[u8]) -> FieldName {
    let spelt: Vec<u8> = name.iter().map(|&byte| if is_plain(byte) { byte } else { b'-' }).collect();
    if known(&spelt) == FieldName::Other { FieldName::Other } else { FieldName::LookAlike }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        for (name, is) in [
            ("Host", FieldName::Host),
            ("CONTENT-length", FieldName::ContentLength),
            ("transfer-encoding", FieldName::TransferEncoding),
            ("Keep-Alive", FieldName::OneHop),
            ("X-Forwarded-For", FieldName::XForwardedFor),
            ("X-Forwarded-Port", FieldName::ClientHint),
            ("x-forwarded-", FieldName::ClientHint),
            ("X-SSL-Client-Verify", FieldName::ClientCert),
            ("Proxy", FieldName::OneHop),
            ("Accept", FieldName::Other),
            ("X-Client-Data", FieldName::Other),
            ("Origin", FieldName::Other),
            ("", FieldName::Other),
            ("x_custom", FieldName::Other),
        ] {
            assert_eq!(FieldName::of(name.as_bytes()), is, "{name}");
        }
    }

    #[test]
    fn each_name_is_known_and_no_other_of_its_length_is() {
        use FieldName as F;
        for (names, is) in [
            ("te", F::Te),
            ("host", F::Host),
            ("proxy close keep-alive http2-settings proxy-connection", F::OneHop),
            ("proxy-authenticate proxy-authorization", F::OneHop),
            ("expect", F::Expect),
            ("cookie set-cookie content-type content-encoding", F::Guarded),
            ("authorization content-range cache-control", F::Guarded),
            ("trailer", F::Trailer),
            ("upgrade", F::Upgrade),
            ("forwarded", F::Forwarded),
            ("connection", F::Connection),
            ("client-cert client-cert-chain", F::ClientCert),
            ("content-length", F::ContentLength),
            ("x-forwarded-for", F::XForwardedFor),
            ("x-forwarded-host", F::XForwardedHost),
            ("x-forwarded-proto", F::XForwardedProto),
            ("transfer-encoding", F::TransferEncoding),
        ] {
            for name in names.split(' ') {
                assert_eq!(F::of(name.as_bytes()), is, "{name}");
                let other = "q".repeat(name.len());
                assert_eq!(F::of(other.as_bytes()), F::Other, "{other}");
                // The same letters but one. Such a name may be a hint, if it has `forwarded` in it.
                let near = format!("q{}", &name[1..]);
                assert!([F::Other, F::ClientHint].contains(&F::of(near.as_bytes())), "{near}");
            }
        }
    }

    #[test]
    fn whatever_origins_take_for_the_client_is_a_hint() {
        let names = "Client-IP CF-Connecting-IP CF-Connecting-IPv6 True-Client-IP X-Client-IP X-Real-IP Forwarded-For \
                     X-Forwarded X-Original-Forwarded-For X-Vercel-Forwarded-For X-Forwarded-By X-Cluster-Client-IP \
                     X-Originating-IP X-Remote-Addr X-Remote-IP Remote-Addr X-Scheme X-Url-Scheme Front-End-Https \
                     Fastly-Client-IP X-Envoy-External-Address X-Azure-ClientIP X-Azure-SocketIP X-ProxyUser-Ip \
                     Proxy-Client-IP WL-Proxy-Client-IP X-Host X-Original-Host X-Appengine-User-IP \
                     X-NF-Client-Connection-IP";
        for name in names.split_whitespace() {
            assert_eq!(FieldName::of(name.as_bytes()), FieldName::ClientHint, "{name}");
            let variable = name.replace('-', "_");
            assert_eq!(FieldName::of(variable.as_bytes()), FieldName::LookAlike, "{variable}");
        }
    }

    #[test]
    fn whatever_origins_take_for_a_clients_certificate_is_ours_to_say() {
        let names = "Client-Cert Client-Cert-Chain X-SSL-Client-S-DN SSL-Client-Verify X-Client-Cert X-Client-Certificate \
                     X-Client-Verify X-ARR-ClientCert";
        for name in names.split_whitespace() {
            assert_eq!(FieldName::of(name.as_bytes()), FieldName::ClientCert, "{name}");
        }
        assert_eq!(FieldName::of(b"SSL_CLIENT_VERIFY"), FieldName::LookAlike);
    }

    #[test]
    fn what_becomes_a_known_name_in_a_variable_is_told() {
        for name in [
            "X_Forwarded_For",
            "x.forwarded-for",
            "Content_Length",
            "transfer_encoding",
            "X-Real_IP",
            "X_Forwarded_Any",
        ] {
            assert_eq!(FieldName::of(name.as_bytes()), FieldName::LookAlike, "{name}");
        }
    }
}
