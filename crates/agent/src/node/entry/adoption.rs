//! Whether what is attached at a pod's place is what is wanted, and may stay.

use std::time::Instant;

use ipnet::IpNet;

use crate::in_force;
use crate::node::outcome::Seen;
use crate::plan::{Actual, Want, description};
use crate::processes::{Addresses, Place};
use crate::sender_limit::SenderLimit;
use crate::truepeer::Status;

use super::{Claim, Entry, Other};

impl Entry {
    /// The kernel has this in its network namespace, though nobody asks for it.
    pub(in crate::node) fn is_attached_unasked(
        &mut self,
        place: &Place,
        status: &Status,
        limit: &SenderLimit,
    ) {
        let excess = limit.exceeded_by(in_force::senders(status)).map(|sender| too_wide(sender, limit));
        self.actual = Actual::Other { netns: place.netns };
        self.other = Other { description: in_force::shown(status), serves: in_force::serves(status), excess };
        self.attached_at = Some(place.clone());
    }

    /// Its addresses, as they are now. With a new one, the rules are attached once more: to its device, and
    /// so that no header may name it as the client.
    pub(in crate::node) fn heed(&mut self, addresses: Addresses) {
        let is_new = self.addresses.as_ref().is_some_and(|before| !addresses.is_subset(before));
        // With a wrong annotation, once that is mended.
        if is_new && !matches!(self.want(), Want::Attach(_)) {
            return;
        }
        if let (true, Actual::Attached { netns, rules }) = (is_new, &self.actual) {
            tracing::info!(name = %self.desired.name, "it has a new address: is attached once more");
            let (description, netns) = (description(rules, *netns), *netns);
            self.claim = Some(Claim { description: description.clone(), is_true: true });
            self.other = Other { description, serves: true, excess: None };
            self.actual = Actual::Other { netns };
        }
        self.addresses = Some(addresses);
    }

    /// Takes over what the kernel has at this place, or notes that it differs.
    pub(super) fn seen(
        &mut self,
        seen: Seen,
        place: Place,
        limit: &SenderLimit,
    ) -> (&'static str, &'static str) {
        let (name, netns) = (&self.desired.name, place.netns);
        match seen {
            Seen::Same(rules) => {
                tracing::info!(%name, rules = %rules, netns, "adopted");
                self.attached(place, rules, Vec::new());
                ("adopt", "ok")
            }
            Seen::Other { description, serves, senders, difference } => {
                tracing::info!(%name, found = %description, "not as it is wanted: {difference}");
                self.actual = Actual::Other { netns };
                let excess = limit.exceeded_by(&senders).map(|sender| too_wide(sender, limit));
                self.other = Other { description, serves, excess };
                self.attached_at = Some(place);
                ("adopt", "changed")
            }
            Seen::Nothing => {
                self.actual = Actual::Nothing;
                ("adopt", "lost")
            }
        }
    }

    /// `status`: of its place, read a moment ago. A step that asks for each pod would take seconds for many.
    pub(in crate::node) fn adopt(
        &mut self,
        status: &Status,
        limit: &SenderLimit,
        now: Instant,
    ) -> Option<(&'static str, &'static str)> {
        let wanted = match self.want() {
            Want::Attach(rules) => Some(rules.clone()),
            Want::Nothing | Want::Unclear(_) | Want::Forbidden(_) => None,
        };
        let place = self.place.clone()?;
        self.changed_at = Some(now);
        let seen = Seen::of(status, wanted, self.addresses.as_ref());
        Some(self.seen(seen, place, limit))
    }
}

fn too_wide(sender: IpNet, limit: &SenderLimit) -> Want {
    Want::Forbidden(format!(
        "{sender} may send headers: expected senders inside {}, which --allow-senders of the agent lists",
        limit.shown()
    ))
}
