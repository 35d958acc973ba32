//! `truepeer proxy` on the relay, between sender and backend.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Topology, Truepeer, skip};

use crate::conversation::{Session, finish_all, named_all, open};
use crate::{Net, SESSIONS, TRUEPEER};

const LISTENER: u16 = 8443;
const PORT: u16 = 80;
/// How often the sessions are asked for, and have moved some bytes before. It takes half a minute.
const LOOKS: usize = 60;

struct Stand<'b> {
    bed: &'b Bed,
    net: Net,
    hosts: Topology,
    truepeer: Running,
    backend: Running,
    admin: PathBuf,
}

/// A session that lasts leaves user space.
pub(crate) fn auto(bed: &Bed, net: Net) -> Result<()> {
    Stand::make(bed, net)?.show()
}

impl<'b> Stand<'b> {
    fn make(bed: &'b Bed, net: Net) -> Result<Stand<'b>> {
        mount_bpf_in_place()?;
        let hosts = net.hosts()?;
        let (relay, far) = (hosts.host("relay"), hosts.host("backend"));
        let at = far.at(net.v6, PORT);
        let backend = Behaviour::Echo.start_program(bed, &[at], |program| program.in_netns(&far.netns))?;
        let admin = bed.dir().join("admin");
        let options = ["--splice-after", "0", "--routes", "auto"];
        let truepeer = Truepeer::proxy(TRUEPEER)
            .listen(relay.at(net.v6, LISTENER))
            .allow(hosts.host("sender").at(net.v6, 0).ip())
            .args(&options)
            .args(&["--log-format", "text", "-v", "2", "--admin", &admin.display().to_string()])
            .with(|program| program.in_netns(&relay.netns));
        let truepeer = if net.v6 { truepeer.ipv6(at) } else { truepeer.ipv4(at) };
        let truepeer = truepeer.start(bed)?;
        Ok(Stand { bed, net, hosts, truepeer, backend, admin })
    }

    fn listener(&self) -> std::net::SocketAddr {
        self.hosts.host("relay").at(self.net.v6, LISTENER)
    }

    fn ask(&self, command: &str) -> Result<String> {
        Program::new(TRUEPEER).args([command, "--admin"]).arg(&self.admin).run(self.bed)
    }

    /// Sessions leave, and all of their bytes arrive, under the clients' names.
    fn show(&self) -> Result<()> {
        let sender = self.hosts.host("sender");
        let sessions = (0..SESSIONS).map(|number| open(self.net, sender, self.listener(), 5000 + number));
        let mut sessions = sessions.collect::<Result<Vec<_>>>()?;
        let stay = self.wait_spliced(&mut sessions)?;
        finish_all(&mut sessions)?;
        named_all(&self.backend, &sessions)?;
        sessions.iter().try_for_each(|session| self.wait_reported(session))?;
        match stay {
            Some(reason) => skip(format!("relayed: {reason}")),
            None => Ok(()),
        }
    }

    /// Sessions leave while bytes move. If some stay, the reasons.
    fn wait_spliced(&self, sessions: &mut [Session]) -> Result<Option<String>> {
        for _ in 0..LOOKS {
            for _ in 0..5 {
                sessions.iter_mut().try_for_each(|session| session.ask(b"bytes move"))?;
                std::thread::sleep(Duration::from_millis(100));
            }
            if self.ask("sessions")?.matches(" spliced ").count() == sessions.len() {
                return Ok(None);
            }
        }
        let status = self.ask("status")?;
        let reasons = status.lines().skip_while(|line| !line.contains("stay")).take(4);
        let reasons = reasons.map(str::trim).collect::<Vec<_>>().join("; ");
        ensure!(
            !reasons.is_empty(),
            "not all have left, without a reason:\n{status}{}",
            self.ask("sessions")?
        );
        Ok(Some(reasons))
    }

    /// Its line in the log has the same bytes.
    fn wait_reported(&self, session: &Session) -> Result<()> {
        let client = format!("client={} ", session.client());
        let own = |log: &str| {
            log.lines().find(|one| one.contains(&client) && one.contains("close=")).map(str::to_owned)
        };
        self.truepeer.wait_state("the session's line", || own(&self.truepeer.log()).is_some())?;
        let line = own(&self.truepeer.log()).context("a line")?;
        let wanted = format!("bytes_up={0} bytes_down={0}", session.bytes());
        ensure!(line.contains(&wanted) && line.contains("close=\"finished\""), "{line}\nwanted {wanted}");
        Ok(())
    }
}
