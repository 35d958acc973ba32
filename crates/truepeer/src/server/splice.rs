//! Loads the programs that translate the packets of sessions, before the process gives up its capabilities.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use tracing::{info, warn};
use truepeer_bpf::Splices;

use crate::attach::find_devices;
use crate::plan::{EntryConfig, ProcessConfig};

/// Apart from the pins of `attach`, which lists what it finds in its directory.
const PINS: &str = "/sys/fs/bpf/truepeer-splice";
/// What they take is in docs/internals/splice.md.
const FLOWS: NonZeroU32 = NonZeroU32::new(65536).expect("not zero");

/// `None`: no listener wants it, or it is not possible here, which is logged.
pub(super) fn load(process: &ProcessConfig) -> Option<Arc<Splices>> {
    let is_wanted = process.entries.iter().any(|entry| match entry {
        EntryConfig::Proxy(config) => config.listeners.iter().any(|one| one.splice_after().is_some()),
        EntryConfig::Https(_) | EntryConfig::Attach(_) => false,
    });
    if !is_wanted {
        return None;
    }
    match attach() {
        Ok(splices) => Some(splices),
        Err(failure) => {
            warn!("--splice auto: {failure:#}; sessions are relayed");
            None
        }
    }
}

fn attach() -> anyhow::Result<Arc<Splices>> {
    ensure!(truepeer_bpf::are_built_in(), "this truepeer was built without the kernel's programs");
    let mut devices = find_devices(&["all".to_owned()])?;
    devices.retain(|device| device.has_ethernet);
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let splices = Splices::attach(Path::new(PINS), &devices, FLOWS).context("can't load the programs")?;
    info!("sessions may leave user space, on {}", names.join(", "));
    Ok(splices)
}
