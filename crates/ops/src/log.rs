//! What is logged, and where: lines on standard error, as text or as JSON. Lines for systemd's journal begin
//! with their priority (sd-daemon(3)); it has the time of its own. Lines that find no room are lost
//! (`lines.rs`).
//!
//! | verbosity | contains |
//! |---|---|
//! | quiet | `warn` and `error`: what an operator should or must act on |
//! | 0 | `info`: start and stop |
//! | any | `info` of the target [`ACCESS`], if access logging is on: a line for each request |
//! | 1 | `info` of the target [`SESSION`]: a line for each session, at its end |
//! | 2 | `debug`: every change of a session's state |

mod lines;

use std::fmt;
use std::io::{IsTerminal, Stderr, stderr};
use std::sync::{LazyLock, OnceLock};

use rustix::io::Errno;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

use truepeer_session::counters::{Counter, Counters};
use truepeer_session::journal::{ACCESS, SESSION};

use self::lines::Lines;
use truepeer_config::plan::LogConfig;
use truepeer_config::spec::{LogFormat, Verbosity};
use truepeer_sys::tell;

/// What is logged.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// How lines are written.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

static LINES: LazyLock<Lines<Stderr>> = LazyLock::new(|| Lines::new(stderr(), lost_lines));

/// The log target of the counters' line.
const COUNTERS: &str = "counters";

