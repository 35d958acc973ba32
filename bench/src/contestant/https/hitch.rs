//! hitch, which terminates TLS and connects without TLS to the program behind it.

use std::net::SocketAddr;

use truepeer_testbed::{Bed, Program};

use crate::credentials::Credential;
use crate::place::ENTRANCE;

pub(super) fn program(bed: &Bed, credential: &Credential, behind: SocketAddr) -> anyhow::Result<Program> {
    let address = |address: SocketAddr| format!("[{}]:{}", address.ip(), address.port());
    let config = format!(
        "\
frontend = \"{}\"
backend = \"{}\"
pem-file = \"{}\"
tls-protos = TLSv1.3
ciphersuites = \"TLS_AES_128_GCM_SHA256\"
workers = 1
backlog = 4096
user = \"root\"
quiet = on
",
        address(ENTRANCE),
        address(behind),
        credential.bundle.display()
    );
    let file = bed.write(&format!("{}.conf", bed.fresh_name("hitch")), config)?;
    Ok(Program::new("hitch").arg(format!("--config={}", file.display())))
}

pub(super) fn version(bed: &Bed) -> String {
    crate::version::first_line_of(bed, "hitch", &["--version"])
}
