//! NGINX: the unmodified backend, and a sender (stream).

use std::fmt::{Display, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;
use crate::whereabouts;

/// NGINX's configuration.
#[derive(Debug, Clone, Default)]
pub struct Nginx {
    http: String,
    stream: String,
    listeners: Vec<String>,
    /// The number of workers; the default is one.
    workers: Option<u8>,
}

impl Nginx {
    /// A web server that answers every request with `$remote_addr:$remote_port`; see [`Nginx::seen`].
    pub fn who<A: Display>(mut self, addresses: &[A]) -> Nginx {
        self.http += "  server {\n";
        for address in addresses {
            let _ = writeln!(self.http, "    listen {address};");
            self.listeners.push(address.to_string());
        }
        self.http += "    location / { return 200 \"$remote_addr:$remote_port\\n\"; }\n  }\n";
        self
    }

    /// The test's own `server` block, which listens on `address`; options such as ` proxy_protocol` may
    /// follow it.
    pub fn server(mut self, address: impl Display, listen_options: &str, directives: &str) -> Nginx {
        let _ = writeln!(self.http, "  server {{ listen {address} {listen_options}; {directives} }}");
        self.listeners.push(address.to_string());
        self
    }

    /// Sets the number of worker processes.
    pub fn workers(mut self, count: u8) -> Nginx {
        self.workers = Some(count);
        self
    }

    /// A TCP relay, with directives such as `proxy_protocol on;`. Options such as ` proxy_protocol` may
    /// follow the address.
    pub fn relay(mut self, bind: impl Display, backend: impl Display, directives: &str) -> Nginx {
        let _ = writeln!(self.stream, "  server {{ listen {bind}; proxy_pass {backend}; {directives} }}");
        self.listeners.extend(bind.to_string().split(' ').next().map(str::to_owned));
        self
    }

    /// Starts it in the calling thread's network namespace and waits until it listens.
    pub fn start(&self, bed: &Bed) -> anyhow::Result<Running> {
        self.start_with(bed, |program| program)
    }

    /// The same; the caller can change how the program is run.
    pub fn start_with(&self, bed: &Bed, adjust: impl FnOnce(Program) -> Program) -> anyhow::Result<Running> {
        let dir = bed.dir().join(bed.fresh_name("nginx"));
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("nginx.conf");
        std::fs::write(&file, self.config(&dir)?)?;
        let program = Program::new("nginx").args(["-e", "stderr", "-p"]).arg(&dir).arg("-c").arg(&file);
        let nginx = adjust(program).start(bed)?;
        for address in &self.listeners {
            nginx.wait_listening(address)?;
        }
        Ok(nginx)
    }

    /// The client in an answer of [`Nginx::who`] (NGINX writes IPv6 without brackets).
    pub fn seen(answer: &str) -> anyhow::Result<SocketAddr> {
        let (ip, port) = answer.trim().rsplit_once(':').with_context(|| format!("no address: {answer:?}"))?;
        let ip: IpAddr = ip.parse().with_context(|| answer.to_owned())?;
        Ok(SocketAddr::new(ip, port.parse().with_context(|| answer.to_owned())?))
    }

    fn config(&self, dir: &Path) -> anyhow::Result<String> {
        let here = dir.display();
        let mut config = format!("daemon off;\nuser root;\npid {here}/pid;\nerror_log stderr info;\n");
        if !self.stream.is_empty() {
            let _ = writeln!(config, "load_module {};", stream_module()?.display());
        }
        let _ = writeln!(config, "worker_processes {};", self.workers.unwrap_or(1));
        config += "events { worker_connections 16384; }\n";
        if !self.http.is_empty() {
            let _ = writeln!(config, "http {{\n  access_log {here}/access.log;");
            for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                let _ = writeln!(config, "  {kind}_temp_path {here}/{kind};");
            }
            let _ = writeln!(config, "{}}}", self.http);
        }
        if !self.stream.is_empty() {
            let _ = writeln!(config, "stream {{\n{}}}", self.stream);
        }
        Ok(config)
    }
}

fn stream_module() -> anyhow::Result<PathBuf> {
    let unpacked = whereabouts::servers_dir().join("root/usr/lib/nginx/modules");
    let places = [unpacked, "/usr/lib/nginx/modules".into()];
    let module = places.into_iter().map(|dir| dir.join("ngx_stream_module.so")).find(|file| file.exists());
    match module {
        Some(file) => Ok(file),
        None => crate::skip("NGINX's stream module is missing (package libnginx-mod-stream; make servers)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_without_brackets() {
        let seen = |answer| Nginx::seen(answer).map(|address| address.to_string()).ok();
        assert_eq!(seen("2001:db8::1:5000\n").as_deref(), Some("[2001:db8::1]:5000"));
        assert_eq!(seen("192.0.2.1:80").as_deref(), Some("192.0.2.1:80"));
        assert_eq!(seen("nobody"), None);
    }
}
