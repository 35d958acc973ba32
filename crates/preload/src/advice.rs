//! Advice after a refusal, in the options of `truepeer run`. Programs that were started in another way get
//! none.

use core::sync::atomic::{AtomicBool, Ordering};

use truepeer_handover::Refused;
use truepeer_policy::Refusal;

static BY_RUN: AtomicBool = AtomicBool::new(false);

/// `truepeer run` has started this program.
pub(crate) fn by_run() {
    BY_RUN.store(true, Ordering::Relaxed);
}

/// The text after the refusal's own.
pub(crate) fn of(refused: &Refused) -> Option<String> {
    if !BY_RUN.load(Ordering::Relaxed) {
        return None;
    }
    match refused {
        Refused::Policy(Refusal::SenderNotAllowed { sender }) => {
            Some(format!("; if it is your load balancer, add --allow {}", sender.ip()))
        }
        Refused::Policy(Refusal::HeaderMissing { sender }) => {
            Some(format!("; if this sender is itself the client, add --header {}=forbid", sender.ip()))
        }
        Refused::Policy(Refusal::HeaderForbidden { sender }) => {
            Some(format!("; or add --header {}=require", sender.ip()))
        }
        Refused::Policy(Refusal::ClaimRefused { client, .. }) => {
            Some(format!("; if it is right, add --allow-claims {}", client.ip()))
        }
        Refused::Policy(Refusal::ClientDenied { .. }) => Some("; --deny-clients lists it".to_owned()),
        Refused::Header { error, .. } if error.is_too_long() => Some("; --header-max raises it".to_owned()),
        _ => None,
    }
}
