//! Who was refused by the kernel programs: told in the log, and once for each reason as an event.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::sleep;

use crate::statuses::{HEADER_UNLISTED, StatusTable};
use crate::truepeer::{Refusal, Truepeer};

/// How soon, and how rarely, `truepeer` is started again.
const SOON: Duration = Duration::from_secs(1);
const RARELY: Duration = Duration::from_secs(60);

/// Packets that reach an attached port by a way that the programs don't see.
const REDIRECTED: [&str; 2] = ["refused_redirected", "refused_unjudged"];

/// Follows for ever.
pub(crate) async fn run(truepeer: Truepeer, statuses: Arc<StatusTable>) {
    let mut pause = SOON;
    loop {
        match follow(&truepeer, &statuses).await {
            Ok(0) => {}
            Ok(_) => pause = SOON,
            Err(error) => tracing::debug!("who is refused is not told: {error:#}"),
        }
        sleep(pause).await;
        pause = RARELY.min(pause * 2);
    }
}

/// Until the process ends. How many lines it printed.
async fn follow(truepeer: &Truepeer, statuses: &StatusTable) -> Result<u64> {
    let mut process = truepeer.follow()?;
    let mut lines = BufReader::new(process.stdout.take().context("no output")?).lines();
    let mut count = 0;
    while let Some(line) = lines.next_line().await? {
        count += 1;
        match serde_json::from_str::<Refusal>(&line) {
            Ok(refusal) => tell(&refusal, statuses),
            Err(error) => tracing::debug!("{line}: {error}"),
        }
    }
    Ok(count)
}

fn tell(refusal: &Refusal, statuses: &StatusTable) {
    let lines = statuses.rows();
    // Somebody else's attachments are theirs to watch.
    let Some((key, line)) =
        lines.iter().find(|(_, line)| line.netns.is_some() && line.netns == refusal.netns)
    else {
        return;
    };
    let Refusal { port, protocol, reason, meaning, count, .. } = refusal;
    let (sender, client) =
        (refusal.sender.as_deref().unwrap_or("?"), refusal.client.as_deref().unwrap_or(""));
    let verdict = if reason == HEADER_UNLISTED { "passed" } else { "refused" };
    tracing::info!(name = %line.name, %sender, %client, port, %protocol, %reason, count, "{verdict}: {meaning}");
    statuses.refused(key.clone(), reason.clone(), text(refusal));
}

fn text(refusal: &Refusal) -> String {
    let Refusal { port, protocol, reason, meaning, .. } = refusal;
    let sender = refusal.sender.as_deref().unwrap_or("?");
    let client = refusal.client.iter().map(|client| format!(" for the client {client}")).collect::<String>();
    let hint = if REDIRECTED.contains(&reason.as_str()) {
        "; is the port redirected in the pod (REDIRECT or TPROXY, as by Istio's sidecar)? Then leave it out there: \
         traffic.sidecar.istio.io/excludeInboundPorts"
    } else if protocol == "udp" && reason == HEADER_UNLISTED {
        "; if it is a bridge's address of the node, an old conntrack entry survived the container's restart: \
         conntrack -D -p udp on the node, with --dport and the published port"
    } else if reason == HEADER_UNLISTED {
        "; list it in truepeer.dev/allow if it is your load balancer's; with externalTrafficPolicy: Cluster \
         a node's address stands here"
    } else {
        ""
    };
    format!("port {port}/{protocol}, from {sender}{client}: {meaning} ({reason}){hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_with_a_hint() {
        let refusal = |protocol: &str, reason: &str, client: &str| -> Refusal {
            let line = format!(
                r#"{{"time":"2026-11-23T05:40:12.123Z","netns_cookie":4097,"netns":7,"port":80,"protocol":"{protocol}","sender":"10.0.0.7:40000",
                "client":{client},"reason":"{reason}","meaning":"why","count":1}}"#
            );
            serde_json::from_str(&line).unwrap()
        };
        let claim = refusal("tcp", "refused_claim", "\"127.0.0.1:1\"");
        assert_eq!(
            text(&claim),
            "port 80/tcp, from 10.0.0.7:40000 for the client 127.0.0.1:1: why (refused_claim)"
        );
        assert!(text(&refusal("tcp", "refused_unjudged", "null")).contains("Istio"));
        assert!(text(&refusal("udp", HEADER_UNLISTED, "null")).contains("conntrack -D -p udp"));
        assert!(text(&refusal("tcp", HEADER_UNLISTED, "null")).contains("truepeer.dev/allow"));
    }
}
