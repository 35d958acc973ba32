//! `truepeer ban`, `unban` and `bans`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use truepeer_attach::{AttachedBans, keep, keep_only, kept_bans, seconds_now as now};
use truepeer_config::spec::{AskSpec, BanArgs, Banned, BansArgs, UnbanArgs};
use truepeer_policy::{Ban, BannedPrefix, Bans, Lifted};
use truepeer_sys::tell;

use crate::admin::{BanDoc, Client};
use crate::units::{Age, Count};

/// Clients of one request: its target stays below the 60 KiB that the admin socket takes.
const AT_ONCE: usize = 1000;
pub(super) const OTHER_VERSION: &str = "the answer is not of this version of truepeer";

/// Bans clients.
pub fn ban(args: &BanArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let clients = read(&args.clients)?;
    let why = args.why.as_deref().unwrap_or_default();
    let terms = BanTerms { time: args.time, port: args.port, why, keep: args.keep };
    let places = BanPlaces::find(&args.ask, args.pins.as_deref(), args.keep)?;
    let set = ban_clients(places, &clients, &terms)?;
    let how_long = args.time.map_or_else(
        || "until truepeer unban".to_owned(),
        |time| format!("for {}", Age(time.as_secs_f64().max(1.0))),
    );
    let longer = match clients.len().saturating_sub(set) {
        0 => String::new(),
        _ if clients.len() == 1 => " at least: another ban ends later".to_owned(),
        some => format!(" at least: other bans of {} of them end later", Count(some as u64)),
    };
    Ok(writeln!(out, "{} banned {how_long}{longer}", named(&clients))?)
}

/// How clients are banned.
pub struct BanTerms<'a> {
    /// How long; in whole seconds, at least one.
    pub time: Option<Duration>,
    /// At this port alone.
    pub port: Option<NonZeroU16>,
    /// The reason.
    pub why: &'a str,
    /// `--keep`.
    pub keep: bool,
}

/// Bans clients in all of these places. Returns how many got these terms everywhere: a ban that ends later
/// stays.
///
/// # Errors
/// A place does not take it.
pub fn ban_clients(
    places: BanPlaces,
    clients: &[BannedPrefix],
    terms: &BanTerms<'_>,
) -> anyhow::Result<usize> {
    let BanTerms { time, port, why, keep: is_kept } = *terms;
    let seconds = time.map(|time| time.as_secs().max(1));
    let mut query = seconds.map_or_else(String::new, |seconds| format!("&for={seconds}"));
    if let Some(port) = port {
        query += &format!("&port={port}");
    }
    if !why.is_empty() {
        query += &format!("&why={}", escaped(why));
    }
    let mut set = clients.len();
    if let Some(running) = &places.running {
        set = set.min(usize::try_from(change(running, "POST", clients, &query)?)?);
    }
    let (since, why) = (now(), Arc::<str>::from(why));
    let until = seconds.and_then(|seconds| since.checked_add(seconds));
    let by = Some(rustix::process::getuid().as_raw());
    let ban =
        |clients: &BannedPrefix| Ban { clients: *clients, port, since, until, by, why: Arc::clone(&why) };
    let bans: Vec<Ban> = clients.iter().map(ban).collect();
    if let Some(mut attached) = places.attached {
        set = set.min(attached.set(&bans, since)?);
    }
    if is_kept {
        keep(&bans, since)?;
        let new = Bans::default();
        new.set(bans)?;
        truepeer_run::end_open(&new);
    }
    Ok(set)
}

/// Lifts bans.
pub fn unban(args: &UnbanArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut places = BanPlaces::find(&args.ask, args.pins.as_deref(), true)?;
    if args.all {
        let mut lifted = 0;
        if let Some(running) = &places.running {
            lifted = ask(running, "DELETE", "/bans")?;
        }
        if let Some(attached) = &mut places.attached {
            lifted = lifted.max(attached.clear()? as u64);
        }
        lifted = lifted.max(keep_only(now(), |_| false)?);
        return Ok(writeln!(out, "{} bans lifted", Count(lifted))?);
    }
    let clients = read(&args.clients)?;
    let lifted = unban_clients(places, &clients, Lifted { port: args.port, why: args.why.as_deref() })?;
    match (lifted, clients.len()) {
        (0, _) => writeln!(out, "{} not banned", named(&clients))?,
        (_, 1) => writeln!(out, "{} no longer banned", named(&clients))?,
        _ => writeln!(out, "{} bans lifted", Count(lifted))?,
    }
    Ok(())
}

