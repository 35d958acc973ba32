//! `[[attach]]` in a file: the server attaches and detaches, and logs what the command would print.

use anyhow::{Context, Result, ensure};
use tracing::{info, warn};
use truepeer_bpf::{
    NewConnections, Others, Place, Rules, Status, detach_now, drain, finish, status, still_open,
};

use super::{devices, pins, privileges, put_rules, target, tidy_up};
use truepeer_config::plan::AttachKey;
use truepeer_config::spec::AttachSpec;

/// Attaches, or gives an attachment other rules. Open connections continue.
pub(super) fn put(key: &AttachKey, args: &AttachSpec, rules: &Rules) -> Result<()> {
    put_warning(key, args, rules, &mut |warning| warn!("{warning}"))
}

/// The same once more, to devices and addresses as they are now. Devices that are gone are left out.
pub(super) fn put_again(key: &AttachKey, args: &AttachSpec, rules: &Rules) -> Result<()> {
    let mut args = args.clone();
    args.watch = true;
    put_warning(key, &args, rules, &mut |_| ())
}

fn put_warning(
    key: &AttachKey,
    args: &AttachSpec,
    rules: &Rules,
    warn: &mut (dyn FnMut(&str) + Send),
) -> Result<()> {
    let mut out = Vec::new();
    let put = in_place(key, true, |place, process| {
        // What a file has is all that it wants in this network namespace.
        put_rules(args, rules.clone(), Others::Leave, place, process, warn, &mut out)
    });
    put.map_err(privileges::explain)?;
    log(&out);
    Ok(())
}

/// Stops checking new connections, at its first call. Detaches if no open connection needs the programs, or
/// if it must happen `now`. Returns how many connections keep it attached.
///
/// # Errors
/// Somebody else has attached there meanwhile: that stays.
pub fn leave(key: &AttachKey, now: bool, is_first: bool) -> Result<usize> {
    let mut out = Vec::new();
    let open = in_place(key, false, |place, _| {
        if now {
            detach_now(place, NewConnections::Pass)?;
            tidy_up(place, &mut out)?;
            return Ok(0);
        }
        let open = if is_first { Some(drain(place, NewConnections::Pass)?) } else { still_open(place)? };
        let open = open.context("attached again meanwhile")?.total();
        if open == 0 {
            ensure!(finish(place, NewConnections::Pass)?, "attached again meanwhile");
            tidy_up(place, &mut out)?;
        }
        Ok(open)
    });
    log(&out);
    open.map_err(privileges::explain)
}

/// The state of an attachment; `None`: there is none.
pub fn status_of(key: &AttachKey) -> Result<Option<Status>> {
    in_place(key, false, |place, _| Ok(status(place)?))
}

/// The device and inode of its place, the same for all names of a place. `None`: nothing is attached there.
///
/// # Errors
/// Its network namespace can't be found.
pub fn place_of(key: &AttachKey) -> Result<Option<(u64, u64)>> {
    in_place(key, false, |place, _| Ok(place.identity()))
}

/// The devices in use that it does not cover: up, with an address, and without its programs.
///
/// # Errors
/// The devices, or where it is pinned, can't be read.
pub fn uncovered_of(key: &AttachKey) -> Result<Vec<String>> {
    in_place(key, false, |place, _| devices::uncovered(place))
}

fn in_place<T: Send>(
    key: &AttachKey,
    may_mount: bool,
    work: impl FnOnce(&Place, Option<u32>) -> Result<T> + Send,
) -> Result<T> {
    let pins = pins(Some(&key.pins), may_mount)?;
    target::find(&key.target)?.run(|process| work(&Place::here(&pins)?, process))
}

fn log(lines: &[u8]) {
    String::from_utf8_lossy(lines).lines().for_each(|line| info!("attach: {line}"));
}
