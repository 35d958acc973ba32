//! What is logged, and where: lines on standard error, formatted for people on a terminal and for machines
//! otherwise.
//!
//! | verbosity | contains |
//! |---|---|
//! | quiet | `warn` and `error`: what an operator should or must act on |
//! | 0 | `info`: start and stop |
//! | any | `info` of the target [`ACCESS`], if access logging is on: a line for each request |
//! | 1 | `info` of the target [`SESSION`]: a line for each session, at its end |
//! | 2 | `debug`: every change of a session's state |

use std::io::IsTerminal;
use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

use truepeer_https::exchange::ACCESS;
use truepeer_session::journal::SESSION;

use crate::plan::LogConfig;
use crate::spec::{LogFormat, Verbosity};

/// What is logged.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Sets up logging for the whole process; a second call changes nothing.
pub(crate) fn init(config: LogConfig) {
    let is_terminal = std::io::stderr().is_terminal();
    let format = config.format.unwrap_or(if is_terminal { LogFormat::Text } else { LogFormat::Json });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let (filter, handle) = reload::Layer::new(filter(config.verbosity));
    // It is set only if logging is already set up: then with the filter that counts.
    let _ = FILTER.set(handle);
    let subscriber = tracing_subscriber::registry();
    // try_init fails only if logging is already set up.
    let _ = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(is_terminal).with_target(false);
            tracing::subscriber::set_global_default(subscriber.with(lines.with_filter(filter)))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            tracing::subscriber::set_global_default(subscriber.with(lines.with_filter(filter)))
        }
    };
}

/// Changes what is logged from now on.
pub(crate) fn set_verbosity(verbosity: Verbosity) {
    if let Some(handle) = FILTER.get() {
        // Fails only if the subscriber is gone.
        let _ = handle.reload(filter(verbosity));
    }
}

fn filter(verbosity: Verbosity) -> Targets {
    let (everything, session) = match verbosity {
        Verbosity::Quiet => (LevelFilter::WARN, LevelFilter::WARN),
        Verbosity::Lifecycle => (LevelFilter::INFO, LevelFilter::WARN),
        Verbosity::Sessions => (LevelFilter::INFO, LevelFilter::INFO),
        Verbosity::States => (LevelFilter::DEBUG, LevelFilter::DEBUG),
    };
    Targets::new()
        .with_default(everything)
        .with_target(SESSION, session)
        .with_target(ACCESS, LevelFilter::INFO)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn each_level_adds_to_the_level_below() {
        for (verbosity, warnings, start, sessions, states) in [
            (Verbosity::Quiet, true, false, false, false),
            (Verbosity::Lifecycle, true, true, false, false),
            (Verbosity::Sessions, true, true, true, false),
            (Verbosity::States, true, true, true, true),
        ] {
            let filter = filter(verbosity);
            assert_eq!(filter.would_enable("truepeer_session", &Level::WARN), warnings, "{verbosity:?}");
            assert_eq!(filter.would_enable("truepeer::server", &Level::INFO), start, "{verbosity:?}");
            assert_eq!(filter.would_enable(SESSION, &Level::INFO), sessions, "{verbosity:?}");
            assert_eq!(filter.would_enable("truepeer_session", &Level::DEBUG), states, "{verbosity:?}");
        }
    }
}
