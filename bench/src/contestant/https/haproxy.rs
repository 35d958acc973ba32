//! HAProxy as an HTTPS reverse proxy with one thread, configured like the guide's NGINX: TLS 1.3 with one
//! suite, a pool of connections to the origin (which is not verified), GET and HEAD only.

use std::path::PathBuf;

use truepeer_testbed::{Bed, Program};

use super::Entrance;
use crate::place::BACKEND;

/// Which HAProxy, and how it reaches the origin.
#[derive(Debug, Clone, Default)]
pub(crate) struct Haproxy {
    /// Its binary, if it is not the installed one.
    pub(crate) path: Option<PathBuf>,
    /// HTTP/2 with the origin.
    pub(crate) by_http2: bool,
}

impl Haproxy {
    /// The name or path to start it by.
    pub(super) fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "haproxy".to_owned(), |path| path.display().to_string())
    }

    pub(super) fn version(&self, bed: &Bed) -> String {
        crate::version::first_line_of(bed, &self.name(), &["-v"])
    }
}

pub(super) fn program(bed: &Bed, haproxy: &Haproxy, entrance: &Entrance<'_>) -> anyhow::Result<Program> {
    let alpn = if haproxy.by_http2 { " alpn h2" } else { "" };
    let bind = match entrance {
        Entrance::Plain(address) => format!("bind {address}"),
        Entrance::Tls(address, credential) => format!(
            "bind {address} ssl crt {} alpn h2,http/1.1 ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256",
            credential.bundle.display()
        ),
    };
    let config = format!(
        "\
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  timeout http-keep-alive 10m
frontend entrance
  {bind}
  http-request deny unless METH_GET
  default_backend origin
backend origin
  http-reuse always
  server origin {BACKEND} ssl verify none ssl-min-ver TLSv1.3{alpn}
"
    );
    let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), config)?;
    Ok(Program::new(haproxy.name()).arg("-db").arg("-f").arg(file))
}
