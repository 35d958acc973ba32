//! The ACME authority, and the names that it issues certificates for.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::problem::Problem;
use crate::spec::{AcmeDirectory, AcmeSpec, defaults};

/// The authority, and where its account and certificates are kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AcmeConfig {
    pub directory: AcmeDirectory,
    pub email: Option<String>,
    pub state: PathBuf,
    /// The id and the file of the key of an external account.
    pub external: Option<(String, PathBuf)>,
    /// Authorities that sign the certificate of the authority's own server; `None`: the system's.
    pub ca: Option<PathBuf>,
}

impl Default for AcmeConfig {
    fn default() -> Self {
        Self { directory: AcmeDirectory::default(), email: None, state: state(), external: None, ca: None }
    }
}

/// Where systemd's StateDirectory= says, or the usual place.
fn state() -> PathBuf {
    let of_unit = std::env::var_os("STATE_DIRECTORY").filter(|dirs| !dirs.as_encoded_bytes().contains(&b':'));
    of_unit.map_or_else(|| defaults::ACME_STATE.into(), |dir| Path::new(&dir).join("acme"))
}

impl AcmeConfig {
    /// # Errors
    /// Half of an external account.
    pub fn of(spec: &AcmeSpec) -> Result<Self, Problem> {
        let usual = Self::default();
        let external = match (&spec.acme_eab_id, &spec.acme_eab_key) {
            (Some(id), Some(key)) => Some((id.clone(), key.clone())),
            (Some(_), None) => return Err(Problem::needs("acme-eab-id", "acme-eab-key", "FILE")),
            (None, Some(_)) => return Err(Problem::needs("acme-eab-key", "acme-eab-id", "ID")),
            (None, None) => None,
        };
        Ok(Self {
            directory: spec.acme_directory.clone().unwrap_or(usual.directory),
            email: spec.acme_email.clone(),
            state: spec.acme_state.clone().unwrap_or(usual.state),
            external,
            ca: spec.acme_ca.clone(),
        })
    }

    /// The files that it reads.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let key = self.external.as_ref().map(|(_, key)| key.clone());
        key.into_iter().chain(self.ca.clone())
    }
}

/// Names that get one certificate together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeNames {
    pub names: Vec<String>,
    /// Whether HTTP without TLS is served for them.
    pub has_http: bool,
}
