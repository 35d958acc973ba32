//! Generates the configuration of VPP's library for programs (VCL). Pure.

use std::fmt;
use std::path::{Path, PathBuf};

use super::layout::{DEFAULT_NAMESPACE, SECRET};

/// How a program uses VCL workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Workers {
    /// The process is one worker, whichever of its threads makes the call (NGINX; truepeer with one worker).
    Processes,
    /// Each thread is a worker and opens the sockets that it uses: listeners, epolls (truepeer with several
    /// workers).
    Threads,
}

impl Workers {
    pub(super) const ALL: [Self; 2] = [Self::Processes, Self::Threads];

    /// The file's name in the private directory.
    pub(super) fn file_name(self, namespace: &str) -> String {
        match self {
            Self::Processes => format!("vcl-{namespace}.conf"),
            Self::Threads => format!("vcl-{namespace}-threads.conf"),
        }
    }
}

/// A program's settings for VPP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VclConfig {
    pub(super) heap_mebibytes: u32,
    /// The shared memory from which connections' queues are taken. Only used memory counts.
    pub(super) segment_bytes: u64,
    /// The capacity of a connection's queue in each direction.
    pub(super) fifo_bytes: u64,
    /// Its namespace and the namespace's secret; VPP's own namespace if `None`.
    pub(super) namespace: Option<(String, u64)>,
    /// The path of VPP's socket.
    pub(super) app_socket: PathBuf,
    pub(super) workers: Workers,
}

impl VclConfig {
    /// The guide's sizes, for one namespace of the VPP whose sockets are in `dir`.
    pub(super) fn of_guide(dir: &Path, namespace: &str, workers: Workers) -> Self {
        let own = namespace != DEFAULT_NAMESPACE;
        Self {
            heap_mebibytes: 64,
            segment_bytes: 4_000_000_000,
            fifo_bytes: 4_000_000,
            namespace: own.then(|| (namespace.to_owned(), SECRET)),
            app_socket: app_socket(dir, namespace),
            workers,
        }
    }
}

/// The socket path for the programs of a namespace.
pub(super) fn app_socket(dir: &Path, namespace: &str) -> PathBuf {
    dir.join("app_ns_sockets").join(namespace)
}

impl fmt::Display for VclConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "vcl {{")?;
        // Unlike the other sizes, this one needs a unit.
        writeln!(f, "  heapsize {}M", self.heap_mebibytes)?;
        writeln!(f, "  segment-size {}", self.segment_bytes)?;
        writeln!(f, "  add-segment-size {}", self.segment_bytes)?;
        writeln!(f, "  rx-fifo-size {}", self.fifo_bytes)?;
        writeln!(f, "  tx-fifo-size {}", self.fifo_bytes)?;
        // Without it a program polls its queue, and on a shared core takes the time from who would fill it:
        // measured, 492 requests/s instead of 17 000.
        writeln!(f, "  use-mq-eventfd")?;
        if self.workers == Workers::Threads {
            writeln!(f, "  multi-thread-workers")?;
        }
        if let Some((id, secret)) = &self.namespace {
            writeln!(f, "  namespace-id {id}")?;
            writeln!(f, "  namespace-secret {secret}")?;
            // The routed way between the namespaces, not the shortcut between programs of one VPP.
            writeln!(f, "  app-scope-global")?;
        }
        writeln!(f, "  app-socket-api {}", self.app_socket.display())?;
        writeln!(f, "}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_program_says_the_guides_words() {
        let config = VclConfig::of_guide(Path::new("/run/x"), "proxy", Workers::Processes);
        let expected = "\
vcl {
  heapsize 64M
  segment-size 4000000000
  add-segment-size 4000000000
  rx-fifo-size 4000000
  tx-fifo-size 4000000
  use-mq-eventfd
  namespace-id proxy
  namespace-secret 1234
  app-scope-global
  app-socket-api /run/x/app_ns_sockets/proxy
}
";
        assert_eq!(config.to_string(), expected);
    }

    #[test]
    fn on_ethernet_there_is_no_namespace_but_vpps_own() {
        let text = VclConfig::of_guide(Path::new("/run/x"), DEFAULT_NAMESPACE, Workers::Threads).to_string();
        assert!(text.contains("\n  multi-thread-workers\n"), "{text}");
        assert!(text.contains("app-socket-api /run/x/app_ns_sockets/default\n"), "{text}");
        assert!(!text.contains("namespace-") && !text.contains("scope"), "{text}");
    }

    #[test]
    fn each_kind_of_workers_has_its_file() {
        let [processes, threads] = Workers::ALL.map(|workers| workers.file_name("proxy"));
        assert_ne!(processes, threads);
    }
}
