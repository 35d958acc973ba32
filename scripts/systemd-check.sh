#!/bin/bash
# truepeer.service under a real systemd, process 1 of namespaces of its own: start, reload, upgrade, stop, the journal, and the
# unit with one privilege less. Then truepeer-attach@: reloads, other words, kill -9, stop. Of Debian 13 by default: its systemd (257) knows Type=notify-reload.
# Options: the release, and a truepeer for it (by default the debug build). Needs root; a minute, and more the first time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/debian.sh
release=${1:-trixie}
truepeer=${2:-$target/debug/truepeer}
say() { echo "systemd-check: $*"; }
fail() { say "FAILED: $*"; debian_run journalctl --no-pager -u truepeer -n 25 || true; exit 1; }
[ "$(id -u)" = 0 ] || { echo "SKIP systemd-check: needs root"; exit 77; }
command -v debootstrap >/dev/null || apt_install debootstrap >/dev/null || { echo "SKIP systemd-check: needs debootstrap"; exit 77; }
findmnt -nt cgroup2 >/dev/null || { echo "SKIP systemd-check: needs a mounted cgroup2"; exit 77; }
[ -x "$truepeer" ] || { say "no $truepeer: cargo build -p truepeer"; exit 1; }
root=$target/systemd-$release
mkdir -p "$target/logs"
debian_root "$root" "$release" || { echo "SKIP systemd-check: debootstrap failed (target/logs/debootstrap.log)"; exit 77; }

config=$root/etc/truepeer/truepeer.toml
dropin=$root/etc/systemd/system/truepeer.service.d/less.conf
mkdir -p "${config%/*}"
rm -rf "${dropin%/*}" "$root/var/log/journal" "$config" "$root"/etc/systemd/system/*.wants/truepeer.service
install -m 755 "$truepeer" "$root/usr/bin/truepeer"
cp deploy/systemd/truepeer.service "$root/etc/systemd/system/"
jobs() { # ports
  printf '[admin]\nlisten = ["/run/truepeer/admin.sock"]\n'
  for port; do
    printf '[[proxy]]\nlisten = ["127.0.0.1:%s"]\nipv4 = "127.0.0.1:8000"\nipv6 = "[::1]:8000"\nroutes = "auto"\nallow = ["loopback"]\n' "$port"
  done
}
jobs 843 >"$config"

work=$(mktemp -d)
debian_boot "$root" || { echo "SKIP systemd-check: systemd does not boot here (target/logs/debian.log)"; exit 77; }
trap 'debian_end; rm -rf "$work"' EXIT
property() { debian_run systemctl show -P "$1" truepeer; }
journal() { debian_run journalctl --no-pager -u truepeer "$@"; }
logged() { journal -o cat | grep -F "$1" >/dev/null; }
# Clients: new ones until the file stop exists, and one that stays.
clients() {
  nsenter -t "$debian_pid" -n python3 scripts/package-clients.py "$work/stop" 843 8000 >"$work/clients" 2>&1 &
  clients=$!
  for _ in $(seq 100); do ! grep -qs '^connected' "$work/clients" || return 0; sleep .1; done
  cat "$work/clients"
  fail "no client is served"
}

say "$(debian_run systemctl --version | head -1); $(debian_run systemd-analyze security --no-pager --offline=true --threshold=23 \
  /etc/systemd/system/truepeer.service | tail -1 | sed 's/^[^O]*//')" || fail "the exposure is above 2.3"
debian_run ip rule >"$work/rules"

