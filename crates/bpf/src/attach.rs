//! Attaches the programs, or replaces those of an earlier version or with other rules.

use std::collections::BTreeSet;
use std::path::Path;

use aya::programs::{
    CgroupSkb, CgroupSockAddr, Program, ProgramError, ProgramType, SchedClassifier, SkLookup, SockOps,
};
use aya::sys::{BpfHelper, is_helper_supported};
use typed_arena::Arena;

use crate::cgroup::{Cgroups, Named};
use crate::device::Device;
use crate::error::AttachError;
use crate::layout::{MAX_PORTS, MAX_SLOTS};
use crate::links::{self, Stage};
use crate::load::{Global, Loaded, Loader};
use crate::place::Place;
use crate::programs::{
    BACKSTOP, Object, PEER_NAME, TCP_EGRESS, TCP_END, TCP_INGRESS, UDP_EGRESS, UDP_INGRESS, UDP_SEND,
};
use crate::resize::Aside;
use crate::rules::NewConnections;
use crate::rules::{Others, Rules};
use crate::sizes::{Sizes, size_of};
use crate::tables::Tables;
use crate::whole::{self, Whole};
use crate::{again, cut, detach, witness};

/// What is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// By tcx links, or otherwise by filters of the clsact qdisc.
    pub by_tcx: bool,
    /// The open flows of an earlier attachment, which continue.
    pub taken_over: usize,
    /// The ports of an earlier attachment that have been left out: `80`, `53/udp`.
    pub left: Vec<String>,
    /// The number of connections that the tables hold, if it could not become [`Rules::max_flows`] because
    /// some are open.
    pub kept_max_flows: Option<u32>,
}

/// Attaches to these devices, and to the processes of these cgroups. Programs that are already attached are
/// replaced without a gap. What is attached already to other ports stays, leaves, or is an error, as `others`
/// says. The tables' sizes are those of the namespace: if attachments stay, so do the sizes.
///
/// Ingress comes last: nothing may be shifted on its way in that isn't shifted back on its way out.
///
/// # Errors
/// The kernel refused a step. If nothing was attached before, nothing is attached then. An earlier attachment
/// continues with its own rules; some of its programs may have been replaced.
pub fn attach(
    place: &Place,
    rules: &Rules,
    others: Others,
    devices: &[Device],
    cgroups: &Cgroups,
) -> Result<Attached, AttachError> {
    TCP_INGRESS.bytes()?;
    let _lock = loop {
        place.make()?;
        if let Some(lock) = place.lock()? {
            break lock;
        }
    };
    // Another process may have removed a part while this one waited for the lock.
    place.make()?;
    let is_first = !place.exists()?;
    let attached = attach_all(place, rules, others, devices, cgroups);
    if attached.is_err() && is_first {
        // Report the first error. It may have come after the ports were written; connections that are already
        // translated must not silently lose the programs.
        let cut = Tables::open(place).and_then(|mut tables| {
            tables.drain(NewConnections::Pass)?;
            cut::cut_off(&tables)
        });
        if cut.is_ok() || !Tables::are_all_there(place) {
            let _ = detach::remove_all(place);
        }
    }
    attached
}

fn attach_all(
    place: &Place,
    rules: &Rules,
    others: Others,
    devices: &[Device],
    cgroups: &Cgroups,
) -> Result<Attached, AttachError> {
    let wanted = rules.all_tcp_ranges().len() + rules.all_udp_ranges().len();
    if wanted > usize::from(MAX_SLOTS) {
        return Err(AttachError::TooManyPorts(wanted));
    }
    let ports = rules.tcp_ports.len() + rules.udp_ports.len();
    if ports > usize::from(MAX_PORTS) {
        return Err(AttachError::TooLongRanges(ports));
    }
    let known = if Tables::are_all_there(place) { Some(Tables::open(place)?) } else { None };
    if let Some(tables) = &known {
        whole::check(tables, rules, others)?;
    }
    let whole = &Whole::of(place, rules, others, known.as_ref())?;
    let tcp_ports = &whole.tcp_ports;
    let sizes = Sizes::of(&whole.rules, !tcp_ports.is_empty())?;
    let mut aside = Aside::put(place, &sizes)?;
    let globals = Arena::new();
    let mut loader = Loader::new(place, &globals);
    let wanted = Wanted { place, whole, devices, cgroups };
    let prepared = prepare_with(wanted, &sizes, &mut aside, &mut loader);
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            // Report the first error.
            let _ = aside.put_back();
            return Err(error);
        }
    };
    let installed = install(wanted, rules, others, &mut prepared, &mut loader);
    if installed.is_err() {
        // Report the first error.
        let is_exchanged = aside.is_any();
        let _ = aside.put_back();
        if is_exchanged {
            let _ = put_programs_back(wanted, &mut loader);
        }
        let _ = prepared.tables.resume();
        return installed;
    }
    aside.remove()?;
    installed
}

