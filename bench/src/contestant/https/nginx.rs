//! NGINX as HTTPS reverse proxy with the guide's configuration.

use truepeer_testbed::{Bed, Program};

use super::Entrance;
use crate::nginx;
use crate::place::BACKEND;

pub(super) fn program(bed: &Bed, entrance: &Entrance<'_>) -> anyhow::Result<Program> {
    let listen = match entrance {
        Entrance::Plain(address) => format!("    listen {address};\n"),
        Entrance::Tls(address, credential) => {
            format!("    listen {address} ssl;\n{}", nginx::tls(credential))
        }
    };
    let blocks = format!(
        "  upstream ssl_file_server_com {{
    server {BACKEND};
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
    nginx::program(bed, "nginx", &blocks, |_| Ok(()))
}
