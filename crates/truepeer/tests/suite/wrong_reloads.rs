//! Configurations with an error, reloaded while sessions come and go: they change nothing, whatever else
//! fails meanwhile.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::Signal;
use truepeer_testbed::crowd::{gather, nth_client};
use truepeer_testbed::{Bed, Program, Running, Test, Truepeer, ip_here, skip, sockets};

use crate::faults::{Load, Outcome, start_backend};
use crate::peers;
use crate::stand::{BACKEND_V4, BACKEND_V6, DOOR_V4, TRUEPEER};

pub(crate) fn tests() -> Vec<Test> {
    let test = |name, work: fn(&Bed) -> anyhow::Result<()>| {
        Test::new(name, work).time_limit(Duration::from_secs(300))
    };
    vec![
        test("a_configuration_with_any_error_changes_nothing_under_load", under_load),
        test("a_configuration_with_any_error_changes_nothing_while_all_else_fails", while_all_else_fails),
    ]
}

/// A truepeer whose configuration the test changes.
struct Reloaded<'a> {
    bed: &'a Bed,
    truepeer: Running,
    good: String,
}

/// How many files truepeer may open.
const FILES: usize = 1024;

impl<'a> Reloaded<'a> {
    fn start(bed: &'a Bed) -> anyhow::Result<Self> {
        if peers::peer().is_some() {
            return skip("reloads truepeer.toml");
        }
        let good = format!(
            "[[proxy]]\nlisten = [\"{DOOR_V4}\"]\nipv4 = \"{BACKEND_V4}\"\nipv6 = \"{BACKEND_V6}\"\n"
        );
        let file = bed.write("truepeer.toml", &good)?;
        let program = Program::new(TRUEPEER).args(["serve", "-c"]).arg(&file);
        let truepeer = Truepeer::of(program.limit(&format!("nofile={FILES}:{FILES}"))).start(bed)?;
        truepeer.wait_listening(DOOR_V4)?;
        Ok(Self { bed, truepeer, good })
    }

    /// One configuration with each kind of error.
    fn wrong(&self) -> [String; 7] {
        let good = &self.good;
        [
            "[[proxy".into(),
            format!("{good}header = \"sometimes\"\n"),
            "[[proxy]]\nlistn = [\"127.0.0.1:8443\"]\n".into(),
            "[[proxy]]\nlisten = [\"127.0.0.1:99999\"]\nipv4 = \"127.0.0.1:8000\"\n".into(),
            format!("{good}allow = [\"@missing\", \"300.0.0.0/8\"]\n"),
            // It can't be opened: no address of this host.
            good.replace(DOOR_V4, "192.0.2.99:8443"),
            String::new(),
        ]
    }

    /// Reloads each of them; `after` runs after each.
    fn refuses_all(&self, after: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let refusals = || self.truepeer.log().matches("not reloaded").count();
        for text in self.wrong() {
            let before = refusals();
            self.bed.write("truepeer.toml", &text)?;
            self.truepeer.signal(Signal::HUP)?;
            self.truepeer.wait_state("the refusal", || refusals() > before).with_context(|| text.clone())?;
            after()?;
        }
        Ok(())
    }

    fn is_as_it_was(&self) -> anyhow::Result<()> {
        self.bed.write("truepeer.toml", &self.good)?;
        self.truepeer.signal(Signal::HUP)?;
        self.truepeer.wait_for_log("reloaded: nothing has changed")
    }
}

fn under_load(bed: &Bed) -> anyhow::Result<()> {
    let _backend = start_backend(bed)?;
    let reloaded = Reloaded::start(bed)?;
    let load = Load::during(bed, |load| {
        reloaded.refuses_all(|| load.wait_for_more())?;
        reloaded.is_as_it_was()
    })?;
    load.none_failed()
}

/// The backend is gone, then stands still; the rules are gone, and the network is down; nothing more can be
/// opened.
fn while_all_else_fails(bed: &Bed) -> anyhow::Result<()> {
    let mut backend = start_backend(bed)?;
    let reloaded = Reloaded::start(bed)?;
    let refuses_all = || reloaded.refuses_all(|| Ok(()));
    Load::during(bed, |load| {
        load.kill(&backend)?;
        refuses_all().context("without a backend")?;
        backend = start_backend(bed)?;
        load.wait_for_more()?;

        backend.signal(Signal::STOP)?;
        thread::scope(|scope| {
            let long = scope.spawn(|| load.session_at(DOOR_V4, nth_client(4_000_000), 4 << 20));
            let refused = sockets::wait_until_stuck().and_then(|()| refuses_all());
            backend.signal(Signal::CONT)?;
            refused.context("while the backend stands still")?;
            let long = long.join().map_err(|_| anyhow::anyhow!("the session panicked"))?;
            ensure!(long == Outcome::Right, "a session that was stuck: {long:?}");
            load.wait_for_more()
        })?;

        ip_here(&["rule flush protocol 123", "-6 rule flush protocol 123"])?;
        ip_here(&["link set lo down"])?;
        let refused = refuses_all();
        ip_here(&["link set lo up"])?;
        refused.context("while the network is down")?;
        load.wait_for_more()?;

        // A second descriptor is kept for each session.
        let crowd = gather(bed, 2 * FILES, DOOR_V4)?;
        reloaded
            .truepeer
            .wait_state("all descriptors to be open", || {
                reloaded.truepeer.descriptors().is_ok_and(|open| open > FILES / 3)
            })
            .and_then(|()| refuses_all())
            .context("without descriptors")?;
        drop(crowd);
        load.wait_for_more()?;
        reloaded.is_as_it_was()
    })?;
    ensure!(reloaded.truepeer.is_alive());
    Ok(())
}