/// An attachment as it is asked for: the rules, and the devices and cgroups that they apply to.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    place: &'a Place,
    whole: &'a Whole,
    devices: &'a [Device],
    cgroups: &'a Cgroups,
}

/// Everything that can be refused before the first program is attached.
struct Prepared {
    sends: Loaded,
    tables: Tables,
    stages: Vec<(Vec<ForKind>, Stage)>,
    named: Named,
    begins_again: bool,
    kept_max_flows: Option<u32>,
}

/// Loads the programs with tables of the wanted sizes, or with the old ones of TCP if connections need those.
fn prepare_with(
    wanted: Wanted<'_>,
    sizes: &Sizes,
    aside: &mut Aside,
    loader: &mut Loader<'_>,
) -> Result<Prepared, AttachError> {
    let mut prepared = prepare(wanted, sizes, loader)?;
    if !aside.has_tcp() || may_exchange(&mut prepared.tables, aside)? {
        return Ok(prepared);
    }
    aside.put_tcp_back()?;
    let prepared = prepare(wanted, sizes, loader)?;
    let kept_max_flows = size_of(wanted.place, "tp_flows")?;
    let has_changed = kept_max_flows != wanted.whole.rules.max_flows.get();
    Ok(Prepared { kept_max_flows: has_changed.then_some(kept_max_flows), ..prepared })
}

/// Whether no connection needs the old tables. Then no new one begins until the rules are written.
fn may_exchange(tables: &mut Tables, aside: &Aside) -> Result<bool, AttachError> {
    if aside.are_needed()? {
        return Ok(false);
    }
    tables.pause()?;
    let are_needed = aside.are_needed();
    if !matches!(are_needed, Ok(false)) {
        tables.resume()?;
    }
    Ok(!are_needed?)
}

fn prepare(wanted: Wanted<'_>, sizes: &Sizes, loader: &mut Loader<'_>) -> Result<Prepared, AttachError> {
    let Wanted { place, whole: Whole { rules, tcp_ports }, devices, cgroups } = wanted;
    // This creates the tables, of TCP and UDP.
    loader.size(sizes.all());
    loader.set(Global::NetnsCookie(place.netns_cookie()));
    loader.set(Global::Slots(sizes.slots()));
    let sends = loader.load(UDP_SEND)?;
    let named = Named::of(cgroups)?;
    loader.set(Global::other_ports(tcp_ports.iter().copied()));
    loader.set(Global::HasHooksInside(named.has_hooks_inside));
    let stages_wanted = stages_for(rules, !tcp_ports.is_empty());
    let mut stages = Vec::new();
    let mut function = again::kernel_function();
    for (object, stage) in all_stages().into_iter().filter(|(_, stage)| has(&stages_wanted, stage)) {
        let mut kinds = load_by_kind(object, devices, function, loader);
        // Without its compiler, the kernel lets no program call its functions.
        if kinds.is_err() && object.name == TCP_INGRESS.name && function.take().is_some() {
            kinds = load_by_kind(object, devices, None, loader);
        }
        stages.push((kinds?, stage));
    }
    let tables = Tables::open(place)?;
    Ok(Prepared { sends, tables, stages, named, begins_again: function.is_some(), kept_max_flows: None })
}

/// Some programs have been replaced by those of tables that are given up: they get the old tables again, as
/// the others have them. What has failed fails again, so this ends at the same step.
fn put_programs_back(wanted: Wanted<'_>, loader: &mut Loader<'_>) -> Result<(), AttachError> {
    let mut prepared = prepare(wanted, &Sizes::in_place(wanted.place)?, loader)?;
    attach_programs(wanted, &mut prepared, loader).map(drop)
}

