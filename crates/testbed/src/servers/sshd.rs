//! OpenSSH with private host keys and one user who logs in by key. Needs
//! [`crate::Test::needs_several_users`], because sshd switches to its own user.

use std::path::{Path, PathBuf};

use crate::bed::Bed;
use crate::program::Program;
use crate::running::Running;
use crate::whereabouts;

/// A running sshd, and the key to log in.
#[derive(Debug)]
pub struct Sshd {
    /// The server. Its log (level INFO) names each accepted client.
    pub running: Running,
    key: PathBuf,
}

impl Sshd {
    /// Starts it in the calling thread's network namespace. Addresses are in sshd's notation, `[::1]:22`.
    pub fn start(bed: &Bed, addresses: &[&str]) -> anyhow::Result<Sshd> {
        Sshd::start_with(bed, addresses, |program| program)
    }

    /// The same; the caller can change how the program is run.
    pub fn start_with(
        bed: &Bed,
        addresses: &[&str],
        adjust: impl FnOnce(Program) -> Program,
    ) -> anyhow::Result<Sshd> {
        let dir = bed.dir().join(bed.fresh_name("sshd"));
        std::fs::create_dir_all(&dir)?;
        let (host_key, key) = (dir.join("host_key"), dir.join("key"));
        for file in [&host_key, &key] {
            Program::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).run(bed)?;
        }
        let config = dir.join("sshd_config");
        std::fs::write(&config, config_text(&dir, addresses))?;
        let running = adjust(Program::new("sshd").args(["-D", "-e", "-f"]).arg(&config)).start(bed)?;
        for address in addresses {
            running.wait_listening(address)?;
        }
        Ok(Sshd { running, key })
    }

    /// An ssh that logs in as the bed's user and prints the client that sshd shows to its session
    /// (`$SSH_CLIENT`: address, port, sshd's port).
    pub fn login(&self, host: &str, port: u16) -> Program {
        self.session(host, port, "echo $SSH_CLIENT")
    }

    /// An ssh that logs in as the bed's user and runs a command there.
    pub fn session(&self, host: &str, port: u16, command: &str) -> Program {
        let options = [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes",
            "BatchMode=yes",
        ];
        let program = Program::new("ssh").args(["-F", "none", "-p", &port.to_string(), "-i"]).arg(&self.key);
        let program = options.iter().fold(program, |program, option| program.args(["-o", option]));
        program.arg(format!("tester@{host}")).arg(command)
    }
}

fn config_text(dir: &Path, addresses: &[&str]) -> String {
    let here = dir.display();
    let mut config = format!(
        "HostKey {here}/host_key\nAuthorizedKeysFile {here}/key.pub\nStrictModes no\nUsePAM no\nUseDNS no\n\
         PidFile none\nLogLevel INFO\nPasswordAuthentication no\nMaxStartups 1000\n"
    );
    for address in addresses {
        config += &format!("ListenAddress {address}\n");
    }
    // Since 9.8 sshd consists of several programs, which it searches for in their installed location.
    let libexec = whereabouts::servers_dir().join("root/usr/lib/openssh");
    for (option, name) in [("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth")] {
        if libexec.join(name).exists() {
            config += &format!("{option} {}/{name}\n", libexec.display());
        }
    }
    config
}
