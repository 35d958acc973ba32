//! `attach status --follow`: who is refused, a line each, until it is interrupted.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use truepeer_bpf::{Place, Refusal, Refusals, status};

use truepeer_config::date;
use truepeer_sys::tell;

/// How soon it reads from what was attached meanwhile.
const RESCAN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// So many failures to open what is attached are no moment any more.
const PATIENCE: u32 = 5;

/// A network namespace that is followed.
struct Followed {
    place: Place,
    netns: u64,
    refusals: Refusals,
}

/// `places`: what there is to follow, asked for again and again: something may be attached later, and again.
pub(super) fn follow(
    places: &dyn Fn() -> Result<Vec<Place>>,
    is_for_all: bool,
    is_json: bool,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let mut followed: BTreeMap<u64, Followed> = BTreeMap::new();
    let (mut is_told, mut failures) = (false, 0);
    loop {
        followed.retain(|_, one| one.refusals.is_current(&one.place));
        for place in places()? {
            if followed.contains_key(&place.netns_cookie()) {
                continue;
            }
            // It may be detached at this moment.
            let Ok(Some(status)) = status(&place) else { continue };
            match Refusals::open(&place) {
                Ok(Some(refusals)) => {
                    _ = followed
                        .insert(place.netns_cookie(), Followed { place, netns: status.netns, refusals });
                }
                Ok(None) if !is_for_all => {
                    bail!("another attach status --follow reads here already; there can be one at a time")
                }
                Ok(None) if !is_told => {
                    tell!(
                        "warning: another attach status --follow reads some of them already; they are left out while it does"
                    );
                    is_told = true;
                }
                Ok(None) => {}
                // It may be attached or detached at this moment.
                Err(error) if !is_for_all && failures > PATIENCE => return Err(error.into()),
                Err(_) => failures += 1,
            }
        }
        for one in followed.values_mut() {
            // Found while it was being attached.
            if one.netns == 0
                && let Ok(Some(status)) = status(&one.place)
            {
                one.netns = status.netns;
            }
            while let Some(refusal) = one.refusals.read() {
                write(one.netns, &one.place, &refusal, is_json, out)?;
            }
        }
        out.flush()?;
        let stdout = std::io::stdout();
        let mut descriptors = vec![PollFd::new(&stdout, PollFlags::empty())];
        descriptors.extend(followed.values().map(|one| PollFd::new(&one.refusals, PollFlags::IN)));
        match poll(&mut descriptors, Some(&RESCAN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // The reader of a pipe has ended. Without this it would be noticed at the next refusal only, and no
        // other could read meanwhile.
        if descriptors.first().is_some_and(|stdout| stdout.revents().contains(PollFlags::ERR)) {
            return Ok(());
        }
    }
}

#[derive(Serialize)]
struct Json {
    time: String,
    netns_cookie: u64,
    netns: u64,
    port: u16,
    protocol: &'static str,
    sender: String,
    client: Option<String>,
    reason: &'static str,
    meaning: &'static str,
    count: u32,
}

fn write(netns: u64, place: &Place, refusal: &Refusal, is_json: bool, out: &mut dyn Write) -> Result<()> {
    let Refusal { sender, client, port, is_udp, reason, count, .. } = *refusal;
    let protocol = if is_udp { "udp" } else { "tcp" };
    if is_json {
        let json = Json {
            time: date::of_time(since_1970(refusal.time)),
            netns_cookie: place.netns_cookie(),
            netns,
            port,
            protocol,
            sender: sender.to_string(),
            client: client.map(|client| client.to_string()),
            reason: reason.name,
            meaning: reason.meaning,
            count,
        };
        serde_json::to_writer(&mut *out, &json)?;
        writeln!(out)?;
        return Ok(());
    }
    let claims = client.map_or(String::new(), |client| format!(", claims {client}"));
    let more = if count > 1 { format!("; and {} more", count - 1) } else { String::new() };
    writeln!(
        out,
        "{} {sender} to port {port}/{protocol}{claims}: {} ({}){more}",
        date::of_time(since_1970(refusal.time)),
        reason.meaning,
        reason.name
    )?;
    Ok(())
}

/// The programs' clock runs since the boot.
fn since_1970(time: Duration) -> Duration {
    let now = |clock| {
        let now = clock_gettime(clock);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
    };
    now(ClockId::Realtime).saturating_sub(now(ClockId::Monotonic).saturating_sub(time))
}
