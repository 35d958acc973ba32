//! `truepeer vpp up`: starts VPP and configures a layout, or leaves everything as it was.
//!
//! ```text
//! find ─▶ directory, lock ─▶ startup.conf, vcl-*.conf ─▶ start ─▶ state ─▶ wait for an answer ─▶ lines ─▶ complete
//!                                                          └───────────── any failure: stop, clear ──────────┘
//! ```

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::control::{Control, tail};
use super::down;
use super::find::Installation;
use super::layout::{Layout, VppPort};
use super::place::VppPlace;
use super::process::{State, boot, started};
use super::startup::{Startup, has_huge_pages};
use super::vcl::{VclConfig, Workers};
use truepeer_config::spec::UpArgs;
use truepeer_config::spec::defaults::ETHERNET_ADDRESSES;

/// How long VPP may take until it answers; it takes a second, unless the machine is busy.
const START_TIMEOUT: Duration = Duration::from_secs(90);
const PERIOD: Duration = Duration::from_millis(50);

/// The layout that the options ask for.
fn layout(args: &UpArgs) -> Layout {
    let Some([first, second]) = args.ethernet.clone() else { return Layout::Loopback };
    let [towards_clients, towards_origin] = args.address.unwrap_or(ETHERNET_ADDRESSES);
    Layout::Ethernet([
        VppPort { device: first, address: towards_clients },
        VppPort { device: second, address: towards_origin },
    ])
}

/// Starts VPP. Writes each command line that VPP gets to `out`.
pub(super) fn up(args: &UpArgs, out: &mut dyn Write) -> Result<()> {
    let layout = layout(args);
    let place = VppPlace::of(args.place.dir.as_deref())?;
    let huge_pages = has_huge_pages(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let prefix = format!("truepeer-vpp-{}", std::process::id());
    let startup =
        Startup { dir: place.dir(), prefix: &prefix, layout: &layout, core: args.core, huge_pages }.text();
    if args.print {
        return print(&place, &layout, &startup, out);
    }
    let installation = Installation::find(args.vpp.as_deref())?;
    check(&layout, args.core, huge_pages)?;
    place.make()?;
    let _lock = place.lock()?;
    refuse_second(&place)?;
    place.clear_sockets();

    let interrupted = interruptible()?;
    if !huge_pages {
        writeln!(out, "no huge pages: VPP uses small ones and is somewhat slower (set vm.nr_hugepages)")?;
    }
    let attempt = Attempt {
        place: &place,
        layout: &layout,
        installation: &installation,
        prefix,
        interrupted: &interrupted,
    };
    attempt.write_files(&startup)?;
    attempt.run(out)
}

/// The checks that need no running VPP.
fn check(layout: &Layout, core: Option<u16>, huge_pages: bool) -> Result<()> {
    let of_dpdk = layout.pci_addresses();
    ensure!(
        of_dpdk.is_empty() || huge_pages,
        "--ethernet {}: dpdk needs huge pages, and none are free; type sysctl -w vm.nr_hugepages=1024",
        of_dpdk.join(",")
    );
    if let Some(core) = core {
        let cores = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
        ensure!(
            cores.is_set(usize::from(core)),
            "--core {core}: this process may not run on it (see taskset -p)"
        );
    }
    Ok(())
}

/// Fails if VPP already runs there. Cleans up after one that was killed.
fn refuse_second(place: &VppPlace) -> Result<()> {
    let Some(state) = State::read(&place.state())? else { return Ok(()) };
    if state.process()?.is_some() {
        bail!(
            "VPP is up already (process {}, {}); end it with truepeer vpp down, or choose another directory with --dir",
            state.pid,
            state.layout
        );
    }
    down::clear_shared_memory(&state.prefix);
    Ok(())
}

/// Set by the signals that end this process: then VPP is ended, too.
fn interruptible() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag)).context("sigaction")?;
    }
    Ok(flag)
}

fn print(place: &VppPlace, layout: &Layout, startup: &str, out: &mut dyn Write) -> Result<()> {
    let control = Control { vppctl: "vppctl".into(), socket: place.cli_socket() };
    writeln!(out, "# {}", place.startup_conf().display())?;
    out.write_all(startup.as_bytes())?;
    writeln!(out, "# vpp -c {}", place.startup_conf().display())?;
    for line in layout.lines() {
        writeln!(out, "{}", control.command(&line.words))?;
    }
    Ok(())
}

