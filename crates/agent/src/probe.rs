//! The kubelet's probes: a Unix socket of their own, so that whoever takes all places of /metrics takes none
//! of theirs.
//!
//! ```text
//! kubelet ─exec─▶ truepeer-agent probe ready ──"ready\n"──▶ agent
//!                 its exit status          ◀──"ok\n", or why not──
//! ```
//! The socket's name is in the abstract namespace, which belongs to the pod's network namespace: no file, and
//! no other pod reaches it.

use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream as Stream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::statuses::StatusTable;

/// The node's loop turns once a second. Without that for so long, it hangs.
const HANGS: Duration = Duration::from_secs(60);
/// How many at a time, and how long each.
const CONNECTIONS: usize = 8;
const LIFETIME: Duration = Duration::from_secs(2);
/// The longest answer.
const MAX_ANSWER: u64 = 256;

/// Where probes are answered: a name in the abstract namespace, written `@NAME`.
#[derive(Debug, Clone)]
pub(crate) struct Name(String);

impl FromStr for Name {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix('@').filter(|name| (1..=100).contains(&name.len()));
        name.map(|name| Self(name.to_owned())).ok_or("expected @ and a name, such as @truepeer-agent")
    }
}

impl Name {
    fn address(&self) -> Result<SocketAddr> {
        SocketAddr::from_abstract_name(&self.0).with_context(|| format!("--probes @{}", self.0))
    }
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// Its loop turns
    Live,
    /// It has heard of this node's pods; with --leave: nothing is left
    Ready,
}

impl Question {
    fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Ready => "ready",
        }
    }

    /// `None`: yes; otherwise why not.
    pub(crate) fn answer(self, statuses: &StatusTable, now: Instant) -> Option<String> {
        match (self, statuses.last_alive()) {
            (Self::Ready, _) => statuses.unready_reason().map(str::to_owned),
            // Before the first list, an API server that can't be reached is no reason to be restarted.
            (Self::Live, Some(last)) if now.duration_since(last) > HANGS => {
                Some(format!("nothing has moved for {} s", now.duration_since(last).as_secs()))
            }
            (Self::Live, _) => None,
        }
    }
}

/// Opens the socket, and answers in the background.
pub(crate) fn serve(name: &Name, statuses: Arc<StatusTable>) -> Result<()> {
    let what = || format!("--probes @{}", name.0);
    let listener = StdListener::bind_addr(&name.address()?).with_context(what)?;
    listener.set_nonblocking(true).with_context(what)?;
    tokio::spawn(accept(UnixListener::from_std(listener).with_context(what)?, statuses));
    Ok(())
}

async fn accept(listener: UnixListener, statuses: Arc<StatusTable>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Closed never.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, for example: they don't go away by trying at once.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let statuses = statuses.clone();
        tokio::spawn(async move {
            // A client's mistakes are its own.
            let _ = timeout(LIFETIME, answer(stream, &statuses)).await;
            drop(permit);
        });
    }
}

async fn answer(mut stream: Stream, statuses: &StatusTable) -> std::io::Result<()> {
    let mut asked = [0; 16];
    let length = stream.read(&mut asked).await?;
    let asked = asked.get(..length).unwrap_or_default();
    let questions = [Question::Live, Question::Ready];
    let question =
        questions.into_iter().find(|question| asked == format!("{}\n", question.word()).as_bytes());
    let text = match question.map(|question| question.answer(statuses, Instant::now())) {
        Some(None) => "ok".to_owned(),
        Some(Some(why)) => why,
        None => "expected live or ready".to_owned(),
    };
    stream.write_all(format!("{text}\n").as_bytes()).await
}

/// Asks the agent that serves the socket, and prints why not.
pub(crate) fn ask(name: &Name, question: Question) -> ExitCode {
    match asked(name, question).as_deref() {
        Ok("ok") => ExitCode::SUCCESS,
        Ok(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn asked(name: &Name, question: Question) -> Result<String> {
    let mut stream = UnixStream::connect_addr(&name.address()?).context("no agent answers probes")?;
    stream.set_read_timeout(Some(LIFETIME))?;
    stream.write_all(format!("{}\n", question.word()).as_bytes())?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer).context("the agent does not answer")?;
    Ok(answer.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_hangs_is_not_alive_and_one_that_has_heard_nothing_is_not_ready() {
        let (statuses, now) = (StatusTable::default(), Instant::now());
        assert_eq!(Question::Live.answer(&statuses, now), None);
        assert!(Question::Ready.answer(&statuses, now).is_some());
        statuses.mark_alive(now);
        assert_eq!(Question::Ready.answer(&statuses, now), None);
        let why = Question::Live.answer(&statuses, now + HANGS + Duration::from_secs(1));
        assert_eq!(why.as_deref(), Some("nothing has moved for 61 s"));
    }

    #[test]
    fn names_are_of_the_abstract_namespace() {
        assert!("@truepeer-agent".parse::<Name>().is_ok());
        for wrong in ["", "@", "/run/agent", "truepeer-agent"] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
        }
    }
}
