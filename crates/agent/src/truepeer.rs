//! The program `truepeer`, which does the work: each step is a process of its own.
//!
//! It enters other network and cgroup namespaces, which belongs to a thread, and an async runtime's threads
//! are shared. A step that fails or hangs ends with its process. And its command line and its JSON are
//! documented: the agent needs nothing else of it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use serde::Deserialize;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::processes::Place;
use crate::rules::Rules;

/// Attaching takes half a second, and some more when many do.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// So much of its complaint is passed on.
const MAX_COMPLAINT: usize = 800;

/// The program.
#[derive(Debug, Clone)]
pub(crate) struct Truepeer {
    program: PathBuf,
    pins: Option<PathBuf>,
}

/// `truepeer attach status --all --json`, as far as it is used here.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct AllStatus {
    #[serde(default)]
    pub(crate) namespaces: Vec<Status>,
}

/// `truepeer attach status --json`, as far as it is used here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Status {
    #[serde(default)]
    pub(crate) attached: bool,
    #[serde(default)]
    pub(crate) netns: Option<u64>,
    /// The programs are those of this truepeer.
    #[serde(default)]
    pub(crate) current: bool,
    #[serde(default)]
    pub(crate) cgroup_gone: bool,
    /// Another version of truepeer has attached it.
    #[serde(default)]
    pub(crate) other_version: bool,
    /// Devices without programs; of one network namespace alone.
    #[serde(default)]
    pub(crate) uncovered: Vec<String>,
    #[serde(default)]
    pub(crate) attachments: Vec<Attachment>,
    #[serde(default)]
    pub(crate) ports: Vec<PortStatus>,
    #[serde(default)]
    pub(crate) memory: Memory,
}

/// Ports with the same rules.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) id: u8,
    /// `None`: of a truepeer that does not tell them.
    #[serde(default)]
    pub(crate) rules: Option<RulesInForce>,
}

/// The rules of an attachment: `attachments[].rules` of `truepeer attach status --json`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct RulesInForce {
    pub(crate) senders: Vec<SenderInForce>,
    pub(crate) claims_allowed: Vec<String>,
    /// The pod's own addresses when it was attached: not a rule that somebody chose.
    #[serde(default)]
    pub(crate) claims_refused: Vec<IpNet>,
    pub(crate) denied: Vec<String>,
    pub(crate) header_timeout_ms: u64,
    pub(crate) header_wait_ms: u64,
    pub(crate) header_max: u64,
    pub(crate) unshowable: String,
    pub(crate) close_after_s: u64,
    /// Kinds of rules that no annotation asks for, also those of a later truepeer.
    #[serde(flatten)]
    pub(crate) others: std::collections::BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct SenderInForce {
    pub(crate) prefix: IpNet,
    /// `require`, `optional` or `none`.
    pub(crate) header: String,
}

/// Bytes of kernel memory.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Memory {
    #[serde(default)]
    pub(crate) tables: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct PortStatus {
    pub(crate) port: u16,
    /// All that are counted together: `80`, `40000-41000`.
    #[serde(default)]
    pub(crate) ports: String,
    pub(crate) protocol: String,
    #[serde(default)]
    pub(crate) attachment: u8,
    /// UDP.
    #[serde(default)]
    pub(crate) backend_port: Option<u16>,
    #[serde(default)]
    pub(crate) dialect: Option<String>,
    #[serde(default)]
    pub(crate) draining: bool,
    /// TCP: open connections with and without a translated sequence number.
    #[serde(default)]
    pub(crate) untouched: u64,
    #[serde(default)]
    pub(crate) translated: u64,
    /// UDP.
    #[serde(default)]
    pub(crate) flows: u64,
    #[serde(default)]
    pub(crate) counters: std::collections::BTreeMap<String, u64>,
}

/// A line of `truepeer attach status --all --follow --json`, as far as it is used here.
#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) netns: Option<u64>,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    pub(crate) sender: Option<String>,
    pub(crate) client: Option<String>,
    /// The counter's name.
    pub(crate) reason: String,
    pub(crate) meaning: String,
    #[serde(default)]
    pub(crate) count: u64,
}

impl Truepeer {
    /// The given program, else the one beside this program, else the one in PATH.
    pub(crate) fn find(given: Option<PathBuf>, pins: Option<PathBuf>) -> Self {
        let beside = || std::env::current_exe().ok()?.parent().map(|directory| directory.join("truepeer"));
        let program =
            given.or_else(|| beside().filter(|path| path.is_file())).unwrap_or_else(|| "truepeer".into());
        Self { program, pins }
    }

    /// Its name and version.
    pub(crate) async fn version(&self) -> Result<String> {
        let output = self.run(&["--version".to_owned()]).await.with_context(|| {
            format!("{}: expected the program truepeer; name it with --truepeer PATH", self.program.display())
        })?;
        Ok(output.trim().to_owned())
    }

