//! DNS: dnsdist, which adds a PROXY header to each datagram; Unbound, which doesn't understand headers; and a
//! query.

use std::fmt::Display;
use std::net::SocketAddr;

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;

/// Unbound as the authority for `test`: every name below it is 192.0.2.1. Its output names the client of each
/// query.
#[derive(Debug, Clone, Copy)]
pub struct Unbound;

impl Unbound {
    /// Starts it on these addresses and waits until it answers.
    pub fn start(
        bed: &Bed,
        addresses: &[SocketAddr],
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Running> {
        let interface = |at: &SocketAddr| format!("  interface: {}@{}\n", at.ip(), at.port());
        let interfaces: String = addresses.iter().map(interface).collect();
        let config = format!(
            "server:\n{interfaces}  access-control: 0.0.0.0/0 allow\n  access-control: ::/0 allow\n  \
             local-zone: \"test.\" redirect\n  local-data: \"test. A 192.0.2.1\"\n  log-queries: yes\n  \
             use-syslog: no\n  logfile: \"\"\n  do-daemonize: no\n  chroot: \"\"\n  username: \"\"\n  \
             pidfile: \"\"\n  directory: \"{dir}\"\n  module-config: \"iterator\"\n  num-threads: 1\n\
             remote-control:\n  control-enable: no\n",
            dir = bed.dir().display()
        );
        let file = bed.write(&format!("{}.conf", bed.fresh_name("unbound")), config)?;
        let unbound = adjust(Program::new("unbound").args(["-d", "-c"]).arg(file)).start(bed)?;
        unbound.wait_for_log("start of service")?;
        Ok(unbound)
    }

    /// The client that asked for `name`, if its output names it.
    pub fn client_of(log: &str, name: &str) -> Option<String> {
        let question = format!(" {name}. ");
        let line = log.lines().find(|line| line.contains("info: ") && line.contains(&question))?;
        line.split("info: ").nth(1)?.split(' ').next().map(str::to_owned)
    }
}

/// The configuration of dnsdist.
#[derive(Debug, Clone, Default)]
pub struct Dnsdist {
    config: String,
    listeners: Vec<String>,
}

impl Dnsdist {
    /// Passes the queries at `listen` to `server`, with or without `useProxyProtocol=true`.
    pub fn relay(self, listen: impl Display, server: impl Display, proxy_protocol: bool) -> Dnsdist {
        self.relay_with(listen, server, &format!("useProxyProtocol={proxy_protocol}"))
    }

    /// The same, with options of the server.
    pub fn relay_with(mut self, listen: impl Display, server: impl Display, options: &str) -> Dnsdist {
        let number = self.listeners.len();
        let first = if number == 0 { "setLocal" } else { "addLocal" };
        self.config += &format!(
            "{first}(\"{listen}\")\n\
             newServer({{address=\"{server}\", {options}, pool=\"p{number}\", checkName=\"up.test.\"}})\n\
             addAction(DSTPortRule({port}), PoolAction(\"p{number}\"))\n",
            port = listen.to_string().rsplit(':').next().unwrap_or_default()
        );
        self.listeners.push(listen.to_string());
        self
    }

    /// Starts it and waits until it listens and considers its servers up.
    pub fn start(&self, bed: &Bed, adjust: impl FnOnce(Program) -> Program) -> anyhow::Result<Running> {
        // By default it drops what its server answers after two seconds, as a restart on a busy machine may.
        let general = "setACL({\"0.0.0.0/0\", \"::/0\"})\nsetSecurityPollSuffix(\"\")\nsetUDPTimeout(60)\n";
        let config = format!("{general}{}", self.config);
        let file = bed.write(&format!("{}.conf", bed.fresh_name("dnsdist")), config)?;
        let program = Program::new("dnsdist").args(["--supervised", "--disable-syslog", "-C"]).arg(file);
        let dnsdist = adjust(program).start(bed)?;
        for address in &self.listeners {
            dnsdist.wait_bound_udp(address)?;
        }
        dnsdist.wait_state("its servers to be up", || {
            dnsdist.log().matches("as 'up'").count() >= self.listeners.len()
        })?;
        Ok(dnsdist)
    }
}

/// A query for the address of `name` (RFC 1035 4.1), recursion desired.
pub fn query(id: u16, name: &str) -> Vec<u8> {
    let mut bytes = id.to_be_bytes().to_vec();
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(63));
        bytes.extend(label.bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Whether `answer` belongs to the query with this id, has no error, and contains an address.
pub fn is_answer(answer: &[u8], id: u16) -> bool {
    answer.starts_with(&id.to_be_bytes())
        && answer.len() > 12
        && answer[2] & 0x80 != 0
        && answer[3] & 0x0F == 0
        && answer.ends_with(&[192, 0, 2, 1])
}
