//! Certificates, made on the fly.

use std::path::PathBuf;

use truepeer_testbed::Bed;

/// An authority, whose certificate is `NAME.pem` in the bed's directory.
pub(crate) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pub(crate) ca: String,
}

impl Authority {
    pub(crate) fn new(bed: &Bed, name: &str) -> anyhow::Result<Authority> {
        let mut params = rcgen::CertificateParams::new(Vec::new())?;
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate()?;
        let ca = text(bed.write(&format!("{name}.pem"), params.self_signed(&key)?.pem())?);
        Ok(Authority { issuer: rcgen::Issuer::new(params, key), ca })
    }

    /// A certificate and its key for these names, the file's name being the subject's.
    pub(crate) fn certify(&self, bed: &Bed, file: &str, names: &[&str]) -> anyhow::Result<Identity> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "Testbed");
        params.distinguished_name.push(rcgen::DnType::CommonName, file);
        let key = rcgen::KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Identity {
            cert: text(bed.write(&format!("{file}.pem"), cert)?),
            key: text(bed.write(&format!("{file}.key"), key.serialize_pem())?),
        })
    }
}

/// The paths of a certificate and its key.
pub(crate) struct Identity {
    pub(crate) cert: String,
    pub(crate) key: String,
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}
