use std::path::PathBuf;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::reactor::Reactor;
use crate::tls::{
    ClientCertificates, ClientOptions, ClientTls, IdentityFiles, MinVersion, ServerOptions, ServerTls, Suite,
    Trust,
};

/// An authority and its certificates, as files in a directory that is removed when this is dropped.
struct Authority {
    dir: PathBuf,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("truepeer-tls-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(dir.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: rcgen::Issuer::new(params, key) }
    }

    fn ca(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    fn certify(&self, file: &str, names: &[&str]) -> IdentityFiles {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, file);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let files = IdentityFiles {
            cert: self.dir.join(format!("{file}.pem")),
            key: self.dir.join(format!("{file}.key")),
        };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    fn server(&self, options: ServerOptions) -> Arc<ServerConfig> {
        let identities = if options.identities.is_empty() {
            vec![self.certify("site", &["site.test"]).into()]
        } else {
            options.identities
        };
        ServerTls::new(&ServerOptions { identities, ..options }).unwrap().config()
    }

    fn client(&self, name: &str) -> ClientTls {
        ClientTls::new(&self.client_options(name)).unwrap()
    }

    fn client_options(&self, name: &str) -> ClientOptions {
        ClientOptions {
            trust: Trust::File(self.ca()),
            name: name.to_owned(),
            min_version: MinVersion::Tls12,
            suites: Vec::new(),
            alpn: Vec::new(),
            identity: None,
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Transport for DuplexStream {}

type Ends =
    (Result<TlsStream<DuplexStream>, HandshakeError>, Result<TlsStream<DuplexStream>, HandshakeError>);

/// Performs a handshake over a pipe that holds `room` bytes. Returns client and server.
async fn shake(room: usize, server: Arc<ServerConfig>, client: &ClientTls) -> Ends {
    let (near, far) = duplex(room);
    let mut connecting = std::pin::pin!(TlsStream::connect(near, client.config(), client.name()));
    let mut accepting = std::pin::pin!(TlsStream::accept(far, server, &[]));
    let (mut connected, mut accepted) = (None, None);
    std::future::poll_fn(|cx| {
        if connected.is_none() {
            connected = take(connecting.as_mut().poll(cx));
        }
        if accepted.is_none() {
            accepted = take(accepting.as_mut().poll(cx));
        }
        match (connected.take(), accepted.take()) {
            (Some(client), Some(server)) => Poll::Ready((client, server)),
            (client, server) => {
                (connected, accepted) = (client, server);
                Poll::Pending
            }
        }
    })
    .await
}

fn take<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

fn run<T: 'static>(test: impl Future<Output = T> + 'static) -> T {
    Reactor::new().unwrap().block_on(test).unwrap()
}

#[test]
fn bytes_arrive_whole_through_a_narrow_pipe() {
    const BYTES: usize = 1 << 20;
    let authority = Authority::new("narrow");
    let reactor = Reactor::new().unwrap();
    let other = reactor.clone();
    let equal = reactor.block_on(async move {
        let (client, server) =
            shake(700, authority.server(ServerOptions::default()), &authority.client("site.test")).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        let sent: Vec<u8> = (0..BYTES).map(|at| u8::try_from(at * 13 % 253).unwrap()).collect();
        other.spawn(async move {
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            server.write_all(&received).await.unwrap();
            server.shutdown().await.unwrap();
            // The pipe loses its contents when its end is dropped.
            let _ = server.read(&mut [0; 1]).await;
        });
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received == sent
    });
    assert!(equal.unwrap());
}

#[test]
fn an_end_without_close_notify_is_an_error_after_what_came() {
    let authority = Authority::new("cut");
    run(async move {
        let (client, server) =
            shake(1 << 16, authority.server(ServerOptions::default()), &authority.client("site.test")).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        client.write_all(b"half of it").await.unwrap();
        client.flush().await.unwrap();
        drop(client);
        let mut received = Vec::new();
        let error = server.read_to_end(&mut received).await.unwrap_err();
        assert_eq!((received.as_slice(), error.kind()), (&b"half of it"[..], io::ErrorKind::UnexpectedEof));
    });
}

/// A server that has answered and closed the connection.
#[test]
fn what_came_is_read_although_nothing_can_be_sent_any_more() {
    let authority = Authority::new("last");
    run(async move {
        let (client, server) =
            shake(1 << 16, authority.server(ServerOptions::default()), &authority.client("site.test")).await;
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        server.write_all(b"last words").await.unwrap();
        server.flush().await.unwrap();
        drop(server);
        assert!(client.write_all(b"more").await.is_err());
        let mut received = [0; 10];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(&received, b"last words");
        assert!(client.read(&mut received).await.is_err());
    });
}

#[test]
fn bytes_read_before_are_part_of_the_handshake() {
    let authority = Authority::new("before");
    run(async move {
        let (near, mut far) = duplex(1 << 16);
        let client = authority.client("site.test");
        let mut connecting = Box::pin(TlsStream::connect(near, client.config(), client.name()));
        std::future::poll_fn(|cx| {
            assert!(connecting.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let mut first = [0; 100];
        far.read_exact(&mut first).await.unwrap();
        let server = authority.server(ServerOptions::default());
        let mut accepting = Box::pin(TlsStream::accept(far, server, &first));
        let shaken = std::future::poll_fn(|cx| {
            let _ = accepting.as_mut().poll(cx).is_ready();
            connecting.as_mut().poll(cx)
        });
        assert_eq!(shaken.await.unwrap().facts().version, "TLSv1.3");
    });
}

#[test]
fn the_clients_sni_selects_the_certificate() {
    let authority = Authority::new("names");
    let options = ServerOptions {
        identities: vec![
            authority.certify("first", &["first.test"]).into(),
            authority.certify("wild", &["*.wild.test", "wild.test"]).into(),
        ],
        ..ServerOptions::default()
    };
    let server = authority.server(options);
    run(async move {
        for (name, good) in [
            ("first.test", true),
            ("a.wild.test", true),
            ("WILD.test", true),
            ("a.b.wild.test", false), // a wildcard matches one label
            ("unknown.test", false),
        ] {
            let (client, accepted) = shake(1 << 16, Arc::clone(&server), &authority.client(name)).await;
            assert_eq!(client.is_ok(), good, "{name}");
            if good {
                assert_eq!(accepted.unwrap().facts().sni, Some(name.to_ascii_lowercase()));
            } else {
                let error = accepted.map(|_| ()).unwrap_err();
                assert_eq!(error.reason().code(), "tls_alert", "{error}");
            }
        }
    });
}

#[test]
fn versions_suites_and_protocols_are_as_configured() {
    let authority = Authority::new("choice");
    let suite: Suite = "TLS_AES_128_GCM_SHA256".parse().unwrap();
    let options = ServerOptions {
        min_version: MinVersion::Tls13,
        suites: vec![suite],
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        ..ServerOptions::default()
    };
    let server = authority.server(options);
    run(async move {
        let options =
            ClientOptions { alpn: vec![b"http/1.1".to_vec()], ..authority.client_options("site.test") };
        let client = ClientTls::new(&options).unwrap();
        let (_, accepted) = shake(1 << 16, Arc::clone(&server), &client).await;
        let facts = accepted.unwrap().facts();
        assert_eq!((facts.version, facts.suite.as_str()), ("TLSv1.3", "TLS_AES_128_GCM_SHA256"));
        assert_eq!(facts.alpn.as_deref(), Some(&b"http/1.1"[..]));

        let other: Suite = "TLS_CHACHA20_POLY1305_SHA256".parse().unwrap();
        let options = ClientOptions { suites: vec![other], ..authority.client_options("site.test") };
        let (_, accepted) = shake(1 << 16, server, &ClientTls::new(&options).unwrap()).await;
        let error = accepted.map(|_| ()).unwrap_err();
        assert_eq!(
            (error.reason().code(), error.to_string().as_str()),
            ("tls_incompatible", "no cipher suite in common")
        );
    });
}

#[test]
fn a_session_is_resumed_until_certificates_are_read_again() {
    let authority = Authority::new("resumed");
    let options = ServerOptions {
        identities: vec![authority.certify("site", &["site.test"]).into()],
        ..ServerOptions::default()
    };
    let mut tls = ServerTls::new(&options).unwrap();
    run(async move {
        let client = authority.client("site.test");
        let mut resumed = Vec::new();
        for round in 0..3 {
            if round == 2 {
                tls = ServerTls::new(&options).unwrap();
            }
            let (connected, accepted) = shake(1 << 16, tls.config(), &client).await;
            let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
            resumed.push(accepted.facts().resumed);
            // Tickets arrive with the next read.
            accepted.write_all(b"x").await.unwrap();
            accepted.flush().await.unwrap();
            connected.read_exact(&mut [0; 1]).await.unwrap();
        }
        assert_eq!(resumed, [false, true, false]);
    });
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let authority = Authority::new("mismatch");
    let (one, other) = (authority.certify("one", &["one.test"]), authority.certify("other", &["other.test"]));
    let identities = vec![IdentityFiles { cert: one.cert, key: other.key }.into()];
    let error =
        ServerTls::new(&ServerOptions { identities, ..ServerOptions::default() }).unwrap_err().to_string();
    assert!(error.ends_with("the key does not belong to the certificate"), "{error}");
}

#[test]
fn a_client_without_a_required_certificate_is_refused_with_a_reason() {
    let authority = Authority::new("required");
    let clients = ClientCertificates::Required(authority.ca());
    let server = authority.server(ServerOptions { clients, ..ServerOptions::default() });
    run(async move {
        let (_, accepted) = shake(1 << 16, server, &authority.client("site.test")).await;
        let error = accepted.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "a client certificate is required, and none was sent");
    });
}

#[test]
fn an_unknown_authority_is_refused_unless_verification_is_off() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let server = stranger.server(ServerOptions::default());
    run(async move {
        let (connected, _) = shake(1 << 16, Arc::clone(&server), &authority.client("site.test")).await;
        let error = connected.map(|_| ()).unwrap_err();
        assert_eq!(error.reason().code(), "tls_certificate");
        let options = ClientOptions { trust: Trust::Anybody, ..authority.client_options("whoever.test") };
        let (connected, _) = shake(1 << 16, server, &ClientTls::new(&options).unwrap()).await;
        assert!(connected.is_ok());
    });
}

/// As `openssl req -x509` creates them: the server presents the authority's own certificate.
fn self_signed(dir: &std::path::Path, key: &rcgen::KeyPair, serial: u64, year: i32) -> IdentityFiles {
    let mut params = rcgen::CertificateParams::new(vec!["site.test".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.serial_number = Some(serial.into());
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let (cert, key_file) = (dir.join(format!("self-{serial}.pem")), dir.join("self.key"));
    std::fs::write(&cert, params.self_signed(key).unwrap().pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    IdentityFiles { cert, key: key_file }
}

#[test]
fn a_self_signed_certificate_is_accepted_only_if_it_is_the_trusted_one() {
    let authority = Authority::new("self");
    let key = rcgen::KeyPair::generate().unwrap();
    let [trusted, other, expired] = [(1, 4096), (2, 4096), (3, 2020)]
        .map(|(serial, year)| self_signed(&authority.dir, &key, serial, year));
    run(async move {
        for (shown, trusts, name, outcome) in [
            (&trusted, &trusted, "site.test", None),
            (&trusted, &trusted, "other.test", Some("not valid for name \"other.test\"")),
            (&expired, &expired, "site.test", Some("certificate expired")),
            // The same name and key as the one in the file, but another certificate.
            (
                &other,
                &trusted,
                "site.test",
                Some("an authority's certificate (CA:TRUE), and it is not trusted itself"),
            ),
        ] {
            let identities = vec![shown.clone().into()];
            let server = authority.server(ServerOptions { identities, ..ServerOptions::default() });
            for min_version in [MinVersion::Tls12, MinVersion::Tls13] {
                let trust = Trust::File(trusts.cert.clone());
                let options = ClientOptions { trust, min_version, ..authority.client_options(name) };
                let (connected, _) =
                    shake(1 << 16, Arc::clone(&server), &ClientTls::new(&options).unwrap()).await;
                match (connected.map(|_| ()), outcome) {
                    (Ok(()), None) => {}
                    (Err(error), Some(said)) => {
                        let text = error.to_string();
                        assert!(text.contains(said) && !text.contains("Other("), "{text}");
                    }
                    (connected, _) => panic!("{connected:?}, expected {outcome:?}"),
                }
            }
        }
    });
}

#[test]
fn no_message_contains_a_debug_form() {
    use rustls::{AlertDescription, CertificateError, InvalidMessage, OtherError, PeerMisbehaved};
    let odd = OtherError(Arc::new(webpki::Error::PathLenConstraintViolated));
    for (error, said) in [
        (rustls::Error::InvalidCertificate(CertificateError::Other(odd)), "path len constraint violated"),
        (rustls::Error::InvalidCertificate(CertificateError::BadSignature), "bad signature"),
        (rustls::Error::AlertReceived(AlertDescription::BadCertificate), "(alert bad_certificate)"),
        (rustls::Error::AlertReceived(AlertDescription::Unknown(200)), "(alert 200)"),
        (
            rustls::Error::PeerMisbehaved(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec),
            "illegal middlebox",
        ),
        (rustls::Error::InvalidMessage(InvalidMessage::MissingData("ClientHello")), "missing data"),
    ] {
        let text = HandshakeError::Tls { error, first: Vec::new() }.to_string();
        assert!(text.contains(said), "{text}");
        let is_camel = |two: &[u8]| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase();
        assert!(!text.as_bytes().windows(2).any(is_camel), "{text}");
    }
}

#[test]
fn other_protocols_are_named() {
    let authority = Authority::new("plain");
    let server = authority.server(ServerOptions::default());
    run(async move {
        let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n";
        for (bytes, hint) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "not TLS: the first bytes look like HTTP request"),
            (header, "not TLS: the connection starts with a PROXY header"),
            (b"\x16\x03\x01\xff\xff\x01", "invalid message: message too large"),
        ] {
            let (mut near, far) = duplex(1 << 16);
            near.write_all(bytes).await.unwrap();
            let error = TlsStream::accept(far, Arc::clone(&server), &[]).await.map(|_| ()).unwrap_err();
            assert_eq!(error.to_string(), hint);
        }
    });
}

#[test]
fn a_handshake_message_that_is_too_long_is_no_broken_connection() {
    let authority = Authority::new("long");
    let server = authority.server(ServerOptions::default());
    run(async move {
        // A ClientHello of 65,535 bytes: with the headers of its records more than rustls' buffer takes.
        let message = [&[1, 0, 0xff, 0xff][..], &[0; 0xffff]].concat();
        let (mut near, far) = duplex(1 << 17);
        for record in message.chunks(1 << 14) {
            let length = u16::try_from(record.len()).unwrap().to_be_bytes();
            near.write_all(&[&[22, 3, 1][..], &length, record].concat()).await.unwrap();
        }
        let error = TlsStream::accept(far, server, &[]).await.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "invalid message: handshake payload too large");
    });
}