debian_run systemctl start truepeer || fail "start"
first=$(property MainPID)
status() { debian_run sed -n "s/^$1:[[:space:]]*//p" "/proc/$(property MainPID)/status"; }
is() { [ "$(status "$1")" = "$2" ] || fail "$1 is $(status "$1"), expected $2"; }
confined() {
  is CapEff 0000000000002400 # CAP_NET_BIND_SERVICE, CAP_NET_RAW
  is CapPrm 0000000000002400
  is CapBnd 000000c0000034c4 # without CAP_SETPCAP it can't be reduced; no_new_privs has the same effect
  is CapAmb 0000000000000000
  is NoNewPrivs 1
  is Seccomp 2
  case $(status Uid) in 0*) fail "it runs as root" ;; esac
  local helper helpers=
  for helper in $(debian_run cat "/proc/$(property MainPID)/task/$(property MainPID)/children"); do
    helpers+=$(debian_run sed -nE 's/^(Name|CapPrm|CapEff|Seccomp):\s*//p' "/proc/$helper/status" | tr '\n' ' ')$'\n'
  done
  # 1400: CAP_NET_BIND_SERVICE, CAP_NET_ADMIN.
  [ "$(sort <<<"$helpers" | tr '\n' ' ')" = " truepeer-keeper 0000000000001400 0000000000001400 2  truepeer-pins 0000000000000000 0000000000000000 2  truepeer-splice 0000000000001400 0000000000001400 2  " ] ||
    fail "its helpers: $helpers"
}
confined
logged 'sessions may leave user space, on lo' || fail "its sessions stay in user space"
logged ', capabilities cap_net_raw cap_net_bind_service, files (Landlock' || fail "no line about confinement"
if logged 'not confined'; then fail "something is missing"; fi
[ "$(property NFileDescriptorStore)" = 1 ] || fail "systemd keeps $(property NFileDescriptorStore) sockets"
# The address changes within its port, whose old socket is in the store.
jobs 843 | sed 's/127.0.0.1:843"/0.0.0.0:843"/' >"$config"
debian_run systemctl reload truepeer || fail "a reload within the port"
logged 'listener 0.0.0.0:843 was opened' || fail "not opened within the port"
jobs 843 >"$config"
debian_run systemctl restart truepeer || fail "a restart within the port"
[ "$(property NRestarts) $(property NFileDescriptorStore)" = "0 1" ] || fail "$(property NRestarts) restarts, $(property NFileDescriptorStore) sockets kept"
say "an address changed within its port, by reload and by restart"
first=$(property MainPID)
clients
for _ in $(seq 100); do left=$(debian_run truepeer status | grep 'left user space') && break; sleep .1; done
say "started: user $(status Uid | cut -f1), capabilities and filters as declared, its socket in systemd's store; ${left:?no session has left user space}"

jobs 843 844 >"$config"
debian_run systemctl reload truepeer || fail "reload"
logged 'listener 127.0.0.1:844 was opened' || fail "the reload opened no port below 1024"
jobs 843 >"$config"
echo 'nonsense = 1' >>"$config"
if debian_run systemctl reload truepeer 2>/dev/null; then fail "a file with an error was reloaded"; fi
logged '`nonsense`: there is no such key' || fail "no reason in the journal"
jobs 843 >"$config"
debian_run systemctl reload truepeer || fail "reload after the error"
[ "$(property MainPID)" = "$first" ] && [ "$(property ActiveState)" = active ] || fail "a reload ended the process"
say "reloaded ($(property Type)): a port opened below 1024 and closed; a file with an error refused, with its reason"

# Another file of the same program, as a package brings it.
install -m 755 "$truepeer" "$root/usr/bin/truepeer.next"
mv "$root/usr/bin/truepeer.next" "$root/usr/bin/truepeer"
debian_run systemctl reload truepeer || fail "upgrade"
for _ in $(seq 50); do [ "$(property MainPID)" = "$first" ] || break; sleep .1; done
[ "$(property MainPID)" != "$first" ] && [ "$(property ActiveState)" = active ] || fail "no new process serves"
confined
sleep 1
touch "$work/stop"
wait "$clients" || { cat "$work/clients"; fail "clients were cut"; }
say "upgraded inside the unit, confined again: $(tail -1 "$work/clients")"

