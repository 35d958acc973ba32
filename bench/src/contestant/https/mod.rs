//! HTTPS reverse proxies: TLS on both sides, one worker each, so that programs are compared and not the
//! number of cores they use. None verifies the origin's certificate, because the guide's NGINX does not.

mod haproxy;
mod hitch;
mod nginx;

pub(crate) use self::haproxy::Haproxy;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use truepeer_testbed::{Bed, Program, find_program, missing_users};

use crate::credentials::{Credential, Credentials};
use crate::place::{BACKEND, BETWEEN, ENTRANCE};

/// The program.
#[derive(Debug, Clone)]
pub(super) enum Https {
    /// With its binary, if it is not the installed one.
    Nginx(Option<PathBuf>),
    Haproxy(Haproxy),
    /// hitch, with another program behind it for what it lacks.
    HitchBefore(Behind),
    Truepeer(PathBuf),
    /// HTTP/2 with the origin.
    TruepeerByHttp2(PathBuf),
}

/// The program behind hitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behind {
    Nginx,
    Haproxy,
}

/// How NGINX or HAProxy is reached.
enum Entrance<'a> {
    Tls(SocketAddr, &'a Credential),
    /// Another program before it terminates TLS.
    Plain(SocketAddr),
}

impl Https {
    /// Its programs and their addresses, in the order in which they are started.
    pub(super) fn programs(
        &self,
        bed: &Bed,
        credentials: &Credentials,
    ) -> anyhow::Result<Vec<(Program, SocketAddr)>> {
        let credential = &credentials.entrance;
        let direct = Entrance::Tls(ENTRANCE, credential);
        Ok(match self {
            Self::Nginx(path) => vec![(nginx::program(bed, path.as_deref(), &direct)?, ENTRANCE)],
            Self::Haproxy(which) => vec![(haproxy::program(bed, which, &direct)?, ENTRANCE)],
            Self::Truepeer(path) => vec![(truepeer(path, credential), ENTRANCE)],
            Self::TruepeerByHttp2(path) => {
                vec![(truepeer(path, credential).arg("--origin-protocol=h2"), ENTRANCE)]
            }
            Self::HitchBefore(behind) => {
                let plain = Entrance::Plain(BETWEEN);
                let second = match behind {
                    Behind::Nginx => nginx::program(bed, None, &plain)?,
                    Behind::Haproxy => haproxy::program(bed, &Haproxy::default(), &plain)?,
                };
                vec![(second, BETWEEN), (hitch::program(bed, credential, BETWEEN)?, ENTRANCE)]
            }
        })
    }

    /// What it lacks on this machine, if anything.
    pub(super) fn missing(&self) -> Option<String> {
        let lacking = |names: &[&str]| {
            let name = names.iter().find(|name| find_program(name).is_none())?;
            Some(format!("{name} is neither unpacked (make servers) nor installed"))
        };
        // hitch calls setgroups(), which a user namespace without several users denies.
        let hitch_and = |other| missing_users().map(str::to_owned).or_else(|| lacking(&["hitch", other]));
        match self {
            Self::Nginx(None) => lacking(&["nginx"]),
            Self::Nginx(Some(path)) => lacking(&[&path.to_string_lossy()]),
            Self::Haproxy(which) => lacking(&[&which.name()]),
            Self::HitchBefore(Behind::Nginx) => hitch_and("nginx"),
            Self::HitchBefore(Behind::Haproxy) => hitch_and("haproxy"),
            Self::Truepeer(path) | Self::TruepeerByHttp2(path) if !path.exists() => {
                Some(format!("{} does not exist (cargo build -p truepeer)", path.display()))
            }
            Self::Truepeer(path) => {
                manual(path).is_none().then(|| "this truepeer has no command `https`".to_owned())
            }
            Self::TruepeerByHttp2(path) => {
                let can = manual(path).is_some_and(|manual| manual.contains("--origin-protocol"));
                (!can).then(|| "this truepeer speaks no HTTP/2 with origins".to_owned())
            }
        }
    }

    /// Its version, as it reports it.
    pub(super) fn version(&self, bed: &Bed) -> String {
        match self {
            Self::Nginx(path) => super::nginx::version(bed, path.as_deref()),
            Self::Haproxy(which) => which.version(bed),
            Self::Truepeer(path) | Self::TruepeerByHttp2(path) => super::truepeer::version(bed, path),
            Self::HitchBefore(Behind::Nginx) => {
                format!("{}, {}", hitch::version(bed), super::nginx::version(bed, None))
            }
            Self::HitchBefore(Behind::Haproxy) => {
                format!("{}, {}", hitch::version(bed), super::haproxy::version(bed, None))
            }
        }
    }
}

/// `truepeer https` with one worker, and with GET alone, as in the guide, if it supports that.
fn truepeer(path: &Path, credential: &Credential) -> Program {
    let program = Program::new(path)
        .args(["https", "-l", &ENTRANCE.to_string(), "--workers=1", "--origin-insecure"])
        .args(["--origin".to_owned(), format!("https://{BACKEND}")])
        .arg("--cert")
        .arg(&credential.certificate)
        .arg("--key")
        .arg(&credential.key);
    let has_methods = manual(path).is_some_and(|manual| manual.contains("--methods"));
    if has_methods { program.arg("--methods=GET") } else { program }
}

/// The output of `truepeer https --help`, if the command exists.
fn manual(path: &Path) -> Option<String> {
    let said = Command::new(path).args(["https", "--help"]).stdin(Stdio::null()).output().ok()?;
    said.status.success().then(|| String::from_utf8_lossy(&said.stdout).into_owned())
}