/// Sets up logging for the whole process; a second call changes nothing. `is_elsewhere_soon`: standard error
/// will be replaced by that of the old process, which may be a file, so no colours are written.
pub fn init(config: LogConfig, is_elsewhere_soon: bool) {
    let is_terminal = stderr().is_terminal() && !is_elsewhere_soon;
    let format = config.format.unwrap_or(LogFormat::Text);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| &*LINES).log_internal_errors(false);
    let (filter, handle) = reload::Layer::new(filter(config.verbosity));
    // It is set only if logging is already set up: then with the filter that counts.
    let _ = FILTER.set(handle);
    let _ = FORMAT.set(format);
    let subscriber = tracing_subscriber::registry();
    // try_init fails only if logging is already set up.
    let _ = match format {
        LogFormat::Text if is_journal() => {
            let lines = lines.with_ansi(false).event_format(Prioritized::new());
            tracing::subscriber::set_global_default(subscriber.with(lines.with_filter(filter)))
        }
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

/// Whether standard error is the journal's socket: JOURNAL_STREAM names its device and inode
/// (systemd.exec(5)).
fn is_journal() -> bool {
    let Ok(announced) = std::env::var("JOURNAL_STREAM") else { return false };
    let file = rustix::fs::fstat(stderr());
    file.is_ok_and(|file| announced == format!("{}:{}", file.st_dev, file.st_ino))
}

/// Text lines for the journal, such as `<6>listening on 127.0.0.1:8443`.
struct Prioritized(Format<Full, ()>);

impl Prioritized {
    fn new() -> Self {
        Self(format().without_time().with_level(false).with_target(false))
    }
}

impl<S, N> FormatEvent<S, N> for Prioritized
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// As in syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Logs the counters: in JSON each as a field of its own. tracing's events have fixed fields, so that line is
/// written here.
pub fn counters(counters: &Counters, sessions: usize) {
    if FORMAT.get() == Some(&LogFormat::Json) && tracing::enabled!(target: COUNTERS, Level::INFO) {
        LINES.put((json_counters(now(), counters, sessions) + "\n").as_bytes());
        return;
    }
    let totals: Vec<_> = Counter::ALL
        .iter()
        .map(|&counter| format!("{}={}", counter.name(), counters.total(counter)))
        .collect();
    let refusals: Vec<_> =
        counters.refusals().iter().map(|(reason, count)| format!("{reason}={count}")).collect();
    tracing::info!(target: COUNTERS, sessions, refusals = refusals.join(" "), "counters: {}", totals.join(" "));
}

/// Writes the reason why the process ends, as other lines are written.
pub fn fatal(reason: &str) {
    match FORMAT.get() {
        Some(LogFormat::Json) => fatal_in_json(reason),
        _ => tell!("error: {reason}"),
    }
}

/// The same, for a log in JSON that was not set up.
pub fn fatal_in_json(reason: &str) {
    let line = serde_json::json!({ "timestamp": now(), "level": "ERROR", "message": reason });
    tell!("{line}");
}

/// The line that follows lines that could not be written. It is written here, since a writer of the log can't
/// log.
fn lost_lines(lost: u64, reason: Errno) -> String {
    let why = match reason {
        Errno::AGAIN => "nobody read them".to_owned(),
        Errno::NOSPC | Errno::DQUOT => "the disk was full".to_owned(),
        other => other.to_string(),
    };
    let message = format!("lines of the log were lost: {why}");
    match FORMAT.get() {
        Some(LogFormat::Json) => {
            let line = serde_json::json!({
                "timestamp": now(), "level": "WARN", "message": message, "lines_lost": lost
            });
            format!("{line}\n")
        }
        _ if is_journal() => format!("<{}>{message} lines_lost={lost}\n", priority(Level::WARN)),
        _ => format!("{}  WARN {message} lines_lost={lost}\n", now()),
    }
}

/// The time as each line has it.
fn now() -> String {
    let mut time = String::new();
    // Writing to a String can't fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

fn json_counters(timestamp: String, counters: &Counters, sessions: usize) -> String {
    let mut line = serde_json::Map::new();
    line.insert("timestamp".to_owned(), timestamp.into());
    line.insert("level".to_owned(), "INFO".into());
    line.insert("message".to_owned(), "counters".into());
    line.insert("sessions".to_owned(), sessions.into());
    for counter in Counter::ALL {
        line.insert(counter.name().to_owned(), counters.total(counter).into());
    }
    let refusals = counters.refusals().into_iter().map(|(reason, count)| (reason.to_owned(), count.into()));
    line.insert("refusals".to_owned(), serde_json::Value::Object(refusals.collect()));
    line.insert("target".to_owned(), COUNTERS.into());
    serde_json::Value::Object(line).to_string()
}

/// Changes what is logged from now on.
pub fn set_verbosity(verbosity: Verbosity) {
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
    use super::*;

    #[test]
    fn each_counter_is_a_field_of_its_own_in_json() {
        let counters = Counters::default();
        let shard = counters.shard(truepeer_session::ListenerId::new(0));
        shard.add(Counter::BytesUp, 5);
        shard.refuse(truepeer_session::Reason::SenderNotAllowed);
        let line: serde_json::Value =
            serde_json::from_str(&json_counters("now".to_owned(), &counters, 3)).unwrap();
        assert_eq!((&line["timestamp"], &line["level"]), (&"now".into(), &"INFO".into()));
        assert_eq!((&line["message"], &line["target"]), (&"counters".into(), &COUNTERS.into()));
        assert_eq!((&line["sessions"], &line["bytes_up"]), (&3.into(), &5.into()));
        assert!(Counter::ALL.iter().all(|counter| line[counter.name()].is_u64()), "{line}");
        assert_eq!(line["refusals"], serde_json::json!({"sender_not_allowed": 1}));
    }

    #[test]
    fn lines_for_the_journal_begin_with_their_priority() {
        use std::io::Write;
        use std::sync::{Arc, Mutex};

        #[derive(Clone, Default)]
        struct Lines(Arc<Mutex<Vec<u8>>>);

        impl Write for Lines {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }

        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry().with(layer.event_format(Prioritized::new()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!("broken");
            tracing::warn!(held_back = 3, "refused");
            tracing::info!(target: SESSION, client = %"192.0.2.1:4000", "session");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "<3>broken\n<4>refused held_back=3\n<6>session client=192.0.2.1:4000\n");
    }

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