fn install(
    wanted: Wanted<'_>,
    rules: &Rules,
    others: Others,
    prepared: &mut Prepared,
    loader: &mut Loader<'_>,
) -> Result<Attached, AttachError> {
    let Wanted { place, whole: Whole { rules: all, .. }, devices, .. } = wanted;
    let taken_over = prepared.tables.flows().len();
    let left = prepared.tables.left_by(all)?;
    let stages = attach_programs(wanted, prepared, loader)?;
    prepared.tables.apply(rules, prepared.begins_again, others)?;
    match others {
        // Their devices stay, too.
        Others::Stay { .. } => links::detach_stages(place, &stages)?,
        Others::AreNamed | Others::Leave => links::detach_others(place, devices, &stages)?,
    }
    witness::leave_gone(place)?;
    witness::leave_if_attested(place, devices)?;
    if all.udp_ports.is_empty() {
        SEND_HOOKS.iter().try_for_each(|name| links::detach_hook(place, name))?;
    }
    Ok(Attached { by_tcx: links::has_tcx(), taken_over, left, kept_max_flows: prepared.kept_max_flows })
}

/// Ingress comes last. Returns what is attached to devices.
fn attach_programs(
    wanted: Wanted<'_>,
    prepared: &mut Prepared,
    loader: &mut Loader<'_>,
) -> Result<Vec<Stage>, AttachError> {
    let Wanted { place, whole: Whole { rules: all, tcp_ports }, devices, cgroups } = wanted;
    witness::stand(place, devices, loader)?;
    if !tcp_ports.is_empty() {
        attach_hooks(place, cgroups, all.shows_destination, loader)?;
    }
    attach_backstop(place, cgroups, &prepared.named, !all.udp_ports.is_empty(), loader)?;
    if !all.udp_ports.is_empty() {
        attach_send_hooks(place, cgroups, &mut prepared.sends)?;
    }
    let mut stages = Vec::new();
    for (kinds, stage) in prepared.stages.drain(..) {
        attach_stage(place, kinds, devices, stage)?;
        stages.push(stage);
    }
    Ok(stages)
}

/// The programs of devices, in the order in which they are attached.
fn all_stages() -> [(Object, Stage); 4] {
    [
        (TCP_EGRESS, links::TCP_EGRESS),
        (UDP_EGRESS, links::UDP_EGRESS),
        (TCP_INGRESS, links::TCP_INGRESS),
        (UDP_INGRESS, links::UDP_INGRESS),
    ]
}

/// Every program costs time for each packet, so none is attached without need. Those of TCP stay for open
/// connections once there was a port. Those of UDP are removed with the last port.
fn stages_for(rules: &Rules, has_tcp: bool) -> Vec<Stage> {
    let tcp = [links::TCP_INGRESS, links::TCP_EGRESS].into_iter().filter(|_| has_tcp);
    let udp = [links::UDP_INGRESS, links::UDP_EGRESS].into_iter().filter(|_| !rules.udp_ports.is_empty());
    tcp.chain(udp).collect()
}

fn has(stages: &[Stage], stage: &Stage) -> bool {
    stages.iter().any(|wanted| wanted.name == stage.name)
}

/// The differences between devices: the length of the link header, and strict rp_filter.
type DeviceKind = (u32, bool);

fn kind_of(device: &Device) -> DeviceKind {
    (device.link_header_len(), device.has_strict_rp_filter)
}

/// A program for devices of one kind.
struct ForKind {
    kind: DeviceKind,
    loaded: Loaded,
}

fn load_by_kind(
    object: Object,
    devices: &[Device],
    function: Option<u32>,
    loader: &mut Loader<'_>,
) -> Result<Vec<ForKind>, AttachError> {
    let kinds: BTreeSet<DeviceKind> = devices.iter().map(kind_of).collect();
    let load = |kind: DeviceKind| -> Result<ForKind, AttachError> {
        loader.set(Global::LinkHeaderLen(kind.0));
        loader.set(Global::HasStrictRpFilter(kind.1.into()));
        let mut loaded = loader.load_calling(object, function)?;
        classifier(&mut loaded, object.name)
            .and_then(SchedClassifier::load)
            .map_err(AttachError::attach(object.name, "the kernel"))?;
        Ok(ForKind { kind, loaded })
    };
    kinds.into_iter().map(load).collect()
}

