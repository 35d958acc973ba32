//! `/`: the status as a page for a browser. It needs no script, and follows the browser's light or dark
//! colours.

use std::fmt::{self, Display, Write as _};

use super::status::{ListenerDoc, StatusDoc};
use crate::units::{Bytes, Count};

const STYLE: &str = "\
:root { color-scheme: light dark; --line: light-dark(#d8dee4, #3d444d); --dim: light-dark(#59636e, #9198a1); \
--good: light-dark(#1a7f37, #3fb950); --bad: light-dark(#cf222e, #f85149) }\n\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem }\n\
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }\n\
table { border-collapse: collapse; width: 100% } th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right }\n\
th:first-child, td:first-child, .name { text-align: left } th { color: var(--dim); font-weight: normal }\n\
td { font-variant-numeric: tabular-nums } .good { color: var(--good) } .bad { color: var(--bad) } .dim { color: var(--dim) }\n";

/// The whole page.
pub(super) fn html(status: &StatusDoc) -> String {
    let mut page = String::new();
    // Writing to a String can't fail.
    let _ = write(&mut page, status);
    page
}

fn write(page: &mut String, status: &StatusDoc) -> fmt::Result {
    let class = if status.state == "serving" { "good" } else { "bad" };
    write!(
        page,
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<meta name=viewport content=\"width=device-width\">\n\
         <meta http-equiv=refresh content=5>\n<title>truepeer: {state}</title>\n<style>\n{STYLE}</style>\n\
         <h1>truepeer {version} <span class={class}>{state}</span></h1>\n",
        state = Escaped(&status.state),
        version = Escaped(&status.version),
    )?;
    if let Some(reason) = &status.reason {
        writeln!(page, "<p class=bad>{}</p>", Escaped(reason))?;
    }
    page.push_str(
        "<h2>Listeners</h2>\n<table>\n<tr><th>listener<th>open<th>accepted<th>refused<th>failed connects\
         <th>to backends<th>to senders\n",
    );
    for listener in &status.listeners {
        row(page, listener)?;
    }
    page.push_str("</table>\n");
    let refusals = || {
        status.listeners.iter().flat_map(|listener| listener.refusals.iter().map(move |one| (listener, one)))
    };
    if refusals().next().is_some() {
        page.push_str(
            "<h2>Refusals and failures</h2>\n<table>\n<tr><th>reason<th class=name>listener<th>times\n",
        );
        let mut refusals: Vec<_> = refusals().collect();
        refusals.sort_by_key(|(_, (_, times))| std::cmp::Reverse(**times));
        for (listener, (reason, times)) in refusals {
            let (reason, name, protocol) = (Escaped(reason), listener.name(), listener.protocol.name());
            writeln!(
                page,
                "<tr><td>{reason}<td class=name>{protocol} {}<td>{}",
                Escaped(&name),
                Count(*times)
            )?;
        }
        page.push_str("</table>\n");
    }
    if !status.attachments.is_empty() {
        page.push_str(
            "<h2>Attached in the kernel</h2>\n<table>\n<tr><th>port<th>network namespace<th>open\n",
        );
        for (place, port) in
            status.attachments.iter().flat_map(|place| place.ports.iter().map(move |port| (place, port)))
        {
            let netns = if place.netns.is_empty() { "this one" } else { &place.netns };
            let (number, protocol) = (port.port, port.protocol.name());
            writeln!(page, "<tr><td>{number}/{protocol}<td>{}<td>{}", Escaped(netns), port.open)?;
        }
        page.push_str("</table>\n");
    }
    page.push_str(
        "<p class=dim>Since the start, renewed every 5 s. For machines: <a href=/metrics>/metrics</a>, \
         <a href=/status>/status</a>, <a href=/sessions?limit=1000>/sessions</a>, <a href=/healthz>/healthz</a>, \
         <a href=/readyz>/readyz</a>.</p>\n",
    );
    Ok(())
}

fn row(page: &mut String, listener: &ListenerDoc) -> fmt::Result {
    let closed = if listener.listening { "" } else { " <span class=dim>(closed)</span>" };
    let refused = listener.count("connections_refused") + listener.count("datagrams_refused");
    writeln!(
        page,
        "<tr><td>{} {} {}{closed}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        Escaped(&listener.entry),
        listener.protocol.name(),
        Escaped(&listener.name()),
        Count(listener.open as u64),
        Count(listener.taken()),
        Count(refused),
        Count(listener.count("connects_failed")),
        Bytes(listener.count("bytes_up")),
        Bytes(listener.count("bytes_down")),
    )
}

/// Text within HTML.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                _ => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_the_page_is_markup_of_others() {
        let mut status = StatusDoc {
            passed: truepeer_config::plan::passed::PassedNames::new(),
            version: "1".into(),
            pid: 1,
            is_replaced: false,
            state: "broken".into(),
            reason: Some("<script>&\"".into()),
            listeners: Vec::new(),
            missing: Vec::new(),
            splice: None,
            attachments: Vec::new(),
            complaints: Vec::new(),
        };
        assert!(html(&status).contains("<p class=bad>&lt;script&gt;&amp;&quot;</p>"));
        status.reason = None;
        assert!(!html(&status).contains("class=bad>&"));
    }
}
