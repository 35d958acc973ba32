//! Flows whose places or addresses another session uses.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use truepeer_bpf::{Device, Flow, Side, Splices, Stage};
use truepeer_testbed::{Bed, NetNs, ip_here, wait_for};

const FLOWS: NonZeroU32 = NonZeroU32::new(4).expect("not zero");

/// A table of four flows. Its sockets are any.
struct Table {
    splices: Arc<Splices>,
    socket: TcpListener,
}

impl Table {
    fn make(bed: &Bed) -> Result<Table> {
        let pins = crate::stand::pins(bed)?;
        Self::of(|| Ok(Splices::attach(&pins, &[], FLOWS)?))
    }

    fn of(splices: impl FnOnce() -> Result<Arc<Splices>> + Send) -> Result<Table> {
        let (splices, socket) =
            NetNs::create()?.run(|| -> Result<_> { Ok((splices()?, TcpListener::bind("0.0.0.0:0")?)) })??;
        Ok(Table { splices, socket })
    }

    fn arm(&self, client: u16) -> Result<Flow> {
        let side = |peer: SocketAddr, own: SocketAddr| Side {
            socket: self.socket.as_fd(),
            peer,
            own,
            peer_scale: 7,
            own_scale: 7,
            has_timestamps: false,
        };
        let sides = [
            side(SocketAddr::new([10, 0, 0, 1].into(), client), "10.0.0.2:443".parse()?),
            side("10.0.1.2:80".parse()?, SocketAddr::new([10, 0, 1, 1].into(), client)),
        ];
        Ok(self.splices.arm(sides)?)
    }

    fn is_in_use(&self, client: u16) -> bool {
        let sender = SocketAddr::new([10, 0, 0, 1].into(), client);
        self.splices.are_in_use(sender, SocketAddr::new([10, 0, 0, 2].into(), 443))
    }
}

/// An earlier truepeer was killed while it attached its programs.
pub(crate) fn an_heir_of_empty_tables_begins_flows(bed: &Bed) -> Result<()> {
    let pins = crate::stand::pins(bed)?;
    let table = Table::of(|| {
        drop(Splices::attach(&pins, &[], FLOWS)?);
        let place = only_entry(&only_entry(&pins)?)?;
        for map in fs::read_dir(place.join("maps"))? {
            fs::remove_file(map?.path())?;
        }
        let lock = File::open(place)?;
        lock.lock()?;
        let heir = Splices::attach_as_heir(&pins, &[], FLOWS)?;
        ensure!(heir.is_guest(), "it has the tables already");
        drop(lock);
        heir.inherit();
        Ok(heir)
    })?;
    let _flow = table.arm(1)?;
    ensure!(table.is_in_use(1));
    Ok(())
}

/// An earlier truepeer was killed while a flow was not spliced yet. Its place rests, but the others are free.
pub(crate) fn after_a_kill_flows_begin_at_once(bed: &Bed) -> Result<()> {
    let pins = crate::stand::pins(bed)?;
    let table = Table::of(|| {
        let splices = Splices::attach(&pins, &[], FLOWS)?;
        let killed = Table { splices, socket: TcpListener::bind("0.0.0.0:0")? };
        drop(killed.arm(1)?.offload());
        drop(killed);
        Ok(Splices::attach(&pins, &[], FLOWS)?)
    })?;
    let _flows = (2..5).map(|client| table.arm(client)).collect::<Result<Vec<_>>>()?;
    ensure!(!table.is_in_use(1) && table.is_in_use(2));
    Ok(())
}

fn only_entry(directory: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(entries.len() == 1, "{entries:?}");
    Ok(entries[0].path())
}

/// If the sweeper comes to a flow so late that another flow has its place, it must not reset the other's
/// peers.
pub(crate) fn a_forgotten_flow_keeps_its_addresses(bed: &Bed) -> Result<()> {
    let table = Table::make(bed)?;
    let removed = table.arm(1)?.offload().remove();
    let before = removed.connections();
    thread::sleep(Duration::from_millis(1100));
    let flows = (2..6).map(|client| table.arm(client)).collect::<Result<Vec<_>>>()?;
    ensure!(flows.len() == 4 && before.is_some());
    ensure!(removed.connections() == before, "{:?}, not {before:?}", removed.connections());
    Ok(())
}

/// A new connection has taken the old flow's addresses: ending the old flow leaves the new one's keys alone.
pub(crate) fn what_made_room_keeps_its_keys(bed: &Bed) -> Result<()> {
    let table = Table::make(bed)?;
    let old = table.arm(1)?;
    old.cut([0, 0], [0, 0]);
    old.all_is_delivered([true, true]);
    let old = old.offload();
    ensure!(old.stage() == Stage::Closing, "{:?}", old.stage());
    ensure!(!table.is_in_use(1), "an ended flow does not make room");
    let new = table.arm(1)?;
    let removed = old.remove();
    ensure!(table.is_in_use(1), "the new flow's keys are gone");
    ensure!(removed.connections().is_none(), "the new session's peers would be reset");
    drop(new);
    ensure!(!table.is_in_use(1));
    Ok(())
}

/// Whoever made room was killed before it removed the keys.
pub(crate) fn the_keys_of_a_flow_that_is_gone_are_removed(bed: &Bed) -> Result<()> {
    let table = Table::make(bed)?;
    // The keys of these addresses have 16 slots each.
    for round in 0..20 {
        let flow = table.arm(1).with_context(|| format!("round {round}"))?;
        flow.cut([0, 0], [0, 0]);
        flow.all_is_delivered([true, true]);
        let ended = flow.offload();
        ended.begin_to_make_room();
        if round % 2 == 0 {
            drop(ended);
            ensure!(table.splices.sweep(Instant::now(), Duration::ZERO, true).ended == 1);
        } else {
            ensure!(ended.remove().connections().is_none(), "the new session's peers would be reset");
        }
        thread::sleep(Duration::from_millis(1));
        table.splices.have_rested(Instant::now());
    }
    Ok(())
}

/// They take 22 MiB each.
pub(crate) fn tables_of_a_namespace_that_is_gone_are_removed(bed: &Bed) -> Result<()> {
    let pins = crate::stand::pins(bed)?;
    let attach_here = || -> Result<()> {
        ip_here(&["link set lo up"])?;
        let loopback = Device { name: "lo".to_owned(), has_ethernet: true, has_strict_rp_filter: false };
        drop(Splices::attach(&pins, &[loopback], FLOWS)?);
        Ok(())
    };
    // The namespace ends with its last user.
    NetNs::create()?.run(attach_here)??;
    wait_for("the end of the namespace", || truepeer_bpf::gone(&pins).is_ok_and(|gone| gone.len() == 1))?;
    NetNs::create()?.run(attach_here)??;
    let after = fs::read_dir(&pins)?.count();
    ensure!(after == 1, "{after} namespaces have tables");
    Ok(())
}
