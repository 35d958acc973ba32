//! Sends command lines to VPP through its vppctl.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::layout::Line;

/// How long VPP may take for an answer; it takes milliseconds, unless somebody else has its core.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to one VPP's command line.
#[derive(Debug, Clone)]
pub(super) struct Control {
    pub(super) vppctl: PathBuf,
    pub(super) socket: PathBuf,
}

impl Control {
    /// The command as an operator would type it.
    pub(super) fn command(&self, words: &str) -> String {
        format!("vppctl -s {} {words}", self.socket.display())
    }

    /// VPP's answer. vppctl's success only means that VPP answered.
    pub(super) fn ask(&self, words: &str) -> Result<String> {
        self.ask_within(words, ANSWER_TIMEOUT)
    }

    fn ask_within(&self, words: &str, timeout: Duration) -> Result<String> {
        let mut command = Command::new(&self.vppctl);
        command.arg("-s").arg(&self.socket).args(words.split(' '));
        // Remove VPP's preloading: vppctl must talk to VPP over the kernel's stack.
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| self.vppctl.display().to_string())?;
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let mut said = Vec::new();
            // What was read until the time-out counts.
            let _ = out.as_mut().map(|out| out.read_to_end(&mut said));
            let _ = err.as_mut().map(|err| err.read_to_end(&mut said));
            let _ = tell.send(said);
        });
        let Ok(said) = told.recv_timeout(timeout) else {
            // Both, or it stays as a zombie; it may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
            bail!("VPP does not answer (waited {} s)", timeout.as_secs());
        };
        let status = child.wait().context("vppctl")?;
        let said = plain(&String::from_utf8_lossy(&said));
        if !status.success() {
            bail!("VPP is not there: {}", said.trim());
        }
        Ok(said)
    }

    /// Runs the line in VPP. An error says what VPP answered and what to do.
    pub(super) fn carry_out(&self, line: &Line) -> Result<()> {
        let said =
            self.ask(&line.words).with_context(|| format!("`{}` failed", self.command(&line.words)))?;
        if line.is_done(&said) {
            return Ok(());
        }
        let answer = match said.trim() {
            "" => "an empty answer, but expected the name of what it created".to_owned(),
            said => said.lines().map(str::trim).collect::<Vec<_>>().join("; "),
        };
        let hint = hint(&line.words, &answer).map(|hint| format!("\n{hint}")).unwrap_or_default();
        bail!("`{}` failed, VPP said: {answer}{hint}", self.command(&line.words));
    }
}

/// Removes carriage returns and the colours of tables, which VPP prints whatever startup.conf says (`ESC [ …
/// m`).
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    plain.replace('\r', "")
}

/// A hint for a failed line.
fn hint(words: &str, answer: &str) -> Option<&'static str> {
    let is = |part: &str| answer.contains(part);
    if words.starts_with("create host-interface") {
        return Some(match () {
            () if is("Invalid interface") || is("No such device") || is("errno 19") => {
                "there is no such device in this network namespace: `ip link` lists them"
            }
            () if is("not permitted") || is("errno 1)") => {
                "VPP may not open packet sockets: CAP_NET_RAW and CAP_NET_ADMIN are needed, run it as root"
            }
            () if is("v2") => {
                "this VPP is too old for packet rings of version 2: use 26.10, with which truepeer was tested"
            }
            () if is("unknown") => "its plugin af_packet is missing: install FD.io's package vpp-plugin-core",
            () => return None,
        });
    }
    if words.starts_with("app ns") && is("session") {
        return Some("its session layer is off");
    }
    if words.contains(" eth") && is("unknown") {
        return Some(
            "dpdk refused the device: it must be down in the kernel and bound to vfio-pci (dpdk-devbind.py --status), \
             except Mellanox devices; see VPP's log",
        );
    }
    None
}

/// The last lines of VPP's output.
pub(super) fn tail(log: &Path) -> String {
    const LINES: usize = 12;
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n  {}", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    /// A stand-in for vppctl. It is called with `-s`, the socket and the words.
    fn control(program: &str, socket: &str) -> Control {
        Control { vppctl: program.into(), socket: socket.into() }
    }

    #[test]
    fn a_failed_line_names_itself_and_what_vpp_said() {
        let echo = control("echo", "/run/x/cli.sock");
        let error = format!("{:#}", echo.carry_out(&Layout::Loopback.lines()[1]).unwrap_err());
        let line = "-s /run/x/cli.sock set interface state loop0 up";
        assert_eq!(error, format!("`vppctl {line}` failed, VPP said: {line}"));
    }

    #[test]
    fn a_vpp_that_is_not_there_is_told_from_one_that_hangs() {
        let absent = control("cat", "/nothing-of-that-name").ask("show version").unwrap_err().to_string();
        assert!(absent.starts_with("VPP is not there: ") && absent.contains("/nothing"), "{absent}");

        // One process, which goes when it is killed: `tail -s 1000 -f /dev/null`.
        let hangs = control("tail", "1000");
        let error = hangs.ask_within("-f /dev/null", Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.contains("does not answer"), "{error}");
    }

    #[test]
    fn colours_are_removed() {
        assert_eq!(plain("\x1b[33mIndex\x1b[0m 1 \x1b[0m\r\n"), "Index 1 \n");
        assert_eq!(plain("loop0\n"), "loop0\n");
        assert_eq!(plain("\x1b["), "");
    }

    #[test]
    fn known_failures_have_a_hint() {
        let device = "create host-interface v2 name veth0";
        assert!(hint(device, "create host-interface: Invalid interface name").unwrap().contains("ip link"));
        assert!(hint(device, "unknown input `create host-interface'").unwrap().contains("vpp-plugin-core"));
        assert!(hint(device, "Operation not permitted (errno 1)").unwrap().contains("CAP_NET_RAW"));
        assert!(
            hint("set interface state eth0 up", "unknown interface `eth0 up'").unwrap().contains("vfio-pci")
        );
        assert_eq!(hint("ip table add 1", "what"), None);
    }
}
