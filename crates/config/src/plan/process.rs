//! A whole process: the entries of a configuration file, or the one of a command line, and their common
//! settings.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use truepeer_bpf::Rules;

use super::acme::AcmeNames;
use super::attach::note_of_sender;
use super::checked::Beside;
use super::confine::ConfineConfig;
use super::datagrams;
use super::tls::TlsConfig;
use super::{AcmeConfig, Checked, Config, ListenerConfig, LogConfig, Problems, attach_rules};
use crate::spec::{AdminAddr, AttachSpec, AttachTarget, Protocol, defaults, text};

/// Everything that one process does.
#[derive(Debug, Clone)]
pub struct ProcessConfig {
    /// In the order of the file.
    pub entries: Vec<EntryConfig>,
    /// Threads; `None`: one for each core.
    pub workers: Option<NonZeroUsize>,
    /// UDP flows of all listeners together; `None`: as many as open files allow.
    pub max_flows: Option<NonZeroUsize>,
    /// How long sessions and flows may continue after the signal to stop.
    pub drain: Duration,
    /// Whether a change of a file is a reason to reload.
    pub reload_on_change: bool,
    pub confine: ConfineConfig,
    pub admin: AdminConfig,
    pub log: LogConfig,
    /// The authority of all entries.
    pub acme: AcmeConfig,
}

/// One entry: the plan that the command of its name makes, too.
#[derive(Debug, Clone)]
pub enum EntryConfig {
    Proxy(Box<Config>),
    Https(Box<Config>),
    Attach(Box<AttachSpec>),
}

/// Where the process can be asked about its state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    #[serde(with = "text::list")]
    pub listen: Vec<AdminAddr>,
    /// The socket is the default one, which nobody has named. If it can't be opened, the process serves
    /// without it.
    pub is_usual: bool,
}

/// The result of [`ProcessConfig::check`]: entries in the same order.
#[derive(Debug)]
pub struct CheckedProcess {
    pub entries: Vec<CheckedEntry>,
}

/// An entry with all its files, names and certificates read.
#[derive(Debug)]
pub enum CheckedEntry {
    /// Its listeners' keys are unique in the process, and stay the same when the file is read again.
    Relay {
        config: Box<Config>,
        checked: Checked,
    },
    Attach(Box<CheckedAttach>),
}

/// An attachment's rules.
#[derive(Debug)]
pub struct CheckedAttach {
    pub key: AttachKey,
    pub args: AttachSpec,
    pub rules: Rules,
    pub(crate) warnings: Vec<String>,
}

/// The identity of an attachment: a place has one at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachKey {
    pub target: AttachTarget,
    pub pins: PathBuf,
}

impl AdminConfig {
    /// The sockets that a file names. If it names none: the default socket, if its directory exists (the unit
    /// makes it).
    pub fn of_file(listen: Vec<AdminAddr>) -> Self {
        let usual = Path::new(defaults::ADMIN_SOCKET);
        if listen.is_empty() && usual.parent().is_some_and(Path::is_dir) {
            return Self { listen: vec![AdminAddr::Unix(usual.to_owned())], is_usual: true };
        }
        Self { listen, is_usual: false }
    }

    /// The first socket with a path: by TCP a process can only be watched.
    pub fn socket(&self) -> Option<&Path> {
        self.listen.iter().find_map(|listen| match listen {
            AdminAddr::Unix(path) => Some(path.as_path()),
            AdminAddr::Whois(_) | AdminAddr::Tcp(_) => None,
        })
    }
}

impl ProcessConfig {
    /// The process of a command line: one entry.
    pub fn of_command(entry: EntryConfig) -> Self {
        let usual = Config::default();
        let own = match &entry {
            EntryConfig::Proxy(config) | EntryConfig::Https(config) => config,
            EntryConfig::Attach(_) => &usual,
        };
        Self {
            workers: own.workers,
            max_flows: own.max_flows,
            drain: own.drain,
            reload_on_change: own.reload_on_change,
            confine: own.confine.clone(),
            admin: own.admin.clone(),
            log: own.log,
            acme: own.acme.clone(),
            entries: vec![entry],
        }
    }

    /// Reads every file and resolves every name, once.
    pub fn check(&self) -> Result<CheckedProcess, Problems> {
        let mut beside = Beside::of(self.binds());
        let entries = self.entries.iter().map(|entry| entry.check(&mut beside));
        Ok(CheckedProcess { entries: entries.collect::<Result<_, _>>()? })
    }

