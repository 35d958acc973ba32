//! Writes the seeds of each fuzz target, one file for each, in a directory for each target: the shared
//! vectors, messages of HTTP/1, the parts of deploy/truepeer.toml, and what earlier runs have found
//! ([`collected`]).
//!
//! `cargo run -p truepeer-fuzz-seeds -- write DIRECTORY`

mod collected;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use truepeer_proto::spp::{self, Spp};
use truepeer_proto::{Decoded, Limits, decode, vectors};

fn main() -> io::Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match &arguments[..] {
        [command, root] if command == Path::new("write") => write(root),
        [command, corpus, file] if command == Path::new("collect") => collected::collect(corpus, file),
        _ => Err(io::Error::other("expected: write DIRECTORY, or: collect CORPUS FILE")),
    }
}

fn write(root: &Path) -> io::Result<()> {
    for target in ["decode", "round_trip", "spp", "tlvs", "header_reader"] {
        fs::create_dir_all(root.join(target))?;
    }
    for (number, vector) in vectors::all().enumerate() {
        let name = format!("{number:03}");
        fs::write(root.join("decode").join(&name), vector.bytes)?;
        // How to read, and the pieces.
        let how = u8::try_from(number % 4).unwrap_or_default();
        fs::write(root.join("header_reader").join(&name), [&[how, how * 7, 20][..], vector.bytes].concat())?;
        if let Ok(Decoded::Done { header, .. }) = decode(vector.bytes, Limits::default()) {
            fs::write(root.join("round_trip").join(&name), vector.bytes)?;
            fs::write(root.join("tlvs").join(&name), header.tlvs.as_bytes())?;
        }
    }
    write_http1(root)?;
    write_configuration(&root.join("configuration"))?;
    write_spp(&root.join("spp"))?;
    collected::write_all(root)
}

const REQUESTS: [&str; 5] = [
    "GET /a?b=c HTTP/1.1\r\nHost: site:443\r\nAccept: */*\r\nConnection: keep-alive, X\r\nX: y\r\n\r\n",
    "POST http://site/ HTTP/1.1\r\nHost: site\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: [::1]\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: X\r\n\r\n",
    "\r\nGET / HTTP/1.0\r\nX-Forwarded-For: 192.0.2.1\r\nX_Real_IP: 192.0.2.1\r\nForwarded: for=_x\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: a=b\r\n\r\n",
];
/// Each starts with the byte that determines the pieces.
const ADMIN: [&str; 4] = [
    "\x01GET /sessions?client=192.0.2.0%2F24&limit=7 HTTP/1.1\r\nHost: truepeer\r\nAccept: */*\r\n\r\n",
    "\x05GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n",
    "\x7fDELETE /sessions/tcp-0-1-2 HTTP/1.0\r\n\r\n",
    "0POST /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: truepeer-handover\r\n\r\n",
];
/// Each starts with the byte that selects whether the request was HEAD.
const RESPONSES: [&str; 5] = [
    "0HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
    "0HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\nKeep-Alive: timeout=5\r\n\r\n",
    "1HTTP/1.0 304 \r\nContent-Length: 7\r\nSet-Cookie: a=b\r\n\r\n",
    "0HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    "0HTTP/1.1 100 Continue\r\n\r\n",
];
/// Each starts with the byte that determines the pieces.
const BODIES: [&str; 4] = [
    "05\r\nhello\r\n0\r\n\r\n",
    "15;x=\"y\"\r\nhello\r\nA\r\n0123456789\r\n0;z\r\nX: y\r\nY:\r\n\r\nGET",
    "200005\r\nhello\r\n00\r\n\r\n",
    "37fffffffffffffff\r\nhello",
];

/// Valid messages, for the targets to change.
fn write_http1(root: &Path) -> io::Result<()> {
    for (target, seeds) in [
        ("http1_requests", &REQUESTS[..]),
        ("http1_responses", &RESPONSES),
        ("http1_chunks", &BODIES),
        ("admin_requests", &ADMIN),
    ] {
        fs::create_dir_all(root.join(target))?;
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(root.join(target).join(number.to_string()), seed)?;
        }
    }
    Ok(())
}

/// Each part of deploy/truepeer.toml twice: as it stands, and (`-all`) with the keys that are commented out.
fn write_configuration(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let parts = include_str!("../../../deploy/truepeer.toml").split("\n# ----").skip(1);
    for (number, (_, part)) in parts.filter_map(|part| part.split_once('\n')).enumerate() {
        let lines = part.lines().filter(|line| !line.starts_with("# "));
        let all: String = lines.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect();
        fs::write(directory.join(format!("{number}-all")), all)?;
        fs::write(directory.join(number.to_string()), part)?;
    }
    Ok(())
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
