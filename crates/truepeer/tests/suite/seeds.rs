//! The instructions in the documentation of go-mmproxy and mmproxy-rs, literally.

use std::net::UdpSocket;

use anyhow::ensure;
use truepeer_testbed::{Bed, Program, Test, WAIT_LIMIT, client, tests};

use crate::stand::{TRUEPEER, classic_rules};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![mmproxys_example_for_udp_shows_the_client];
    all.push(
        Test::new("two_lines_of_nc_show_the_client", two_lines_of_nc_show_the_client).needs_program("nc"),
    );
    all
}

/// "You should see a connection from `127.0.0.1:65432` and a `PING` message arrive in the backend terminal."
fn two_lines_of_nc_show_the_client(bed: &Bed) -> anyhow::Result<()> {
    classic_rules(bed)?;
    let go_mmproxy = bed.dir().join("go-mmproxy");
    std::os::unix::fs::symlink(TRUEPEER, &go_mmproxy)?;
    let backend = shell("nc -kvnl 127.0.0.1 25578").start(bed)?;
    backend.wait_listening("127.0.0.1:25578")?;
    let proxy =
        shell(&format!("exec {} -l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578", go_mmproxy.display()));
    let proxy = proxy.start(bed)?;
    proxy.wait_listening("127.0.0.1:25577")?;
    let sender =
        shell(r"printf 'PROXY TCP4 127.0.0.1 127.0.0.1 65432 25578\r\nPING\r\n' | nc -vn 127.0.0.1 25577");
    let _sender = sender.start(bed)?;
    backend.wait_for_log("PING\r\n")?;
    ensure!(backend.log().contains("127.0.0.1 65432"), "{}", backend.log());
    Ok(())
}

/// Only `sudo` and the manual look-up of the address are left out.
fn mmproxys_example_for_udp_shows_the_client(bed: &Bed) -> anyhow::Result<()> {
    std::os::unix::fs::symlink(TRUEPEER, bed.dir().join("mmproxy"))?;
    let backend = UdpSocket::bind("127.0.0.1:8081")?;
    let example = "PATH=.:$PATH\n\
        address=127.0.0.1\n\
        bind_port=8080\n\
        upstream_port=8081\n\
        ip rule add from 127.0.0.1/8 iif lo table 123\n\
        ip route add local 0.0.0.0/0 dev lo table 123\n\
        exec mmproxy -m 123 -l $address:$bind_port -4 127.0.0.1:$upstream_port -p udp\n";
    let mmproxy = shell(example).start(bed)?;
    mmproxy.wait_bound_udp("127.0.0.1:8080")?;
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    let addresses = [203, 0, 113, 7, 192, 0, 2, 1, 0x13, 0x88, 0, 53];
    let header = client::v2_raw(0x21, 0x12, &addresses)?; // PROXY, UDP over IPv4
    sender.send_to(&[header.as_slice(), b"PING"].concat(), "127.0.0.1:8080")?;
    for socket in [&backend, &sender] {
        socket.set_read_timeout(Some(WAIT_LIMIT))?;
    }
    let mut buffer = [0; 100];
    let (length, from) = backend.recv_from(&mut buffer)?;
    ensure!(
        from.to_string() == "203.0.113.7:5000" && &buffer[..length] == b"PING",
        "{from}: {:?}",
        &buffer[..length]
    );
    backend.send_to(b"PONG", from)?;
    let length = sender.recv(&mut buffer)?;
    ensure!(&buffer[..length] == b"PONG", "{:?}", &buffer[..length]);
    Ok(())
}

fn shell(line: &str) -> Program {
    Program::new("sh").args(["-c", line])
}
