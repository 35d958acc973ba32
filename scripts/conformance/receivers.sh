# The receivers that conformance.sh probes; sourced by it. Each receiver_NAME writes its configuration under $dir, starts
# in the background, and is judged by `judge`.

receiver_haproxy_tcp() {
  backend 7001
  haproxy_conf <<END
listen l
  mode tcp
  bind 127.0.0.1:7000 accept-proxy
  log stdout format raw local0
  log-format "client %ci"
  server s 127.0.0.1:7001
END
  start 7000 haproxy -db -f "$dir/haproxy.cfg"
  judge "HAProxy $(version haproxy)" 7000 --as echo --client-log "$dir/log"
}

receiver_haproxy_http() {
  haproxy_conf <<END
frontend l
  mode http
  bind 127.0.0.1:7000 accept-proxy
  log stdout format raw local0
  log-format "client %ci"
  http-request return status 200
END
  start 7000 haproxy -db -f "$dir/haproxy.cfg"
  judge "HAProxy $(version haproxy)" 7000 --as http --client-log "$dir/log"
}

receiver_nginx_http() {
  nginx_conf <<END
http { log_format c '\$remote_addr'; access_log $dir/clients c; client_body_temp_path $dir/b; proxy_temp_path $dir/p;
  fastcgi_temp_path $dir/f; uwsgi_temp_path $dir/u; scgi_temp_path $dir/s;
  server { listen 127.0.0.1:7000 proxy_protocol; set_real_ip_from 127.0.0.0/8; real_ip_header proxy_protocol; return 200; } }
END
  start 7000 nginx -c "$dir/nginx.conf"
  judge "NGINX $(version nginx)" 7000 --as http --client-log "$dir/clients"
}

receiver_nginx_stream() {
  backend 7001
  : >"$dir/access"
  nginx_conf <<END
stream { log_format c '\$remote_addr'; access_log $dir/access c;
  server { listen 127.0.0.1:7000 proxy_protocol; set_real_ip_from 127.0.0.0/8; proxy_pass 127.0.0.1:7001; } }
END
  start 7000 nginx -c "$dir/nginx.conf"
  judge "NGINX $(version nginx)" 7000 --as echo --client-log "$dir/access"
}

receiver_nginx_mail() {
  nginx_conf <<END
mail { auth_http 127.0.0.1:9; server { listen 127.0.0.1:7000 proxy_protocol; set_real_ip_from 127.0.0.0/8; protocol smtp; smtp_auth none; } }
END
  start 7000 nginx -c "$dir/nginx.conf"
  judge "NGINX $(version nginx)" 7000 --as smtp
}

# The start of an Envoy listener that reads headers, up to its filters.
envoy_listener() {
  cat <<END
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: 7000 } }
    listener_filters:
    - name: envoy.filters.listener.proxy_protocol
      typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol }
    filter_chains:
    - filters:
END
}
envoy_log="
          access_log:
          - name: log
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: /dev/stdout
              log_format: { text_format_source: { inline_string: 'client %DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%
' } }"

receiver_envoy_tcp() {
  local its
  its=$(has envoy) || return 1
  backend 7001
  envoy 7000 <<END
$(envoy_listener)
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: t
          cluster: b
          access_log_options: { flush_access_log_on_connected: true }$envoy_log
  clusters:
  - name: b
    connect_timeout: 5s
    load_assignment:
      cluster_name: b
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 7001 } } } }] }]
END
  judge "Envoy $its" 7000 --as echo --client-log "$dir/log"
}

receiver_envoy_http() {
  local its
  its=$(has envoy) || return 1
  envoy 7000 <<END
$(envoy_listener)
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: h
          route_config: { virtual_hosts: [{ name: v, domains: ["*"], routes: [{ match: { prefix: / }, direct_response: { status: 200 } }] }] }
          http_filters:
          - name: router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }$envoy_log
END
  judge "Envoy $its" 7000 --as http --client-log "$dir/log"
}

