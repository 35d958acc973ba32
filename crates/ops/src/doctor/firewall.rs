//! Finds firewall rules that are known to drop spoofed packets on loopback as martians: the rules by which
//! Docker and kube-proxy guard 127.0.0.0/8, and reverse-path checks written as rules. This check runs only if
//! all other checks pass and still no answer comes back. Rules that can't be read are reported as unknown.

use std::process::Command;

use super::report::Check;

/// A suspect rule contains one of these, besides `drop` or `reject`.
const SUSPECTS: [&str; 5] = ["127.0.0.0/8", "127.0.0.1", "::1", "fib saddr", "ct state invalid"];

/// Returns the suspects, and the command that exempts loopback from the first of them.
pub(super) fn look() -> (Vec<Check>, Option<String>) {
    let tried = "firewall rules that drop spoofed addresses on lo";
    let listing = match listing() {
        Ok(listing) => listing,
        Err(why) => return (vec![Check::skip("firewall", tried, why)], None),
    };
    let suspects = suspects(&listing);
    if suspects.is_empty() {
        let found = "none found by nft (iptables-legacy is not looked at)";
        return (vec![Check::note("firewall", tried, found)], None);
    }
    let note = |suspect: &Suspect| {
        let found = format!("{} in chain {}", suspect.rule, suspect.chain);
        Check::note("firewall", tried, found).mend(suspect.mend())
    };
    (suspects.iter().take(3).map(note).collect(), suspects.first().map(Suspect::mend))
}

fn listing() -> Result<String, String> {
    let output = Command::new("nft").args(["list", "ruleset"]).output();
    let output = output.map_err(|error| format!("nft can't be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default()))
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Suspect {
    /// `FAMILY TABLE CHAIN`, as nft commands take it.
    chain: String,
    /// The hook from which the kernel calls the chain; empty if another chain jumps to it.
    hook: String,
    rule: String,
}

impl Suspect {
    /// Accepts loopback before the rule is evaluated. The rule still guards the other interfaces.
    fn mend(&self) -> String {
        let accept = |word| format!("insert rule {} {word} lo accept", self.chain);
        match self.hook.as_str() {
            "prerouting" | "input" => format!("nft {}", accept("iifname")),
            "output" | "postrouting" => format!("nft {}", accept("oifname")),
            _ => format!("nft '{}; {}'", accept("iifname"), accept("oifname")),
        }
    }
}

fn suspects(listing: &str) -> Vec<Suspect> {
    let mut table = String::new();
    let mut here = Suspect::default();
    let mut found = Vec::new();
    for line in listing.lines().map(str::trim) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["table", family, name, ..] => table = format!("{family} {name}"),
            ["chain", name, ..] => here = Suspect { chain: format!("{table} {name}"), ..Suspect::default() },
            ["type", _, "hook", hook, ..] => here.hook = (*hook).to_owned(),
            _ if is_suspect(line) => found.push(Suspect { rule: line.to_owned(), ..here.clone() }),
            _ => {}
        }
    }
    found
}

fn is_suspect(line: &str) -> bool {
    let drops = line.split_ascii_whitespace().any(|word| word == "drop" || word == "reject");
    drops && SUSPECTS.iter().any(|suspect| line.contains(suspect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guards_of_loopback_are_found_with_their_chain() {
        let listing = r#"
table ip filter {
	chain KUBE-FIREWALL {
		ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8
		ip saddr != 127.0.0.0/8 ip daddr 127.0.0.0/8 ct status ! dnat counter packets 3 bytes 180 drop
	}
}
table inet fw {
	chain input {
		type filter hook input priority filter; policy drop;
		tcp dport 22 accept
		fib saddr . iif oif missing drop
	}
}"#;
        let found = suspects(listing);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].rule.ends_with("drop"));
        assert_eq!(
            found[0].mend(),
            "nft 'insert rule ip filter KUBE-FIREWALL iifname lo accept; insert rule ip filter KUBE-FIREWALL oifname lo accept'"
        );
        assert_eq!(found[1].mend(), "nft insert rule inet fw input iifname lo accept");
    }
}
