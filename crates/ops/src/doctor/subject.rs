//! What is examined.

use std::time::Duration;

use truepeer_config::spec::AdminAddr;
use truepeer_routes::item::IpFamily;
use truepeer_routes::options::SetupOptions;
use truepeer_routes::place::BackendPlace;
use truepeer_routes::plan::{RoutePlan, Setup};

/// What to check, and how.
#[derive(Debug)]
pub struct DoctorOptions {
    /// The job that truepeer will do.
    pub routing: SetupOptions,
    /// The backends were named, not taken by default. A family that is off is then a failure.
    pub named: bool,
    /// Creates the routes for the duration of the test.
    pub with_routes: bool,
    /// How long to wait for a backend.
    pub timeout: Duration,
    /// A running truepeer, whose sessions are examined as well.
    pub running: Option<AdminAddr>,
    /// Write JSON.
    pub json: bool,
}

/// The input of every check.
pub(super) struct Subject<'a> {
    pub(super) options: &'a DoctorOptions,
    pub(super) setup: Setup,
    pub(super) plan: RoutePlan,
    /// The mark of the upstream sockets.
    pub(super) mark: Option<u32>,
    pub(super) local: Vec<std::net::IpAddr>,
}

impl Subject<'_> {
    pub(super) fn has_backend(&self, family: IpFamily, place: BackendPlace) -> bool {
        self.setup.backends.iter().any(|b| IpFamily::of(b.net.addr()) == family && b.place == place)
    }

    pub(super) fn has_family(&self, family: IpFamily) -> bool {
        self.setup.backends.iter().any(|b| IpFamily::of(b.net.addr()) == family)
    }
}
