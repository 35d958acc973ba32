//! Which program the faults happen to: truepeer, or the one that `FAULTS_OF` names (`go-mmproxy`, `haproxy`, `nginx`), set up for the same
//! job as in its own documentation. For the peers' columns of docs/reliability.md; those tests are expected to fail.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use truepeer_testbed::{Bed, Program, Running, servers_dir};

use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, classic_rules, proxy};

/// Starts it. `options` are truepeer's; the others wait for headers as long.
pub(crate) fn start(bed: &Bed, options: &[&str]) -> anyhow::Result<Running> {
    let Some(name) = peer() else { return proxy().args(options).start(bed) };
    let rules = Program::new("ip").args(["rule"]).run(bed)?;
    if !rules.contains("lookup 123") {
        classic_rules(bed)?;
    }
    let peer = match name.as_str() {
        "go-mmproxy" => Program::new("go-mmproxy")
            .args(["-p", "tcp", "-l", DOOR_V4, "-4", BACKEND_V4, "-6", BACKEND_V6])
            .start(bed)?,
        "haproxy" => haproxy(bed)?.start(bed)?,
        "nginx" => nginx(bed)?.start(bed)?,
        other => bail!("FAULTS_OF={other}: expected go-mmproxy, haproxy or nginx"),
    };
    peer.wait_listening(DOOR_V4)?;
    Ok(peer)
}

/// The name of the program that isn't truepeer.
pub(crate) fn peer() -> Option<String> {
    env::var("FAULTS_OF").ok().filter(|name| !name.is_empty())
}

fn haproxy(bed: &Bed) -> anyhow::Result<Program> {
    let config = format!(
        "global\n  maxconn 9000\n  maxpipes 500\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
         listen l\n  bind {DOOR_V4} accept-proxy\n  option splice-auto\n  server s {BACKEND_V4} source 0.0.0.0 usesrc client\n"
    );
    let file = bed.write("haproxy.cfg", config)?;
    Ok(Program::new("haproxy").arg("-db").arg("-f").arg(file))
}

fn nginx(bed: &Bed) -> anyhow::Result<Program> {
    let module = "lib/nginx/modules/ngx_stream_module.so";
    let mut places =
        [servers_dir().join("root/usr").join(module), PathBuf::from("/usr").join(module)].into_iter();
    let module = places.find(|file| file.exists()).context("NGINX's stream module")?;
    let here = bed.dir().join("nginx");
    fs::create_dir_all(&here)?;
    let config = format!(
        "daemon off;\nmaster_process off;\nuser root;\npid {here}/pid;\nerror_log stderr error;\nload_module {module};\n\
         worker_rlimit_nofile 20000;\nevents {{ worker_connections 20000; }}\nstream {{ server {{\n\
         listen {DOOR_V4} proxy_protocol backlog=4096;\nproxy_protocol_timeout 60s;\nproxy_pass {BACKEND_V4};\n\
         proxy_bind $proxy_protocol_addr:$proxy_protocol_port transparent;\nproxy_half_close on;\n}} }}\n",
        here = here.display(),
        module = module.display(),
    );
    let file = here.join("nginx.conf");
    fs::write(&file, config)?;
    Ok(Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&here).arg("-c").arg(&file))
}
