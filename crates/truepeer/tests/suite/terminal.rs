//! A program on a pseudo-terminal, and its screen as a person sees it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use truepeer_testbed::{Bed, wait_for, with_child_signal};

/// The terminal, and the program whose controlling terminal it is.
pub(crate) struct Terminal {
    child: Child,
    controller: File,
    /// The program's side stays open here, too: reading the controller would fail after the program's end.
    peer: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts a program on a terminal of 80 columns and 24 lines.
    pub(crate) fn start(bed: &Bed, program: &str, args: &[&str]) -> anyhow::Result<Self> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("a pseudo-terminal")?;
        unlockpt(&controller)?;
        let peer = ioctl_tiocgptpeer(&controller, OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        let controller = File::from(controller);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(24)?, size(80)?, 0)));
        resize(&controller, 80, 24)?;
        // setsid(1) makes it the controlling terminal, and executes the program in its own place.
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", program])
            .args(args)
            .current_dir(bed.dir())
            .env("TERM", "xterm-256color")
            .stdin(Stdio::from(peer.try_clone()?))
            .stdout(Stdio::from(peer.try_clone()?))
            .stderr(Stdio::from(peer.try_clone()?));
        let child = with_child_signal(|| command.spawn()).context("setsid")?;
        let (mut output, drawn) = (controller.try_clone()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                drawn.lock().unwrap_or_else(PoisonError::into_inner).process(&bytes[..length]);
            }
        });
        Ok(Self { child, controller, peer, screen })
    }

    /// The text on the screen.
    pub(crate) fn text(&self) -> String {
        self.screen.lock().unwrap_or_else(PoisonError::into_inner).screen().contents()
    }

    /// Waits until the screen shows all of this.
    pub(crate) fn wait_for(&self, shown: &[&str]) -> anyhow::Result<()> {
        let is_shown = || {
            let text = self.text();
            shown.iter().all(|one| text.contains(one))
        };
        wait_for(&format!("{shown:?} on the screen"), is_shown).with_context(|| self.text())
    }

    /// Types keys.
    pub(crate) fn type_keys(&mut self, keys: &str) -> anyhow::Result<()> {
        Ok(self.controller.write_all(keys.as_bytes())?)
    }

    /// Gives the window another size.
    pub(crate) fn resize(&self, columns: u16, lines: u16) -> anyhow::Result<()> {
        let mut screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.screen_mut().set_size(size(lines)?, size(columns)?);
        resize(&self.controller, columns, lines)
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("a process id")?;
        Ok(kill_process(pid, signal)?)
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn wait_end(&mut self) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        wait_for("the program's end", || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })?;
        status.context("no status")
    }

    /// Whether a shell could go on: the usual screen, a cursor, lines with an echo.
    pub(crate) fn is_restored(&self) -> anyhow::Result<bool> {
        let modes = tcgetattr(&self.peer)?.local_modes;
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
            && !screen.screen().alternate_screen()
            && !screen.screen().hide_cursor())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(number: u16) -> anyhow::Result<NonZeroU16> {
    NonZeroU16::new(number).context("a size of 0")
}

fn resize(controller: &File, columns: u16, lines: u16) -> anyhow::Result<()> {
    Ok(tcsetwinsize(controller, Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}
