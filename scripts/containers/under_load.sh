# Connections by way of a NodePort while something happens; to be sourced after node.sh and checks.sh.

# Connects to port 30080 of each of these addresses, until load_is_over.
load_begins() { # addresses...
  local address
  loaded=("$@")
  loads=()
  for address in "${loaded[@]}"; do
    node_run ip netns exec lb python3 scripts/containers/load.py tcp "$address" 30080 600s 2 >"$target/logs/load-$address" 2>&1 &
    loads+=($!)
  done
  sleep 2
}

load_is_over() { # name
  local address named=0 raw=0 lines
  node_run pkill -TERM -f containers/load.py
  wait "${loads[@]}" || true
  for address in "${loaded[@]}"; do
    echo "  $address: $(head -1 "$target/logs/load-$address")"
    lines=$(tail -n +2 "$target/logs/load-$address")
    [ -z "$lines" ] || echo "$lines"
    read -r _ one _ other _ <"$target/logs/load-$address"
    named=$((named + one)) raw=$((raw + other))
  done
  check_is "$1: no header reaches a server" "$((named > 500)) $raw" "1 0"
}
