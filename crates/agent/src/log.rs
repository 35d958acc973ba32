//! The log: lines on standard error, as text or as JSON.

use std::io::IsTerminal as _;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::options::LogFormat;

/// Sets up logging. Other crates' messages appear only if they are warnings.
pub(crate) fn init(format: LogFormat, level: Level) {
    let filter = Targets::new()
        .with_default(LevelFilter::from_level(level.min(Level::WARN)))
        // Its complaints about the API server are told by the watch, at most once a minute.
        .with_target("kube_client", LevelFilter::ERROR)
        .with_target("truepeer_agent", LevelFilter::from_level(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    // Fails only if it is set up already.
    let _ = match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::stderr().is_terminal()).with_target(false);
            tracing::subscriber::set_global_default(registry.with(lines.with_filter(filter)))
        }
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_current_span(false).with_span_list(false);
            tracing::subscriber::set_global_default(registry.with(lines.with_filter(filter)))
        }
    };
}
