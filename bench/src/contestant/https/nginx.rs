//! NGINX as HTTPS reverse proxy with the guide's configuration.

use std::path::Path;

use truepeer_testbed::{Bed, Program};

use super::Entrance;
use crate::nginx;
use crate::place::BACKEND;

pub(super) fn program(bed: &Bed, path: Option<&Path>, entrance: &Entrance<'_>) -> anyhow::Result<Program> {
    let listen = match entrance {
        Entrance::Plain(address) => format!("    listen {address};\n"),
        Entrance::Tls(address, credential) => nginx::listen_tls(*address, credential),
    };
    nginx::proxy(bed, path, &listen, BACKEND)
}