receiver_apache() {
  cat >"$dir/apache.conf" <<END
ServerRoot /usr/lib/apache2
ServerName localhost
PidFile $dir/pid
ErrorLog $dir/errors
Listen 127.0.0.1:7000
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule remoteip_module modules/mod_remoteip.so
LoadModule alias_module modules/mod_alias.so
LogFormat "%a" c
CustomLog $dir/clients c
DefaultRuntimeDir $dir
DocumentRoot $dir
RemoteIPProxyProtocol On
<Directory />
  Require all granted
</Directory>
END
  start 7000 apache2 -DFOREGROUND -f "$dir/apache.conf"
  judge "Apache $(version apache2)" 7000 --as http --client-log "$dir/clients"
}

receiver_lighttpd() {
  cat >"$dir/lighttpd.conf" <<END
server.modules = ("mod_extforward", "mod_accesslog")
server.document-root = "$dir"
server.bind = "127.0.0.1"
server.port = 7000
extforward.forwarder = ("127.0.0.9" => "trust")
extforward.hap-PROXY = "enable"
accesslog.filename = "/dev/stdout"
accesslog.format = "client %h"
END
  start 7000 lighttpd -D -f "$dir/lighttpd.conf"
  judge "lighttpd $(version lighttpd)" 7000 --as http
}

receiver_varnish() {
  printf 'vcl 4.1;\nbackend default none;\nsub vcl_recv { return (synth(200)); }\n' >"$dir/default.vcl"
  mkdir -p "$dir/n"
  start 7000 varnishd -F -j none -a 127.0.0.1:7000,PROXY -f "$dir/default.vcl" -n "$dir/n" -s malloc,16m
  varnishncsa -n "$dir/n" -F 'client %h' >"$dir/clients" 2>/dev/null &
  judge "Varnish $(version varnish)" 7000 --as http --client-log "$dir/clients"
}

receiver_squid() {
  cat >"$dir/squid.conf" <<END
http_port 127.0.0.1:7000 accel defaultsite=site.invalid require-proxy-header
proxy_protocol_access allow all
http_access deny all
pid_filename none
cache_log $dir/cache.log
logformat c client %>a
access_log stdio:$dir/clients logformat=c
coredump_dir $dir
cache_effective_user proxy
END
  chown -R proxy "$dir"
  start 7000 squid -N -f "$dir/squid.conf"
  judge "Squid $(version squid)" 7000 --as http --client-log "$dir/clients"
}

receiver_trafficserver() {
  sed -e 's/^CONFIG proxy.config.http.server_ports.*/CONFIG proxy.config.http.server_ports STRING 7000:pp:ip-in=127.0.0.1/' -i /etc/trafficserver/records.config
  echo "CONFIG proxy.config.http.proxy_protocol_allowlist STRING 127.0.0.0/8" >>/etc/trafficserver/records.config
  echo "CONFIG proxy.config.admin.user_id STRING #-1" >>/etc/trafficserver/records.config
  mkdir -p /run/trafficserver /var/log/trafficserver /var/cache/trafficserver /var/lib/trafficserver
  start 7000 traffic_server
  judge "Traffic Server $(version trafficserver)" 7000 --as http
}

receiver_exim() {
  mkdir -p "$dir/spool"
  cat >"$dir/exim.conf" <<END
exim_user = Debian-exim
exim_group = Debian-exim
spool_directory = $dir/spool
log_file_path = $dir/%slog
log_selector = +smtp_connection
primary_hostname = mx.example
daemon_smtp_ports = 7000
local_interfaces = 127.0.0.1
hosts_proxy = *
host_lookup =
rfc1413_query_timeout = 0s
acl_smtp_rcpt = deny
begin acl
deny:
  deny
END
  chown -R Debian-exim: "$dir"
  chown root: "$dir/exim.conf"
  chmod 644 "$dir/exim.conf"
  : >"$dir/mainlog"
  chown Debian-exim: "$dir/mainlog"
  start 7000 exim4 -bdf -C "$dir/exim.conf"
  judge "Exim $(version exim4-daemon-heavy)" 7000 --as smtp --client-log "$dir/mainlog"
}

