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
    /// Of a command line.
    Command(Problems),
    /// Of a file.
    File(Box<Findings>),
}

impl LoadedConfig {
    /// The warnings for the operator, in options or in keys.
    pub fn warnings(&self, source: &ConfigSource) -> Vec<String> {
        let warnings = self.checked.warnings();
        match source {
            ConfigSource::Command(_) => warnings,
            ConfigSource::File(_) => warnings.iter().map(|warning| in_keys(warning)).collect(),
        }
    }
}

impl ConfigSource {
    /// Reads everything now.
    pub fn load(&self) -> Result<LoadedConfig, Rejected> {
        let began = SystemTime::now();
        match self {
            Self::Command(process) => {
                let checked = process.check().map_err(Rejected::Command)?;
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
            Self::Command(problems) => {
                problems.to_string().lines().for_each(|problem| tell!("error: {problem}"));
            }
            Self::File(findings) => {
                tell!("{}", findings.render(&renderer(std::io::stderr().is_terminal())))
            }
        }
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
            Self::Command(problem) => problem.fmt(f),
            Self::File(findings) => findings.fmt(f),
        }
    }
}

impl std::error::Error for Rejected {}
