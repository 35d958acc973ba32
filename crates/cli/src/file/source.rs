//! Where a process gets its configuration from, at the start and at each reload.

use std::fmt;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use annotate_snippets::Renderer;

use super::finding::Findings;
use super::judge::{self, Judged};
use super::keys::in_keys;
use truepeer_config::plan::{CheckedAttach, CheckedProcess, Problems, ProcessConfig};
use truepeer_config::spec::LogFormat;
use truepeer_sys::tell;

/// A command line, or a file.
#[derive(Debug)]
pub enum ConfigSource {
    /// The plan of a command line.
    Command(Box<ProcessConfig>),
    /// The path of a file, which is read anew each time.
    File(PathBuf),
}

/// A configuration that can be carried out.
#[derive(Debug)]
pub struct LoadedConfig {
    /// What it means.
    pub process: ProcessConfig,
    /// The same with all files read and names resolved.
    pub checked: CheckedProcess,
    /// Every file that was read: the configuration file itself first, then lists, certificates, keys.
    pub files: Vec<PathBuf>,
    /// When reading began: a file that has changed since may have been read before its change.
    pub began: SystemTime,
}

/// A configuration that can't be carried out. It prints every reason, with its place in the file.
#[derive(Debug)]
pub enum Rejected {
    /// Of a command line, perhaps one that wants its log in JSON.
    Command {
        /// The reasons.
        problems: Problems,
        /// The log is for machines.
        is_json: bool,
    },
    /// Of a file.
    File(Box<Findings>),
}

impl LoadedConfig {
    /// The warnings for the operator, in options or in keys.
    pub fn warnings(&self, source: &ConfigSource) -> Vec<String> {
        self.checked.warnings().iter().map(|warning| source.in_its_words(warning)).collect()
    }
}

impl ConfigSource {
    /// A sentence about options, as this source has them: in options or in keys.
    pub fn in_its_words(&self, text: &str) -> String {
        match self {
            Self::Command(_) => text.to_owned(),
            Self::File(_) => in_keys(text),
        }
    }

    /// Reads everything now.
    pub fn load(&self) -> Result<LoadedConfig, Rejected> {
        let began = SystemTime::now();
        match self {
            Self::Command(process) => {
                let is_json = process.log.format == Some(LogFormat::Json);
                let checked = process.check().map_err(|problems| Rejected::Command { problems, is_json })?;
                let (process, files) = (ProcessConfig::clone(process), process.files());
                Ok(LoadedConfig { process, checked, files, began })
            }
            Self::File(path) => load(path, began),
        }
    }

    /// Reads the attachments only: no name of the other entries is resolved, and none of their files is read.
    pub fn attachments(&self) -> Result<Vec<CheckedAttach>, Rejected> {
        match self {
            Self::Command(_) => Ok(Vec::new()),
            Self::File(path) => {
                judge::attachments(path).map_err(|findings| Rejected::File(Box::new(findings)))
            }
        }
    }
}

fn load(path: &Path, began: SystemTime) -> Result<LoadedConfig, Rejected> {
    let Judged { plan, findings, .. } = judge::read(path);
    match plan {
        Some((process, checked)) => {
            let mut files = vec![path.to_owned()];
            files.extend(process.files());
            Ok(LoadedConfig { process, checked, files, began })
        }
        None => Err(Rejected::File(Box::new(findings))),
    }
}

impl Rejected {
    /// Prints every reason on standard error, with its place under a caret.
    pub(crate) fn report(self) {
        match self {
            Self::Command { problems, .. } => {
                problems.to_string().lines().for_each(|problem| tell!("error: {problem}"));
            }
            Self::File(findings) => {
                tell!("{}", findings.render(&renderer(std::io::stderr().is_terminal())))
            }
        }
    }
}

impl Rejected {
    /// The reasons, a line each, if the log is for machines.
    pub(crate) fn for_machines(&self) -> Option<Vec<String>> {
        let is_json = match self {
            Self::Command { is_json, .. } => *is_json,
            Self::File(findings) => findings.is_json,
        };
        is_json.then(|| self.to_string().lines().map(str::to_owned).collect())
    }
}

/// Colours for a terminal, as clap has them.
pub(super) fn renderer(is_terminal: bool) -> Renderer {
    let wants_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    if is_terminal && wants_colour { Renderer::styled() } else { Renderer::plain() }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { problems, .. } => problems.fmt(f),
            Self::File(findings) => findings.fmt(f),
        }
    }
}

impl std::error::Error for Rejected {}
