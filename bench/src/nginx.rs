//! The part of NGINX's configuration that origin and HTTPS proxy share: the guide's general lines, and those
//! needed here (its files in the test's directory, more connections than the guide's 512, and longer
//! time-outs, because thousands must stay idle).

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use truepeer_testbed::{Bed, Program};

use crate::credentials::Credential;

/// NGINX with one worker, and `blocks` within `http`. Relative names in them are files in a new directory,
/// which `furnish` can fill. `path`: another one than the installed.
pub(crate) fn program(
    bed: &Bed,
    path: Option<&Path>,
    stem: &str,
    blocks: &str,
    furnish: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<Program> {
    let dir = bed.dir().join(bed.fresh_name(stem));
    fs::create_dir_all(&dir)?;
    furnish(&dir)?;
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("  {name}_temp_path {name};\n"))
        .collect();
    let config = format!(
        "\
daemon off;
user root;
pid pid;
error_log stderr error;
worker_processes 1;
worker_rlimit_nofile 100000;
events {{ worker_connections 30000; }}
http {{
{temporary}  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000000;
  keepalive_timeout 10m;
  default_type application/octet-stream;
  access_log off;
{blocks}}}
"
    );
    let file = dir.join("nginx.conf");
    fs::write(&file, config)?;
    Ok(Program::new(path.unwrap_or(Path::new("nginx")))
        .args(["-e", "stderr", "-p"])
        .arg(&dir)
        .arg("-c")
        .arg(&file))
}

/// The guide's proxy, with the lines `listen`.
pub(crate) fn proxy(
    bed: &Bed,
    path: Option<&Path>,
    listen: &str,
    origin: SocketAddr,
) -> anyhow::Result<Program> {
    let blocks = format!(
        "  upstream ssl_file_server_com {{
    server {origin};
    keepalive 1024;
  }}
  server {{
{listen}    server_name $hostname;
    location / {{
      limit_except GET {{ deny all; }}
      proxy_pass https://ssl_file_server_com;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
      proxy_ssl_protocols TLSv1.3;
    }}
  }}
"
    );
    program(bed, path, "nginx", &blocks, |_| Ok(()))
}

/// Listening with TLS as the guide does, and with HTTP/2 for clients that ask for it.
pub(crate) fn listen_tls(address: SocketAddr, credential: &Credential) -> String {
    format!("    listen {address} ssl http2;\n{}", tls(credential))
}

/// Terminating TLS as the guide does.
pub(crate) fn tls(credential: &Credential) -> String {
    format!(
        "\
    ssl_protocols TLSv1.3;
    ssl_prefer_server_ciphers on;
    ssl_certificate {};
    ssl_certificate_key {};
    ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
",
        credential.certificate.display(),
        credential.key.display(),
    )
}
