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
        Authority::of(bed, name, Validity::Now)
    }

    /// As [`Authority::new`], valid at another time.
    pub(crate) fn of(bed: &Bed, name: &str, validity: Validity) -> anyhow::Result<Authority> {
        let mut params = rcgen::CertificateParams::new(Vec::new())?;
        validity.write_to(&mut params);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = rcgen::KeyPair::generate()?;
        let ca = text(bed.write(&format!("{name}.pem"), params.self_signed(&key)?.pem())?);
        Ok(Authority { issuer: rcgen::Issuer::new(params, key), ca })
    }

    /// A certificate and its key for these names. The file name is the subject's name.
    pub(crate) fn certify(&self, bed: &Bed, file: &str, names: &[&str]) -> anyhow::Result<Identity> {
        self.certify_for(bed, file, names, Validity::Now)
    }

    /// As [`Authority::certify`], valid at another time.
    pub(crate) fn certify_for(
        &self,
        bed: &Bed,
        file: &str,
        names: &[&str],
        validity: Validity,
    ) -> anyhow::Result<Identity> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = rcgen::CertificateParams::new(names)?;
        validity.write_to(&mut params);
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

/// When a certificate is valid.
#[derive(Clone, Copy)]
pub(crate) enum Validity {
    Now,
    /// It has expired.
    Over,
    /// It is not valid yet.
    ToCome,
}

impl Validity {
    fn write_to(self, params: &mut rcgen::CertificateParams) {
        let year = |year| rcgen::date_time_ymd(year, 1, 1);
        (params.not_before, params.not_after) = match self {
            Self::Now => (year(1975), year(4096)),
            Self::Over => (year(1975), year(2020)),
            Self::ToCome => (year(4000), year(4096)),
        };
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
