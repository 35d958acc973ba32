//! `/metrics`: the counters as OpenMetrics text, or as the text format before it.

mod plain;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text::encode};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use truepeer_session::counters::Counter;
use truepeer_session::histogram::{Times, Timing};

use super::AttachmentDoc;
use super::{ListenerView, Running, State, name_of};

/// Before each name.
const PREFIX: &str = "truepeer";

type Labels = Vec<(&'static str, String)>;

/// A family of counters, and the counters in it with the value of its own label.
struct Family {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    counters: &'static [(Counter, &'static str)],
}

/// The counters that are one metric with a label each. Every other counter is a metric of its own.
const FAMILIES: &[Family] = &[
    Family {
        name: "bytes",
        help: "Bytes delivered, without headers: up to backends, down to senders.",
        label: "direction",
        counters: &[(Counter::BytesUp, "up"), (Counter::BytesDown, "down")],
    },
    Family {
        name: "headers",
        help: "How connections and flows begin: with a header (v1, v2, local, unknown), or with none.",
        label: "result",
        counters: &[
            (Counter::HeaderV1, "v1"),
            (Counter::HeaderV2, "v2"),
            (Counter::HeaderLocal, "local"),
            (Counter::HeaderUnknown, "unknown"),
            (Counter::HeaderNone, "none"),
        ],
    },
    Family {
        name: "sessions_ended",
        help: "Sessions that have ended, by how.",
        label: "result",
        counters: &[
            (Counter::Finished, "finished"),
            (Counter::Reset, "reset"),
            (Counter::IdleTimeout, "idle_timeout"),
            (Counter::Panicked, "panicked"),
            (Counter::Stopped, "stopped"),
        ],
    },
    Family {
        name: "flows_ended",
        help: "UDP flows that have ended, by why.",
        label: "result",
        counters: &[
            (Counter::FlowsExpired, "expired"),
            (Counter::FlowsClosed, "closed"),
            (Counter::FlowsEvicted, "evicted"),
        ],
    },
    Family {
        name: "datagrams",
        help: "Datagrams delivered: up to backends, down to senders.",
        label: "direction",
        counters: &[(Counter::DatagramsUp, "up"), (Counter::DatagramsDown, "down")],
    },
    Family {
        name: "datagrams_lost",
        help: "Datagrams that were not delivered: refused (truepeer_refusals says why), dropped because a buffer was full or the path's MTU too small, or cut off by the kernel.",
        label: "reason",
        counters: &[
            (Counter::DatagramsRefused, "refused"),
            (Counter::DatagramsDropped, "dropped"),
            (Counter::DatagramsCutOff, "cut_off"),
        ],
    },
];

/// How metrics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricsFormat {
    OpenMetrics,
    /// The Prometheus text format 0.0.4.
    Plain,
}

impl MetricsFormat {
    /// By the request's Accept: OpenMetrics for those who ask for it, as Prometheus does.
    pub(super) fn wanted_by<'a>(mut accept: impl Iterator<Item = &'a [u8]>) -> Self {
        let name = b"application/openmetrics-text";
        let is_named = |value: &[u8]| value.windows(name.len()).any(|part| part.eq_ignore_ascii_case(name));
        if accept.any(is_named) { Self::OpenMetrics } else { Self::Plain }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The text of all metrics.
pub(super) fn text(running: &dyn Running, format: MetricsFormat) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Snapshot::of(running)));
    let mut text = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut text, &registry);
    match format {
        MetricsFormat::OpenMetrics => text,
        MetricsFormat::Plain => plain::of_openmetrics(&text),
    }
}

/// All values at one moment.
#[derive(Debug)]
struct Snapshot {
    state: State,
    listeners: Vec<ListenerValues>,
    attachments: Vec<AttachmentDoc>,
}

