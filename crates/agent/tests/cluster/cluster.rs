//! etcd and kube-apiserver, on free ports of the loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::wait::until;

/// The namespace of all pods here.
pub(crate) const NAMESPACE: &str = "default";

/// What this machine lacks.
pub(crate) fn lack() -> Option<String> {
    let is_root =
        fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0\t"));
    if !is_root {
        return Some("root is needed".to_owned());
    }
    ["kube-apiserver", "etcd"].into_iter().find(|name| program(name).is_none()).map(|name| {
        format!("{name} is not built: scripts/kube-programs.sh and scripts/servers.sh engines, or name its directory in TRUEPEER_KUBE")
    })
}

/// Where scripts/kube-programs.sh and scripts/engines.sh put them, or in PATH.
fn program(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache =
        cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?.join("truepeer");
    let kubes = fs::read_dir(&cache).into_iter().flatten().flatten().map(|entry| entry.path());
    let engines = std::env::var_os("TRUEPEER_ENGINES").map_or(cache.join("engines"), PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::var_os("TRUEPEER_KUBE")
        .map(PathBuf::from)
        .into_iter()
        .chain(kubes.filter(|path| path.to_string_lossy().contains("kube")))
        .chain([engines.join("root/usr/bin")])
        .chain(std::env::split_paths(&path))
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// The API server, and a client with all rights.
pub(crate) struct Cluster {
    directory: PathBuf,
    programs: Vec<Child>,
    runtime: Runtime,
    client: Client,
}

impl Cluster {
    pub(crate) fn start() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("truepeer-agent-cluster-{}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let ports = free_ports::<3>()?;
        let [clients, peers, api] = ports;
        let etcd = format!("http://127.0.0.1:{clients}");
        let mut programs = vec![start(
            &directory,
            "etcd",
            &[
                format!("--data-dir={}", directory.join("etcd").display()),
                format!("--listen-client-urls={etcd}"),
                format!("--advertise-client-urls={etcd}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        )?];
        fs::write(directory.join("tokens"), "admin-token,admin,1,\"system:masters\"\nagent-token,agent,2\n")?;
        let key = directory.join("key");
        let made = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(&key)
            .arg("2048")
            .stderr(Stdio::null())
            .status()?;
        anyhow::ensure!(made.success(), "openssl genrsa");
        let certificates = directory.join("certificates");
        programs.push(start(
            &directory,
            "kube-apiserver",
            &[
                format!("--etcd-servers={etcd}"),
                format!("--secure-port={api}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                "--authorization-mode=RBAC".to_owned(),
                // Nobody makes service accounts here.
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                format!("--token-auth-file={}", directory.join("tokens").display()),
                format!("--cert-dir={}", certificates.display()),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", key.display()),
                format!("--service-account-signing-key-file={}", key.display()),
            ],
        )?);
        let certificate = certificates.join("apiserver.crt");
        until("the API server's certificate", || Ok(certificate.is_file().then_some(())))?;
        for user in ["admin", "agent"] {
            let text = kubeconfig(api, &certificate, user);
            fs::write(directory.join(format!("{user}.conf")), text.to_string())?;
        }
        let client = runtime.block_on(client(&directory.join("admin.conf")))?;
        let cluster = Self { directory, programs, runtime, client };
        until("the API server", || {
            let nodes: Api<Node> = Api::all(cluster.client.clone());
            Ok(cluster.wait(nodes.list(&ListParams::default())).ok())
        })?;
        until("the namespace", || {
            let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(cluster.client.clone());
            Ok(cluster.wait(namespaces.get(NAMESPACE)).ok())
        })?;
        cluster.grant()?;
        Ok(cluster)
    }

    /// The agent's rights, and no others.
    fn grant(&self) -> Result<()> {
        use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
        let role: ClusterRole = serde_json::from_value(json!({"metadata": {"name": "agent"}, "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
            {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
            {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]}))?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": {"name": "agent"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "agent"},
            "subjects": [{"kind": "User", "name": "agent", "apiGroup": "rbac.authorization.k8s.io"}]}))?;
        self.wait(Api::all(self.client.clone()).create(&PostParams::default(), &role))?;
        self.wait(Api::all(self.client.clone()).create(&PostParams::default(), &binding))?;
        Ok(())
    }

    /// The file by which the agent reaches the API server.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("agent.conf")
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, kube::Error>>) -> Result<T> {
        Ok(self.runtime.block_on(work)?)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(crate) fn create_pod(&self, pod: Value) -> Result<Pod> {
        self.wait(self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?))
    }

    pub(crate) fn pod(&self, name: &str) -> Result<Pod> {
        self.wait(self.pods().get(name))
    }

    pub(crate) fn annotate(&self, name: &str, annotations: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.wait(self.pods().patch(name, &PatchParams::default(), &patch))?;
        Ok(())
    }

    pub(crate) fn delete_pod(&self, name: &str) -> Result<()> {
        self.wait(self.pods().delete(name, &kube::api::DeleteParams::default().grace_period(0)))?;
        Ok(())
    }

    /// Reasons and notes of a pod's events, the oldest first.
    pub(crate) fn events(&self, name: &str) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let mut all = self.wait(events.list(&ListParams::default()))?.items;
        all.retain(|event| event.regarding.as_ref().and_then(|pod| pod.name.as_deref()) == Some(name));
        all.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        Ok(all
            .into_iter()
            .map(|event| (event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            let _ = program.kill();
            let _ = program.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn start(directory: &Path, name: &str, arguments: &[String]) -> Result<Child> {
    let log = File::create(directory.join(format!("{name}.log")))?;
    let path = program(name).with_context(|| name.to_owned())?;
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| name.to_owned())
}

/// Ports that were free a moment ago.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let listeners: Vec<_> = (0..N).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn kubeconfig(port: u16, certificate: &Path, user: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": certificate}}],
        "users": [{"name": user, "user": {"token": format!("{user}-token")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}]})
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)?)
}
