//! `kubernetes` is two processes: this one starts the agent proper, and starts it again at once if a signal
//! has killed it. The kubelet would wait 10 s before it starts a container for the second time, and longer
//! each time.
//!
//! ```text
//!  kubelet ──SIGTERM──▶ supervisor ──"end" on standard input──▶ agent
//!                           ▲ killed: the end of standard input ends the agent
//! ```

use std::io::{BufRead as _, stdin};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, kill_process_group, waitid};
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::ended_by_signal;

/// Set for the agent proper.
const SUPERVISED: &str = "TRUEPEER_AGENT_SUPERVISED";
const END: &str = "end";
/// How soon, and how rarely, the agent is started again.
const SOON: Duration = Duration::from_millis(100);
const RARELY: Duration = Duration::from_secs(5);
/// After a life as long as this, the next start is soon again.
const LIFE: Duration = Duration::from_secs(10);

/// Whether this process is the agent proper.
pub(crate) fn is_supervised() -> bool {
    std::env::var_os(SUPERVISED).is_some()
}

/// Until the agent ends by itself, or this process is told to end.
pub(crate) async fn run() -> Result<ExitCode> {
    let mut told = std::pin::pin!(ended_by_signal()?);
    let mut pause = SOON;
    loop {
        let begun = Instant::now();
        let (mut child, input) = start()?;
        tokio::select! {
            () = ended_with_its_steps(&child) => {}
            () = &mut told => return Ok(code(end(child, input).await?)),
        }
        let status = child.wait().await?;
        let Some(signal) = status.signal() else { return Ok(code(status)) };
        pause = if begun.elapsed() >= LIFE { SOON } else { RARELY.min(pause * 2) };
        tracing::warn!(
            "the agent was killed by signal {signal}, and is started again; what is attached stays"
        );
        tokio::select! {
            () = sleep(pause) => {}
            () = &mut told => return Ok(ExitCode::SUCCESS),
        }
    }
}

fn start() -> Result<(Child, ChildStdin)> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1)).env(SUPERVISED, "1").stdin(Stdio::piped()).process_group(0);
    let mut child = command.spawn().with_context(|| program.display().to_string())?;
    let input = child.stdin.take().context("no pipe to the agent")?;
    Ok((child, input))
}

/// Waits for the agent's end and kills its steps: one that continued, such as a detach that waits for
/// connections, would undo what the next agent does.
async fn ended_with_its_steps(child: &Child) {
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let Some(pid) = pid else { return };
    // It stays a zombie until the caller waits for it: nobody else can have its number.
    let look = move || waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let is_over = spawn_blocking(move || retry_on_intr(look));
    let _ = is_over.await;
    let _ = kill_process_group(pid, Signal::KILL);
}

async fn end(mut child: Child, mut input: ChildStdin) -> Result<ExitStatus> {
    // It may have ended already.
    let _ = input.write_all(format!("{END}\n").as_bytes()).await;
    Ok(child.wait().await?)
}

fn code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Of the agent proper: ends when the supervisor tells it. Without a supervisor it is killed, with its steps:
/// two agents must not run on one node.
pub(crate) fn told_to_end() -> oneshot::Receiver<()> {
    let (tell, told) = oneshot::channel();
    // A thread of the runtime that reads would hold up its end.
    std::thread::spawn(move || {
        let mut line = String::new();
        match stdin().lock().read_line(&mut line) {
            Ok(1..) if line.trim_end() == END => {
                let _ = tell.send(());
            }
            _ => {
                let _ = kill_process_group(getpgrp(), Signal::KILL);
            }
        }
    });
    told
}
