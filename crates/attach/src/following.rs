//! Follows the network for the attachments of a file: attaches again whenever devices or addresses change.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::{info, warn};
use truepeer_bpf::Rules;
use truepeer_config::plan::AttachKey;
use truepeer_config::spec::AttachSpec;

use super::entry::{put, put_again};
use super::names_of_devices;
use super::network::Network;
use super::watch::is_attached;

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
    fn follow(&self, mut network: Network, stopped: &UnixStream) {
        let name = self.key.pins.display();
        loop {
            let mut ready = [PollFd::new(stopped, PollFlags::IN), PollFd::new(&network, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if !ready[0].revents().is_empty() => return,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return warn!("attachment {name}: follows the network no more: poll: {error}"),
            }
            match self.attach_again(&mut network) {
                Ok(true) => {}
                Ok(false) => return info!("attach: {name} was detached by another command"),
                Err(error) => warn!("attachment {name}: {error:#}; what was attached stays"),
            }
        }
    }

    /// Attaches to what has changed. `false`: another command has detached it.
    fn attach_again(&self, network: &mut Network) -> Result<bool> {
        if !network.has_changed()? {
            return Ok(true);
        }
        if !network.run(|| is_attached(&self.args))? {
            return Ok(false);
        }
        put_again(&self.key, &self.args, &self.rules)?;
        Ok(true)
    }
}