/// A VPP that is being started.
struct Attempt<'a> {
    place: &'a VppPlace,
    layout: &'a Layout,
    installation: &'a Installation,
    prefix: String,
    interrupted: &'a AtomicBool,
}

impl Attempt<'_> {
    fn write_files(&self, startup: &str) -> Result<()> {
        let write = |file: std::path::PathBuf, text: String| {
            fs::write(&file, text).with_context(|| file.display().to_string())
        };
        write(self.place.startup_conf(), startup.to_owned())?;
        for namespace in self.layout.namespaces() {
            for workers in Workers::ALL {
                let config = VclConfig::of_guide(self.place.dir(), namespace, workers);
                write(self.place.vcl(namespace, workers), config.to_string())?;
            }
        }
        Ok(())
    }

    fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut vpp = self.start(out)?;
        let done = self.set_up(&mut vpp, out);
        if done.is_err() {
            let said = tail(&self.place.log());
            // The child has not been waited for, so its process id has not been reused.
            let _ = vpp.kill();
            let _ = vpp.wait();
            down::clear(self.place, &self.prefix);
            return done.with_context(|| match said.as_str() {
                "" => "VPP was stopped again".to_owned(),
                said => format!("VPP was stopped again; the end of its output:{said}\nthe cause"),
            });
        }
        Ok(())
    }

    fn start(&self, out: &mut dyn Write) -> Result<Child> {
        let (vpp, conf) = (&self.installation.vpp, self.place.startup_conf());
        writeln!(out, "{} -c {}", vpp.display(), conf.display())?;
        let log = File::create(self.place.log()).with_context(|| self.place.log().display().to_string())?;
        let mut command = Command::new(vpp);
        command.arg("-c").arg(&conf).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // A new process group: Ctrl-C on the terminal must end only truepeer. VPP outlives it.
        command.process_group(0).env_remove("LD_PRELOAD");
        command.spawn().with_context(|| vpp.display().to_string())
    }

    fn set_up(&self, vpp: &mut Child, out: &mut dyn Write) -> Result<()> {
        let mut state = self.state(vpp)?;
        // Write the state before the layout is complete: if this process is killed, `down` knows what to end.
        state.write(&self.place.state())?;
        let control = Control { vppctl: self.installation.vppctl.clone(), socket: self.place.cli_socket() };
        let version = self.wait_for_answer(vpp, &control)?;
        for line in self.layout.lines() {
            self.heed_signals()?;
            writeln!(out, "{}", control.command(&line.words))?;
            control.carry_out(&line)?;
        }
        state.complete = true;
        state.write(&self.place.state())?;
        self.tell(&version, vpp, out)
    }

    fn state(&self, vpp: &Child) -> Result<State> {
        let pid = i32::try_from(vpp.id()).context("a process number")?;
        let (started, _) = started(pid).context("VPP has no entry in /proc")?;
        Ok(State {
            pid,
            started,
            boot: boot()?,
            vpp: self.installation.vpp.clone(),
            vppctl: self.installation.vppctl.clone(),
            prefix: self.prefix.clone(),
            layout: self.layout.to_string(),
            namespaces: self.layout.namespaces().into_iter().map(str::to_owned).collect(),
            proxy: self.layout.namespace_of_proxy().to_owned(),
            complete: false,
        })
    }

    /// Waits until VPP answers with its version.
    fn wait_for_answer(&self, vpp: &mut Child, control: &Control) -> Result<String> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            self.heed_signals()?;
            if let Some(status) = vpp.try_wait().context("waitpid")? {
                bail!("VPP ended at once ({status})");
            }
            if control.socket.exists()
                && let Ok(version) = control.ask("show version")
                && version.starts_with("vpp ")
            {
                return Ok(version.trim().to_owned());
            }
            ensure!(Instant::now() < deadline, "VPP did not answer within {} s", START_TIMEOUT.as_secs());
            thread::sleep(PERIOD);
        }
    }

    fn heed_signals(&self) -> Result<()> {
        ensure!(!self.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    fn tell(&self, version: &str, vpp: &Child, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "up: {version} (process {}), {}", vpp.id(), self.layout)?;
        for namespace in self.layout.namespaces() {
            writeln!(out, "to run a program on it: truepeer vpp run --namespace {namespace} -- COMMAND")?;
        }
        Ok(())
    }
}
