//! NGINX's stream module with `proxy_bind … transparent`, as in its manual, on all cores.

use std::path::{Path, PathBuf};

use anyhow::Context;
use truepeer_testbed::{Bed, Program, servers_dir};

use crate::place::Endpoints;

const NAME: &str = "nginx";

/// `path`: another one than the installed.
pub(super) fn program(bed: &Bed, path: Option<&Path>, at: Endpoints) -> anyhow::Result<Program> {
    let dir = bed.dir().join(bed.fresh_name("nginx"));
    std::fs::create_dir_all(&dir)?;
    let file = dir.join("nginx.conf");
    let module = stream_module(path).context("NGINX's stream module")?;
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
    Ok(Program::new(path.unwrap_or(Path::new(NAME)))
        .args(["-e", "stderr", "-p"])
        .arg(&dir)
        .arg("-c")
        .arg(&file))
}

pub(super) fn version(bed: &Bed, path: Option<&Path>) -> String {
    crate::version::first_line_of(bed, &path.unwrap_or(Path::new(NAME)).to_string_lossy(), &["-v"])
}

pub(super) fn missing_module(path: Option<&Path>) -> Option<String> {
    stream_module(path).is_none().then(|| "NGINX's stream module is missing (make servers)".to_owned())
}

/// Of another NGINX: beside it, or where packages have it.
fn stream_module(path: Option<&Path>) -> Option<PathBuf> {
    let (name, modules) = ("ngx_stream_module.so", "lib/nginx/modules");
    let places = match path {
        Some(path) => [path.with_file_name(name), path.parent()?.parent()?.join(modules).join(name)],
        None => [servers_dir().join("root/usr"), "/usr".into()].map(|usr| usr.join(modules).join(name)),
    };
    places.into_iter().find(|file| file.exists())
}
