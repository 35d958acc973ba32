//! The programs that truepeer is compared with, set up for the same job as in their own documentation.
//! `FAULTS_OF` names one: `go-mmproxy`, `haproxy`, `nginx`, or `mmproxy-rs`, whose path is in `MMPROXY_RS`.
//! They write a line for each session, if they can.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::bed::Bed;
use crate::program::Program;
use crate::servers_dir;
use crate::skip::skip;

/// The variable that names the peer.
const FAULTS_OF: &str = "FAULTS_OF";
/// The variable with the path of mmproxy-rs.
const MMPROXY_RS: &str = "MMPROXY_RS";

/// Where a peer listens, and its backends.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Its listening address. With `[::]` it also serves IPv4.
    pub listen: &'a str,
    /// The backend for IPv4 clients.
    pub ipv4: &'a str,
    /// The backend for IPv6 clients.
    pub ipv6: &'a str,
}

/// The name of the program that isn't truepeer.
pub fn peer() -> Option<String> {
    env::var(FAULTS_OF).ok().filter(|name| !name.is_empty())
}

/// Its command line for TCP. Headers may take a minute.
pub fn over_tcp(bed: &Bed, name: &str, place: Place<'_>) -> Result<Program> {
    match name {
        "haproxy" => haproxy(bed, place),
        "nginx" => nginx(bed, place),
        _ => mmproxy(name, place, "tcp"),
    }
}

/// Its command line for UDP. Skips the test if the program knows no PROXY headers in datagrams.
pub fn over_udp(name: &str, place: Place<'_>) -> Result<Program> {
    if matches!(name, "haproxy" | "nginx") {
        return skip(format!("{name} reads no PROXY headers of datagrams"));
    }
    mmproxy(name, place, "udp")
}

/// The rules that bring replies to clients back to this host, as in the documentation of mmproxy and
/// go-mmproxy, for backends on loopback. Only for tests of programs that add none.
pub fn classic_rules(bed: &Bed) -> Result<()> {
    let v4 = "rule add from 127.0.0.1/8 iif lo table 123\nroute add local 0.0.0.0/0 dev lo table 123\n";
    let v6 = "rule add from ::1/128 iif lo table 123\nroute add local ::/0 dev lo table 123\n";
    Program::new("ip").args(["-batch", "-"]).input(v4).run(bed)?;
    Program::new("ip").args(["-6", "-batch", "-"]).input(v6).run(bed)?;
    Ok(())
}

fn mmproxy(name: &str, place: Place<'_>, protocol: &str) -> Result<Program> {
    let program = match name {
        "go-mmproxy" => Program::new(name).args(["-v", "2"]),
        "mmproxy-rs" => {
            let path = env::var_os(MMPROXY_RS).context("the path of mmproxy-rs, in MMPROXY_RS")?;
            // The others raise the limit themselves.
            Program::new(path).env("RUST_LOG", "info").limit("nofile=20000:20000")
        }
        other => bail!("{FAULTS_OF}={other}: expected go-mmproxy, haproxy, mmproxy-rs or nginx"),
    };
    Ok(program.args(["-p", protocol, "-l", place.listen, "-4", place.ipv4, "-6", place.ipv6]))
}

fn haproxy(bed: &Bed, Place { listen, ipv4, ipv6 }: Place<'_>) -> Result<Program> {
    let (listen, families) = match listen.strip_prefix("[::]") {
        Some(port) => (format!("::{port}"), "v4v6"),
        None => (listen.to_owned(), ""),
    };
    let config = format!(
        "global\n  maxconn 9000\n  maxpipes 500\n  log stderr format raw local0\n\
         defaults\n  mode tcp\n  log global\n  option tcplog\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  option splice-auto\n\
         frontend listener\n  bind {listen} accept-proxy {families}\n  use_backend four if {{ src 0.0.0.0/0 }}\n  default_backend six\n\
         backend four\n  server s {ipv4} source 0.0.0.0 usesrc client\n\
         backend six\n  server s {ipv6} source [::] usesrc client\n"
    );
    let file = bed.write("haproxy.cfg", config)?;
    Ok(Program::new("haproxy").arg("-db").arg("-f").arg(file))
}

fn nginx(bed: &Bed, Place { listen, ipv4, ipv6 }: Place<'_>) -> Result<Program> {
    let module = "lib/nginx/modules/ngx_stream_module.so";
    let mut places =
        [servers_dir().join("root/usr").join(module), PathBuf::from("/usr").join(module)].into_iter();
    let module = places.find(|file| file.exists()).context("NGINX's stream module")?;
    let here = bed.dir().join("nginx");
    fs::create_dir_all(&here)?;
    let families = if listen.starts_with("[::]") { "ipv6only=off" } else { "" };
    let config = format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {here}/pid;\nerror_log stderr error;\nload_module {module};\n\
         worker_rlimit_nofile 20000;\nevents {{ worker_connections 20000; }}\nstream {{\n\
         log_format line '$proxy_protocol_addr $status $bytes_received $bytes_sent';\naccess_log /dev/stderr line;\n\
         map $proxy_protocol_addr $backend {{ ~: {ipv6}; default {ipv4}; }}\n\
         map $proxy_protocol_addr $client {{ ~: [$proxy_protocol_addr]:$proxy_protocol_port; default $proxy_protocol_addr:$proxy_protocol_port; }}\n\
         server {{\nlisten {listen} proxy_protocol backlog=4096 {families};\nproxy_protocol_timeout 60s;\nproxy_pass $backend;\n\
         proxy_bind $client transparent;\nproxy_half_close on;\n}} }}\n",
        here = here.display(),
        module = module.display(),
    );
    let file = here.join("nginx.conf");
    fs::write(&file, config)?;
    Ok(Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&here).arg("-c").arg(&file))
}
