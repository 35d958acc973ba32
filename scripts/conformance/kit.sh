# What receivers.sh and senders.sh share; sourced before them.

# start PORT COMMAND...: in the background, until it listens on this port. The output is the program's log.
start() {
  local port=$1 count=0
  shift
  "$@" >>"$dir/log" 2>&1 </dev/null &
  pid=$!
  until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
    count=$((count + 1))
    if [ $count -gt 300 ] || ! kill -0 $pid 2>/dev/null && [ $count -gt 20 ]; then
      tail -5 "$dir/log"
      return 1
    fi
    sleep 0.1
  done
}

# judge VERSION PORT OPTIONS...: the version is that of the program.
judge() {
  local version=$1 port=$2 status=0
  shift 2
  echo "$version" >"$out/$name.version"
  "$truepeer" probe "127.0.0.1:$port" --from 127.0.0.9 --patience 400ms --json "$@" >"$out/$name.json" || status=$?
  cp "$dir/log" "$out/$name.log" 2>/dev/null || true
  [ $status != 2 ] && [ -s "$out/$name.json" ] || return 1
  python3 -c 'import json, sys; totals = json.load(open(sys.argv[1]))["totals"]; print("   ", totals)' "$out/$name.json"
}

# backend PORT: echo, which writes its clients to $dir/clients.
backend() { start "$1" python3 scripts/conformance/echo.py "$1" "$dir/clients"; }

version() { sed -n "s/^$1_\(.*\)_[a-z0-9]*\.deb$/\1/p" "$home"/{debian,exim}/VERSIONS | sed 's/^[0-9]*%3a//; s/+d.*//; s/[-~].*//' | head -1; }

# has NAME: the module is there. Prints its version.
has() { cat "$home/modules/$1.version" 2>/dev/null || { echo "    can't be had here" >&2; return 1; }; }

# haproxy_conf: stdin is the configuration after the defaults.
haproxy_conf() { { printf 'defaults\n  timeout connect 5s\n  timeout client 10s\n  timeout server 10s\n'; cat; } >"$dir/haproxy.cfg"; }

# envoy PORT: with the listener and the clusters on stdin. Prints nothing: its clients go to $dir/clients.
envoy() {
  cat >"$dir/envoy.yaml"
  start "$1" "$home/modules/python/envoy/_bin/envoy" -c "$dir/envoy.yaml" --concurrency 1 --disable-hot-restart -l error --file-flush-interval-msec 50
}

nginx_conf() { # stdin: the blocks
  { echo "include /usr/share/nginx/modules-available/*.conf; daemon off; pid $dir/pid; error_log $dir/errors info; events {}"; cat; } >"$dir/nginx.conf"
}
