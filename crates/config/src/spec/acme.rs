//! The ACME authority that issues certificates.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::origin::site_name;

/// Options of `truepeer https`.
#[derive(Debug, Clone, Default, Args)]
pub struct AcmeSpec {
    #[arg(long)]
    pub(crate) acme_directory: Option<AcmeDirectory>,
    #[arg(long, value_parser = email)]
    pub(crate) acme_email: Option<String>,
    #[arg(long)]
    pub(crate) acme_state: Option<PathBuf>,
    #[arg(long)]
    pub(crate) acme_eab_id: Option<String>,
    #[arg(long)]
    pub(crate) acme_eab_key: Option<PathBuf>,
    #[arg(long)]
    pub(crate) acme_ca: Option<PathBuf>,
}

impl AcmeSpec {
    /// The first option that is given, by its long name. The usual authority needs no name.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let Self { acme_directory, acme_email, acme_state, acme_eab_id, acme_eab_key, acme_ca } = self;
        let given = [
            ("acme-directory", acme_directory.as_ref().is_some_and(|one| *one != AcmeDirectory::default())),
            ("acme-email", acme_email.is_some()),
            ("acme-state", acme_state.is_some()),
            ("acme-eab-id", acme_eab_id.is_some()),
            ("acme-eab-key", acme_eab_key.is_some()),
            ("acme-ca", acme_ca.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}

/// `[acme]`: the same.
#[derive(Debug, Clone, Default, Args)]
pub struct AcmeTable {
    #[arg(long)]
    pub(crate) directory: Option<AcmeDirectory>,
    #[arg(long, value_parser = email)]
    pub(crate) email: Option<String>,
    #[arg(long)]
    pub(crate) state: Option<PathBuf>,
    #[arg(long)]
    pub(crate) eab_id: Option<String>,
    #[arg(long)]
    pub(crate) eab_key: Option<PathBuf>,
    #[arg(long)]
    pub(crate) ca: Option<PathBuf>,
}

impl From<AcmeTable> for AcmeSpec {
    fn from(table: AcmeTable) -> Self {
        let AcmeTable { directory, email, state, eab_id, eab_key, ca } = table;
        Self {
            acme_directory: directory,
            acme_email: email,
            acme_state: state,
            acme_eab_id: eab_id,
            acme_eab_key: eab_key,
            acme_ca: ca,
        }
    }
}

/// The URL of an authority's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcmeDirectory(pub String);

/// The words for some.
const DIRECTORIES: [(&str, &str); 3] = [
    ("letsencrypt", "https://acme-v02.api.letsencrypt.org/directory"),
    ("staging", "https://acme-staging-v02.api.letsencrypt.org/directory"),
    ("zerossl", "https://acme.zerossl.com/v2/DV90"),
];

impl Default for AcmeDirectory {
    fn default() -> Self {
        Self(DIRECTORIES[0].1.to_owned())
    }
}

impl FromStr for AcmeDirectory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, url)) = DIRECTORIES.iter().find(|(word, _)| *word == text) {
            return Ok(Self((*url).to_owned()));
        }
        let is_url =
            text.strip_prefix("https://").is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if is_url && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err("expected letsencrypt, staging, zerossl, or the URL of an ACME directory: https://…"
                .to_owned())
        }
    }
}

/// A name that an authority can check at this host.
pub(super) fn name(text: &str) -> Result<String, String> {
    let name = site_name(text)?;
    if name.starts_with('*') {
        return Err(
            "authorities check wildcards by DNS alone, which truepeer can't answer; expected names, such as www.site.example"
                .to_owned(),
        );
    }
    if !name.contains('.') {
        return Err(
            "expected a name that is in DNS, such as www.site.example; for a first try --tls-cert self"
                .to_owned(),
        );
    }
    Ok(name)
}

fn email(text: &str) -> Result<String, String> {
    let is_address = text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && host.contains('.'));
    if is_address && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',') {
        Ok(text.to_owned())
    } else {
        Err("expected an email address, such as admin@site.example".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_a_word_or_a_url() {
        for (text, url) in [
            ("letsencrypt", "https://acme-v02.api.letsencrypt.org/directory"),
            ("staging", "https://acme-staging-v02.api.letsencrypt.org/directory"),
            ("https://127.0.0.1:14000/dir", "https://127.0.0.1:14000/dir"),
        ] {
            assert_eq!(text.parse::<AcmeDirectory>().unwrap().0, url);
        }
        for text in ["", "pebble", "http://a/dir", "https://", "https:///dir", "https://a b"] {
            assert!(text.parse::<AcmeDirectory>().unwrap_err().contains("staging"), "{text}");
        }
    }

    #[test]
    fn a_name_can_be_checked_at_this_host() {
        assert_eq!(name("Site.Example").as_deref(), Ok("site.example"));
        assert!(name("*.site.example").unwrap_err().contains("by DNS"));
        assert!(name("192.0.2.1").is_err());
        assert!(email("a@b.test").is_ok() && email("a@b").is_err() && email("a b@c.test").is_err());
    }
}
