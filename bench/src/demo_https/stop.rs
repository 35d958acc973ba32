//! Stopping on a signal, usually Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The status that shells report for a process ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// Whether a signal has asked for the end.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Catches such signals from now on, so that started programs can be stopped first. Call it inside the
    /// private namespaces: entering them resets signals.
    pub(super) fn on_signals() -> anyhow::Result<Self> {
        Self::on(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Catches no signals: they end the process.
    pub(crate) fn never() -> Self {
        Self(Arc::default())
    }

    /// Call it before the private namespaces are created. Ctrl-C also reaches the outer process, which must
    /// wait for the inner one. Other signals end it, and with it everything inside.
    pub(super) fn outlast_the_keyboard() -> anyhow::Result<()> {
        // Inside, a handler would be lost when signals are reset.
        if std::env::var_os("TRUEPEER_TESTBED_INSIDE").is_none() {
            Self::on(&[SIGINT])?;
        }
        Ok(())
    }

    fn on(signals: &[i32]) -> anyhow::Result<Self> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in signals {
            // The second signal ends this process at once. The order matters: otherwise the first one would.
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
