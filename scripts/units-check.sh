#!/bin/bash
# Units of Debian's own packages, and a static server with Type=notify: started, and restarted under load. Once with nothing but `truepeer run` before
# ExecStart (two also need the lines that truepeer names), once as they are, with `truepeer attach --unit`. Each client must be named, and no server may see a
# header. Under a real systemd, in namespaces of its own. Arguments: the units to check (all by default). TRUEPEER_UNITS_WAYS=attach leaves `run` out. Needs
# root; minutes, and more the first time.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. scripts/debian.sh
release=trixie
truepeer=${TRUEPEER:-$target/debug/truepeer}
ways=${TRUEPEER_UNITS_WAYS:-run attach}
say() { echo "units-check: $*"; }
[ "$(id -u)" = 0 ] || { echo "SKIP units-check: needs root"; exit 77; }
command -v debootstrap >/dev/null || apt_install debootstrap >/dev/null || { echo "SKIP units-check: needs debootstrap"; exit 77; }
findmnt -nt cgroup2 >/dev/null || { echo "SKIP units-check: needs a mounted cgroup2"; exit 77; }
[ -x "$truepeer" ] || { say "no $truepeer: cargo build -p truepeer"; exit 1; }
PATH=$PATH:/usr/local/go/bin

# unit, port, kind of client; for kinds that answer nothing about it where it is logged, and what precedes it there.
table='
redis-server 6379 redis
nginx 8001 http
apache2 8002 weblog /var/log/apache2/other_vhosts_access.log ^\S+:80.
ssh 22 ssh journal (?:from|by).
mariadb 3306 mariadb
memcached 11211 memcached
dovecot 143 imap journal rip=
postfix 25 smtp journal connect.from.[^[]*\[
vsftpd 21 ftp /var/log/vsftpd.log Client."
haproxy 8003 http
lighttpd 8004 weblog /var/log/lighttpd/access.log ^
named 53 dns journal client.@0x[0-9a-f]+.
postgresql@17-main 5432 postgres
static 8005 plain
'
# The lines that truepeer's messages and its page name for these units.
declare -A lines=(
  [redis-server]='ExecPaths=/usr/bin/truepeer'
  [postfix]='SystemCallFilter=seccomp pidfd_getfd process_vm_readv process_vm_writev ptrace
CapabilityBoundingSet=CAP_SYS_PTRACE'
)
packages=(redis-server nginx-light apache2 openssh-server mariadb-server memcached dovecot-imapd postfix vsftpd haproxy lighttpd bind9 postgresql)

root=$target/units-$release
mkdir -p "$target/logs"
install_packages() {
  debian_root "$root" "$release" || return 1
  [ ! -e "$root/etc/units-are-installed" ] || return 0
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive sh -c \
    "apt-get update -q && apt-get install -qy --no-install-recommends ${packages[*]}" >"$target/logs/units-apt.log" 2>&1 || return 1
  : >"$root/etc/resolv.conf"
  touch "$root/etc/units-are-installed"
}
install_packages || { echo "SKIP units-check: debootstrap or apt failed (target/logs/debootstrap.log, units-apt.log)"; exit 77; }

install -m 755 "$truepeer" "$root/usr/bin/truepeer"
rm -rf "$root"/etc/systemd/system/*.service.d "$root/var/log/journal" "$root"/var/log/{apache2/other_vhosts_access,lighttpd/access}.log "$root/var/log/vsftpd.log"
for log in "$root"/var/log/postgresql/*.log; do [ ! -e "$log" ] || : >"$log"; done
ln -sf /dev/null "$root/etc/systemd/system/postgresql.service"
rm -f "$root"/etc/systemd/system/multi-user.target.wants/*.service
# What the servers serve; their units stay as they are.
answer='"client $remote_addr:$remote_port\n"'
rm -f "$root/etc/nginx/sites-enabled/default"
echo "server { listen 127.0.0.1:8001; location / { default_type text/plain; return 200 $answer; } }" >"$root/etc/nginx/sites-enabled/default"
echo 'Listen 127.0.0.1:8002' >"$root/etc/apache2/ports.conf"
sed -i 's/^server.port .*/server.port = 8004/' "$root/etc/lighttpd/lighttpd.conf"
printf 'server.modules += ("mod_accesslog")\naccesslog.filename = "/var/log/lighttpd/access.log"\n' >"$root/etc/lighttpd/conf-enabled/99-log.conf"
cat >"$root/etc/haproxy/haproxy.cfg" <<'END'
defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 10s
frontend web
  bind 127.0.0.1:8003
  http-request return status 200 content-type text/plain lf-string "client %ci:%cp\n"
END
# It refuses clients of other hosts without a password otherwise.
sed -i 's/^protected-mode yes/protected-mode no/' "$root/etc/redis/redis.conf"
grep -q querylog "$root/etc/bind/named.conf.options" || sed -i 's/^options {/&\n\tquerylog yes;/' "$root/etc/bind/named.conf.options"
sed -i 's/^\(inet_interfaces\|inet_protocols\|smtpd_peername_lookup\) .*//' "$root/etc/postfix/main.cf"
printf 'inet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nsmtpd_peername_lookup = no\n' >>"$root/etc/postfix/main.cf"
# A static server as many are in Go: it is ready when it says so, and fed to its watchdog.
go_server() {
  mkdir -p "$target/tmp/static-server"
  cat >"$target/tmp/static-server/main.go" <<'END'
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

func say(text string) {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		panic(err)
	}
	conn.Write([]byte(text))
	conn.Close()
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:8005")
	if err != nil {
		panic(err)
	}
	if os.Getenv("WATCHDOG_PID") != strconv.Itoa(os.Getpid()) {
		panic("the watchdog is not for this process")
	}
	say(fmt.Sprintf("READY=1\nMAINPID=%d", os.Getpid()))
	go func() {
		for range time.Tick(time.Second) {
			say("WATCHDOG=1")
		}
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			io.ReadAll(conn)
			fmt.Fprint(conn, conn.RemoteAddr())
			conn.Close()
		}()
	}
}
END
  (cd "$target/tmp/static-server" && CGO_ENABLED=0 go build -o "$root/usr/bin/static-server" main.go)
  printf '[Service]\nType=notify\nExecStart=/usr/bin/static-server\nWatchdogSec=30\nDynamicUser=yes\n' >"$root/etc/systemd/system/static.service"
}
if command -v go >/dev/null; then go_server; else table=${table/static 8005 plain/}; say "static is left out: no go"; fi

