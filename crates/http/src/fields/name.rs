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
    /// name with `forwarded` in it, `…-IP`, `…-Addr`, `X-Real-…` and others.
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
    const BEGINNINGS: [&str; 12] = [
        "x-ssl-client-",
        "ssl-client-",
        "sslclientcert",
        "x-client-cert",
        "x-client-subject",
        "x-client-issuer",
        "x-client-s-dn",
        "x-tls-client-",
        "x-mtls-client-",
        "x-amzn-mtls-",
        "cf-cert-",
        "wl-proxy-client-cert",
    ];
    const NAMES: [&str; 8] = [
        "x-client-verify",
        "x-arr-clientcert",
        "x-ssl-cert",
        "x-ssl-subject",
        "x-ssl-issuer",
        "x-client-dn",
        "x-client-cn",
        "cf-client-cert-der-base64",
    ];
    matches!(name.first(), Some(b'x' | b'X' | b's' | b'S' | b'w' | b'W' | b'c' | b'C'))
        && is_one_of(name, &NAMES, &BEGINNINGS)
}

/// Fields by which origins take a request for an authenticated user's: by custom (`Remote-User`, which WSGI,
/// Django and Grafana are told to read), and by proxies, clouds and gateways: oauth2-proxy, Authelia,
/// authentik, Vouch, Pomerium, Google's IAP and API gateways, Cloudflare Access, AWS' load balancers, Azure's
/// App Service, Tailscale, Kong, WSO2, Kubernetes' API, OpenSearch, NiFi, Posit, Spinnaker, App Engine;
/// OpenID Connect, SAML (Mellon), CAS and Shibboleth in Apache; WebSEAL, SiteMinder, Oracle's and RSA's
/// access managers. (`X-Forwarded-User` and its like are [`FieldName::ClientHint`] by their name.)
fn is_user(name: &[u8]) -> bool {
    // Most names are told by their first letter.
    let (names, beginnings): (&[&str], &[&str]) = match name.first().map(u8::to_ascii_lowercase) {
        Some(b'x') => (&X_NAMES, &X_BEGINNINGS),
        Some(b'r') => (&[], &["remote-"]),
        Some(b'a') => (&[], &["auth-user", "authenticated-user"]),
        Some(b'c') => (&["ct-remote-user"], &["cf-access-", "cas-"]),
        Some(b'i') => (&[], &["iv-"]),
        Some(b'm') => (&[], &["mellon-"]),
        Some(b'o') => (&[], &["oam-", "oidc-", "osso-"]),
        Some(b'p') => (&["proxy-user"], &[]),
        Some(b's') => (&["sso-user"], &["sm-", "shib-"]),
        Some(b't') => (&[], &["tailscale-user-", "tailscale-app-"]),
        Some(b'w') => (&[], &["webauth-"]),
        _ => (&[], &[]),
    };
    is_one_of(name, names, beginnings)
        || ["userinfo", "-jwt-assertion", "-jwt-payload", "-remote-user"].iter().any(|end| ends(name, end))
}

const X_NAMES: [&str; 4] =
    ["x-id-token", "x-anonymous-consumer", "x-amzn-lattice-identity", "x-token-subject"];

const X_BEGINNINGS: [&str; 30] = [
    "x-auth-user",
    "x-auth-email",
    "x-auth-subject",
    "x-auth-groups",
    "x-auth-roles",
    "x-auth-name",
    "x-token-user-",
    "x-ms-token-",
    "x-remote-",
    "x-auth-request-",
    "x-authenticated-",
    "x-webauth-",
    "x-authentik-",
    "x-authelia-",
    "x-vouch-",
    "x-pomerium-",
    "x-goog-iap-",
    "x-goog-authenticated-",
    "x-amzn-oidc-",
    "x-oidc-",
    "x-sso-",
    "x-ms-client-principal",
    "x-consumer-",
    "x-credential-",
    "x-proxy-user",
    "x-proxy-roles",
    "x-proxiedentit",
    "x-rstudio-user",
    "x-spinnaker-user",
    "x-appengine-user-",
];

fn is_one_of(name: &[u8], names: &[&str], beginnings: &[&str]) -> bool {
    beginnings.iter().any(|start| begins(name, start))
        || names.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

fn is_client_hint(name: &[u8]) -> bool {
    const ENDS: [&str; 12] = [
        "-ip",
        "-clientip",
        "-realip",
        "-ipv4",
        "-ipv6",
        "-addr",
        "-client-address",
        "-remote-address",
        "-viewer-address",
        "-proxied-for",
        "-client-port",
        "-remote-host",
    ];
    const BEGINNINGS: [&str; 6] =
        ["x-forward-", "x-real-", "x-envoy-", "x-azure-", "x-appengine-", "cloudfront-viewer-"];
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    let is_listed = match name.len() {
        5 => is("x-ssl"),
        6 => is("x-host"),
        7 => is("x-https") || is("x-proto"),
        8 => is("x-scheme") || is("clientip"),
        10 => is("cf-visitor") || is("fastly-ssl"),
        12 => is("x-url-scheme") || is("wl-proxy-ssl") || is("cf-ipcountry"),
        15 => is("front-end-https") || is("x-original-host"),
        16 => is("x-original-proto"),
        17 => is("x-original-scheme"),
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

pub(super) fn ends(name: &[u8], suffix: &str) -> bool {
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
            ("X-Client-Version", FieldName::Other),
            ("X-User-Id", FieldName::Other),
            ("X-Request-Id", FieldName::Other),
            ("X-Grafana-Org-Id", FieldName::Other),
            ("Authorization", FieldName::Guarded),
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
                     X-NF-Client-Connection-IP X-RealIP X-Real-Port X-Real-Proto ClientIP X-ClientIP \
                     X-Source-IP X-Peer-IP X-User-IP X-IP X-Client-Addr X-Client-Address X-Client-Port \
                     Fly-Client-IP Incap-Client-IP EO-Connecting-IP X-Envoy-Downstream-Service-Cluster \
                     X-Azure-FDID X-Appengine-Cron CF-Visitor CF-IPCountry Fastly-SSL X-SSL X-HTTPS \
                     X-Original-Proto";
        for name in names.split_whitespace() {
            assert_eq!(FieldName::of(name.as_bytes()), FieldName::ClientHint, "{name}");
        }
        for name in names.split_whitespace().filter(|name| name.contains('-')) {
            let variable = name.replace('-', "_");
            assert_eq!(FieldName::of(variable.as_bytes()), FieldName::LookAlike, "{variable}");
        }
    }

    #[test]
    fn whatever_origins_take_for_a_clients_certificate_is_ours_to_say() {
        let names = "Client-Cert Client-Cert-Chain X-SSL-Client-S-DN SSL-Client-Verify X-Client-Cert X-Client-Certificate \
                     X-Client-Verify X-ARR-ClientCert SSLClientCertStatus X-Client-Subject-DN \
                     X-MTLS-Client-Cert CF-Cert-Verified CF-Client-Cert-DER-Base64 X-Client-CN";
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
