# A real Kubernetes of one node on a node of node.sh; to be sourced after it and images.sh. More nodes: machines.sh.

# The node that is set up: what it is called, its address, its pods' addresses (those of IPv6 if any) and cgroups, and an ending for its
# logs' names.
kube_node=node kube_address=10.0.0.1 kube_pods=10.244.0.0/23 kube_pods6= kube_cgroup=/ kube_suffix=
# More options of the controllers.
kube_controllers=()

# Starts it and waits until pods can be created.
cluster_up() {
  local begin=$SECONDS name
  node_run mkdir -p /run/node/etcd /run/node/certs
  node_start etcd etcd --data-dir /run/node/etcd --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
  cluster_containerd
  node_run test -e /run/node/accounts.key || node_run openssl genrsa -out /run/node/accounts.key 2048 2>/dev/null
  node_run sh -c 'cat >/run/node/tokens' <<'TOKENS'
admin-token,admin,1,"system:masters"
node-token,system:node:node,2,"system:nodes"
node-b-token,system:node:node-b,3,"system:nodes"
node-c-token,system:node:node-c,4,"system:nodes"
TOKENS
  cluster_kubeconfig admin
  node_start apiserver kube-apiserver --etcd-servers=http://127.0.0.1:2379 --service-cluster-ip-range=10.96.0.0/16 \
    --advertise-address=10.0.0.1 --secure-port=6443 --cert-dir=/run/node/certs --token-auth-file=/run/node/tokens \
    --authorization-mode=Node,RBAC --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file=/run/node/accounts.key --service-account-signing-key-file=/run/node/accounts.key \
    --allow-privileged=true --kubelet-preferred-address-types=InternalIP
  node_wait 60 kubectl get --raw /readyz
  node_start controllers kube-controller-manager --kubeconfig=/run/node/admin.conf --leader-elect=false \
    --service-account-private-key-file=/run/node/accounts.key --use-service-account-credentials=false \
    --root-ca-file=/run/node/certs/apiserver.crt --controllers='*,-nodeipam' "${kube_controllers[@]}"
  node_start scheduler kube-scheduler --kubeconfig=/run/node/admin.conf --leader-elect=false
  cluster_kubelet
  cluster_proxy
  node_wait 60 kubectl wait --for=condition=Ready node/node --timeout=1s
  node_wait 30 kubectl get serviceaccount default
  echo "kube: cluster up in $((SECONDS - begin)) s"
}

cluster_kubeconfig() { # user
  node_run sh -c "cat >/run/node/$1.conf" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://10.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: user, user: {token: $1-token}}]
contexts: [{name: node, context: {cluster: node, user: user}}]
current-context: node
CONFIG
}

cluster_containerd() {
  local ranges='' routes=''
  if [ -n "$kube_pods6" ]; then ranges=", [{\"subnet\": \"$kube_pods6\"}]" routes=', {"dst": "::/0"}'; fi
  node_run mkdir -p /run/node/cni
  node_run sh -c 'cat >/run/node/cni/10-bridge.conflist' <<CNI
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "/run/node/addresses",
            "ranges": [[{"subnet": "$kube_pods"}]$ranges], "routes": [{"dst": "0.0.0.0/0"}$routes]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
CNI
  # CAP_SYS_RESOURCE, for scores below the own, is missing in some containers that this runs in.
  node_run sh -c 'cat >/run/node/containerd.toml' <<CONFIG
version = 2
root = "/run/node/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "$PWD/scripts/containers/bin/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$engines/root/usr/lib/cni"
conf_dir = "/run/node/cni"
CONFIG
  node_start "containerd$kube_suffix" containerd -c /run/node/containerd.toml -l warn
  node_wait 20 ctr version
  cluster_images
}

# Images are archives under target/images, made there once, under the names that the examples of deploy/ have.
cluster_images() {
  local root name archive
  while read -r root name; do
    [ -n "$root" ] || continue
    archive=$images/$(basename "$name").tar
    if [ ! "$archive" -nt "$images/$root" ]; then
      scripts/containers/archive.py "$images/$root" "$name" "$(image_command "$root")" >"$archive.new"
      mv "$archive.new" "$archive"
    fi
    node_run ctr -n k8s.io images import "$archive" >/dev/null
  done <<IMAGES
pause localhost/pause:1
nginx docker.io/library/nginx:1.28
go docker.io/library/my-dns:1
go docker.io/library/my-server:1
${agent:+agent docker.io/library/truepeer-agent:0.1.0}
${before:+agent-before docker.io/library/truepeer-agent:0.0.1}
IMAGES
}

cluster_kubelet() {
  cluster_kubeconfig "$kube_node"
  node_run mkdir -p /run/node/kubelet /run/node/sysctl
  # kubelet sets these for the whole machine: it gets files in their place.
  node_run sh -euc 'for each in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
      kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/node/sysctl/$(basename "${each%=*}")
    echo "${each#*=}" >"$file"
    mount --bind "$file" "/proc/sys/${each%=*}"
  done'
  node_run sh -c 'cat >/run/node/kubelet.yaml' <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
cgroupRoot: $kube_cgroup
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
evictionHard: {nodefs.available: "1%"}
localStorageCapacityIsolation: false
featureGates: {KubeletInUserNamespace: true}
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: ""
maxPods: 130
registryPullQPS: 0
eventRecordQPS: 0
kubeAPIQPS: 500
kubeAPIBurst: 1000
syncFrequency: 10s
CONFIG
  # Below a shell: nsenter stops with its child, and a test may stop the kubelet.
  node_start "kubelet$kube_suffix" sh -c '"$@" & wait' kubelet kubelet --config=/run/node/kubelet.yaml --kubeconfig="/run/node/$kube_node.conf" \
    --root-dir=/run/node/kubelet --hostname-override="$kube_node" --node-ip="$kube_address" --cert-dir=/run/node/kubelet-certs
}

cluster_proxy() {
  node_run sh -c 'cat >/run/node/proxy.yaml' <<CONFIG
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clientConnection: {kubeconfig: /run/node/admin.conf}
hostnameOverride: $kube_node
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
CONFIG
  node_start "proxy$kube_suffix" kube-proxy --config=/run/node/proxy.yaml
}