    /// The addresses of all listeners.
    pub fn binds(&self) -> Vec<(Protocol, SocketAddr)> {
        self.entries.iter().filter_map(EntryConfig::relay).flat_map(Config::binds).collect()
    }

    /// Every file that the entries name: lists, certificates, keys and authorities.
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = self.entries.iter().flat_map(EntryConfig::files).collect();
        files.extend(self.acme.files());
        files.sort();
        files.dedup();
        files
    }

    /// The names of all listeners, each set once.
    pub fn acme_names(&self) -> Vec<AcmeNames> {
        let mut all: Vec<AcmeNames> = Vec::new();
        for config in self.entries.iter().filter_map(EntryConfig::relay) {
            let has_http = config.listeners.iter().any(|one| one.http.is_some() && one.tls.is_none());
            for names in config.listeners.iter().filter_map(ListenerConfig::acme_names) {
                match all.iter_mut().find(|known| known.names == names) {
                    Some(known) => known.has_http |= has_http,
                    None => all.push(AcmeNames { names: names.to_vec(), has_http }),
                }
            }
        }
        all
    }
}

impl EntryConfig {
    /// What the names of senders stand for.
    pub fn notes_of_senders(&self) -> Vec<String> {
        let mut notes: Vec<_> = match self {
            Self::Proxy(config) | Self::Https(config) => {
                config.listeners.iter().filter_map(ListenerConfig::note_of_sender).collect()
            }
            Self::Attach(args) => note_of_sender(args).into_iter().collect(),
        };
        notes.dedup();
        notes
    }

    /// What tells the certificates `self` of this process from others.
    pub fn own_certificates(&self) -> Vec<String> {
        let listeners = self.relay().into_iter().flat_map(|config| &config.listeners);
        let mut own: Vec<_> = listeners
            .filter_map(|listener| listener.tls.as_ref())
            .filter_map(TlsConfig::own_certificate)
            .collect();
        own.dedup();
        own
    }

    /// What may be wrong, for `truepeer check`.
    pub fn notes(&self) -> Vec<String> {
        let ports: Vec<_> = match self {
            Self::Proxy(config) | Self::Https(config) => {
                config.listeners.iter().flat_map(ListenerConfig::datagram_ports).collect()
            }
            Self::Attach(args) => datagrams::ports_of(args).collect(),
        };
        let mut notes: Vec<_> =
            ports.into_iter().filter_map(|(to, backend)| datagrams::note_of_ports(to, backend)).collect();
        let listeners = self.relay().into_iter().flat_map(|config| &config.listeners);
        notes.extend(listeners.filter_map(ListenerConfig::note_of_families));
        notes.dedup();
        notes
    }

    /// An entry with listeners.
    pub fn relay(&self) -> Option<&Config> {
        match self {
            Self::Proxy(config) | Self::Https(config) => Some(config),
            Self::Attach(_) => None,
        }
    }

    /// `beside`: the listeners of all entries, and those that are checked already.
    pub fn check(&self, beside: &mut Beside) -> Result<CheckedEntry, Problems> {
        match self {
            Self::Proxy(config) | Self::Https(config) => {
                Ok(CheckedEntry::Relay { config: config.clone(), checked: config.check_beside(beside)? })
            }
            Self::Attach(args) => Ok(CheckedEntry::Attach(Box::new(CheckedAttach::of(args)?))),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            Self::Proxy(config) | Self::Https(config) => {
                config.listeners.iter().flat_map(|listener| listener.files()).map(Path::to_owned).collect()
            }
            Self::Attach(args) => args.senders.files().map(Path::to_owned).collect(),
        }
    }
}

impl CheckedAttach {
    /// Reads the files that it names.
    pub fn of(args: &AttachSpec) -> Result<Self, Problems> {
        let (rules, warnings) = attach_rules(args)?;
        Ok(Self { key: AttachKey::of(args), args: args.clone(), rules, warnings })
    }
}

impl AttachKey {
    /// Where this entry attaches.
    pub fn of(args: &AttachSpec) -> Self {
        let pins = args.place.pins.as_deref().unwrap_or(defaults::pins());
        Self { target: args.place.target(), pins: pins.to_owned() }
    }
}

impl CheckedProcess {
    /// The warnings for the operator, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<_> = self.entries.iter().flat_map(CheckedEntry::warnings).collect();
        warnings.sort();
        warnings.dedup();
        warnings
    }
}

impl CheckedEntry {
    pub fn warnings(&self) -> Vec<String> {
        match self {
            Self::Relay { checked, .. } => checked.warnings(),
            Self::Attach(attach) => attach.warnings.clone(),
        }
    }
}
