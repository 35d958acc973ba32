//! etcd and kube-apiserver, on free ports of the loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::bed::NODE;
use crate::wait::until;

/// The namespace of all pods here.
pub(crate) const NAMESPACE: &str = "default";
/// The agent's, as in the manifests.
const AGENT_NAMESPACE: &str = "truepeer";
const ACCOUNT: &str = "truepeer-agent";

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
    /// Its port.
    api: u16,
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
        fs::write(directory.join("tokens"), "admin-token,admin,1,\"system:masters\"\n")?;
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
        fs::write(directory.join("admin.conf"), kubeconfig(api, &certificate, "admin-token").to_string())?;
        let client = runtime.block_on(client(&directory.join("admin.conf")))?;
        let cluster = Self { directory, programs, runtime, client, api };
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

    /// The agent's rights, as deploy/kubernetes/agent.yaml grants them to the account of its pods, and no
    /// others.
    fn grant(&self) -> Result<()> {
        for object in manifests()? {
            let is_wanted = object["kind"].as_str().is_some_and(|kind| {
                ["Namespace", "ServiceAccount"].contains(&kind)
                    || ["ClusterRole", "ValidatingAdmissionPolicy"]
                        .iter()
                        .any(|begin| kind.starts_with(begin))
            });
            if is_wanted {
                self.create(object)?;
            }
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        let pod = json!({"metadata": {"name": "agent"}, "spec": {"nodeName": NODE, "serviceAccountName": ACCOUNT,
            "containers": [{"name": "agent", "image": "none"}]}});
        let pod = self.wait(pods.create(&PostParams::default(), &serde_json::from_value(pod)?))?;
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": pod.metadata.uid});
        self.write_token(&self.kubeconfig(), &bound)
    }

    /// Makes a token of the agent's account for an object, or `null`.
    fn write_token(&self, path: &Path, bound: &Value) -> Result<()> {
        let request = json!({"spec": {"audiences": [], "boundObjectRef": bound}});
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), AGENT_NAMESPACE);
        let request = serde_json::from_value(request)?;
        let made = self.wait(accounts.create_token_request(ACCOUNT, &PostParams::default(), &request))?;
        let token = made.status.context("no token")?.token;
        let text = kubeconfig(self.api, &self.directory.join("certificates/apiserver.crt"), &token);
        Ok(fs::write(path, text.to_string())?)
    }

    pub(crate) fn create(&self, object: Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(object)?;
        let types = object.types.as_ref().context("no kind")?;
        let kind = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        };
        self.wait(api.create(&PostParams::default(), &object))?;
        Ok(())
    }

    pub(crate) fn as_admin<T>(&self, work: impl AsyncFnOnce(Client) -> Result<T, kube::Error>) -> Result<T> {
        self.wait(work(self.client.clone()))
    }

    /// As a process that has the agent's token.
    pub(crate) fn as_agent<T>(
        &self,
        work: impl AsyncFnOnce(Client) -> Result<T, kube::Error>,
    ) -> Result<Result<T, kube::Error>> {
        self.runtime.block_on(async { Ok(work(client(&self.kubeconfig()).await?).await) })
    }

    /// With a token of the agent's account that was made for no pod, so that it names no node.
    pub(crate) fn as_nobodys_agent<T>(
        &self,
        work: impl AsyncFnOnce(Client) -> Result<T, kube::Error>,
    ) -> Result<Result<T, kube::Error>> {
        let path = self.directory.join("nobodys-agent.conf");
        self.write_token(&path, &Value::Null)?;
        self.runtime.block_on(async { Ok(work(client(&path).await?).await) })
    }

    /// Takes the right to write conditions from the agent, or gives it back, and waits until it is so.
    pub(crate) fn let_write_conditions(&self, may: bool) -> Result<()> {
        let roles: Api<ClusterRole> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"rules": rights(may)?}));
        self.wait(roles.patch(ACCOUNT, &PatchParams::default(), &patch))?;
        let nothing = Patch::Merge(json!({"status": {}}));
        until("the agent's rights", || {
            let refused = self.as_agent(async |client| {
                let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
                pods.patch_status("none", &PatchParams::default(), &nothing).await
            })?;
            let code = match refused {
                Err(kube::Error::Api(status)) => status.code,
                other => bail!("{other:?}"),
            };
            Ok((code == if may { 404 } else { 403 }).then_some(()))
        })
    }

    /// Stops it for a while, as a machine does that is too busy.
    pub(crate) fn signal_api_server(&self, name: &str) -> Result<()> {
        let pid = self.programs.last().context("no API server")?.id().to_string();
        anyhow::ensure!(Command::new("kill").args([&format!("-{name}"), &pid]).status()?.success(), "kill");
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

    pub(crate) fn add_condition(&self, name: &str, kind: &str) -> Result<()> {
        let patch = Patch::Strategic(json!({"status": {"conditions": [{"type": kind, "status": "True"}]}}));
        self.wait(self.pods().patch_status(name, &PatchParams::default(), &patch))?;
        Ok(())
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

/// What deploy/kubernetes/agent.yaml has.
fn manifests() -> Result<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/agent.yaml");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let documents = text.split("\n---\n").skip(1);
    documents.map(|document| Ok(serde_saphyr::from_str(document)?)).collect()
}

fn rights(may_write_conditions: bool) -> Result<Value> {
    let role = manifests()?.into_iter().find(|object| object["kind"] == "ClusterRole").context("no role")?;
    let mut rules = role["rules"].as_array().context("no rules")?.clone();
    rules.retain(|rule| may_write_conditions || rule["resources"] != json!(["pods/status"]));
    Ok(rules.into())
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

fn kubeconfig(port: u16, certificate: &Path, token: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": certificate}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}]})
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let config = Kubeconfig::read_from(kubeconfig)?;
    Ok(Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)?)
}
