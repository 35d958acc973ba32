//! Whether the receiver's log names the client that the application should see.

use std::net::IpAddr;

use crate::case::{self, Case, Client};
use crate::report::{Finding, Report};
use crate::verdict::{Verdict, Want};

/// Whether the log names the client of a plain header; if not, the report says whom. `own`: the sender.
pub(crate) fn is_log_trusted(
    report: &mut Report,
    believed: &[IpAddr],
    own: IpAddr,
    target: IpAddr,
    header: &[u8],
) -> bool {
    let client = case::client();
    if believed.contains(&client) {
        return true;
    }
    if believed.contains(&own) && own != target.to_canonical() {
        let said = format!("the log names the sender, {own}, not {client}");
        let (name, want) = ("whom the log names after a plain header", Some(Want::Taken));
        let finding = Finding::of_rule(name, "v2-proxy", want, Verdict::Broken, said);
        report.findings.push(finding.with_bytes(header));
    } else {
        let note = "the log does not name the client of a plain header, so it is not looked at";
        report.notes.push(note.to_owned());
    }
    false
}

/// A header was taken, but the log names somebody else.
pub(crate) fn belief(case: &Case, own: IpAddr, believed: &[IpAddr]) -> Option<(Verdict, String)> {
    let right = case.client.right(own)?;
    if case.want != Want::Taken || believed.is_empty() || believed.contains(&right) {
        return None;
    }
    let all = believed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let who = if case.client == Client::Own { "the sender " } else { "" };
    let said = format!("taken, but the log names {all}, not {who}{right}");
    Some((Verdict::against(case.level), said))
}

#[cfg(test)]
mod tests {
    use super::belief;
    use crate::case::{self, Client};
    use crate::verdict::Verdict;

    #[test]
    fn the_log_has_to_name_the_client_or_the_sender() {
        let ip = |text: &str| text.parse().expect(text);
        let (own, client) = (ip("127.0.0.9"), ip("192.0.2.1"));
        let named = |name: &str| case::vectors().find(|case| case.name == name).expect(name);
        let (v2, local) = (named("v2 TCP over IPv4"), named("v2 LOCAL with addresses"));
        assert_eq!((v2.client, local.client), (Client::Named(client), Client::Own));
        assert_eq!(belief(&v2, own, &[ip("127.0.0.1"), client]), None);
        let (verdict, said) = belief(&v2, own, &[own]).expect("wrong");
        assert!(verdict == Verdict::Broken && said.ends_with("not 192.0.2.1"), "{said}");
        let (verdict, said) = belief(&local, own, &[ip("127.0.0.1")]).expect("wrong");
        assert!(
            verdict == Verdict::Broken && said.ends_with("names 127.0.0.1, not the sender 127.0.0.9"),
            "{said}"
        );
        assert_eq!(belief(&local, own, &[own]), None);
        assert_eq!(belief(&local, own, &[]), None, "a silent log tells nothing");
    }
}
