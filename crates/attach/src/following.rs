//! Follows the network for the attachments of a file: attaches again whenever devices or addresses change,
//! and when the name leads to another network namespace, as after the restart of a container.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{info, warn};
use truepeer_bpf::Rules;
use truepeer_config::plan::AttachKey;
use truepeer_config::spec::AttachSpec;

use super::entry::{put, put_again};
use super::names_of_devices;
use super::network::{LastFailure, Network, pause_after};

/// A thread that follows the network until this is dropped. What is attached stays then.
pub struct Following {
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Following {
    /// Attaches, or gives an attachment other rules; open connections continue. Then follows.
    ///
    /// # Errors
    /// It can't be attached. What was attached before stays.
    pub fn begin(key: &AttachKey, args: &AttachSpec, rules: &Rules) -> Result<Self> {
        // Before attaching: a change meanwhile is noticed.
        let network = Network::of(&key.target, names_of_devices(args))?;
        let (stop, stopped) = UnixStream::pair().context("socketpair")?;
        put(key, args, rules)?;
        let followed = Followed { key: key.clone(), args: args.clone(), rules: rules.clone() };
        let follow = move || followed.follow(network, &stopped);
        let thread = thread::Builder::new().name("follow".to_owned()).spawn(follow);
        let thread = thread.inspect_err(|error| {
            warn!("attachment {}: can't follow the network: {error}", key.pins.display())
        });
        Ok(Self { stop, thread: thread.ok() })
    }

    /// `false`: another command has detached it.
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // Can't fail: the stream is connected. A panic of the thread has already been reported.
        let _ = self.stop.shutdown(Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Followed {
    key: AttachKey,
    args: AttachSpec,
    rules: Rules,
}

impl Followed {
    fn follow(&self, network: Network, stopped: &UnixStream) {
        let name = self.key.pins.display();
        let (mut network, mut gone, mut last) = (Some(network), Instant::now(), LastFailure::default());
        loop {
            let pause = network.as_ref().map_or(Some(pause_after(gone)), Network::pause);
            let is_notice = match wait(stopped, network.as_ref(), pause) {
                Ok(Woken::Stop) => return,
                Ok(woken) => woken == Woken::Notice,
                Err(error) => return warn!("attachment {name}: follows the network no more: poll: {error}"),
            };
            if network.as_ref().is_some_and(|network| !network.is_current()) {
                // Without a handle to it, the network namespace can end.
                (network, gone) = (None, Instant::now());
            }
            let Some(known) = &mut network else {
                match self.attach_anew() {
                    Ok(new) => (network, last) = (Some(new), LastFailure::default()),
                    Err(error) => {
                        if let Some(words) = last.news(&error) {
                            warn!("attachment {name}: {words}; trying again");
                        }
                    }
                }
                continue;
            };
            if !is_notice && !known.is_pending() {
                continue;
            }
            match known.follow(&self.args, || put_again(&self.key, &self.args, &self.rules)) {
                Ok(true) => {}
                Ok(false) => return info!("attach: {name} was detached by another command"),
                Err(error) => warn!("attachment {name}: {error:#}; what was attached stays; trying again"),
            }
        }
    }

    /// Attaches to the network namespace to which the name leads now.
    fn attach_anew(&self) -> Result<Network> {
        let network = Network::of(&self.key.target, names_of_devices(&self.args))?;
        put(&self.key, &self.args, &self.rules)?;
        Ok(network)
    }
}

#[derive(PartialEq, Eq)]
enum Woken {
    Stop,
    Notice,
    Time,
}

fn wait(stopped: &UnixStream, network: Option<&Network>, pause: Option<Duration>) -> Result<Woken, Errno> {
    let pause = pause.and_then(|pause| Timespec::try_from(pause).ok());
    let mut ready = vec![PollFd::new(stopped, PollFlags::IN)];
    let descriptors = network.into_iter().flat_map(Network::descriptors);
    ready.extend(descriptors.map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN)));
    loop {
        match poll(&mut ready, pause.as_ref()) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) if !ready[0].revents().is_empty() => return Ok(Woken::Stop),
            Ok(0) => return Ok(Woken::Time),
            Ok(_) => return Ok(Woken::Notice),
        }
    }
}