/// Lifts the bans of these clients. Returns the most that any place had.
///
/// # Errors
/// A place can't be changed.
pub fn unban_clients(
    mut places: BanPlaces,
    clients: &[BannedPrefix],
    which: Lifted<'_>,
) -> anyhow::Result<u64> {
    let mut lifted = 0;
    if let Some(running) = &places.running {
        let mut terms = which.port.map_or_else(String::new, |port| format!("&port={port}"));
        if let Some(why) = which.why {
            terms += &format!("&why={}", escaped(why));
        }
        lifted = change(running, "DELETE", clients, &terms)?;
    }
    if let Some(attached) = &mut places.attached {
        lifted = lifted.max(attached.lift(clients, which)? as u64);
    }
    let lifted_too: BTreeSet<BannedPrefix> = clients.iter().copied().collect();
    Ok(lifted.max(keep_only(now(), |ban| {
        !lifted_too.contains(&ban.clients)
            || which.port.is_some_and(|port| ban.port != Some(port))
            || which.why.is_some_and(|why| *ban.why != *why)
    })?))
}

/// Lists who is banned.
pub fn bans(args: &BansArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (places, now) = (BanPlaces::find(&args.ask, args.pins.as_deref(), true)?, now());
    let mut all = BTreeMap::new();
    let mut add = |ban: Ban| all.insert((ban.clients, ban.port), ban);
    if places.are_all_that_are_there {
        kept_bans(now)?.into_iter().for_each(|ban| _ = add(ban));
    }
    if let Some(mut attached) = places.attached {
        attached.list(now)?.into_iter().for_each(|ban| _ = add(ban));
    }
    if let Some(running) = &places.running {
        let answer = running.ask("GET", "/bans")?;
        let bans: Vec<BanDoc> = serde_json::from_str(&answer).context(OTHER_VERSION)?;
        bans.iter().filter_map(BanDoc::ban).for_each(|ban| _ = add(ban));
    }
    let bans: Vec<BanDoc> = all.values().map(BanDoc::of).collect();
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&bans)?)?);
    }
    table(&bans, now, out)
}

/// Where bans are: in a process, in the kernel's tables, or in both.
pub struct BanPlaces {
    running: Option<Client>,
    attached: Option<AttachedBans>,
    /// The command line names none of them.
    are_all_that_are_there: bool,
}

impl BanPlaces {
    /// Those that the command line names; by default all that are there. `may_be_none`: the list of those
    /// that are kept, which `truepeer run` follows, is a place as well.
    ///
    /// # Errors
    /// None is there, or one that is there does not answer.
    pub fn find(ask: &AskSpec, pins: Option<&Path>, may_be_none: bool) -> anyhow::Result<Self> {
        let is_running_named = ask.admin.is_some() || ask.file.is_named();
        let attached =
            if is_running_named && pins.is_none() { None } else { Some(AttachedBans::find(pins)?) };
        let attached = attached.filter(|attached| !attached.is_empty());
        if pins.is_some() && !is_running_named {
            anyhow::ensure!(attached.is_some(), "nothing is attached; see truepeer attach status");
            return Ok(Self { running: None, attached, are_all_that_are_there: false });
        }
        let running = Client::of(ask).and_then(|running| running.ask("GET", "/healthz").map(|_| running));
        match running {
            Ok(running) => {
                Ok(Self { running: Some(running), attached, are_all_that_are_there: !is_running_named })
            }
            Err(failure) if is_running_named => Err(failure),
            Err(failure) if attached.is_some() || may_be_none => {
                // Without an address (no file, or no [admin] in it) no process can be told of bans. Of a file
                // with an error nobody knows.
                anyhow::ensure!(
                    is_nobody_there(&failure),
                    "{failure:#}; nothing was done. --pins DIR names the attachments alone"
                );
                Ok(Self { running: None, attached, are_all_that_are_there: true })
            }
            Err(failure) => Err(failure.context(
                "nothing is attached, and no truepeer answers; truepeer run follows the bans of --keep alone",
            )),
        }
    }
}

/// Whether no process listens. One that does and can't answer would not learn of a ban.
pub(super) fn is_nobody_there(failure: &anyhow::Error) -> bool {
    let kind = failure.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(kind, Some(io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused))
}

/// Asks for a change for all of these clients. Returns how many bans were set or lifted.
fn change(running: &Client, method: &str, clients: &[BannedPrefix], terms: &str) -> anyhow::Result<u64> {
    let mut changed = 0;
    for some in clients.chunks(AT_ONCE) {
        let some: Vec<String> = some.iter().map(|client| format!("client={client}")).collect();
        changed += ask(running, method, &format!("/bans?{}{terms}", some.join("&")))?;
    }
    Ok(changed)
}

