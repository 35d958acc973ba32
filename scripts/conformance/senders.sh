# The senders that conformance.sh judges; sourced by it. Each starts a program that writes headers to port 7100, where
# `truepeer probe --listen` waits, and makes a connection through it.

# await VERSION OPTIONS...: waits for one connection or datagram, for a minute: a sender that did not start makes none.
await() {
  echo "$1" >"$out/$name.version"
  shift
  timeout 60 "$truepeer" probe --listen 7100 --patience 1500ms --json "$@" >"$out/$name.json" 2>"$dir/probe" &
  listener=$!
  until grep -q waiting "$dir/probe"; do sleep 0.1; done
}

judged() {
  local status=0
  wait $listener || status=$?
  [ -s "$out/$name.json" ] || return 1
  echo "    status $status"
}

# request [ADDRESS]: a client of the sender on port 7000.
request() { curl -sm 3 -o /dev/null "http://${1-127.0.0.1}:7000/" || true; }

haproxy_sends() {
  await "HAProxy $(version haproxy), \`$1\`"
  haproxy_conf <<END
listen l
  mode tcp
  bind 127.0.0.1:7000
  server s 127.0.0.1:7100 $1
END
  haproxy -db -f "$dir/haproxy.cfg" >"$dir/log" 2>&1 &
  sleep 1
  request
  judged
}
sender_haproxy_v1() { haproxy_sends send-proxy; }
sender_haproxy_v2() { haproxy_sends send-proxy-v2; }
sender_haproxy_options() { haproxy_sends "send-proxy-v2 proxy-v2-options crc32c,unique-id,ssl,cert-cn,authority"; }
sender_haproxy_check() {
  await "HAProxy $(version haproxy), a health check"
  haproxy_conf <<END
listen l
  mode tcp
  bind 127.0.0.1:7000
  server s 127.0.0.1:7100 send-proxy-v2 check inter 1s
END
  haproxy -db -f "$dir/haproxy.cfg" >"$dir/log" 2>&1 &
  judged
}

nginx_sends() { # its listener's address
  await "NGINX $(version nginx), \`proxy_protocol on\`$2"
  nginx_conf <<END
stream { server { listen $1:7000; proxy_protocol on; proxy_pass 127.0.0.1:7100; } }
END
  nginx -c "$dir/nginx.conf" >"$dir/log" 2>&1 &
  sleep 1
  request "$1"
  judged
}
sender_nginx() { nginx_sends 127.0.0.1 ""; }
sender_nginx_ipv6() { nginx_sends '[::1]' ", IPv6"; }
# The realip module names an IPv6 client of a header at an IPv4 listener.
sender_nginx_mixed() {
  await "NGINX $(version nginx), a client from a header of the other family"
  nginx_conf <<END
stream { server { listen 127.0.0.1:7000 proxy_protocol; set_real_ip_from 127.0.0.0/8; proxy_protocol on; proxy_pass 127.0.0.1:7100; } }
END
  nginx -c "$dir/nginx.conf" >"$dir/log" 2>&1 &
  sleep 1
  exec 4<>/dev/tcp/127.0.0.1/7000
  printf 'PROXY TCP6 2001:db8::7 2001:db8::1 4000 443\r\nGET / HTTP/1.1\r\n\r\n' >&4
  judged
}

envoy_sends() { # what follows the cluster's PROXY protocol
  local its
  its=$(has envoy) || return 1
  await "Envoy $its, \`$1\`"
  envoy 7000 <<END
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: 7000 } }
    filter_chains:
    - filters:
      - name: tcp
        typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: b }
  clusters:
  - name: b
    connect_timeout: 5s
    load_assignment:
      cluster_name: b
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 7100 } } } }] }]
    transport_socket:
      name: envoy.transport_sockets.upstream_proxy_protocol
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport
        config: { $1 }
        transport_socket:
          name: raw
          typed_config: { "@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer }
END
  request
  judged
}
sender_envoy_v1() { envoy_sends "version: V1"; }
sender_envoy_v2() { envoy_sends "version: V2"; }
# The value is base64 of sixteen characters or more.
sender_envoy_tlv() { envoy_sends "version: V2, added_tlvs: [{ type: 0xE5, value: MDEyMzQ1Njc4OWFiY2RlZg== }]"; }

sender_stunnel() {
  await "stunnel $(version stunnel4), \`protocol = proxy\`"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout "$dir/key" -out "$dir/cert" 2>/dev/null
  printf 'foreground = yes\npid =\n[s]\naccept = 127.0.0.1:7000\nconnect = 127.0.0.1:7100\nprotocol = proxy\ncert = %s\nkey = %s\n' \
    "$dir/cert" "$dir/key" >"$dir/stunnel.conf"
  stunnel "$dir/stunnel.conf" >"$dir/log" 2>&1 &
  sleep 1
  curl -skm 3 -o /dev/null https://127.0.0.1:7000/ || true
  judged
}

sender_hitch() {
  await "Hitch $(version hitch), \`write-proxy-v2\`"
  openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout "$dir/key" -out "$dir/cert" 2>/dev/null
  cat "$dir/key" "$dir/cert" >"$dir/pem"
  printf 'frontend = "[127.0.0.1]:7000"\nbackend = "[127.0.0.1]:7100"\npem-file = "%s"\nwrite-proxy-v2 = on\nuser = "nobody"\n' "$dir/pem" >"$dir/hitch.conf"
  hitch --config="$dir/hitch.conf" >"$dir/log" 2>&1 &
  sleep 1
  curl -skm 3 -o /dev/null https://127.0.0.1:7000/ || true
  judged
}

sender_curl() {
  await "curl $(curl --version | sed -n '1s/curl \([^ ]*\).*/\1/p'), \`--haproxy-protocol\`"
  curl -sm 3 --haproxy-protocol -o /dev/null http://127.0.0.1:7100/ || true
  judged
}

sender_dnsdist_forwards() {
  await "dnsdist $(version dnsdist), \`useProxyProtocol\`, UDP" --udp
  cat >"$dir/dnsdist.conf" <<END
setLocal("127.0.0.1:7000")
newServer({address="127.0.0.1:7100", useProxyProtocol=true, healthCheckMode="up"})
END
  dnsdist --supervised -C "$dir/dnsdist.conf" >"$dir/log" 2>&1 &
  sleep 1
  printf '\0\1\1\0\0\1\0\0\0\0\0\0\0\0\2\0\1' >/dev/udp/127.0.0.1/7000
  judged
}

truepeer_sends() {
  await "truepeer proxy, \`--send-proxy $1\`"
  "$truepeer" proxy -l 127.0.0.1:7000 -4 127.0.0.1:7100 --header forbid --send-proxy "$1" >"$dir/log" 2>&1 &
  sleep 1
  request
  judged
}
sender_truepeer_v1() { truepeer_sends v1; }
sender_truepeer_v2() { truepeer_sends v2; }
sender_truepeer_connect() {
  await "truepeer connect"
  "$truepeer" connect -- curl -sm 3 -o /dev/null http://127.0.0.1:7100/ >"$dir/log" 2>&1 || true
  judged
}