#[derive(Debug)]
struct ListenerValues {
    labels: Labels,
    counts: [u64; Counter::ALL.len()],
    open: usize,
    refusals: Vec<(&'static str, u64)>,
    not_spliced: Vec<(&'static str, u64)>,
    times: [Times; Timing::ALL.len()],
}

impl Snapshot {
    fn of(running: &dyn Running) -> Self {
        Self {
            state: running.state(),
            listeners: running.listeners().iter().map(|view| ListenerValues::of(running, view)).collect(),
            attachments: running.attachments(),
        }
    }
}

impl ListenerValues {
    fn of(running: &dyn Running, view: &ListenerView) -> Self {
        let counters = running.counters();
        let mut labels = vec![
            ("listener", name_of(&view.addresses, None)),
            ("protocol", view.protocol.name().to_owned()),
            ("entry", view.entry.to_owned()),
        ];
        labels.extend(view.site.clone().map(|site| ("site", site)));
        Self {
            labels,
            counts: Counter::ALL.map(|counter| counters.of(view.id, counter)),
            open: counters.open(view.id),
            refusals: counters.refusals_of(view.id).into_iter().collect(),
            not_spliced: counters.stays_of(view.id).into_iter().collect(),
            times: Timing::ALL.map(|timing| counters.times(view.id, timing)),
        }
    }

    fn with(&self, name: &'static str, value: &str) -> Labels {
        let mut labels = self.labels.clone();
        labels.push((name, value.to_owned()));
        labels
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_process(&mut encoder)?;
        let help = "Connections and UDP flows that are open.";
        let mut metric = encoder.encode_descriptor("open", help, None, MetricType::Gauge)?;
        for listener in &self.listeners {
            let open = i64::try_from(listener.open).unwrap_or(i64::MAX);
            metric.encode_family(&listener.labels)?.encode_gauge(&open)?;
        }
        for family in FAMILIES {
            let mut metric =
                encoder.encode_descriptor(family.name, family.help, None, MetricType::Counter)?;
            for (listener, (counter, value)) in self.each(family.counters) {
                let labels = listener.with(family.label, value);
                count(&mut metric, &labels, listener.counts[*counter as usize])?;
            }
        }
        let is_in_a_family = |counter: &Counter| {
            // `NotSpliced` has a family of its own, with the reason as a label.
            *counter == Counter::NotSpliced
                || FAMILIES.iter().any(|family| family.counters.iter().any(|(one, _)| one == counter))
        };
        for counter in Counter::ALL.iter().filter(|counter| !is_in_a_family(counter)) {
            let mut metric = encoder.encode_descriptor(
                counter.name(),
                counter.help().trim(),
                None,
                MetricType::Counter,
            )?;
            for listener in &self.listeners {
                count(&mut metric, &listener.labels, listener.counts[*counter as usize])?;
            }
        }
        let help = "Connections, requests and datagrams that were refused or failed, by reason.";
        let mut metric = encoder.encode_descriptor("refusals", help, None, MetricType::Counter)?;
        for listener in &self.listeners {
            for (reason, value) in &listener.refusals {
                count(&mut metric, &listener.with("reason", reason), *value)?;
            }
        }
        let not_spliced = Counter::NotSpliced;
        let mut metric = encoder.encode_descriptor(
            not_spliced.name(),
            "Sessions that were to leave user space (--splice auto) and stayed, by reason.",
            None,
            MetricType::Counter,
        )?;
        for listener in &self.listeners {
            for (reason, value) in &listener.not_spliced {
                count(&mut metric, &listener.with("reason", reason), *value)?;
            }
        }
        for timing in Timing::ALL {
            self.encode_times(&mut encoder, timing)?;
        }
        self.encode_attachments(&mut encoder)
    }
}

impl Snapshot {
    fn each<'a, T>(&'a self, of: &'a [T]) -> impl Iterator<Item = (&'a ListenerValues, &'a T)> {
        self.listeners.iter().flat_map(move |listener| of.iter().map(move |one| (listener, one)))
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("build", "The running program.", None, MetricType::Info)?
            .encode_info(&version)?;
        let is_serving = i64::from(self.state == State::Serving);
        let help = "1 while new connections are taken; 0 while it starts, drains or is broken.";
        encoder.encode_descriptor("serving", help, None, MetricType::Gauge)?.encode_gauge(&is_serving)
    }

    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>, timing: Timing) -> fmt::Result {
        let (name, help) = match timing {
            Timing::HeaderWait => {
                ("header_wait_seconds", "Time from accepting a connection to its whole header.")
            }
            Timing::BackendConnect => {
                ("backend_connect_seconds", "Time that backends take to accept a connection.")
            }
            Timing::SessionLength => {
                ("session_length_seconds", "Time from accepting a connection to its end.")
            }
        };
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        let bounds = timing.bounds().into_iter().chain([f64::MAX]);
        for listener in &self.listeners {
            let times = &listener.times[timing as usize];
            let buckets: Vec<(f64, u64)> = bounds.clone().zip(times.buckets).collect();
            metric.encode_family(&listener.labels)?.encode_histogram::<NoLabelSet>(
                times.sum.as_secs_f64(),
                times.count(),
                &buckets,
                None,
            )?;
        }
        Ok(())
    }

    fn encode_attachments(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = |place: &AttachmentDoc, port: &super::status::PortDoc| -> Labels {
            vec![
                // The library writes a value as it is.
                ("netns", place.netns.replace(['"', '\\', '\n'], "_")),
                ("port", port.port.to_string()),
                ("protocol", port.protocol.name().to_owned()),
            ]
        };
        let ports =
            || self.attachments.iter().flat_map(|place| place.ports.iter().map(move |port| (place, port)));
        let help = "Connections and flows that the kernel programs serve.";
        let mut metric = encoder.encode_descriptor("attach_open", help, None, MetricType::Gauge)?;
        for (place, port) in ports() {
            let open = i64::try_from(port.open).unwrap_or(i64::MAX);
            metric.encode_family(&labels(place, port))?.encode_gauge(&open)?;
        }
        let help = "What the kernel programs have counted, by event (truepeer attach status explains each).";
        let mut metric = encoder.encode_descriptor("attach_events", help, None, MetricType::Counter)?;
        for (place, port) in ports() {
            for (event, value) in &port.counters {
                let mut labels = labels(place, port);
                labels.push(("event", event.clone()));
                count(&mut metric, &labels, *value)?;
            }
        }
        Ok(())
    }
}

fn count(metric: &mut MetricEncoder<'_>, labels: &Labels, value: u64) -> fmt::Result {
    metric.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
