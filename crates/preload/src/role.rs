//! What this library does in this process, determined by the environment and the name of its own file.

use std::env;
use std::ffi::{CStr, OsStr};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use truepeer_handover::{ConnectSettings, RunRules, RunSettings};
use truepeer_policy::{HeaderRule, PrefixSet, Secrets};
use truepeer_proto::{Version, Versions};

use crate::family::ProcessFamily;
use crate::{advice, probe, say, supervised};

/// `truepeer run` sets it to its settings.
const RUN: &str = "TRUEPEER_RUN";
/// `truepeer connect` sets it to its settings.
const CONNECT: &str = "TRUEPEER_CONNECT";

/// The active roles: either, both or none.
#[derive(Debug, Default)]
pub(crate) struct Role {
    pub(crate) accepting: Option<Accepting>,
    pub(crate) sending: Option<ConnectSettings>,
    pub(crate) verbose: bool,
}

/// The state for a program that accepts connections.
#[derive(Debug)]
pub(crate) struct Accepting {
    pub(crate) rules: RunRules,
    pub(crate) family: ProcessFamily,
    /// libproxyproto's switch: without names, `getpeername` answers as the kernel does.
    pub(crate) names_later: bool,
}

static ROLE: OnceLock<Role> = OnceLock::new();

/// The role; none before the library is completely loaded.
pub(crate) fn role() -> Option<&'static Role> {
    ROLE.get()
}

/// Reads the environment once, before main().
pub(crate) fn assume(file: Option<&CStr>) {
    supervised::begin();
    let name = file.and_then(|file| Path::new(OsStr::from_bytes(file.to_bytes())).file_name());
    let role = match name.and_then(OsStr::to_str) {
        Some("libproxyproto.so") => dropin_accepting(),
        Some("libproxyproto_connect.so") => dropin_sending(),
        _ => own(),
    };
    match role {
        Ok(role) => {
            say::set_verbose(role.verbose);
            let _ = ROLE.set(role);
        }
        // Ending the program is safer than running it with wrong rules.
        Err(why) => {
            say::always(format_args!("can't apply the settings: {why}"));
            std::process::abort();
        }
    }
}

fn own() -> Result<Role, String> {
    let mut role = Role::default();
    if let Some(text) = text_of(CONNECT)? {
        let mut sending: ConnectSettings = text.parse().map_err(|error| format!("{CONNECT}: {error}"))?;
        read_secrets(&mut sending);
        role.verbose |= sending.verbose;
        role.sending = Some(sending);
    }
    let settings = match text_of(RUN)? {
        Some(text) => {
            advice::by_run();
            text.parse().map_err(|error| format!("{RUN}: {error}"))?
        }
        None if role.sending.is_some() => return Ok(role),
        // Loaded by hand, without a word: as truepeer run without options.
        None => RunSettings::default(),
    };
    role.verbose |= settings.verbose;
    role.accepting = Some(accepting(settings, true)?);
    Ok(role)
}

/// A program that has become another user may not read them any more: its connections fail then.
fn read_secrets(sending: &mut ConnectSettings) {
    for tlv in &mut sending.tlvs {
        let read = std::fs::read(&tlv.path).map_err(|error| error.to_string());
        match read.and_then(|text| Secrets::parse(&text).map_err(|error| error.to_string())) {
            Ok(secrets) => tlv.set(&secrets, since_1970),
            Err(why) => say::always(format_args!(
                "{}: {why}: connections that need this secret fail (--send-tlv)",
                tlv.path.display()
            )),
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn accepting(settings: RunSettings, names_later: bool) -> Result<Accepting, String> {
    let family =
        ProcessFamily::join().map_err(|error| format!("no memory for the names of clients: {error}"))?;
    probe::open();
    Ok(Accepting { rules: RunRules::new(settings).asking(probe::is_own_address), family, names_later })
}

fn text_of(name: &str) -> Result<Option<String>, String> {
    match env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// libproxyproto's documented behaviour: headers optional, both versions, every client believed.
fn dropin_accepting() -> Result<Role, String> {
    let verbose = env::var_os("LIBPROXYPROTO_DEBUG").is_some();
    let versions = match dropin_version(3)? {
        0 => return Ok(Role { verbose, ..Role::default() }),
        1 => Versions::V1,
        2 => Versions::V2,
        3 => Versions::BOTH,
        other => return Err(format!("LIBPROXYPROTO_VERSION={other}: expected 0, 1, 2 or 3")),
    };
    let header = match env::var_os("LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER") {
        Some(_) => HeaderRule::Require,
        None => HeaderRule::Optional,
    };
    let mut settings = RunSettings { allow: PrefixSet::any(), header, verbose, ..RunSettings::default() };
    settings.limits.versions = versions;
    settings.claims.allow = PrefixSet::any();
    let names_later = env::var_os("LIBPROXYPROTO_GETPEERNAME_CACHE").is_none();
    say::once_in_a_family(format_args!(
        "running as libproxyproto: every host may connect and claim to be any client"
    ));
    if header == HeaderRule::Optional {
        say::once_in_a_family(format_args!(
            "whether a connection begins with a PROXY header is guessed: a client that connects directly can \
            claim any address; set LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER, or use truepeer run --allow"
        ));
    }
    Ok(Role { accepting: Some(accepting(settings, names_later)?), verbose, ..Role::default() })
}

fn dropin_sending() -> Result<Role, String> {
    let verbose = env::var_os("LIBPROXYPROTO_DEBUG").is_some();
    let version = match dropin_version(2)? {
        0 => return Ok(Role { verbose, ..Role::default() }),
        1 => Version::V1,
        2 => Version::V2,
        other => return Err(format!("LIBPROXYPROTO_VERSION={other}: expected 0, 1 or 2")),
    };
    let ip = env::var("LIBPROXYPROTO_ADDR").unwrap_or_else(|_| "127.0.0.1".to_owned());
    let port = env::var("LIBPROXYPROTO_PORT").unwrap_or_else(|_| "8080".to_owned());
    let ip = ip.parse().map_err(|_| format!("LIBPROXYPROTO_ADDR={ip}: expected an address"))?;
    let port = port.parse().map_err(|_| format!("LIBPROXYPROTO_PORT={port}: expected a port"))?;
    let sending = ConnectSettings {
        from: Some(SocketAddr::new(ip, port)),
        version,
        verbose,
        ..ConnectSettings::default()
    };
    Ok(Role { sending: Some(sending), verbose, ..Role::default() })
}

fn dropin_version(default: u8) -> Result<u8, String> {
    match env::var("LIBPROXYPROTO_VERSION") {
        Err(_) => Ok(default),
        Ok(text) => text.parse().map_err(|_| format!("LIBPROXYPROTO_VERSION={text}: expected a number")),
    }
}