receiver_postfix() {
  cp /usr/share/postfix/main.cf.debian /etc/postfix/main.cf
  cp /usr/share/postfix/master.cf.dist /etc/postfix/master.cf
  mkdir -p /var/spool/postfix /var/lib/postfix
  chown postfix: /var/lib/postfix
  sed -i 's/^smtp  *inet/127.0.0.1:7000 inet/' /etc/postfix/master.cf
  cat >>/etc/postfix/main.cf <<END
inet_interfaces = 127.0.0.1
maillog_file = /dev/stdout
myhostname = mx.example
smtpd_peername_lookup = no
smtpd_upstream_proxy_protocol = haproxy
smtpd_client_connection_rate_limit = 0
alias_maps =
alias_database =
END
  start 7000 postfix start-fg
  judge "Postfix $(version postfix)" 7000 --as smtp --client-log "$dir/log"
}

receiver_dovecot() {
  cat >/etc/dovecot/dovecot.conf <<END
protocols = imap
listen = 127.0.0.1
ssl = no
log_path = /dev/stderr
base_dir = /run/dovecot
haproxy_trusted_networks = 127.0.0.0/8
service imap-login {
  inet_listener imap {
    port = 7000
    haproxy = yes
  }
}
passdb {
  driver = static
  args = password=secret
}
END
  start 7000 dovecot -F
  judge "Dovecot $(version dovecot-core)" 7000 --as imap --client-log "$dir/log"
}

receiver_dnsdist_udp() { dnsdist_as --udp; }
receiver_dnsdist_tcp() { dnsdist_as; }
dnsdist_as() {
  cat >"$dir/dnsdist.conf" <<END
setLocal("127.0.0.1:7000", {maxConcurrentTCPConnections=1000})
setProxyProtocolACL({"127.0.0.0/8"})
setACL({"0.0.0.0/0", "::/0"})
addAction(AllRule(), LogAction("", false))
addAction(AllRule(), RCodeAction(DNSRCode.REFUSED))
END
  start 7000 dnsdist --supervised -v -C "$dir/dnsdist.conf"
  judge "dnsdist $(version dnsdist)" 7000 --as dns --client-log "$dir/log" "$@"
}

receiver_powerdns_udp() { powerdns_as --udp; }
receiver_powerdns_tcp() { powerdns_as; }
powerdns_as() {
  : >"$dir/named.conf"
  start 7000 pdns_server --config-dir="$dir" --daemon=no --guardian=no --launch=bind --bind-config="$dir/named.conf" \
    --local-address=127.0.0.1 --local-port=7000 --proxy-protocol-from=127.0.0.0/8 --log-dns-queries=yes --loglevel=6 \
    --socket-dir="$dir" --disable-syslog --query-cache-ttl=0 --cache-ttl=0
  judge "PowerDNS $(version pdns-server)" 7000 --as dns --client-log "$dir/log" "$@"
}

receiver_go_mmproxy() {
  backend 7001
  start 7000 go-mmproxy -l 127.0.0.1:7000 -4 127.0.0.1:7001 -6 '[::1]:7001' -v 2
  judge "go-mmproxy $(version go-mmproxy)" 7000 --as echo --client-log "$dir/clients"
}

receiver_mmproxy_rs() {
  local version
  version=$(has mmproxy)
  backend 7001
  start 7000 "$home/modules/mmproxy" -l 127.0.0.1:7000 -4 127.0.0.1:7001 -6 '[::1]:7001' -p tcp
  judge "mmproxy-rs $version" 7000 --as echo --client-log "$dir/clients"
}

receiver_caddy() {
  local version
  version=$(has caddy)
  cat >"$dir/Caddyfile" <<END
{
  admin off
  persist_config off
  auto_https off
  servers {
    listener_wrappers {
      proxy_protocol {
        fallback_policy require
      }
    }
  }
}
http://127.0.0.1:7000, http://truepeer-probe.invalid:7000 {
  bind 127.0.0.1
  log {
    output stdout
    format append {
      wrap filter {
        fields {
          common_log delete
        }
        wrap console
      }
    }
  }
  respond 200
}
END
  HOME=$dir start 7000 "$home/modules/caddy" run --adapter caddyfile --config "$dir/Caddyfile"
  judge "Caddy $version" 7000 --as http --client-log "$dir/log"
}

