//! `truepeer doctor`: says why a server does not see its clients, and prints the command that fixes what fails.
//!
//! Without a port or a backend it looks at what is there: the file, the truepeer that runs by it, attachments and
//! their devices, sockets. With a port it tells all about that one. With backends it checks whether `proxy` would
//! work for them.
//!
//! The checks use the machine as it is and change nothing, except that `--try` creates the routes for the
//! duration of the test, or bans its client for a moment. The decisive check is a real round trip to the
//! backend from a foreign address.
//!
//! ```text
//!  privileges ─▶ machine ─▶ routing ─▶ backends (plainly, then as 192.0.2.1 / 2001:db8::1) ─▶ firewall, if that failed
//! ```

mod attach;
mod backend;
mod firewall;
mod here;
mod listener_trip;
pub mod listening;
mod machine;
mod needed;
mod owners;
mod port;
mod privileges;
mod probe;
mod report;
mod routing;
mod scene;
mod splice;
mod subject;
mod trip;

use std::io::Write;

use anyhow::Result;

use self::subject::Subject;
use truepeer_config::spec::RoutesMode;
use truepeer_privilege::confine::needs::NEEDS;
use truepeer_privilege::keeper::guard::{Hands, RoutesGuard};
use truepeer_routes::netlink::Netlink;
use truepeer_routes::options::local_addresses;
use truepeer_routes::plan::{RoutePlan, Setup};

pub(crate) use report::Report;
pub use scene::{AtPort, ReadFile, SceneOptions};
pub use subject::DoctorOptions;

/// Runs the checks, writes the report, and returns whether every required check passed.
pub fn examine(options: &DoctorOptions, out: &mut dyn Write) -> Result<bool> {
    let setup = options.routing.setup()?;
    let _routes = routes_for(options, &setup)?;
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
    splice::examine(options.running.as_ref(), &mut report);
    report.write(options.json, out)?;
    Ok(report.holds())
}

/// Looks at what is there on this host, or at one port of it.
pub fn look(options: &SceneOptions, at: Option<AtPort>, out: &mut dyn Write) -> Result<bool> {
    let mut report = Report::default();
    match at {
        Some(at) => port::examine(&scene::Scene::look(options, &mut report), at, &mut report),
        None => {
            here::examine(options, &mut report)?;
            if options.json {
                report.set_needs(NEEDS);
            }
        }
    }
    report.write(options.json, out)?;
    Ok(report.holds())
}

fn routes_for(options: &DoctorOptions, setup: &Setup) -> Result<Option<RoutesGuard>> {
    let establish = || RoutesGuard::establish(RoutesMode::AutoIfAllowed, setup, &Hands::Own);
    options.with_routes.then(establish).transpose()
}
