//! `truepeer-agent`: attaches truepeer to the pods of a Kubernetes node, or to the containers of an engine,
//! that ask for it.
//!
//! It is outside the path of bytes: it runs the program `truepeer` for each change, and what is attached goes
//! on without it.

mod annotation;
mod backoff;
mod docker;
mod http;
mod in_force;
mod kubernetes;
mod log;
mod metrics;
mod node;
mod options;
mod plan;
mod probe;
mod processes;
mod refusals;
mod rules;
mod sender_limit;
mod statuses;
mod supervisor;
mod truepeer;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use kubernetes::PodPolicy;
use node::Node;
use options::{Command, Common, Listen, Options};
use sender_limit::SenderLimit;
use statuses::StatusTable;
use truepeer::Truepeer;

/// How long an agent that leaves waits for a pod's open connections.
const LEAVE: Duration = Duration::from_secs(20);
/// How long before that a pod's condition is False: services stop sending to it, which takes kube-proxy a
/// second or two.
const NOTICE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let options = Options::parse();
    if let Command::Probe(options) = &options.command {
        return probe::ask(&options.probes, options.question);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.context("the async runtime").and_then(|runtime| runtime.block_on(run(options))) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("truepeer-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<ExitCode> {
    match options.command {
        Command::Kubernetes(options) if !supervisor::is_supervised() => {
            log::init(options.common.log_format, options.common.log_level);
            return supervisor::run().await;
        }
        Command::Kubernetes(options) => {
            let told = supervisor::told_to_end();
            let agent = Agent::prepare(&options.common, options.listen, options.max_pods, "pod").await?;
            let policy = PodPolicy { sender_limit: agent.sender_limit.clone(), leaves: options.leave };
            if options.leave {
                agent.statuses.set_left(false);
            }
            probe::serve(&options.probes, agent.statuses.clone())?;
            let changes = kubernetes::start(&options.node, policy, agent.statuses.clone()).await?;
            let agent = if options.leave { agent.leaving(NOTICE, LEAVE) } else { agent };
            let signal = ended_by_signal()?;
            agent
                .run(changes, async move {
                    tokio::select! { _ = told => {}, () = signal => {} }
                })
                .await;
        }
        Command::Probe(_) => {}
        Command::Retire(options) => {
            log::init(options::LogFormat::Text, tracing::Level::INFO);
            kubernetes::retire(&options, ended_by_signal()?).await?;
        }
        Command::Docker(options) => {
            let socket = options.socket.as_deref();
            docker::check(socket)?;
            let agent =
                Agent::prepare(&options.common, options.listen, options.max_containers, "container").await?;
            tokio::spawn(docker::tell(agent.statuses.clone()));
            let changes = docker::start(socket, agent.sender_limit.clone())?;
            agent.run(changes, ended_by_signal()?).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends at SIGTERM or SIGINT, which from now on end nothing else.
fn ended_by_signal() -> Result<impl Future<Output = ()> + Send + use<>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    })
}

/// What both commands have in common.
struct Agent {
    statuses: Arc<StatusTable>,
    sender_limit: SenderLimit,
    node: Node,
}

impl Agent {
    async fn prepare(common: &Common, listen: Listen, max: usize, kind: &'static str) -> Result<Self> {
        log::init(common.log_format, common.log_level);
        let sender_limit = SenderLimit::of(&common.allow_senders)?;
        let truepeer = Truepeer::find(common.truepeer.clone(), common.pins.clone());
        let version = truepeer.version().await?;
        tracing::info!(version = env!("CARGO_PKG_VERSION"), truepeer = %version, "truepeer-agent");
        let statuses = Arc::new(StatusTable::default());
        let node = Node::new(truepeer.clone(), max, sender_limit.clone(), statuses.clone())?;
        tokio::spawn(refusals::run(truepeer.clone(), statuses.clone()));
        if let Listen(Some(address)) = listen {
            let pages = http::Pages {
                statuses: statuses.clone(),
                truepeer,
                metrics: metrics::Labels { kind, truepeer: version },
                counters: metrics::Counters::default(),
                started: Instant::now(),
                token: common.metrics_token.clone().map(http::TokenFile),
            };
            http::serve(address, pages).await?;
        }
        Ok(Self { statuses, sender_limit, node })
    }

    fn leaving(self, notice: Duration, patience: Duration) -> Self {
        Self { node: self.node.leaving(notice, patience), ..self }
    }

    /// Until it is told to end.
    async fn run(
        self,
        changes: tokio::sync::mpsc::Receiver<node::Change>,
        told: impl Future<Output = ()> + Send + 'static,
    ) {
        let (end, ends) = oneshot::channel();
        tokio::spawn(async move {
            told.await;
            let _ = end.send(());
        });
        self.node.run(changes, ends).await;
        tracing::info!("ending; what is attached stays");
    }
}
