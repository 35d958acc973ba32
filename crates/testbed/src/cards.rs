//! Network cards of this machine, which [`crate::Topology`] takes instead of veth pairs. Only the machines
//! that `make kernels` makes have them.
//!
//! A card has another name in each namespace, so it is known by its link address. If its namespace ends, the
//! kernel gives it back to the one that the cards came from.

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use truepeer_sys::netns::NetNs;

use crate::wait::wait_for;

/// The variable that lists the cards: the file of the namespace they are in, and their link addresses. A wire
/// joins the first and the second one, the third and the fourth.
const CARDS: &str = "TRUEPEER_TESTBED_CARDS";

/// One card, unused as yet.
pub(crate) struct Card {
    store: NetNs,
    link_address: String,
}

/// The two cards of this wire, if this machine has as many.
pub(crate) fn of_wire(number: usize) -> anyhow::Result<Option<[Card; 2]>> {
    let Ok(list) = env::var(CARDS) else { return Ok(None) };
    let mut words = list.split_whitespace();
    let store = NetNs::open(Path::new(words.next().context(CARDS)?))?;
    let addresses: Vec<&str> = words.skip(2 * number).take(2).collect();
    let [left, right] = addresses[..] else { return Ok(None) };
    let card = |link_address: &str| Card { store: store.clone(), link_address: link_address.to_owned() };
    Ok(Some([card(left), card(right)]))
}

impl Card {
    /// Moves it to a namespace, given by a path, under this name. Waits for its last namespace to end.
    pub(crate) fn move_to(&self, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.store.run(|| {
            wait_for(&format!("the card {}", self.link_address), || self.name().is_some())?;
            let own = self.name().context("the card has gone")?;
            ip(&["link", "set", &own, "name", name, "netns", namespace]).map(drop)
        })?
    }

    /// Its name in the calling thread's namespace.
    fn name(&self) -> Option<String> {
        let links = ip(&["-o", "link"]).ok()?;
        let line = links.lines().find(|line| line.contains(&self.link_address))?;
        Some(line.split(": ").nth(1)?.to_owned())
    }
}

fn ip(words: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("ip").args(words).output().context("ip")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "ip {}: {}", words.join(" "), complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
