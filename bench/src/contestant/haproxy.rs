//! HAProxy before the backend with `usesrc clientip`, as in its manual for transparent proxying.

use std::path::Path;

use truepeer_testbed::{Bed, Program};

use crate::place::Endpoints;

const NAME: &str = "haproxy";

/// `path`: another one than the installed.
pub(super) fn program(bed: &Bed, path: Option<&Path>, at: Endpoints) -> anyhow::Result<Program> {
    let config = format!(
        "\
defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen bench
  bind {} accept-proxy
  option splice-auto
  server backend {} source 0.0.0.0 usesrc clientip
",
        at.entrance, at.backend
    );
    let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), config)?;
    Ok(Program::new(path.unwrap_or(Path::new(NAME))).arg("-db").arg("-f").arg(file))
}

pub(super) fn version(bed: &Bed, path: Option<&Path>) -> String {
    crate::version::first_line_of(bed, &path.unwrap_or(Path::new(NAME)).to_string_lossy(), &["-v"])
}
