//! Cgroups that are made anew, as the service manager does at each restart; and listeners of other cgroups.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::{Bed, Host, Running, Test, Topology, tests, wait_for};

use crate::cgroups::Cgroup;
use crate::containers::serve_in;
use crate::kit::{attach_on, command, counter_on, header, longer_header, who};

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        a_cgroup_made_anew_is_followed,
        restarts_under_load_show_no_wrong_name_and_no_header,
        a_listener_of_another_cgroup_is_warned_of_and_counted,
        a_containers_cgroup_made_anew_is_refused_until_it_is_attached_again,
    ];
    all.into_iter().map(|test| test.of_group("restarts")).collect()
}

/// A unit's cgroup, in a slice.
struct Unit {
    // Dropped first.
    own: Cgroup,
    slice: Cgroup,
}

impl Unit {
    fn make(name: &str) -> Result<Unit> {
        let slice = Cgroup::make(name)?;
        Ok(Unit { own: slice.below("own.service")?, slice })
    }

    /// As `systemctl restart` does; with its slice, which lives as long as its units.
    fn made_anew(self, slice_too: bool) -> Result<Unit> {
        let Unit { own, slice } = self;
        drop(own);
        let name = slice.0.clone();
        if slice_too {
            drop(slice);
            std::fs::create_dir(&name)?;
            let slice = Cgroup(name);
            return Ok(Unit { own: slice.below("own.service")?, slice });
        }
        Ok(Unit { own: slice.below("own.service")?, slice })
    }
}

fn end_by(server: Running, signal: Signal) -> Result<()> {
    server.signal(signal)?;
    server.wait_end().map(drop)
}

fn a_cgroup_made_anew_is_followed(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let mut unit = Unit::make("anew")?;
    let mut server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
    attach_on(bed, host, &["--port", "80", "--cgroup", &unit.own.0.to_string_lossy()])?;
    for (n, (signal, slice_too)) in
        [(Signal::TERM, false), (Signal::KILL, false), (Signal::TERM, true)].into_iter().enumerate()
    {
        end_by(server, signal)?;
        unit = unit.made_anew(slice_too)?;
        server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
        let client = format!("203.0.113.1:{}", 1000 + n);
        let header = if n % 2 == 0 { header(&client)? } else { longer_header(&client)? };
        let seen = who(lb, host.at(false, 80), &header).with_context(|| format!("restart {n}"))?;
        ensure!(seen == client, "restart {n}: {client} was seen as {seen}");
    }
    ensure!(counter_on(bed, host, "outside_cgroup")? == 0);
    end_by(server, Signal::TERM)
}

/// Each connection is served under its client's name, or fails as it does without truepeer.
fn restarts_under_load_show_no_wrong_name_and_no_header(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let unit = Unit::make("load")?;
    let mut server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
    attach_on(bed, host, &["--port", "80", "--cgroup", &unit.own.0.to_string_lossy()])?;
    let (done, to) = (&AtomicBool::new(false), host.at(false, 80));
    std::thread::scope(|scope| {
        let loads: Vec<_> = (1..=4).map(|n| scope.spawn(move || load(lb, to, n, done))).collect();
        let mut restarts = |mut unit: Unit| -> Result<()> {
            for n in 0..6 {
                is_served(lb, to)?;
                server.signal(if n % 2 == 0 { Signal::KILL } else { Signal::TERM })?;
                server.wait_end()?;
                unit = unit.made_anew(n == 3)?;
                server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
            }
            is_served(lb, to)?;
            server.stop().map(drop)
        };
        let outcome = restarts(unit);
        done.store(true, Ordering::Relaxed);
        for load in loads {
            let served = load.join().map_err(|_| anyhow::anyhow!("a load panicked"))??;
            ensure!(served > 0, "no connection was served");
        }
        outcome
    })
}

fn is_served(lb: &Host, to: SocketAddr) -> Result<()> {
    let header = header("203.0.113.99:1")?;
    wait_for("the server", || who(lb, to, &header).is_ok_and(|seen| seen == "203.0.113.99:1"))
}

/// Returns how many were served.
fn load(lb: &Host, to: SocketAddr, number: usize, done: &AtomicBool) -> Result<usize> {
    let mut served = 0;
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let client = format!("203.0.113.{number}:{}", 1000 + n % 60_000);
        let header = if n % 3 == 0 { longer_header(&client)? } else { header(&client)? };
        // Refused, or cut off by the restart.
        let Ok(seen) = who(lb, to, &header) else { continue };
        ensure!(seen.is_empty() || seen == client, "{client} was seen as {seen:?}");
        served += usize::from(!seen.is_empty());
    }
    Ok(served)
}

/// As by socket activation.
fn a_listener_of_another_cgroup_is_warned_of_and_counted(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let (named, opener) = (Cgroup::make("named")?, Cgroup::make("opener")?);
    let server = serve_in(bed, &opener.0, &host.netns, "0.0.0.0:80")?;
    let attaching =
        command(bed, &["--port", "80", "--allow", "any", "--cgroup", &named.0.to_string_lossy()])?
            .in_netns(&host.netns)
            .start(bed)?;
    ensure!(attaching.wait_end()?.success(), "{}", attaching.log());
    let expected = format!("0.0.0.0:80 was opened in {}, which is not below", opener.0.display());
    ensure!(attaching.stderr().contains(&expected), "{}", attaching.stderr());
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        let seen = who(lb, host.at(false, 80), &header(client)?)?;
        ensure!(seen.starts_with(&format!("{}:", lb.v4)), "{seen}");
    }
    ensure!(counter_on(bed, host, "outside_cgroup")? == 2);
    end_by(server, Signal::TERM)
}

/// Its hooks end with its cgroup; its network namespace may be another container's, which goes on.
fn a_containers_cgroup_made_anew_is_refused_until_it_is_attached_again(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let unit = Unit::make("container")?;
    let server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
    let attach_to = |server: &Running| {
        command(bed, &["--port", "80", "--allow", "any", "--pid", &server.pid().to_string()])?.run(bed)
    };
    attach_to(&server)?;
    let client = "203.0.113.1:1001";
    ensure!(who(lb, host.at(false, 80), &header(client)?)? == client);
    end_by(server, Signal::KILL)?;
    let unit = unit.made_anew(false)?;
    let server = serve_in(bed, &unit.own.0, &host.netns, "0.0.0.0:80")?;
    let outcome = who(lb, host.at(false, 80), &header(client)?);
    ensure!(outcome.as_ref().is_ok_and(String::is_empty) || outcome.is_err(), "{outcome:?}");
    ensure!(counter_on(bed, host, "refused_elsewhere")? == 1);
    let status = command(bed, &["status"])?.in_netns(&host.netns).run(bed)?;
    ensure!(status.contains("attach again"), "{status}");
    attach_to(&server)?;
    ensure!(who(lb, host.at(false, 80), &header(client)?)? == client);
    end_by(server, Signal::TERM)
}