# The unit's own command line, after truepeer's.
drop_in() { # unit
  local file=$root/usr/lib/systemd/system/$1.service name
  [ -e "$file" ] || file=$root/etc/systemd/system/$1.service
  [ -e "$file" ] || file=$root/usr/lib/systemd/system/${1%@*}@.service
  name=$root/etc/systemd/system/$1.service.d/truepeer.conf
  mkdir -p "${name%/*}"
  python3 - "$file" >"$name" <<'END'
import re, sys
line = re.search(r"^ExecStart=([-@:+!|]*)((?:.*\\\n)*.*)$", open(sys.argv[1]).read(), re.M)
print(f"[Service]\nExecStart=\nExecStart={line[1]}/usr/bin/truepeer run -- {line[2]}")
END
  echo "${lines[$1]-}" >>"$name"
}

work=$(mktemp -d)
debian_boot "$root" || { echo "SKIP units-check: systemd does not boot here (target/logs/debian.log)"; exit 77; }
trap 'debian_end; rm -rf "$work"' EXIT
failed=0
fail() {
  say "FAILED: $unit by $way: $*"
  debian_run journalctl --no-pager -q -o cat -u "$unit" -n 15 || true
  failed=$((failed + 1))
}
clients() { rm -f "$work/stop"; nsenter -t "$debian_pid" -n python3 scripts/units-clients.py "$port" "$kind" "$work/stop" "$@"; }

