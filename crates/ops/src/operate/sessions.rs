//! `truepeer sessions`.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::Context as _;

use crate::admin::client::Client;
use crate::admin::listing::SessionDoc;
use crate::units::{Age, Bytes};
use truepeer_config::spec::SessionsArgs;
use truepeer_sys::tell;

/// Prints the open sessions, or ends them.
pub fn sessions(args: &SessionsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let client = Client::of(&args.ask)?;
    let query = args.client.as_ref().map_or_else(String::new, |clients| format!("?client={clients}"));
    let answer = client.ask("GET", &format!("/sessions{query}"))?;
    if args.json && !args.kill {
        return Ok(writeln!(out, "{}", answer.trim_end())?);
    }
    let sessions: Vec<SessionDoc> =
        serde_json::from_str(&answer).context("the list is incomplete: truepeer has ended, or stalled")?;
    if !args.kill {
        return table(&sessions, out);
    }
    let mut ended = 0;
    for session in &sessions {
        match client.ask("DELETE", &format!("/sessions/{}", session.id)) {
            Ok(_) => ended += 1,
            Err(error) => tell!("warning: {error:#}"), // it has ended meanwhile
        }
    }
    Ok(writeln!(out, "{ended} sessions ended; both ends saw a reset")?)
}

fn table(sessions: &[SessionDoc], out: &mut dyn Write) -> anyhow::Result<()> {
    let address =
        |address: Option<SocketAddr>| address.map_or_else(|| "-".to_owned(), |address| address.to_string());
    let head = ["CLIENT", "SENDER", "BACKEND", "STAGE", "UP", "DOWN", "AGE", "ID"].map(str::to_owned);
    let rows = sessions.iter().map(|session| {
        let tags: String = session.tags.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        [
            address(session.client),
            session.sender.to_string(),
            address(session.backend),
            session.stage.clone(),
            Bytes(session.bytes_up).to_string(),
            Bytes(session.bytes_down).to_string(),
            Age(session.age_seconds).to_string(),
            session.id.clone() + &tags,
        ]
    });
    let rows: Vec<[String; 8]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths: [usize; 8] = std::array::from_fn(width);
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let is_number = (4..7).contains(&column);
            line += &if is_number { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let session = SessionDoc {
            id: "tcp-0-1-2".into(),
            listener: "127.0.0.1:8443".into(),
            kind: "tcp".into(),
            stage: "relaying".into(),
            client: Some("192.0.2.1:4000".parse().unwrap()),
            sender: "127.0.0.1:5000".parse().unwrap(),
            backend: None,
            bytes_up: 5,
            bytes_down: 1 << 20,
            rate_up: 0,
            rate_down: 0,
            age_seconds: 61.0,
            tags: [("unique_id".to_owned(), "abc".to_owned())].into(),
        };
        let mut text = Vec::new();
        table(&[session], &mut text).unwrap();
        let expected = "\
CLIENT          SENDER          BACKEND  STAGE      UP     DOWN    AGE  ID
192.0.2.1:4000  127.0.0.1:5000  -        relaying  5 B  1.0 MiB  1m01s  tcp-0-1-2 unique_id=abc
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
