//! QUIC: ngtcp2's example programs, which download a file and can move to another port meanwhile.

use anyhow::{Context, ensure};

use crate::bed::Bed;
use crate::pattern::Pattern;
use crate::program::Program;
use crate::running::Running;
use crate::topology::Host;

const BYTES: usize = 3_000_000;

/// Starts a server of one file on port 4433 of this address, and waits until it is bound. Its output names
/// its clients.
pub fn server(bed: &Bed, host: &Host, address: &str) -> anyhow::Result<Running> {
    let (key, certificate) = (bed.dir().join("key.pem"), bed.dir().join("cert.pem"));
    Program::new("openssl")
        .args(["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=lb", "-days", "2", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .run(bed)?;
    bed.write("htdocs/file", Pattern::bytes(BYTES))?;
    let server = Program::new("gtlsserver")
        .args(["--no-quic-dump", "--no-http-dump", "-d"])
        .arg(bed.dir().join("htdocs"))
        .args([address, "4433"])
        .args([&key, &certificate])
        .in_netns(&host.netns)
        .start(bed)?;
    server.wait_bound_udp(format!("{address}:4433"))?;
    Ok(server)
}

/// Downloads the file from port 4433 of `lb`, and once more by a client that moves to another port after
/// 20 ms.
pub fn downloads_arrive(bed: &Bed, client: &Host, lb: &Host) -> anyhow::Result<()> {
    for (number, options) in [&[][..], &["--change-local-addr=20ms"]].into_iter().enumerate() {
        let downloads = bed.dir().join(format!("downloads{number}"));
        std::fs::create_dir_all(&downloads)?;
        Program::new("gtlsclient")
            .args(["-q", "--exit-on-all-streams-close", "--max-data=300K"])
            .args(["--max-stream-data-bidi-local=100K"])
            .arg(format!("--download={}", downloads.display()))
            .args(options)
            .args([lb.v4.to_string(), "4433".to_owned(), "https://lb/file".to_owned()])
            .in_netns(&client.netns)
            .run(bed)?;
        let got = std::fs::read(downloads.join("file")).context("nothing was downloaded")?;
        ensure!(got == Pattern::bytes(BYTES), "{} bytes with {options:?}", got.len());
    }
    Ok(())
}
