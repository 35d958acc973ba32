//! `/`: the status as a page for a browser. It is whole without its script, which renews it, draws rates and
//! lists sessions. It follows the browser's light or dark colours.
//!
//! Names, files, reasons of bans and tags of headers are written by others: all text goes through
//! [`Escaped`], and the page's policy lets no script run but its own.

mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use truepeer_bpf::{COUNTERS, Kind};

use self::table::{Cell, Escaped, Table};
use super::bans::BanDoc;
use super::status::{AttachmentDoc, ListenerDoc, PortDoc, SpliceDoc, StatusDoc};
use crate::reasons::{self, Told};
use crate::units::{Age, Bytes, Count, Times};

/// The script and the style, by their paths.
pub(super) const SCRIPT: (&str, &str) = ("/page.js", include_str!("page/page.js"));
pub(super) const STYLE: (&str, &str) = ("/page.css", include_str!("page/page.css"));

/// The page loads only its own script and style. No other page may show it in a frame.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The most bans that are shown.
const MOST_BANS: usize = 200;

/// The whole page. `now`: seconds since 1970.
pub(super) fn html(status: &StatusDoc, bans: &[BanDoc], now: u64) -> String {
    let mut page = String::new();
    // Writing to a String can't fail.
    let _ = write(&mut page, status, bans, now);
    page
}

fn write(page: &mut String, status: &StatusDoc, bans: &[BanDoc], now: u64) -> fmt::Result {
    let class = if status.state == "serving" { "good" } else { "bad" };
    let (state, version, pid) = (Escaped(&status.state), Escaped(&status.version), status.pid);
    write!(
        page,
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <noscript><meta http-equiv=refresh content=5></noscript>\n<title>truepeer: {state}</title>\n\
         <link rel=stylesheet href={}>\n<script type=module src={}></script>\n\
         <header><h1>truepeer {version}</h1>\n\
         <span id=state data-live class=\"state {class}\">{state}</span>\n\
         <small id=process data-live>process {pid}</small> <span id=news class=bad></span></header>\n\
         <main>\n",
        STYLE.0, SCRIPT.0,
    )?;
    write_warnings(page, status)?;
    write_numbers(page, status)?;
    write_listeners(page, status)?;
    page.push_str(SESSIONS);
    write_lately(page, status)?;
    write_reasons(page, status)?;
    write_attachments(page, &status.attachments)?;
    write_bans(page, bans, now)?;
    page.push_str(
        "</main>\n<footer>Counted since the start. For machines: <a href=/metrics>/metrics</a>, \
         <a href=/status>/status</a>, <a href=\"/sessions?limit=1000\">/sessions</a>, \
         <a href=/bans>/bans</a>, \
         <a href=/healthz>/healthz</a>, <a href=/readyz>/readyz</a>.</footer>\n",
    );
    Ok(())
}

/// Filled by the script.
const SESSIONS: &str = "<section id=sessions hidden><div class=search><h2>Sessions</h2>\
    <input id=search type=search placeholder=\"a client's address, a stage, a tag\" \
    aria-label=\"search sessions\" autocomplete=off spellcheck=false></div>\n\
    <p id=found class=dim></p>\n<table><thead><tr><th>client<th>sender<th>listener<th>backend<th>stage\
    <th class=n>up<th class=n>down<th class=n>age</thead><tbody></tbody></table></section>\n";

/// Faults that the operator has to mend.
fn write_warnings(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let mut warnings: Vec<String> = status.reason.iter().cloned().collect();
    warnings.extend(status.missing.iter().map(|name| format!("not open, although it should be: {name}")));
    let uncovered = status.attachments.iter().filter(|place| !place.uncovered.is_empty());
    warnings.extend(uncovered.map(|place| format!("attached in {}: {}", netns(place), place.warning())));
    page.push_str("<div id=warnings data-live>");
    if !warnings.is_empty() {
        page.push_str("<section class=warning>");
        warnings.iter().try_for_each(|warning| writeln!(page, "<p class=bad>{}</p>", Escaped(warning)))?;
        page.push_str("</section>");
    }
    page.push_str("</div>\n");
    Ok(())
}

