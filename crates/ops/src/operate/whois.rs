//! `truepeer whois`.

use std::io::Write;

use anyhow::{Context as _, bail};
use truepeer_attach::{Looked, connections_with};
use truepeer_config::spec::WhoisArgs;

use super::bans::{OTHER_VERSION, is_nobody_there};
use crate::admin::Client;
use crate::admin::whois::{MOST, WhoisDoc};
use crate::units::Age;

/// Prints who is behind an address.
pub fn whois(args: &WhoisArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let asked = args.address;
    let is_running_named = args.ask.admin.is_some() || args.ask.file.is_named();
    let (mut found, mut looked) = (Vec::new(), Vec::new());
    if is_running_named || args.pins.is_none() {
        match Client::of(&args.ask).and_then(|running| running.find(&format!("/whois?address={asked}"))) {
            Ok(Ok(answer)) => found = serde_json::from_str(&answer).context(OTHER_VERSION)?,
            Ok(Err(nothing)) => looked.push(nothing),
            Err(failure) if is_running_named => return Err(failure),
            Err(failure) if is_nobody_there(&failure) => {
                looked.push(format!("{failure:#} (name it: --admin)"))
            }
            Err(failure) => looked.push(format!("{failure:#}")),
        }
    }
    if !is_running_named || args.pins.is_some() {
        match connections_with(args.pins.as_deref(), asked)? {
            Looked::Found(connections) => {
                if connections.is_empty() {
                    looked.push(
                        "truepeer attach: no open connection has it as its client or sender".to_owned(),
                    );
                }
                found.extend(connections.iter().map(WhoisDoc::attached));
            }
            Looked::Nothing => looked.push("truepeer attach: nothing is attached".to_owned()),
            Looked::Hidden => {
                looked.push("truepeer attach: only root can read its tables; try sudo".to_owned())
            }
        }
    }
    if found.is_empty() {
        let looked: Vec<String> = looked.iter().map(|one| format!("  - {one}")).collect();
        bail!(
            "{asked} is not found:\n{}\n  - what has ended is in the log; truepeer run keeps no table",
            looked.join("\n")
        );
    }
    if args.json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&found)?)?);
    }
    for (number, doc) in found.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write(doc, out)?;
    }
    if found.len() >= MOST {
        writeln!(out, "\nthese are the first {MOST}; with a port: truepeer whois ADDRESS:PORT")?;
    }
    Ok(())
}

fn write(doc: &WhoisDoc, out: &mut dyn Write) -> anyhow::Result<()> {
    let WhoisDoc { client, shown_as, sender, why, listener, kind, backend, id, .. } = doc;
    let mut line = |name: &str, value: String| writeln!(out, "{name:<12} {value}");
    line("client", client.map_or_else(|| "not known yet".to_owned(), |client| client.to_string()))?;
    if let Some(shown) = shown_as.filter(|shown| Some(*shown) != *client) {
        line("shown as", shown.to_string())?;
    }
    line("sender", sender.to_string())?;
    line("why", why.clone())?;
    line("listener", format!("{listener} ({kind})"))?;
    if let Some(backend) = backend {
        line("backend", backend.to_string())?;
    }
    if let Some(id) = id {
        line("session", id.clone())?;
    }
    if let Some(netns) = doc.netns {
        let attachment = doc.attachment.map_or_else(|| "port detached".to_owned(), |id| id.to_string());
        line("attachment", format!("{attachment}, network namespace {netns}"))?;
    }
    if let Some(age) = doc.age_seconds {
        line("open for", Age(age).to_string())?;
    }
    if let Some(subject) = &doc.subject {
        line("certificate", subject.clone())?;
    }
    for (name, value) in doc.tlvs.iter().filter(|(name, _)| *name != "subject") {
        line("TLV", format!("{name}={value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_it_is_stands_in_lines() {
        let json = r#"{"client":"[2001:db8::1]:5000","shown_as":"254.237.119.6:5000",
            "sender":"10.0.0.7:40112","why":"the sender's header names it","listener":"0.0.0.0:443",
            "kind":"tcp","backend":"127.0.0.1:80","id":"tcp-0-17-3","attachment":null,"netns":null,
            "age_seconds":72.5,"subject":"CN=alice",
            "tlvs":{"authority":"site.test","ssl_cn":"alice"}}"#;
        let mut text = Vec::new();
        write(&serde_json::from_str(json).unwrap(), &mut text).unwrap();
        let expected = "\
client       [2001:db8::1]:5000
shown as     254.237.119.6:5000
sender       10.0.0.7:40112
why          the sender's header names it
listener     0.0.0.0:443 (tcp)
backend      127.0.0.1:80
session      tcp-0-17-3
open for     1m12s
certificate  CN=alice
TLV          authority=site.test
TLV          ssl_cn=alice
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