fn classifier<'a>(
    loaded: &'a mut Loaded,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, ProgramError> {
    loaded.program(name).try_into()
}

fn attach_stage(
    place: &Place,
    kinds: Vec<ForKind>,
    devices: &[Device],
    stage: Stage,
) -> Result<(), AttachError> {
    for mut kind in kinds {
        let program = classifier(&mut kind.loaded, stage.name)
            .map_err(AttachError::attach(stage.name, "the kernel"))?;
        for device in devices.iter().filter(|device| kind_of(device) == kind.kind) {
            links::attach_to_device(place, program, stage, device)?;
        }
    }
    Ok(())
}

pub(crate) const SEND_HOOKS: [&str; 2] = ["udp_send4", "udp_send6"];

/// The hooks that redirect answers to the sender.
fn attach_send_hooks(place: &Place, cgroups: &Cgroups, sends: &mut Loaded) -> Result<(), AttachError> {
    // For all sockets, whatever `--cgroup` says: the client of a datagram is shown to every socket.
    for name in SEND_HOOKS {
        let program = ready(sends.program(name), name, |program: &mut CgroupSockAddr| program.load())?;
        links::attach_hook(place, program, name, &cgroups.all)?;
    }
    Ok(())
}

/// The hooks that show the client, and the one that sees sockets end. Those that show the destination are
/// attached where it is asked for, and stay for open connections.
fn attach_hooks(
    place: &Place,
    cgroups: &Cgroups,
    shows_destination: bool,
    loader: &mut Loader<'_>,
) -> Result<(), AttachError> {
    let mut names = loader.load(PEER_NAME)?;
    let own = ["own_name4", "own_name6"].into_iter().filter(|_| shows_destination);
    for name in ["peer_name4", "peer_name6"].into_iter().chain(own) {
        let program = ready(names.program(name), name, |program: &mut CgroupSockAddr| program.load())?;
        links::attach_hook(place, program, name, &cgroups.all)?;
    }
    let mut ends = loader.load(TCP_END)?;
    let program = ready(ends.program("tcp_end"), "tcp_end", |program: &mut SockOps| program.load())?;
    // For all sockets, whatever `--cgroup` says: otherwise flows of others would never be removed.
    links::attach_hook(place, program, "tcp_end", &cgroups.all)
}

/// The backstop drops packets that reach a socket unjudged. It covers all sockets of the network namespace,
/// which it knows by the namespace's cookie, or by `whereabouts`.
fn attach_backstop(
    place: &Place,
    cgroups: &Cgroups,
    named: &Named,
    has_udp: bool,
    loader: &mut Loader<'_>,
) -> Result<(), AttachError> {
    // The kernel gives these programs packets from the IP header on.
    loader.set(Global::LinkHeaderLen(0));
    loader.set(Global::HasUdp(has_udp.into()));
    loader.set(Global::Named(named.clone().into()));
    // Linux 6.15. Where probing fails, `whereabouts` does as well.
    let tells_cookie =
        is_helper_supported(ProgramType::CgroupSkb, BpfHelper::BPF_FUNC_get_netns_cookie).unwrap_or(false);
    loader.set(Global::NetnsCookie(if tells_cookie { place.netns_cookie() } else { 0 }));
    let mut loaded = loader.load(BACKSTOP)?;
    let name = "whereabouts";
    if !tells_cookie {
        let program = ready(loaded.program(name), name, |program: &mut SkLookup| program.load())?;
        links::attach_hook(place, program, name, Path::new("/proc/thread-self/ns/net"))?;
    }
    let backstop = "backstop";
    let program = ready(loaded.program(backstop), backstop, |program: &mut CgroupSkb| program.load())?;
    links::attach_hook(place, program, backstop, &cgroups.all)?;
    // Of an older truepeer, whose backstop asked it.
    if tells_cookie { links::detach_hook(place, name) } else { Ok(()) }
}

fn ready<'a, P>(
    program: &'a mut Program,
    name: &'static str,
    load: impl FnOnce(&mut P) -> Result<(), ProgramError>,
) -> Result<&'a mut P, AttachError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let refused = |error: ProgramError| AttachError::attach(name, "the kernel")(error);
    let program: &'a mut P = program.try_into().map_err(refused)?;
    load(program).map_err(refused)?;
    Ok(program)
}
