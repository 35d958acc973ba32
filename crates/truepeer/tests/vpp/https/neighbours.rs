//! truepeer between programs that also run on VPP, in the loopback layout: NGINX and HAProxy as its origins,
//! curl, wrk and Python as its clients.

use anyhow::{Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Program, Running, Test, tests};

use super::stand::{OnVpp, succeed};

pub(super) fn tests() -> Vec<Test> {
    let mut all = tests![nginx_on_vpp_is_an_origin, haproxy_on_vpp_is_an_origin];
    all.push(Test::new("wrk_on_vpp_is_served", wrk_on_vpp_is_served).needs_program("wrk"));
    all
}

const DOOR: &str = "172.16.2.1:8089";
const ORIGIN: &str = "172.16.1.1:8445";

/// NGINX with the guide's configuration, plus an answer that names the client.
fn nginx(on_vpp: &OnVpp<'_>) -> Result<Running> {
    let dir = on_vpp.bed.dir().join("nginx");
    std::fs::create_dir_all(dir.join("html"))?;
    std::fs::write(dir.join("html/1kb"), [b'k'; 1024])?;
    std::fs::write(dir.join("html/mebibytes"), vec![b'm'; 16 << 20])?;
    on_vpp.certify(&["site.test"])?;
    let (here, certificates) = (dir.display(), on_vpp.bed.dir().display());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {here}/{kind};\n"))
        .collect();
    let config = format!(
        "daemon off;\nuser root;\npid {here}/pid;\nerror_log stderr crit;\nworker_processes 1;\nevents {{}}\nhttp {{
  sendfile on; tcp_nopush on; keepalive_requests 1000000000; access_log off;
{temporary}  server {{
    listen {ORIGIN} ssl; ssl_certificate {certificates}/site.pem; ssl_certificate_key {certificates}/site.key;
    root {here}/html;
    location = /who {{ return 200 \"$remote_addr $http_x_forwarded_for\\n\"; }}
  }}\n}}\n"
    );
    std::fs::write(dir.join("nginx.conf"), config)?;
    let program =
        Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&dir).arg("-c").arg(dir.join("nginx.conf"));
    let nginx = on_vpp.put_on("server", program.stop_by(Signal::QUIT)).start(on_vpp.bed)?;
    on_vpp.wait_listening(ORIGIN)?;
    Ok(nginx)
}

fn https(on_vpp: &OnVpp<'_>, origin: &str) -> Result<Running> {
    let options: &[&str] = if origin.starts_with("https") { &["--origin-insecure"] } else { &[] };
    let truepeer = on_vpp.https(DOOR, origin, options)?;
    on_vpp.wait_listening(DOOR)?;
    Ok(truepeer)
}

/// curl, a client on VPP.
fn curl(on_vpp: &OnVpp<'_>, args: &[&str]) -> Program {
    on_vpp.put_on("client", super::stand::curl(args))
}

fn nginx_on_vpp_is_an_origin(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::loopback(bed)?;
    let _origin = nginx(&on_vpp)?;
    let truepeer = https(&on_vpp, "https://172.16.1.1:8445")?;
    for version in ["--http1.1", "--http2"] {
        let who = curl(&on_vpp, &[version, "https://172.16.2.1:8089/who"]).run(bed)?;
        ensure!(who.trim() == "172.16.2.1 172.16.3.1", "{version}: {who:?}; {}", truepeer.log());
        let much = curl(&on_vpp, &[version, "https://172.16.2.1:8089/mebibytes"]).run(bed)?;
        let is_whole = much.len() == 16 << 20 && much.bytes().all(|byte| byte == b'm');
        ensure!(is_whole, "{version}: {} bytes; {}", much.len(), truepeer.log());
    }
    Ok(())
}

fn haproxy_on_vpp_is_an_origin(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::loopback(bed)?;
    let config = format!(
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\nfrontend f\n  bind {ORIGIN}\n  \
         http-request return status 200 content-type text/plain lf-string \"%[src] %[req.hdr(x-forwarded-for)]\"\n"
    );
    let file = bed.write("haproxy.cfg", config)?;
    let haproxy =
        on_vpp.put_on("server", Program::new("haproxy").arg("-db").arg("-f").arg(file)).start(bed)?;
    on_vpp.wait_listening(ORIGIN)?;
    let truepeer = https(&on_vpp, "http://172.16.1.1:8445")?;
    let who = curl(&on_vpp, &["https://172.16.2.1:8089/"]).run(bed)?;
    ensure!(who.trim() == "172.16.2.1 172.16.3.1", "{who:?}; {}; {}", truepeer.log(), haproxy.log());
    Ok(())
}

fn wrk_on_vpp_is_served(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::loopback(bed)?;
    let _origin = nginx(&on_vpp)?;
    let truepeer = https(&on_vpp, "https://172.16.1.1:8445")?;
    let words = ["-t1", "-c12", "-d2s", "https://172.16.2.1:8089/1kb"];
    // Its descriptor table is small: VPP's descriptors must start at 32.
    let wrk = on_vpp.put_on("client", Program::new("wrk").args(words)).env("LDP_SID_BIT", "5").start(bed)?;
    let said = succeed(&wrk)?;
    let is_well =
        said.contains("requests in") && !said.contains("Non-2xx") && !said.contains("Socket errors");
    ensure!(is_well, "{said}; {}", truepeer.log());
    Ok(())
}
