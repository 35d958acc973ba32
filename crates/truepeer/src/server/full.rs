//! `--splice full`: the listeners whose sessions the kernel makes by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tracing::{debug, info, warn};
use truepeer_bpf::{Device, Full, Served, Splices, Unspoken};
use truepeer_session::ListenerId;

use truepeer_config::plan::CheckedListener;
use truepeer_routes::netlink::Netlink;
use truepeer_routes::options::local_addresses;

/// The programs, and the listeners that they serve.
pub(super) struct FullListeners {
    full: Arc<Full>,
    /// This host's addresses, read before the process confines itself. If the host gets another one, the
    /// kernel still makes sessions that claim it, and truepeer ends each when it learns of it.
    own_addresses: BTreeSet<IpAddr>,
    /// `[::]` takes IPv4 connections, too.
    is_dual: bool,
    /// The address of each listener.
    at: BTreeMap<ListenerId, SocketAddr>,
    /// Listeners that the programs did not take; they are [tried again](Self::try_again).
    not_taken: BTreeSet<ListenerId>,
}

impl FullListeners {
    /// Attaches the programs.
    pub(super) fn attach(splices: &Arc<Splices>, pins: &Path, devices: &[Device]) -> anyhow::Result<Self> {
        let mut netlink = Netlink::open()?;
        let own_addresses: BTreeSet<IpAddr> = local_addresses(&mut netlink)?.into_iter().collect();
        let only = std::fs::read_to_string("/proc/sys/net/ipv6/bindv6only").unwrap_or_default();
        let full = Full::attach(splices, pins, devices, &own_addresses).context("can't load the programs")?;
        let full = Arc::new(full);
        Ok(Self {
            full,
            own_addresses,
            is_dual: only.trim() == "0",
            at: BTreeMap::new(),
            not_taken: BTreeSet::new(),
        })
    }

    pub(super) fn programs(&self) -> Arc<Full> {
        Arc::clone(&self.full)
    }

    /// Serves a listener that has been opened at these addresses.
    pub(super) fn open(&mut self, id: ListenerId, listener: &CheckedListener, addresses: &[SocketAddr]) {
        if let Some(&address) = addresses.first() {
            self.at.insert(id, address);
        }
        self.set_rules(id, listener);
    }

    /// Applies the listener's rules. If they need more than the kernel can do, truepeer gets its connections.
    pub(super) fn set_rules(&mut self, id: ListenerId, listener: &CheckedListener) {
        self.not_taken.remove(&id);
        if listener.config.splice_full() != Some(Ok(())) {
            return self.leave(id);
        }
        self.serve(id, listener);
    }

    fn serve(&mut self, id: ListenerId, listener: &CheckedListener) {
        let Some(&listens) = self.at.get(&id) else { return };
        let served = self.served(listener, listens);
        if !served.is_possible() {
            warn!("--splice full: as auto at {listens}: no backend has the listener's address family");
            return self.leave(id);
        }
        match self.full.serve(id.number(), &served) {
            Ok(true) => info!(
                "the kernel accepts and connects by itself at {listens}, after truepeer's first connection to each backend"
            ),
            Ok(false) => info!(
                "the kernel accepts and connects by itself at {listens}, as soon as the old process lets go"
            ),
            Err(failure) if self.not_taken.insert(id) => {
                debug!("--splice full: not yet at {listens}: {failure}");
                self.leave(id);
            }
            Err(failure) => warn!("--splice full: as auto at {listens}: {failure}"),
        }
    }

    /// Serves a listener that the programs did not take, because others may have made room.
    pub(super) fn try_again(&mut self, id: ListenerId, listener: &CheckedListener) {
        if self.not_taken.contains(&id) {
            self.serve(id, listener);
            self.not_taken.remove(&id);
        }
    }

    fn served(&self, listener: &CheckedListener, listens: SocketAddr) -> Served {
        let policy = &listener.policy;
        let backends = policy.delivery.backends;
        Served {
            listens,
            is_dual: self.is_dual,
            ipv4: backends.ipv4.map(|backend| backend.get()),
            ipv6: backends.ipv6.map(|backend| backend.get()),
            senders: policy.senders.allow.clone(),
            header: policy.senders.header,
            exceptions: listener.config.senders.exceptions(),
            claims: policy.claims.clone(),
            own_addresses: if listener.config.claims.allow_host {
                BTreeSet::new()
            } else {
                self.own_addresses.clone()
            },
            header_max: listener.config.header.max_bytes,
        }
    }

    /// Leaves the listener's connections to truepeer.
    pub(super) fn leave(&self, id: ListenerId) {
        self.leave_to(id, Unspoken::ToListener);
    }

    /// The same for all listeners, because another process has their sockets.
    pub(super) fn leave_all(&self) {
        self.at.keys().for_each(|id| self.leave(*id));
    }

    /// Leaves all listeners, whose sockets are about to be closed.
    pub(super) fn drain(&self) {
        self.at.keys().for_each(|id| self.leave_to(*id, Unspoken::ByKernel));
    }

    fn leave_to(&self, id: ListenerId, unspoken: Unspoken) {
        if let Err(failure) = self.full.leave(id.number(), unspoken) {
            warn!("--splice full: {failure}");
        }
    }
}
