#!/bin/bash
# deploy/kubernetes/apparmor-agent, enforced by Debian's kernels in qemu: truepeer attach under it; what a taken-over agent must not do;
# then truepeer-agent on a real API server, beside pods whose servers are under a profile like containerd's own. Needs the engines'
# packages (`make engines`) and for the agent Kubernetes' programs (`make kube`), no root. apparmor.sh [RELEASE...], as in kernels.sh.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
say() { echo "apparmor: $*"; }
. scripts/guest.sh
. scripts/containers/node.sh
. scripts/containers/checks.sh
releases=("$@")
[ ${#releases[@]} -gt 0 ] || releases=(bookworm trixie)
# Those of the agent's tests with an API server that together start all that the agent starts.
tests=(an_annotated_pod_sees_its_clients changed_annotations_are_followed a_port_without_a_server_is_told_later refusals_are_told
       a_device_that_comes_after_the_attach_is_served counters_have_the_names_of_pods metrics_need_the_token a_deleted_pod_is_forgotten
       an_agent_that_starts_again_adopts_without_a_gap a_sandbox_that_starts_again_is_attached_again an_agent_that_leaves_leaves_nothing
       three_capabilities_are_enough)

skip() { check_skip apparmor "$*"; checks_end; exit 0; }
[ "$(uname -m)" = x86_64 ] || skip "written for x86_64"
for tool in setpriv unshare nsenter ip openssl gzip apt-get dpkg-deb; do command -v $tool >/dev/null || skip "needs $tool"; done
[ -x "$engines/root/sbin/apparmor_parser" ] || skip "the engines are not unpacked: make engines"
# The agent's tests, with what they need.
put_agents_tests() {
  local built agent
  built=$(cargo test --manifest-path crates/agent/Cargo.toml --target-dir "$target" --test cluster --no-run --message-format=json 2>"$guests/build.log") ||
    { tail -20 "$guests/build.log"; return 1; }
  executable() { grep -o '"executable":"[^"]*/'"$1"'"' <<<"$built" | tail -1 | cut -d'"' -f4; } # pattern
  agent=$(executable truepeer-agent)
  put_program "$agent" usr/bin/truepeer-agent
  # Where the tests look for it. AppArmor sees the name of the file itself.
  mkdir -p "$tree$(dirname "$agent")" "$tree$PWD/crates/agent"
  ln -s /usr/bin/truepeer-agent "$tree$agent"
  put_program "$(executable 'cluster-[0-9a-f]*')" cluster
  put deploy/kubernetes/agent.yaml "$PWD/deploy/kubernetes/agent.yaml"
  put "$kube/kube-apiserver" kube/kube-apiserver
  put_program "$engines/root/usr/bin/etcd" kube/etcd
}

exec 9>"$guests/lock"
flock 9
guest_qemu || skip "apt can't provide qemu of $qemu_release"
for release in "${releases[@]}"; do guest_kernel "$release" || skip "apt can't provide the kernel of $release"; done

truepeer=${TRUEPEER:-$target/debug/truepeer}
[ -x "$truepeer" ] || { say "no $truepeer: cargo build, or name one by TRUEPEER"; exit 1; }
guest_tree setpriv unshare nsenter ip openssl
for name in mount cat kill sleep mkdir; do ln -s busybox "$tree/bin/$name"; done
# For the tests. busybox's own takes an applet for a program's name, as below.
put_program "$(command -v sh)" sbin/sh
put_program "$truepeer" usr/bin/truepeer
if [ -x "$kube/kube-apiserver" ]; then put_agents_tests
else
  check_skip "the agent under the profile" "Kubernetes is not built: make kube"
  tests=()
fi
put_program "$engines/root/sbin/apparmor_parser" sbin/apparmor_parser
put scripts/containers/checks.sh checks.sh
mkdir -p "$tree/mnt" "$tree/etc/apparmor.d"
cp -r "$engines"/root/etc/apparmor.d/{abi,abstractions,tunables} "$tree/etc/apparmor.d/"
cp deploy/kubernetes/apparmor-agent "$tree/etc/apparmor.d/"
touch "$tree/etc/ssl.cnf"
# As containerd gives it to each container (contrib/apparmor/template.go) where AppArmor's abstractions/base is, and where it is not.
cat >"$tree/etc/apparmor.d/container" <<'PROFILE'
#include <tunables/global>
profile cri-containerd.apparmor.d flags=(attach_disconnected,mediate_deleted) {
  #include <abstractions/base>
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (send,receive) peer=cri-containerd.apparmor.d,
  deny @{PROC}/sys/[^k]** w,
  deny @{PROC}/sysrq-trigger rwklx,
  deny mount,
  deny /sys/kernel/security/** rwklx,
  ptrace (trace,read,tracedby,readby) peer=cri-containerd.apparmor.d,
}
PROFILE
sed -e 's/^profile [^ ]*/profile closed/' -e '/abstractions.base/d' "$tree/etc/apparmor.d/container" >"$tree/etc/apparmor.d/closed"
guest_pack "$tree" "$guests/tree.gz"

# What the machine executes, by busybox's shell.
work() {
  echo "tests='${tests[*]}'"
  cat <<'WORK'
. /checks.sh
export TRUEPEER_TEST_APPARMOR=1 TRUEPEER_TEST_PATIENCE=20 TRUEPEER=/usr/bin/truepeer TRUEPEER_KUBE=/kube OPENSSL_CONF=/etc/ssl.cnf
# In the container, the agent reads what it has from Kubernetes there.
export TMPDIR=/run/secrets/kubernetes.io/serviceaccount
mkdir -p $TMPDIR
mount -t securityfs securityfs /sys/kernel/security
check_is "the kernel has AppArmor" "$(cat /sys/module/apparmor/parameters/enabled)" Y
for profile in apparmor-agent container closed; do
  check_is "the kernel takes the profile $profile" "$(apparmor_parser -rK --base /etc/apparmor.d /etc/apparmor.d/$profile 2>&1 | grep -v -e ^Warning -e ^Cache)" ""
done
check_is "the kernel enforces the profile" "$(grep -c '^truepeer-agent (enforce)$' /sys/kernel/security/apparmor/profiles)" 1

# As the agent's container runs it, and a process in a pod's network.
truepeer() {
  /sbin/setpriv --bounding-set=-all,+net_admin,+sys_admin,+sys_ptrace --inh-caps=-all --no-new-privs --apparmor-profile=truepeer-agent \
    /usr/bin/truepeer "$@" --pins=/run/truepeer 2>&1
}
denied() { dmesg | sed -n 's/.*\(apparmor="DENIED".*profile="truepeer-agent".*\)/\1/p' | sed 's/pid=[0-9]* //' | sort -u; }
mkdir -p /run/truepeer /sys/fs/bpf/truepeer /sys/fs/cgroup/pod
mount --bind /sys/fs/bpf/truepeer /run/truepeer
/sbin/unshare --net sleep 1000 &
pod=$!
until [ "$(busybox readlink /proc/$pod/ns/net)" != "$(busybox readlink /proc/$$/ns/net)" ]; do kill -0 $pod || break; sleep 1; done
echo $pod >/sys/fs/cgroup/pod/cgroup.procs
/sbin/nsenter --net=/proc/$pod/ns/net /sbin/ip link add eth0 type veth peer name eth1
/sbin/nsenter --net=/proc/$pod/ns/net /sbin/ip addr add 10.9.9.2/24 dev eth0
/sbin/nsenter --net=/proc/$pod/ns/net /sbin/ip link set eth0 up
attached() { truepeer attach status --json --pid=$pod | sed -n 's/^ *"attached": \([a-z]*\),*$/\1/p'; }
truepeer attach --replace --pid=$pod --cgroup=/sys/fs/cgroup/pod --port=80 --port=53/udp --allow=10.0.0.7
check_is "truepeer attach into another network" "$? $(attached)" "0 true"
check_is "truepeer attach status --all" "$(truepeer attach status --all --json | grep -c '"netns": [0-9]')" 1
truepeer attach detach --now --pid=$pod && truepeer attach sweep
check_is "truepeer attach detach and sweep" "$? $(attached)" "0 false"
check_is "nothing was denied meanwhile" "$(denied)" ""

# As who has taken the agent over: a program of theirs in the place of truepeer, under the profile or without.
as() { # profile or nothing, applet of busybox, arguments...
  /sbin/unshare --mount busybox sh -c 'mount --bind /bin/busybox /usr/bin/truepeer
    [ -z "$0" ] || echo "exec $0" >/proc/self/attr/exec
    exec -a busybox /usr/bin/truepeer "$@"' "$@" 2>&1
}
check_is "a program is under the profile" "$(as truepeer-agent cat /proc/self/attr/current)" "truepeer-agent (enforce)"
is_forbidden() { # what, applet, arguments...
  local name=$1 free confined
  shift
  confined=$(as truepeer-agent "$@" | grep -ci 'permission denied')
  free=$(as "" "$@" >/dev/null; echo $?)
  check_is "forbidden by the profile, possible without: $name" "$free $confined" "0 1"
}
is_forbidden "a file elsewhere" touch /tmp/file
is_forbidden "pins of others" mkdir /sys/fs/bpf/cilium
is_forbidden "a mount" mount -t tmpfs none /mnt
is_forbidden "an unmount" umount /sys/kernel/security
is_forbidden "the memory of a process" head -c 0 /proc/1/mem
is_forbidden "another program" env /sbin/ip link
is_forbidden "the kernel's settings" sh -c 'echo core >/proc/sys/kernel/core_pattern'
is_forbidden "a file that is not the agent's" head -c 0 /work

# Processes of containers.
confined() { # profile
  /sbin/setpriv --apparmor-profile="$1" sleep 1000 &
  until grep -q "^$1 (enforce)" /proc/$!/attr/current; do kill -0 $! || return 1; sleep 1; done
}
confined cri-containerd.apparmor.d
check_is "the agent may look at a container's process" "$(as truepeer-agent stat -L /proc/$!/ns/net >/dev/null; echo $?)" 0
check_is "under the runtime's profile it could look at no process" "$(as cri-containerd.apparmor.d stat -L /proc/1/ns/net | grep -ci 'permission denied')" 1
confined closed
is_forbidden "a look at a process whose profile forbids it" stat -L /proc/$!/ns/net

# All tests of the agent but these are left out.
if [ -n "$tests" ]; then
  umount /run/truepeer
  skips=$(/cluster --list --format terse | sed -n 's/: test$//p' | while read -r name; do case " $tests " in *" $name "*) ;; *) echo "--skip $name" ;; esac; done)
  dmesg -c >/dev/null
  /cluster --color never --exact $skips
  check_is "nothing was denied to the agent" "$(denied)" ""
fi
checks_end
WORK
}

guest_accel
mkdir -p "$guests/logs"
for release in "${releases[@]}"; do
  guest_kernel "$release"
  start=$SECONDS
  say "booting Linux $version ($package)"
  work >"$guests/logs/apparmor-$release.work"
  log=$guests/logs/apparmor-$release.log
  guest_boot "$guests/logs/apparmor-$release.work" "$log" "${KERNELS_TIMEOUT:-3600}" -nic none -m 3072
  # The machine's results, which stand above.
  expected="${tests:+ok ${#tests[@]} }ok $((21 + (${#tests[@]} > 0))) "
  check_is "Linux $version: all of its tests" "$(sed -n 's/^test result: \([A-Za-z]*\)\. \([0-9]*\) passed.*/\1 \2/p' "$log" | tr '\n' ' ')" "$expected"
  say "Linux $version took $((SECONDS - start)) s"
done
checks_end
