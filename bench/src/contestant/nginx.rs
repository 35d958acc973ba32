//! NGINX's stream module with `proxy_bind … transparent`, as in its manual, on all cores.

use std::path::PathBuf;

use anyhow::Context;
use truepeer_testbed::{Bed, Program, servers_dir};

use crate::place::Endpoints;

pub(super) fn program(bed: &Bed, at: Endpoints) -> anyhow::Result<Program> {
    let dir = bed.dir().join(bed.fresh_name("nginx"));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("nginx.conf");
    let module = stream_module().context("NGINX's stream module")?;
    let config = format!(
        "\
daemon off;
user root;
pid {here}/pid;
error_log stderr error;
load_module {module};
worker_processes auto;
worker_rlimit_nofile 100000;
events {{ worker_connections 30000; }}
stream {{
  server {{
    listen {entrance} proxy_protocol backlog=4096;
    proxy_pass {backend};
    proxy_bind $proxy_protocol_addr transparent;
    proxy_half_close on;
  }}
}}
",
        here = dir.display(),
        entrance = at.entrance,
        backend = at.backend,
        module = module.display(),
    );
    std::fs::write(&file, config)?;
    Ok(Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&dir).arg("-c").arg(&file))
}

pub(super) fn version(bed: &Bed) -> String {
    crate::version::first_line_of(bed, "nginx", &["-v"])
}

pub(super) fn missing_module() -> Option<String> {
    stream_module().is_none().then(|| "NGINX's stream module is missing (make servers)".to_owned())
}

fn stream_module() -> Option<PathBuf> {
    let module = "lib/nginx/modules/ngx_stream_module.so";
    let places = [servers_dir().join("root/usr").join(module), PathBuf::from("/usr").join(module)];
    places.into_iter().find(|file| file.exists())
}
