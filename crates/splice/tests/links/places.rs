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
use truepeer_bpf::{AttachError, Device, Flow, Side, Splices, Stage, Watched};
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
        let locks = fs::read_dir(place.join("shares"))?
            .map(|share| {
                let share = File::open(share?.path())?;
                share.lock()?;
                Ok(share)
            })
            .collect::<Result<Vec<_>>>()?;
        let heir = Splices::attach_as_heir(&pins, &[], FLOWS)?;
        ensure!(heir.is_guest(), "it has a share already");
        let other = Splices::attach(&pins, &[], FLOWS);
        ensure!(matches!(other, Err(AttachError::TablesTaken)), "another process has one");
        drop(locks);
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

/// Tables of a network namespace, two places for each of 32 processes.
struct Shared {
    pins: PathBuf,
    namespace: NetNs,
}

impl Shared {
    fn make(bed: &Bed) -> Result<Shared> {
        Ok(Shared { pins: crate::stand::pins(bed)?, namespace: NetNs::create()? })
    }

    /// One more process.
    fn process(&self, as_heir: bool) -> Result<Table> {
        let flows = const { NonZeroU32::new(64).expect("not zero") };
        let attach = if as_heir { Splices::attach_as_heir } else { Splices::attach };
        self.namespace.run(|| {
            let splices = attach(&self.pins, &[], flows)?;
            Ok(Table { splices, socket: TcpListener::bind("0.0.0.0:0")? })
        })?
    }
}

impl Table {
    /// A flow that has left.
    fn spliced(&self, client: u16) -> Result<Watched> {
        let flow = self.arm(client)?;
        flow.cut([0, 0], [0, 0]);
        flow.all_is_delivered([false, false]);
        ensure!(flow.stage() == Stage::Spliced, "{:?}", flow.stage());
        Ok(flow.offload())
    }

    /// The clients of flows that it has adopted.
    fn adopted(&self) -> Vec<u16> {
        self.splices.adopted().iter().map(|flow| flow.connections()[0].peer.port()).collect()
    }
}

pub(crate) fn each_process_answers_for_its_own_flows(bed: &Bed) -> Result<()> {
    let shared = Shared::make(bed)?;
    let (one, other) = (shared.process(false)?, shared.process(false)?);
    let (of_one, of_other) = (one.spliced(1)?, other.spliced(2)?);
    ensure!(other.is_in_use(1) && one.is_in_use(2), "addresses of the other process are free");
    ensure!(other.arm(1).is_err(), "two flows have one address");
    other.splices.lose_all_ways();
    ensure!(of_other.has_lost_its_way() && !of_one.has_lost_its_way());
    for process in [&one, &other] {
        let flows = (10..30).map(|client| process.arm(client)).collect::<Result<Vec<_>>>();
        flows.context("it has no more than its first share")?;
    }
    // The first one is killed. Its flow waits for its next start.
    drop(of_one);
    drop(one);
    ensure!(other.adopted().is_empty() && other.is_in_use(1));
    let next = shared.process(false)?;
    ensure!(next.adopted() == [1] && next.is_in_use(2));
    let swept = next.splices.sweep(Instant::now(), Duration::ZERO, true);
    ensure!(of_other.stage() == Stage::Spliced, "{swept:?}: {of_other:?}");
    Ok(())
}

pub(crate) fn an_heir_inherits_from_its_predecessor_alone(bed: &Bed) -> Result<()> {
    let shared = Shared::make(bed)?;
    let (third, old) = (shared.process(false)?, shared.process(false)?);
    let (of_third, of_old) = (third.spliced(1)?, old.spliced(2)?);
    let heir = shared.process(true)?;
    heir.splices.inherit();
    ensure!(heir.adopted().is_empty() && !heir.splices.is_guest());
    let _own = heir.arm(3)?;
    drop(of_old);
    old.splices.release();
    ensure!(old.splices.is_guest());
    heir.splices.inherit();
    ensure!(heir.adopted() == [2]);
    heir.splices.inherit();
    drop(of_third);
    drop(third);
    heir.splices.inherit();
    ensure!(heir.adopted().is_empty(), "it has the flows of another process");
    let next = shared.process(false)?;
    ensure!(next.adopted() == [1]);
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
