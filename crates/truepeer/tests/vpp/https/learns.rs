//! The origin learns the client: in each of the three ways, over both families, with NGINX and HAProxy.

use anyhow::{Result, ensure};
use truepeer_testbed::servers::{Haproxy, Nginx};
use truepeer_testbed::{Bed, Running, Test, ip_here, tests};

use super::stand::{CLIENT, CLIENT_V6, DOOR, DOOR_V6, ORIGIN, ORIGIN_V6, OnVpp, curl, run_client};

pub(super) fn tests() -> Vec<Test> {
    tests![
        fields_tell_the_client,
        a_header_tells_the_client,
        the_connection_tells_the_client,
        a_header_before_the_clients_hello_is_believed,
    ]
}

/// The origin's configuration: its answer, and how it listens.
struct Way {
    nginx: (&'static str, &'static str),
    haproxy: (&'static str, &'static str),
}

const FORWARDED: Way =
    Way { nginx: ("", "$http_x_forwarded_for"), haproxy: ("", "%[req.hdr(x-forwarded-for)]") };
const TRANSPARENT: Way = Way { nginx: ("", "$remote_addr"), haproxy: ("", "%[src]") };
const PROXY: Way =
    Way { nginx: ("proxy_protocol", "$proxy_protocol_addr"), haproxy: ("accept-proxy", "%[src]") };

/// NGINX on port 8080 and HAProxy on 8081, over both families.
fn origins(bed: &Bed, way: &Way) -> Result<[Running; 2]> {
    let (options, variable) = way.nginx;
    let answer = format!("location / {{ return 200 \"{variable}\\n\"; }}");
    let mut nginx = Nginx::default();
    let (options_of_haproxy, sample) = way.haproxy;
    let mut frontend = "frontend f\n  mode http\n".to_owned();
    for host in [ORIGIN.to_owned(), format!("[{ORIGIN_V6}]")] {
        nginx = nginx.server(format!("{host}:8080"), options, &answer);
        frontend += &format!("  bind {host}:8081 {options_of_haproxy}\n");
    }
    frontend += &format!("  http-request return status 200 content-type text/plain lf-string \"{sample}\"\n");
    let haproxy =
        Haproxy::with_config(&frontend, &[&format!("{ORIGIN}:8081"), &format!("[{ORIGIN_V6}]:8081")]);
    Ok([nginx.start(bed)?, haproxy.start(bed)?])
}

/// The address that clients of a family connect to, their own address, and the origin's.
const FAMILIES: [(&str, &str, &str); 2] = [(DOOR, CLIENT, ORIGIN), (DOOR_V6, CLIENT_V6, "[fd00:1::1]")];

fn everybody_learns(bed: &Bed, mode: &str, way: &Way) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origins = origins(bed, way)?;
    for (listener, client, origin) in FAMILIES {
        for port in [8080, 8081] {
            let truepeer =
                on_vpp.https(listener, &format!("http://{origin}:{port}"), &["--client-address", mode])?;
            for version in ["--http1.1", "--http2"] {
                let seen = curl(&[version, &format!("https://{listener}/")]).run(bed)?;
                ensure!(seen.trim() == client, "{port} saw {seen:?}, not {client}; {}", truepeer.log());
            }
        }
    }
    Ok(())
}

fn fields_tell_the_client(bed: &Bed) -> Result<()> {
    everybody_learns(bed, "forwarded", &FORWARDED)
}

fn a_header_tells_the_client(bed: &Bed) -> Result<()> {
    everybody_learns(bed, "proxy", &PROXY)
}

/// A client that a sender names in a header before TLS.
const BEHIND_A_SENDER: &str = r"
def seen_by_way_of(header):
    plain = socket.create_connection(DOOR, 120)
    plain.sendall(header.encode() + b'\r\n')
    stream = context.wrap_socket(plain, server_hostname='site.test')
    stream.sendall(b'GET / HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n')
    answer = b''
    while data := stream.recv(65536): answer += data
    assert answer.startswith(b'HTTP/1.1 200 '), answer
    return answer.partition(b'\r\n\r\n')[2].decode().strip()
";

fn ask_as(bed: &Bed, listener: &str, family: &str, clients: &[&str], own: &str) -> Result<()> {
    for client in clients {
        let header = format!("PROXY {family} {client} {own} 4321 443");
        let script = format!("{BEHIND_A_SENDER}print(seen_by_way_of('{header}'))");
        let seen = run_client(bed, listener, &script)?;
        ensure!(seen.trim() == *client, "{client}: {seen:?}");
    }
    Ok(())
}

/// By a plain bind: VPP lets a program use any address. The origin's answers return because VPP owns the
/// clients' prefix, so the clients can't be reached through the same table: they connect through a sender.
fn the_connection_tells_the_client(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    on_vpp.tell("ip route add 203.0.113.0/24 via local")?;
    on_vpp.tell("ip route add 2001:db8::/32 via :: local")?;
    ip_here(&["route add 203.0.113.0/24 via 172.16.1.2", "-6 route add 2001:db8::/32 via fd00:1::2"])?;
    let _origins = origins(bed, &TRANSPARENT)?;
    let (v4, v6) = (["203.0.113.7", "203.0.113.8", "203.0.113.7"], ["2001:db8::7", "2001:db8::8"]);
    for port in [8080, 8081] {
        let options =
            ["--client-address=transparent", "--header=require", "--allow=172.16.2.2", "--allow=fd00:2::2"];
        let truepeer = on_vpp.https(DOOR, &format!("http://{ORIGIN}:{port}"), &options)?;
        ensure!(!truepeer.log().contains("routes: in place"), "the kernel's: {}", truepeer.log());
        ask_as(bed, DOOR, "TCP4", &v4, "172.16.2.1")?;
        drop(truepeer);
        let _truepeer = on_vpp.https(DOOR_V6, &format!("http://[{ORIGIN_V6}]:{port}"), &options)?;
        ask_as(bed, DOOR_V6, "TCP6", &v6, "fd00:2::1")?;
    }
    Ok(())
}

fn a_header_before_the_clients_hello_is_believed(bed: &Bed) -> Result<()> {
    let on_vpp = OnVpp::ethernet(bed)?;
    let _origins = origins(bed, &FORWARDED)?;
    let origin = format!("http://{ORIGIN}:8080");
    let trusting = on_vpp.https(DOOR, &origin, &["--header=require", "--allow=172.16.2.2"])?;
    ask_as(bed, DOOR, "TCP4", &["203.0.113.7"], "172.16.2.1")?;
    drop(trusting);
    // Only from an allowed sender.
    let strict = on_vpp.https(DOOR, &origin, &["--header=require", "--allow=192.0.2.1"])?;
    let refused = curl(&["https://172.16.2.1/"]).start(bed)?;
    ensure!(!refused.wait_end()?.success(), "{}", strict.log());
    strict.wait_for_log("172.16.2.2")
}