/// Passes on what the answer notes, and returns its count.
fn ask(running: &Client, method: &str, target: &str) -> anyhow::Result<u64> {
    let answer = running.ask_patiently(method, target)?;
    let (notes, count) = answer.trim_end().rsplit_once('\n').unwrap_or(("", answer.trim_end()));
    notes.lines().for_each(|note| tell!("note: {note}"));
    count.parse().context(OTHER_VERSION)
}

/// All that the arguments name, once.
fn read(clients: &[Banned]) -> anyhow::Result<Vec<BannedPrefix>> {
    let mut all = BTreeSet::new();
    for named in clients {
        match named {
            Banned::Prefix(prefix) => _ = all.insert(*prefix),
            Banned::Input => all.extend(parse("standard input", &io::read_to_string(io::stdin())?)?),
            Banned::File(path) => all.extend(read_file(path)?),
        }
    }
    if all.is_empty() {
        bail!("the list is empty");
    }
    Ok(all.into_iter().collect())
}

fn read_file(path: &Path) -> anyhow::Result<Vec<BannedPrefix>> {
    let name = path.display().to_string();
    let text = fs::read_to_string(path).with_context(|| format!("can't read {name}"))?;
    parse(&name, &text)
}

/// As the lists of `--allow`: an entry a line, comments after `#` or `;`. One wrong line refuses the list.
fn parse(name: &str, text: &str) -> anyhow::Result<Vec<BannedPrefix>> {
    let mut all = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
        if !entry.is_empty() {
            all.push(entry.parse().with_context(|| format!("{name}, line {}", index + 1))?);
        }
    }
    Ok(all)
}

fn named(clients: &[BannedPrefix]) -> String {
    match clients {
        [one] => format!("{one} is"),
        all => format!("{} clients are", Count(all.len() as u64)),
    }
}

/// Everything but letters and digits as `%20`.
fn escaped(text: &str) -> String {
    let each = |byte: u8| match byte {
        b if b.is_ascii_alphanumeric() => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    };
    text.bytes().map(each).collect()
}

fn table(bans: &[BanDoc], now: u64, out: &mut dyn Write) -> anyhow::Result<()> {
    let head = ["CLIENT", "PORT", "LEFT", "AGE", "BY", "WHY"].map(str::to_owned);
    #[expect(clippy::cast_precision_loss, reason = "it is rounded to minutes or hours")]
    let age = |seconds: u64| Age(seconds as f64).to_string();
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = bans.iter().map(|ban| {
        [
            ban.client.clone(),
            or_dash(ban.port.map(|port| port.to_string())),
            or_dash(ban.until.map(|until| age(until.saturating_sub(now)))),
            age(now.saturating_sub(ban.since)),
            or_dash(ban.by.map(|by| by.to_string())),
            ban.why.clone(),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 6] = std::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_bans_is_a_table() {
        let json = r#"[{"client":"192.0.2.7","port":null,"since":1000,"until":4600,"by":0,"why":"five wrong passwords"},
            {"client":"2001:db8:7::/48","port":443,"since":1000,"until":null,"by":null,"why":""}]"#;
        let bans: Vec<BanDoc> = serde_json::from_str(json).unwrap();
        let mut text = Vec::new();
        table(&bans, 1060, &mut text).unwrap();
        let expected = "\
CLIENT           PORT  LEFT    AGE    BY  WHY
192.0.2.7        -     59m00s  1m00s  0   five wrong passwords
2001:db8:7::/48  443   -       1m00s  -
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn a_list_of_clients_has_comments_and_its_wrong_line_is_named() {
        let list = parse("list", "# head\n192.0.2.7 # one\n\n::ffff:192.0.2.8\r\n2001:db8::/32;").unwrap();
        let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["192.0.2.7", "192.0.2.8", "2001:db8::/32"]);
        let error = format!("{:#}", parse("list", "192.0.2.7\n0.0.0.0/0").unwrap_err());
        assert!(error.starts_with("list, line 2: 0.0.0.0/0 has every address"), "{error}");
    }

    #[test]
    fn a_truepeer_that_gives_no_answer_is_there() {
        let socket = std::env::temp_dir().join(format!("truepeer-bans-{}.sock", std::process::id()));
        let failure = || Client::at(&socket).ask("GET", "/healthz").unwrap_err();
        assert!(is_nobody_there(&failure()), "no socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let ends = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(!is_nobody_there(&failure()), "it ends the connection");
        ends.join().unwrap();
        assert!(is_nobody_there(&failure()), "its socket is left");
        fs::remove_file(&socket).unwrap();
    }

    #[test]
    fn a_reason_is_escaped() {
        assert_eq!(escaped("a b&c=%é\u{1f600}"), "a%20b%26c%3D%25%C3%A9%F0%9F%98%80");
    }
}
