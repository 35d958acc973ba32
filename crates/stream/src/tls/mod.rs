//! TLS over the reactor's streams: certificates, trust, and the stream itself.
//!
//! ```text
//! files ─▶ Identity (certificate chain, key, its names) ─▶ Identities: selected by the client's SNI
//!       ─▶ ServerOptions ─▶ ServerTls: the configuration for new handshakes; a reload makes another one
//!       ─▶ ClientOptions ─▶ ClientTls
//! TcpStream ─▶ TlsStream::accept / connect ─▶ Facts, and plain bytes
//! ```

mod client;
mod error;
mod facts;
mod hello;
mod identity;
mod issued;
mod own;
mod server;
mod stream;
mod suites;
mod verify;
mod words;

pub use self::client::{ClientOptions, ClientTls, Trust, system_authorities};
pub use self::error::{ConfigError, HandshakeError, Subject};
#[cfg(any(test, feature = "fuzzing"))]
pub use self::facts::any_certificate;
pub use self::facts::{ClientCertificate, TlsFacts};
pub use self::hello::Hello;
pub use self::hello::{ACME_PROTOCOL, HelloReader, Look};
pub use self::identity::{IdentityFiles, ServerIdentity};
pub use self::issued::IssuedCertificate;
pub use self::own::{own_fingerprint, own_host_name};
pub use self::server::{ClientCertificates, ServerOptions, ServerTls};
pub use self::stream::OUTGOING_BYTES;
pub use self::stream::{TlsStream, Transport};
pub use self::suites::{MinVersion, Suite};
