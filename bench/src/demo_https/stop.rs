//! Being told to stop, by Ctrl-C above all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What shells give as the status of who was ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Whether a signal has asked for the end.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on such signals are heard instead of ending the process: what it has started is to be stopped first. To
    /// be called on the private ground, whose making gives signals their usual meaning.
    pub(super) fn on_signals() -> anyhow::Result<Self> {
        Self::on(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Nobody asks: signals end the process as usual.
    pub(crate) fn never() -> Self {
        Self(Arc::default())
    }

    /// To be called before the private ground is made. Ctrl-C goes to the process outside as well, which has to wait for
    /// the one inside. Other signals end it as usual, and all that is inside with it.
    pub(super) fn outlast_the_keyboard() -> anyhow::Result<()> {
        // Inside, a handler would be lost when signals get their usual meaning, and not be set again.
        if std::env::var_os("TRUEPEER_TESTBED_INSIDE").is_none() {
            Self::on(&[SIGINT])?;
        }
        Ok(())
    }

    fn on(signals: &[i32]) -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in signals {
            // The second one ends this process, whatever it is doing; in this order, or the first one would.
            signal_hook::flag::register_conditional_shutdown(*signal, INTERRUPTED, Arc::clone(&asked))
                .context("sigaction")?;
            signal_hook::flag::register(*signal, Arc::clone(&asked)).context("sigaction")?;
        }
        Ok(Self(asked))
    }

    /// An error once the end was asked for.
    pub(super) fn heed(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.load(Ordering::Relaxed), "interrupted: everything is stopped");
        Ok(())
    }
}
