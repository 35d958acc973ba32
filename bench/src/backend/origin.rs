//! The origin of the HTTPS loads: NGINX with one worker and a file of 1 KiB, as in the guide that these loads
//! follow.

use std::fs;

use truepeer_testbed::{Bed, Program, find_program};

use crate::credentials::Credential;
use crate::nginx;
use crate::page::page;
use crate::place::BACKEND;

pub(super) fn program(bed: &Bed, credential: &Credential) -> anyhow::Result<Program> {
    let blocks = format!(
        "  server {{
    listen {BACKEND} ssl http2;
    server_name $hostname;
{tls}    root html;
    location / {{
      try_files $uri $uri/ =404;
    }}
  }}
",
        tls = nginx::tls(credential),
    );
    nginx::program(bed, None, "origin", &blocks, |dir| {
        fs::create_dir(dir.join("html"))?;
        Ok(fs::write(dir.join("html/1kb"), page())?)
    })
}

/// What this machine lacks for it, if anything.
pub(crate) fn missing() -> Option<String> {
    let absent = find_program("nginx").is_none();
    absent.then(|| "NGINX, the origin, is neither unpacked (make servers) nor installed".to_owned())
}

/// Its version, as it reports it.
pub(crate) fn version(bed: &Bed) -> String {
    crate::version::first_line_of(bed, "nginx", &["-v"])
}
