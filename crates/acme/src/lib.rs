//! Certificates from an ACME authority (RFC 8555), for whoever serves the names.
//!
//! One thread does everything, with blocking calls: no connection ever waits for the authority.
//!
//! ```text
//! Acme::start ─▶ worker: what is due? (schedule, suggested)
//!                ─▶ issue: account, order, answers, certificate ─▶ state
//!                            │ Server::answer, Server::withdraw          │ Server::install
//! ```
#![forbid(unsafe_code)]

mod authority;
mod explain;
mod issue;
mod schedule;
mod state;
mod suggested;
mod validity;
mod worker;

use std::path::PathBuf;

pub use self::state::{Stored, stored};
pub use self::validity::Validity;
pub use self::worker::Acme;

/// The authority, and where its account and certificates are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The URL of its directory.
    pub directory: String,
    /// Whom the authority may write to.
    pub email: Option<String>,
    /// The state directory, which exists.
    pub state: PathBuf,
    /// An account of the authority's own, to which the new one belongs.
    pub external: Option<ExternalAccount>,
    /// The file with the authorities that sign the certificate of the authority's own server (PEM); `None`:
    /// those that this system trusts.
    pub roots: Option<PathBuf>,
}

/// External account binding (RFC 8555, 7.3.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// The key's id.
    pub id: String,
    /// The file with the key, in base64url.
    pub key: PathBuf,
}

/// Names that get one certificate together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// In lower case. The first one names the file.
    pub names: Vec<String>,
    /// Whether HTTP without TLS is served for them, so that http-01 is possible.
    pub has_http: bool,
}

/// The answer to a challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// http-01 (RFC 8555, 8.3): the text at `/.well-known/acme-challenge/TOKEN`.
    Http {
        /// The last part of the path.
        token: String,
        /// The text.
        text: String,
    },
    /// tls-alpn-01 (RFC 8737): the digest in the certificate for this name.
    Tls {
        /// The name that the authority asks for (SNI).
        name: String,
        /// SHA-256 of the key authorization.
        digest: [u8; 32],
    },
}

/// The program that listens at the names and uses their certificates.
pub trait Server: Send + 'static {
    /// Answers the authority's questions from now on.
    ///
    /// # Errors
    /// The reason why it can't.
    fn answer(&self, answer: &Answer) -> Result<(), String>;

    /// Answers it no more.
    fn withdraw(&self, answer: &Answer);

    /// Serves this certificate for the names from now on.
    ///
    /// # Errors
    /// The reason why it can't.
    fn install(&self, names: &[String], stored: &Stored) -> Result<(), String>;
}