debian_run systemctl stop truepeer || fail "stop"
logged 'stopping: nothing new is taken' || fail "no drain"
[ "$(property Result)" = success ] || fail "it ended: $(property Result), code $(property ExecMainCode), status $(property ExecMainStatus)"
diff "$work/rules" <(debian_run ip rule) || fail "rules are left"
[ -z "$(debian_run cat /sys/fs/cgroup/system.slice/truepeer.service/cgroup.procs 2>/dev/null)" ] || fail "processes are left"

debian_run systemctl start truepeer || fail "start again"
debian_run systemctl kill --kill-whom=main -s KILL truepeer || fail "kill"
for _ in $(seq 50); do ! logged 'its keeper has removed them' || break; sleep .1; done
logged 'its keeper has removed them' || fail "no word of a keeper after kill -9"
for _ in $(seq 50); do [ "$(property ActiveState)" != active ] || [ "$(property NRestarts)" = 0 ] || break; sleep .1; done
confined
debian_run systemctl stop truepeer || fail "stop after kill -9"
diff "$work/rules" <(debian_run ip rule) || fail "rules are left after kill -9"
say "killed (kill -9): its keeper removed the rules, and systemd started it again"
journal -o json | python3 -c 'import json, sys
levels = {json.loads(line)["PRIORITY"] for line in sys.stdin}
sys.exit(0 if {"4", "6"} <= levels else f"priorities {levels}: no warning or no information among them")' || fail "priorities"
say "stopped: no rules left; priorities in the journal: $(journal -o json | python3 -c 'import json, sys
print(*sorted({json.loads(line)["PRIORITY"] for line in sys.stdin}))')"

mkdir -p "${dropin%/*}"
for less in CAP_NET_ADMIN CAP_NET_BIND_SERVICE; do
  kept=$(sed -n 's/^CapabilityBoundingSet=//p' deploy/systemd/truepeer.service | tr ' ' '\n' | grep -vx $less | tr '\n' ' ')
  printf '[Service]\nRestart=no\nCapabilityBoundingSet=\nCapabilityBoundingSet=%s\n' "$kept" >"$dropin"
  debian_run systemctl daemon-reload
  since=$(date +'%F %T')
  if debian_run systemctl start truepeer 2>/dev/null; then fail "it starts without $less"; fi
  journal -o cat --since "$since" | grep "$less" >/dev/null || fail "no word of $less"
done
rm -r "${dropin%/*}"
say "with less: neither without CAP_NET_ADMIN nor without CAP_NET_BIND_SERVICE does it start; the journal names them"

