//! Writes the shared table as a seed corpus: one file for each vector, in a directory for each fuzz target.
//!
//! `cargo run -p truepeer-fuzz-seeds -- DIRECTORY`

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use truepeer_proto::spp::{self, Spp};
use truepeer_proto::{Decoded, Limits, decode, vectors};

fn main() -> io::Result<()> {
    let Some(root) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::other("expected the directory to write to"));
    };
    for target in ["decode", "round_trip", "spp", "tlvs"] {
        fs::create_dir_all(root.join(target))?;
    }
    for (number, vector) in vectors::all().enumerate() {
        let name = format!("{number:03}");
        fs::write(root.join("decode").join(&name), vector.bytes)?;
        if let Ok(Decoded::Done { header, .. }) = decode(vector.bytes, Limits::default()) {
            fs::write(root.join("round_trip").join(&name), vector.bytes)?;
            fs::write(root.join("tlvs").join(&name), header.tlvs.as_bytes())?;
        }
    }
    write_spp(&root.join("spp"))
}

/// One header of each family, with and without a payload.
fn write_spp(directory: &Path) -> io::Result<()> {
    for (name, client, proxy) in
        [("v4", "192.0.2.1:56324", "198.51.100.2:53"), ("v6", "[2001:db8::1]:56324", "[2001:db8::2]:53")]
    {
        let (Ok(client), Ok(proxy)) = (client.parse(), proxy.parse()) else { continue };
        let mut datagram = [0; spp::LEN + 5];
        spp::encode(&Spp { client, proxy }, &mut datagram).map_err(io::Error::other)?;
        fs::write(directory.join(format!("{name}-query")), datagram)?;
        fs::write(directory.join(name), &datagram[..spp::LEN])?;
    }
    Ok(())
}
