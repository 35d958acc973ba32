//! `/metrics` as OpenMetrics text: the agent's own, and those of the kernel programs for each pod, named as
//! by `truepeer serve`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use crate::plan::Key;
use crate::statuses::{Name, StatusRow, StatusTable};
use crate::truepeer::{PortStatus, Status, Truepeer};

pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Before each name.
const PREFIX: &str = "truepeer";

/// All states, so that a metric doesn't disappear at 0.
const STATES: [&str; 7] = ["idle", "waiting", "attached", "refused", "failed", "no_room", "detaching"];

type Pairs = Vec<(&'static str, String)>;

/// How pods or containers are named.
#[derive(Debug, Clone)]
pub(crate) struct Labels {
    /// `pod` or `container`.
    pub(crate) kind: &'static str,
    /// truepeer's name and version.
    pub(crate) truepeer: String,
}

/// The kernel's counters are read at most so often, whoever asks: that takes a process.
const FRESH: Duration = Duration::from_secs(5);

/// Of all network namespaces; `None` if they could not be read.
type Read = Option<Arc<Vec<Status>>>;

/// The kernel's counters, as they were read last.
#[derive(Default)]
pub(crate) struct Counters(Mutex<Option<(Instant, Read)>>);

impl Counters {
    /// Others wait while one reads.
    async fn read(&self, truepeer: &Truepeer) -> Read {
        let mut last = self.0.lock().await;
        if let Some((_, counters)) = last.as_ref().filter(|(time, _)| time.elapsed() < FRESH) {
            return counters.clone();
        }
        let read = truepeer.status_of_all().await;
        if let Err(error) = &read {
            tracing::warn!("metrics without counters: {error:#}");
        }
        let counters = read.ok().map(|all| Arc::new(all.namespaces));
        *last = Some((Instant::now(), counters.clone()));
        counters
    }
}

/// The text of all metrics. Asks the kernel, by `truepeer`.
pub(crate) async fn text(
    statuses: &StatusTable,
    counters: &Counters,
    truepeer: &Truepeer,
    labels: &Labels,
) -> String {
    let snapshot = Snapshot {
        labels: labels.clone(),
        lines: statuses.rows(),
        steps: statuses.counts(),
        kernel: counters.read(truepeer).await,
    };
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut text, &registry);
    text
}

/// All values at one moment.
#[derive(Debug)]
struct Snapshot {
    labels: Labels,
    lines: BTreeMap<Key, StatusRow>,
    steps: BTreeMap<(&'static str, &'static str), u64>,
    kernel: Read,
}

impl Snapshot {
    fn name(&self, name: &Name) -> Pairs {
        // The library writes a value as it is.
        let clean = |text: &str| text.replace(['"', '\\', '\n'], "_");
        let namespace = name.namespace.iter().map(|namespace| ("namespace", clean(namespace)));
        namespace.chain([(self.labels.kind, clean(&name.name))]).collect()
    }

    /// Attached ports, with the labels of the pod in whose network namespace they are.
    fn ports(&self) -> Vec<(Pairs, &PortStatus)> {
        let names: BTreeMap<u64, &Name> =
            self.lines.values().filter_map(|line| Some((line.netns?, &line.name))).collect();
        let attached = self
            .kernel
            .iter()
            .flat_map(|kernel| kernel.iter())
            .filter_map(|status| Some((status, names.get(&status.netns?)?)));
        let port = |name: &Name, port: &PortStatus| {
            let mut pairs = self.name(name);
            pairs.push(("port", port.port.to_string()));
            pairs.push(("protocol", port.protocol.replace(['"', '\\', '\n'], "_")));
            pairs
        };
        attached
            .flat_map(|(status, name)| status.ports.iter().map(move |one| (port(name, one), one)))
            .collect()
    }

    fn encode_agent(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let build =
            [("version", env!("CARGO_PKG_VERSION").to_owned()), ("truepeer", self.labels.truepeer.clone())];
        encoder
            .encode_descriptor("agent_build", "The running program.", None, MetricType::Info)?
            .encode_info(&build)?;
        let mut metric = encoder.encode_descriptor(
            "agent_attachments",
            "Pods or containers that ask to be attached, by state.",
            None,
            MetricType::Gauge,
        )?;
        for state in STATES {
            let count = self.lines.values().filter(|line| line.state.word() == state).count();
            gauge(&mut metric, &vec![("state", state.to_owned())], count as u64)?;
        }
        let help = "What the agent did, and how it ended.";
        let mut metric = encoder.encode_descriptor("agent_steps", help, None, MetricType::Counter)?;
        for ((step, result), value) in &self.steps {
            count(
                &mut metric,
                &vec![("step", (*step).to_owned()), ("result", (*result).to_owned())],
                *value,
            )?;
        }
        let help = "1 if the kernel's counters could be read for this answer.";
        let is_read = u64::from(self.kernel.is_some());
        gauge(
            &mut encoder.encode_descriptor("agent_counters_read", help, None, MetricType::Gauge)?,
            &Pairs::new(),
            is_read,
        )
    }