/// The sums of all listeners. The script makes rates of them, and draws those.
fn write_numbers(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let sum = |of: &dyn Fn(&ListenerDoc) -> u64| status.listeners.iter().map(of).sum::<u64>();
    let attached: usize =
        status.attachments.iter().flat_map(|place| &place.ports).map(|port| port.open).sum();
    let open = sum(&|listener| listener.open as u64) + attached as u64;
    let taken = sum(&ListenerDoc::taken);
    let refused = sum(&|listener| listener.refusals.values().sum());
    let [up, down] = ["bytes_up", "bytes_down"].map(|name| sum(&|listener| listener.count(name)));
    writeln!(
        page,
        "<section id=numbers data-pid={} data-open={open} data-taken={taken} data-refused={refused} \
         data-up={up} data-down={down}>",
        status.pid
    )?;
    for (rate, name, since) in [
        ("open", "open", Count(open).to_string()),
        ("taken", "new", Count(taken).to_string()),
        ("refused", "refused or failed", Count(refused).to_string()),
        ("up", "to backends", Bytes(up).to_string()),
        ("down", "to senders", Bytes(down).to_string()),
    ] {
        writeln!(
            page,
            "<div class=\"number {rate}\" data-rate={rate}>{name}<b>{since}</b>\
             <svg viewBox=\"0 0 150 36\" preserveAspectRatio=none role=img></svg>\
             <small>since the start</small></div>"
        )?;
    }
    page.push_str("</section>\n");
    Ok(())
}

fn write_listeners(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let head = ["listener", "open", "accepted", "refused", "failed connects", "to backends", "to senders"];
    let mut table = Table::new("Listeners", "listeners", &head);
    for listener in &status.listeners {
        let closed = if listener.listening { "" } else { " (closed)" };
        let refused = listener.count("connections_refused") + listener.count("datagrams_refused");
        table.row(
            None,
            &[
                Cell::Words(format!("{} {}{closed}", listener.entry, title(listener))),
                Cell::Number(Count(listener.open as u64).to_string()),
                Cell::Number(Count(listener.taken()).to_string()),
                Cell::Number(Count(refused).to_string()),
                Cell::Number(Count(listener.count("connects_failed")).to_string()),
                Cell::Number(Bytes(listener.count("bytes_up")).to_string()),
                Cell::Number(Bytes(listener.count("bytes_down")).to_string()),
            ],
        )?;
    }
    table.write(page)
}

/// Recent refusals: whom, how often, and why.
fn write_lately(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let head = ["whom", "listener", "times", "ago", "why, and what to do"];
    let mut table = Table::new("Refused in the last minutes", "lately", &head);
    for complaint in &status.complaints {
        let about = complaint.about.map_or_else(|| "others".to_owned(), |about| about.to_string());
        let protocol = complaint.protocol.map_or("", |protocol| protocol.name());
        let listener = complaint.listener.as_deref().unwrap_or("–");
        #[expect(clippy::cast_precision_loss, reason = "some minutes")]
        let ago = Age(complaint.seconds as f64).to_string();
        table.row(
            Some(&about),
            &[
                Cell::Text(about.clone()),
                Cell::Text(format!("{protocol} {listener}")),
                Cell::Number(Count(complaint.count).to_string()),
                Cell::Number(ago),
                Cell::Told(reasons::refusal(&complaint.reason)),
            ],
        )?;
    }
    table.write(page)
}