# The first example of docs/config.md, and a site whose key certbot keeps for root. The file is root's alone, too.
site=$root/etc/letsencrypt
rm -rf "$site"
mkdir -p "$site/archive/www" "$site/live/www"
chmod 700 "$site/archive" "$site/live"
renew() { # number
  openssl req -x509 -newkey rsa:2048 -nodes -days 9 -subj "/CN=www-$1" -keyout "$site/archive/www/privkey$1.pem" -out "$site/archive/www/fullchain$1.pem" 2>/dev/null
  chmod 600 "$site/archive/www/privkey$1.pem"
  for name in privkey fullchain; do ln -sfn "../../archive/www/$name$1.pem" "$site/live/www/$name.pem"; done
}
renew 1
echo 192.0.2.0/24 >"$root/etc/truepeer/load-balancers.txt"
key=/etc/letsencrypt/live/www/privkey.pem
whole() {
  sed -n '/^```toml$/,/^```$/p' docs/config.md | sed '1d; /^```$/,$d'
  printf '[[https]]\nlisten = ["127.0.0.1:444"]\ntls-cert = ["/etc/letsencrypt/live/www/fullchain.pem"]\ntls-key = ["%s"]\norigin = "http://127.0.0.1:8080"\n' "$key"
}
whole >"$config"
chmod 600 "$config"
checks() { debian_run truepeer check -c /etc/truepeer/truepeer.toml "$@" 2>&1; }
attaches() { debian_run truepeer attach status | grep -q '^port 587/tcp: attached'; }
serves() { # number of the certificate
  nsenter -t "$debian_pid" -n openssl s_client -connect 127.0.0.1:444 </dev/null 2>/dev/null | grep -q "CN *= *www-$1\$" || fail "certificate $1 is not served"
  attaches || fail "nothing is attached"
  case $(status Uid) in 0*) fail "it runs as root" ;; esac
  # It reads root's files again: CAP_DAC_READ_SEARCH.
  is CapEff 0000000000002404
}
for how in "" --as-service; do said=$(checks $how) || fail "check $how: $said"; done
debian_run systemctl enable --now truepeer || fail "start with root's files and [[attach]]"
serves 1
renew 2
debian_run systemctl reload truepeer || fail "reload with a new key"
serves 2
install -m 755 "$truepeer" "$root/usr/bin/truepeer.next"
mv "$root/usr/bin/truepeer.next" "$root/usr/bin/truepeer"
first=$(property MainPID)
debian_run systemctl reload truepeer || fail "upgrade with root's files"
for _ in $(seq 50); do [ "$(property MainPID)" = "$first" ] || break; sleep .1; done
[ "$(property MainPID)" != "$first" ] || fail "no new process serves root's files"
serves 2
debian_run systemctl restart truepeer || fail "restart with root's files"
serves 2
renew 3
debian_end
debian_boot "$root" || fail "no reboot"
[ "$(property ActiveState)" = active ] || fail "not active after the reboot"
serves 3
debian_run systemctl disable --now truepeer || fail "stop with root's files"
if attaches; then fail "stop left port 587 attached"; fi
key=/root/site.key
cp "$site/archive/www/privkey3.pem" "$root$key"
whole >"$config"
said=$(checks) || fail "a check by root alone: $said"
grep -q "warning: .*does not see /root (ProtectHome=yes)" <<<"$said" || fail "no warning of /root: $said"
if said=$(checks --as-service); then fail "check --as-service approves a key below /root"; fi
if debian_run systemctl start truepeer 2>/dev/null; then fail "it starts with a key below /root"; fi
debian_run systemctl stop truepeer
say "config.md's first example, a key and a file of root: started, reloaded with a new key, upgraded, restarted, rebooted; a key below /root refused, as check says"

mkdir -p "$root/etc/truepeer/attach"
cp deploy/systemd/truepeer-attach@.service "$root/etc/systemd/system/"
debian_run systemctl daemon-reload
attach=truepeer-attach@web
words() { echo "ATTACH=--port 8080  --allow 10.0.0.7 $*" >"$root/etc/truepeer/attach/web.conf"; }
main() { debian_run systemctl show -P MainPID "$attach"; }
attached() { debian_run truepeer attach status | grep -q '^port 8080/tcp: attached'; }
# Waits until another process than this one follows.
follows() { # process
  for _ in $(seq 100); do
    case $(main) in 0 | "$1") ;; *) [ "$(debian_run systemctl is-active "$attach")" != active ] || return 0 ;; esac
    sleep .1
  done
  debian_run journalctl --no-pager -u "$attach" -n 25
  fail "nothing follows after $1"
}
words
debian_run systemctl start "$attach" || fail "start of $attach"
first=$(main)
for _ in 1 2 3 4 5; do debian_run systemctl reload "$attach" || fail "a reload of $attach soon after another"; done
[ "$(main)" = "$first" ] || fail "a reload without other words replaced the process"
words --allow 10.0.0.8
debian_run systemctl reload "$attach" || fail "a reload of $attach with other words"
attached || fail "a reload detached"
follows "$first"
second=$(main)
debian_run grep -qz 10.0.0.8 "/proc/$second/cmdline" || fail "it follows by the old words"
debian_run sh -c "kill -KILL $second"
attached || fail "kill -9 detached"
follows "$second"
debian_run systemctl stop "$attach" || fail "stop of $attach"
if attached; then fail "stop left a port attached"; fi
say "$attach: reloaded five times at once and with other words, killed, stopped"