    fn encode_attached(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ports = self.ports();
        let help = "Whether truepeer is attached as the annotations ask.";
        let mut metric = encoder.encode_descriptor("attach_attached", help, None, MetricType::Gauge)?;
        for line in self.lines.values() {
            gauge(&mut metric, &self.name(&line.name), u64::from(line.state.word() == "attached"))?;
        }
        let help = "Connections and flows that the kernel programs serve.";
        let mut metric = encoder.encode_descriptor("attach_open", help, None, MetricType::Gauge)?;
        for (labels, port) in &ports {
            gauge(&mut metric, labels, port.untouched + port.translated + port.flows)?;
        }
        let help = "What the kernel programs have counted, by event (truepeer attach status explains each).";
        let mut metric = encoder.encode_descriptor("attach_events", help, None, MetricType::Counter)?;
        for (labels, port) in &ports {
            for (event, value) in &port.counters {
                let mut labels = labels.clone();
                labels.push(("event", event.replace(['"', '\\', '\n'], "_")));
                count(&mut metric, &labels, *value)?;
            }
        }
        let help = "Kernel memory of the tables of each network namespace.";
        let mut metric = encoder.encode_descriptor("attach_memory_bytes", help, None, MetricType::Gauge)?;
        for line in self.lines.values() {
            let tables = self
                .kernel
                .iter()
                .flat_map(|kernel| kernel.iter())
                .find(|status| status.netns.is_some() && status.netns == line.netns);
            if let Some(status) = tables {
                gauge(&mut metric, &self.name(&line.name), status.memory.tables)?;
            }
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_agent(&mut encoder)?;
        self.encode_attached(&mut encoder)
    }
}

fn count(metric: &mut MetricEncoder<'_>, labels: &Pairs, value: u64) -> fmt::Result {
    metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}

fn gauge(metric: &mut MetricEncoder<'_>, labels: &Pairs, value: u64) -> fmt::Result {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    if labels.is_empty() {
        metric.encode_gauge(&value)
    } else {
        metric.encode_family(labels)?.encode_gauge(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statuses::State;

    #[test]
    fn counters_have_the_labels_of_their_pod() {
        let name = |name: &str| Name { namespace: Some("default".to_owned()), name: name.to_owned() };
        let attached = State::Attached { description: String::new(), warnings: Vec::new() };
        let port = PortStatus {
            port: 80,
            protocol: "tcp".to_owned(),
            untouched: 2,
            translated: 3,
            counters: [("refused_claim".to_owned(), 4)].into(),
            ..PortStatus::default()
        };
        let snapshot = Snapshot {
            labels: Labels { kind: "pod", truepeer: "truepeer 0.1.0".to_owned() },
            lines: [
                ("1".to_owned(), StatusRow { name: name("web\"x"), state: attached, netns: Some(7) }),
                ("2".to_owned(), StatusRow { name: name("dns"), state: State::Waiting(""), netns: None }),
            ]
            .into(),
            steps: [(("attach", "ok"), 5)].into(),
            kernel: Some(Arc::new(vec![
                Status { netns: Some(7), ports: vec![port], ..Status::default() },
                // Of nobody that is known here.
                Status { netns: Some(8), ports: vec![PortStatus::default()], ..Status::default() },
            ])),
        };
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(snapshot));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "truepeer_agent_attachments{state=\"attached\"} 1",
            "truepeer_agent_attachments{state=\"waiting\"} 1",
            "truepeer_agent_attachments{state=\"failed\"} 0",
            "truepeer_agent_steps_total{step=\"attach\",result=\"ok\"} 5",
            "truepeer_agent_counters_read 1",
            "truepeer_attach_attached{namespace=\"default\",pod=\"dns\"} 0",
            "truepeer_attach_open{namespace=\"default\",pod=\"web_x\",port=\"80\",protocol=\"tcp\"} 5",
            "truepeer_attach_events_total{namespace=\"default\",pod=\"web_x\",port=\"80\",protocol=\"tcp\",event=\"refused_claim\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let dashboard = include_str!("../../../deploy/helm/truepeer/dashboard.json");
        for name in dashboard.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_metric = name.starts_with("truepeer_");
            assert!(!is_metric || text.lines().any(|line| line.starts_with(name)), "{name}\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && !text.contains("netns=\"8\""), "{text}");
        assert_eq!(text.matches("truepeer_attach_open{").count(), 1);
    }
}