receiver_go_proxyproto() {
  local version
  version=$(has go-proxyproto)
  start 7000 "$home/modules/go-proxyproto" 7000 "$dir/clients"
  judge "go-proxyproto $version (Go)" 7000 --as echo --client-log "$dir/clients"
}

receiver_proxywrap() {
  local version
  version=$(has proxywrap)
  NODE_PATH=$home/modules/node/node_modules start 7000 node scripts/conformance/proxywrap.js 7000 "$dir/clients"
  judge "findhit-proxywrap $version (Node)" 7000 --as echo --client-log "$dir/clients"
}

receiver_netty() {
  local version
  version=$(has netty)
  start 7000 java -cp "$home/modules/java/lib/*" scripts/conformance/Netty.java 7000 "$dir/clients"
  judge "Netty $version (Java)" 7000 --as echo --client-log "$dir/clients"
}

python_library() { # package, protocol
  local version
  version=$(has "$1")
  PYTHONPATH=$home/modules/python start 7000 python3 scripts/conformance/libraries.py "$1" 7000 "$dir/clients"
  judge "$1 $version (Python)" 7000 --as "$2" --client-log "$dir/clients"
}
receiver_proxy_protocol() { python_library proxy-protocol echo; }
receiver_aiosmtpd() { python_library aiosmtpd smtp; }
receiver_twisted() { python_library twisted echo; }

receiver_unbound_udp() { unbound_as --udp; }
receiver_unbound_tcp() { unbound_as; }
unbound_as() {
  cat >"$dir/unbound.conf" <<END
server:
  interface: 127.0.0.1@7000
  proxy-protocol-port: 7000
  access-control: 0.0.0.0/0 allow
  access-control: ::0/0 allow
  do-daemonize: no
  username: ""
  chroot: ""
  directory: "$dir"
  pidfile: ""
  use-syslog: no
  logfile: ""
  log-queries: yes
  module-config: "iterator"
  local-zone: "." refuse
END
  start 7000 unbound -d -c "$dir/unbound.conf"
  judge "Unbound $(version unbound)" 7000 --as dns --client-log "$dir/log" "$@"
}

receiver_nghttpx() {
  start 7000 nghttpx -f'127.0.0.1,7000;no-tls;proxyproto' -b127.0.0.1,9 --conf=/dev/null --workers=1 \
    --accesslog-file="$dir/clients" --accesslog-format='$remote_addr' --errorlog-file="$dir/errors"
  judge "nghttpx $(version nghttp2-proxy)" 7000 --as http --client-log "$dir/clients"
}

receiver_truepeer_proxy() {
  backend 7001
  start 7000 "$truepeer" proxy -l 127.0.0.1:7000 -4 127.0.0.1:7001 -6 '[::1]:7001'
  judge "truepeer proxy $("$truepeer" --version | cut -d' ' -f2)" 7000 --as echo --client-log "$dir/clients"
}

receiver_truepeer_run() {
  start 7000 "$truepeer" run -- python3 scripts/conformance/echo.py 7000 "$dir/clients"
  judge "truepeer run $("$truepeer" --version | cut -d' ' -f2)" 7000 --as echo --client-log "$dir/clients"
}

receiver_truepeer_attach() {
  mkdir -p /run/netns
  mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
  start 7000 python3 scripts/conformance/echo.py 7000 "$dir/clients"
  "$truepeer" attach --port 7000 --allow loopback --pins "/sys/fs/bpf/conformance-$$" >>"$dir/log" 2>&1
  judge "truepeer attach $("$truepeer" --version | cut -d' ' -f2)" 7000 --as echo --client-log "$dir/clients"
  "$truepeer" attach detach --pins "/sys/fs/bpf/conformance-$$" >>"$dir/log" 2>&1 || true
}

receiver_truepeer_udp() {
  backend 7001
  start 7001 "$truepeer" proxy -p udp -l 127.0.0.1:7000 -4 127.0.0.1:7001 -6 '[::1]:7001'
  sleep 1
  judge "truepeer proxy $("$truepeer" --version | cut -d' ' -f2)" 7000 --as echo --udp --client-log "$dir/clients"
}
