//! `truepeer doctor`: does it work on this machine now, and if not, what to type.
//!
//! Everything is tried as it is: nothing is changed, unless `--try` asks for the routes to be made for the time
//! of the test. The proof is a real round trip to the backend from an address that is not ours.
//!
//! ```text
//!  privileges ─▶ machine ─▶ routing ─▶ backends (plainly, then as 192.0.2.1 / 2001:db8::1) ─▶ firewall, if that failed
//! ```

mod attach;
mod backend;
mod firewall;
pub(crate) mod listening;
mod machine;
mod privileges;
mod probe;
mod report;
mod routing;

use std::io::Write;
use std::time::Duration;

use anyhow::Result;

use crate::routes::guard::RoutesGuard;
use crate::routes::item::IpFamily;
use crate::routes::options::{SetupOptions, local_addresses};
use crate::routes::plan::{RoutePlan, Setup};
use crate::routes::{netlink::Netlink, place::BackendPlace};
use crate::spec::RoutesMode;

pub(crate) use report::Report;

/// What to examine, and how.
#[derive(Debug)]
pub(crate) struct DoctorOptions {
    /// What truepeer will be asked to do.
    pub(crate) routing: SetupOptions,
    /// The backends were named, not taken by default: a family that is off is then a failure.
    pub(crate) named: bool,
    /// Make the routes for the time of the test.
    pub(crate) with_routes: bool,
    /// How long to wait for a backend.
    pub(crate) timeout: Duration,
    /// Write JSON.
    pub(crate) json: bool,
}

/// What all examinations look at.
struct Subject<'a> {
    options: &'a DoctorOptions,
    setup: Setup,
    plan: RoutePlan,
    /// The mark that upstream sockets will carry.
    mark: Option<u32>,
    local: Vec<std::net::IpAddr>,
}

impl Subject<'_> {
    fn has_backend(&self, family: IpFamily, place: BackendPlace) -> bool {
        self.setup.backends.iter().any(|b| IpFamily::of(b.net.addr()) == family && b.place == place)
    }

    fn has_family(&self, family: IpFamily) -> bool {
        self.setup.backends.iter().any(|b| IpFamily::of(b.net.addr()) == family)
    }
}

/// Examines, writes the report, and says whether all that is needed holds.
pub(crate) fn examine(options: &DoctorOptions, out: &mut dyn Write) -> Result<bool> {
    let setup = options.routing.setup()?;
    let _routes =
        options.with_routes.then(|| RoutesGuard::establish(RoutesMode::AutoIfAllowed, &setup)).transpose()?;
    let plan = RoutePlan::for_setup(&setup);
    let mark = setup.mark.or(plan.upstream_mark);
    let local = local_addresses(&mut Netlink::open()?)?;
    let subject = Subject { options, setup, plan, mark, local };

    let mut report = Report::default();
    privileges::examine(&subject, &mut report);
    machine::examine(&subject, &mut report);
    routing::examine(&subject, &mut report)?;
    backend::examine(&subject, &mut report);
    attach::examine(&mut report);
    report.write(options.json, out)?;
    Ok(report.holds())
}