    /// Attaches exactly these rules in the network namespace of a process, for the servers in the cgroup (its
    /// own, if none is named). Returns warnings.
    pub(crate) async fn attach(
        &self,
        place: &Place,
        cgroup: Option<&Path>,
        rules: &Rules,
    ) -> Result<Vec<String>> {
        let mut arguments = at(&["attach", "--replace"], place);
        arguments.extend(cgroup.map(|path| format!("--cgroup={}", path.display())));
        arguments.extend(rules.arguments());
        let output = self.start(&arguments)?;
        let output = timeout(TIME_LIMIT, output.wait_with_output())
            .await
            .context("truepeer attach takes too long")??;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}", shortened(&complaint));
        Ok(warnings(&complaint))
    }

    /// Detaches without cutting connections off: takes as long as they last.
    pub(crate) async fn detach(&self, place: &Place) -> Result<()> {
        let arguments = at(&["attach", "detach"], place);
        let output = self.start(&arguments)?.wait_with_output().await?;
        ensure!(output.status.success(), "{}", shortened(&String::from_utf8_lossy(&output.stderr)));
        Ok(())
    }

    /// Detaches at once: connections whose sequence numbers are translated are reset.
    pub(crate) async fn detach_now(&self, place: &Place) -> Result<()> {
        let arguments = at(&["attach", "detach", "--now"], place);
        self.run(&arguments).await.map(drop)
    }

    pub(crate) async fn status(&self, place: &Place) -> Result<Status> {
        parsed(&self.run(&at(&["attach", "status", "--json"], place)).await?)
    }

    /// Of all network namespaces.
    pub(crate) async fn status_of_all(&self) -> Result<AllStatus> {
        parsed(&self.run(&["attach", "status", "--all", "--json"].map(str::to_owned)).await?)
    }

    /// Removes what is left of network namespaces that have ended.
    pub(crate) async fn sweep(&self) -> Result<()> {
        self.run(&["attach", "sweep"].map(str::to_owned)).await.map(drop)
    }

    /// Tells each refusal on a line (see [`Refusal`]), until the process ends.
    pub(crate) fn follow(&self) -> Result<Child> {
        self.start(&["attach", "status", "--all", "--follow", "--json"].map(str::to_owned))
    }

    async fn run(&self, arguments: &[String]) -> Result<String> {
        let output = timeout(TIME_LIMIT, self.start(arguments)?.wait_with_output()).await;
        let output = output.with_context(|| format!("{} takes too long", self.program.display()))??;
        if !output.status.success() {
            bail!("{}", shortened(&String::from_utf8_lossy(&output.stderr)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn start(&self, arguments: &[String]) -> Result<Child> {
        tracing::debug!(program = %self.program.display(), arguments = %arguments.join(" "), "start");
        let mut command = Command::new(&self.program);
        command.args(arguments);
        if let (Some(pins), [first, ..]) = (&self.pins, arguments)
            && first == "attach"
        {
            command.arg("--pins").arg(pins);
        }
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().with_context(|| self.program.display().to_string())
    }
}

/// With the options that name a place. The process's number may be another's by now: truepeer compares the
/// network namespace.
fn at(words: &[&str], place: &Place) -> Vec<String> {
    let mut arguments: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    arguments.extend([format!("--pid={}", place.pid), format!("--netns-inode={}", place.netns)]);
    arguments
}

fn parsed<T: for<'a> Deserialize<'a>>(json: &str) -> Result<T> {
    serde_json::from_str(json).context("truepeer attach status --json printed something else")
}

/// Those that tell a pod's owner something.
fn warnings(complaint: &str) -> Vec<String> {
    let expected = [
        // As a rule the pod's server has not started yet: the agent looks again later.
        "nothing listens on port",
        // Its owner has taken them out of the annotation.
        "no longer served, because they are not named",
    ];
    let all = complaint.lines().filter_map(|line| line.strip_prefix("warning: "));
    let told = all.filter(|warning| !expected.iter().any(|begin| warning.starts_with(begin)));
    told.map(str::to_owned).collect()
}

/// Without warnings and the program's name, for an event.
fn shortened(complaint: &str) -> String {
    let lines: Vec<_> = complaint
        .lines()
        .filter(|line| !line.starts_with("warning: ") && !line.trim().is_empty())
        .map(|line| line.strip_prefix("truepeer: ").or_else(|| line.strip_prefix("error: ")).unwrap_or(line))
        .collect();
    let text = lines.join("; ");
    match text.char_indices().nth(MAX_COMPLAINT) {
        None if text.is_empty() => "truepeer failed without a message".to_owned(),
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_short() {
        assert_eq!(shortened("warning: a\nerror: b\n\nc\n"), "b; c");
        assert_eq!(shortened(""), "truepeer failed without a message");
        assert_eq!(shortened(&"é".repeat(2000)).chars().count(), MAX_COMPLAINT + 1);
    }

    #[test]
    fn what_is_expected_is_no_warning() {
        let complaint = "warning: nothing listens on port 80 here yet\nwarning: a\n\
            warning: no longer served, because they are not named: port 80\nb\n";
        assert_eq!(warnings(complaint), ["a"]);
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let all: AllStatus = parsed(
            r#"{"namespaces": [{"attached": true, "netns": 4026532281, "new": 1, "ports": [{"port": 80, "protocol": "tcp",
                "draining": false, "untouched": 2, "translated": 3, "awaiting_header": 0, "counters": {"refused_claim": 4}}],
                "memory": {"tables": 5, "programs": null}}], "left_behind": 0}"#,
        )
        .unwrap();
        let [status] = all.namespaces.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            (status.netns, status.memory.tables, status.ports[0].translated),
            (Some(4_026_532_281), 5, 3)
        );
        assert_eq!(status.ports[0].counters["refused_claim"], 4);
        assert!(parsed::<Status>("not attached").is_err());
    }
}
