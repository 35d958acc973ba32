//! HAProxy before the backend with `usesrc clientip`, as in its manual for transparent proxying.

use truepeer_testbed::{Bed, Program};

use crate::place::{BACKEND, ENTRANCE, route_replies};

pub(super) fn program(bed: &Bed) -> anyhow::Result<Program> {
    route_replies()?;
    let config = format!(
        "\
defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen bench
  bind {ENTRANCE} accept-proxy
  option splice-auto
  server backend {BACKEND} source 0.0.0.0 usesrc clientip
"
    );
    let file = bed.write(&format!("{}.cfg", bed.fresh_name("haproxy")), config)?;
    Ok(Program::new("haproxy").arg("-db").arg("-f").arg(file))
}

pub(super) fn version(bed: &Bed) -> String {
    crate::version::first_line_of(bed, "haproxy", &["-v"])
}