/// Why connections, requests and datagrams were refused since the start, and why sessions stay in user space.
fn write_reasons(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let of_reasons = |name, id, counts: Counts, tell: Tell| {
        let listeners = status.listeners.iter();
        let mut all: Vec<_> = listeners
            .flat_map(|one| counts(one).iter().map(move |(reason, times)| (*times, one, tell(reason))))
            .collect();
        all.sort_by_key(|(times, ..)| std::cmp::Reverse(*times));
        let mut table = Table::new(name, id, &["times", "listener", "why, and what to do"]);
        for (times, listener, told) in all {
            let times = Cell::Number(Count(times).to_string());
            table.row(None, &[times, Cell::Text(title(listener)), Cell::Told(told)])?;
        }
        Ok(table)
    };
    of_reasons("Refusals and failures", "refusals", |one| &one.refusals, reasons::refusal)?.write(page)?;
    let stays = "Sessions that stay in user space";
    let mut stays = of_reasons(stays, "stays", |one| &one.not_spliced, reasons::stay)?;
    if let Some(obstacle) = status.splice.as_ref().and_then(SpliceDoc::obstacle) {
        stays.row(None, &[Cell::Number("all".into()), Cell::Text("every".into()), Cell::Words(obstacle)])?;
    }
    stays.write(page)
}

type Counts = fn(&ListenerDoc) -> &BTreeMap<String, u64>;
type Tell = fn(&str) -> Told<'_>;

fn write_attachments(page: &mut String, attachments: &[AttachmentDoc]) -> fmt::Result {
    let head = ["port", "network namespace", "open", "refused", "why"];
    let mut table = Table::new("Attached in the kernel", "attached", &head);
    for place in attachments {
        let state = match place.attached {
            Some(true) => None,
            Some(false) => Some("not attached"),
            None => Some("can't be read"),
        };
        if let Some(state) = state {
            table
                .row(None, &[Cell::Text("–".into()), Cell::Text(netns(place)), Cell::Words(state.into())])?;
        }
        place.ports.iter().try_for_each(|port| table.row(None, &attached(place, port)))?;
    }
    table.write(page)
}

fn attached(place: &AttachmentDoc, port: &PortDoc) -> [Cell<'static>; 5] {
    let draining = if port.draining { ", detached, draining" } else { "" };
    let refusals = COUNTERS.iter().filter(|counter| counter.kind == Kind::Refusal);
    let counted = refusals.filter_map(|counter| Some((*port.counters.get(counter.name)?, counter.name)));
    let counted: Vec<_> = counted.filter(|(times, _)| *times > 0).collect();
    let why = counted.iter().map(|(times, name)| format!("{}: {}", Times(*times), reasons::of_attach(name)));
    [
        Cell::Text(format!("{}/{}{draining}", port.port, port.protocol.name())),
        Cell::Text(netns(place)),
        Cell::Number(Count(port.open as u64).to_string()),
        Cell::Number(Count(counted.iter().map(|(times, _)| times).sum()).to_string()),
        Cell::Words(why.collect::<Vec<_>>().join("; ")),
    ]
}

fn write_bans(page: &mut String, bans: &[BanDoc], now: u64) -> fmt::Result {
    let head = ["client", "port", "since", "ends in", "why"];
    let mut table = Table::new("Bans", "bans", &head);
    #[expect(clippy::cast_precision_loss, reason = "times of people")]
    let time = |seconds: u64| Age(seconds as f64).to_string();
    for ban in bans.iter().take(MOST_BANS) {
        table.row(
            Some(&ban.client),
            &[
                Cell::Text(ban.client.clone()),
                Cell::Text(ban.port.map_or_else(|| "every".to_owned(), |port| port.to_string())),
                Cell::Number(format!("{} ago", time(now.saturating_sub(ban.since)))),
                Cell::Number(
                    ban.until.map_or_else(|| "never".to_owned(), |until| time(until.saturating_sub(now))),
                ),
                Cell::Words(ban.why.clone()),
            ],
        )?;
    }
    if bans.len() > MOST_BANS {
        let more = format!("{} more: truepeer bans lists them", Count((bans.len() - MOST_BANS) as u64));
        table.row(None, &[Cell::Words(more)])?;
    }
    table.write(page)
}

/// A listener as the other tables name it.
fn title(listener: &ListenerDoc) -> String {
    format!("{} {}", listener.protocol.name(), listener.name())
}

fn netns(place: &AttachmentDoc) -> String {
    if place.netns.is_empty() { "this one".to_owned() } else { place.netns.clone() }
}