# What the log says of the clients: "RIGHT WRONG HEADERS".
in_the_log() {
  if [ "$log" = journal ]; then debian_run journalctl --no-pager -q -o cat -u "$unit"; else cat "$root$log"; fi | python3 -c 'import re, sys
text = sys.stdin.buffer.read().decode("latin-1")
seen = list(re.finditer(sys.argv[1] + r"(?:\[?::ffff:|\[)?([0-9]+\.[0-9.]+|[0-9a-f:]+:[0-9a-f]*)", text, re.M))
wrong = [found for found in seen if not found[1].startswith("203.0.113.")]
for found in wrong[:3]:
    print("a wrong name:", text[text.rfind("\n", 0, found.start()) + 1:text.find("\n", found.end())], file=sys.stderr)
print(len(seen) - len(wrong), len(wrong), len(re.findall(r"PROXY TCP|QUIT\\n!", text)))' "$before"
}

# systemd takes a unit with Type=simple for started before it listens.
listens() {
  for _ in $(seq 100); do
    [ -z "$(nsenter -t "$debian_pid" -n ss -Hltn "sport = :$port")" ] || return 0
    sleep .1
  done
  return 1
}

check() {
  local asked restarted word
  # Else its starts by the other way count as well, and systemd allows five in 10 s.
  debian_run systemctl reset-failed "$unit" 2>/dev/null || true
  debian_run systemctl start "$unit" || { fail "it does not start"; return; }
  listens || { fail "nothing listens on port $port"; return; }
  asked=$(clients 300 2>&1) || { fail "$asked"; return; }
  [ "$asked" = "300 0" ] || { fail "of 300 clients: named and cut: $asked"; return; }
  clients >"$work/said" 2>&1 &
  for _ in 1 2 3; do
    sleep 1
    debian_run systemctl restart "$unit" || { fail "it does not start again"; break; }
  done
  sleep 1
  touch "$work/stop"
  wait $! || { fail "$(tail -3 "$work/said")"; return; }
  restarted=$(cat "$work/said")
  [ "${restarted% *}" -gt 0 ] || { fail "no client is served while it is restarted"; return; }
  word="300 clients, and ${restarted/ / while it was restarted 3 times (cut by that: })"
  if [ -n "$log" ]; then
    asked=$(in_the_log)
    read -r right wrong headers <<<"$asked"
    [ "$right" -ge 300 ] && [ "$wrong" = 0 ] && [ "$headers" = 0 ] || { fail "the log: right names, wrong ones, headers: $asked"; return; }
    word+="; $right right names in its log, 0 wrong, 0 headers"
  fi
  # It closes such a connection without a word, as a restart does.
  if [ "$kind" = postgres ] && grep -aq 'invalid length of startup packet' "$root"/var/log/postgresql/*.log; then
    fail "a header has reached it"
    return
  fi
  debian_run systemctl stop "$unit"
  [ -z "$(debian_run sh -c "cat /sys/fs/cgroup/system.slice/$unit.service/cgroup.procs 2>/dev/null")" ] || { fail "processes are left"; return; }
  say "$unit by $way: $word"
}

while read -r unit port kind log before; do
  [ -n "$unit" ] || continue
  [ $# = 0 ] || [[ " $* " = *" $unit "* ]] || continue
  for way in $ways; do
    case $way in
      run)
        drop_in "$unit"
        debian_run systemctl daemon-reload
        ;;
      attach)
        # It is attached to the unit as it runs, and follows its restarts.
        debian_run systemctl start "$unit" </dev/null || true
        debian_run truepeer attach --unit "$unit.service" --port "$port" </dev/null || fail "it is not attached"
        ;;
    esac
    check </dev/null
    debian_run systemctl stop "$unit"
    case $way in
      run)
        rm -r "$root/etc/systemd/system/$unit.service.d"
        debian_run systemctl daemon-reload
        ;;
      attach) debian_run truepeer attach detach --now </dev/null || fail "it is not detached" ;;
    esac
  done
done <<<"$table"
say "$failed failed"
[ "$failed" = 0 ]
