//! HAProxy as an HTTPS reverse proxy with one thread, configured like the guide's NGINX: TLS 1.3 with one suite,
//! a pool of connections to the origin (which is not verified), GET and HEAD only.

use truepeer_testbed::{Bed, Program};

use super::Entrance;
use crate::place::BACKEND;

pub(super) fn program(bed: &Bed, entrance: &Entrance<'_>) -> anyhow::Result<Program> {
    let bind = match entrance {
        Entrance::Plain(address) => format!("bind {address}"),
        Entrance::Tls(address, credential) => format!(
            "bind {address} ssl crt {} alpn http/1.1 ssl-min-ver TLSv1.3 ciphersuites TLS_AES_128_GCM_SHA256",
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
  server origin {BACKEND} ssl verify none ssl-min-ver TLSv1.3
"
    );
    let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), config)?;
    Ok(Program::new("haproxy").arg("-db").arg("-f").arg(file))
}
