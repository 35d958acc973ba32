//! Hand-made datagrams. A plain port on the same host shows what a kernel accepts: the same datagram without
//! its header.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::datagrams::{socket, v2};
use truepeer_testbed::packets::{Datagram, Packet, Tag, Wire};
use truepeer_testbed::{Bed, Test, client as headers, tests};

use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        datagrams_that_a_kernel_drops_are_neither_delivered_nor_learnt,
        each_bit_of_the_headers_may_be_damaged,
        a_datagram_with_a_priority_tag_is_judged_as_any_other,
        a_length_of_zero_bypasses_nothing,
        the_backends_own_port_bypasses_no_mapped_one,
    ];
    let redirected =
        Test::new("no_path_bypasses_the_checks", no_path_bypasses_the_checks).needs_program("nft");
    let all = all.into_iter().chain([redirected]);
    all.map(|test| test.of_group("datagrams")).collect()
}

/// The attached port, and a plain one.
const PORT: u16 = 53;
const PLAIN: u16 = 153;

/// A host with a server on both ports, of both families.
struct Ports<'b> {
    stage: Stage<'b>,
    attached: UdpSocket,
    plain: UdpSocket,
}

/// The datagrams that a server has read.
type Read = Vec<(SocketAddr, Vec<u8>)>;

impl<'b> Ports<'b> {
    /// `checks`: whether the host's device has verified the checksums itself, so that the kernel doesn't.
    fn make(bed: &'b Bed, checks: &str) -> Result<Ports<'b>> {
        let stage = Stage::without_attach(bed)?;
        stage.run("ethtool", &["-K", "wire", "rx", checks])?;
        let (attached, plain) = stage
            .wire
            .host
            .run(|| anyhow::Ok((socket(format!("[::]:{PORT}"))?, socket(format!("[::]:{PLAIN}"))?)))??;
        stage.attach(&["--port", "53/udp", "--allow", "any"])?;
        Ok(Ports { stage, attached, plain })
    }

    fn from(&self, v6: bool, port: u16) -> SocketAddr {
        let ip: IpAddr = if v6 { "fd77::1".parse() } else { "10.77.0.1".parse() }.expect("an address");
        SocketAddr::new(ip, port)
    }

    /// A datagram to the attached port, with the header of the nth client.
    fn with_header(&self, v6: bool, n: u16, payload: &[u8]) -> Result<Datagram> {
        let destination = if v6 { "[2001:db8::1]:53" } else { "192.0.2.1:53" };
        let payload = [v2(client(v6, n), destination)?, payload.to_vec()].concat();
        Ok(Datagram { from: self.from(v6, 4000), to: self.stage.wire.host.at(v6, PORT), payload })
    }

    /// The results of the attached port and of the plain one for a datagram changed by `change`.
    fn both(
        &self,
        v6: bool,
        n: u16,
        payload: &[u8],
        change: &dyn Fn(Packet) -> Packet,
    ) -> Result<(Read, Read)> {
        self.stage.wire.send(&change(self.with_header(v6, n, payload)?.packet()))?;
        let to = self.stage.wire.host.at(v6, PLAIN);
        self.stage
            .wire
            .send(&change(Datagram { from: self.from(v6, 4000), to, payload: payload.to_vec() }.packet()))?;
        Ok((self.read_attached(v6)?, self.read_plain(v6)?))
    }

    /// Everything that has arrived so far: nothing overtakes the marker.
    fn read_attached(&self, v6: bool) -> Result<Read> {
        self.stage.wire.send(&self.with_header(v6, MARKER, b"marker")?.packet())?;
        read_to_marker(&self.attached)
    }

    fn read_plain(&self, v6: bool) -> Result<Read> {
        let to = self.stage.wire.host.at(v6, PLAIN);
        self.stage
            .wire
            .send(&Datagram { from: self.from(v6, 4000), to, payload: b"marker".to_vec() }.packet())?;
        read_to_marker(&self.plain)
    }

    /// How many clients' answers would be sent through the sender, including the marker's.
    fn flows(&self) -> Result<u64> {
        self.stage.status()?["ports"][0]["flows"].as_u64().context("flows")
    }
}

const MARKER: u16 = 9999;

fn client(v6: bool, n: u16) -> SocketAddr {
    let ip: IpAddr = if v6 { "2001:db8:7::1".parse() } else { "203.0.113.7".parse() }.expect("an address");
    SocketAddr::new(ip, n)
}

fn read_to_marker(socket: &UdpSocket) -> Result<Read> {
    let mut read = Vec::new();
    let mut buffer = [0; 2000];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).context("the marker")?;
        if buffer[..len] == *b"marker" {
            return Ok(read);
        }
        read.push((SocketAddr::new(from.ip().to_canonical(), from.port()), buffer[..len].to_vec()));
    }
}

/// A change of a packet, with its name.
type Change = (&'static str, fn(Packet) -> Packet);

const CHANGES: [Change; 16] = [
    ("nothing", |packet| packet),
    ("a wrong sum", Packet::with_wrong_sum),
    ("a wrong sum of the IP header", Packet::with_wrong_ip_sum),
    ("no sum", |packet| udp_field(packet, 6, |_| 0)),
    ("a UDP length of 7", |packet| udp_field(packet, 4, |_| 7)),
    ("a UDP length too long by 1", |packet| udp_field(packet, 4, |len| len + 1)),
    ("a UDP length too short by 1", |packet| udp_field(packet, 4, |len| len - 1)),
    ("a UDP length too short by 1, no sum", |packet| {
        udp_field(udp_field(packet, 4, |len| len - 1), 6, |_| 0)
    }),
    ("an IP length too short by 1", |packet| ip_len(packet, |len| len - 1)),
    ("an IP length too long by 1", |packet| ip_len(packet, |len| len + 1)),
    ("the last byte missing", |packet| {
        let end = packet.bytes().len() - 1;
        packet.cut(end)
    }),
    ("the last byte missing, and a UDP length that fits, no sum", |packet| {
        let end = packet.bytes().len() - 1;
        udp_field(udp_field(packet, 4, |len| len - 1), 6, |_| 0).cut(end)
    }),
    ("another IP version", |packet| packet.flip(0, 0x10).with_right_ip_sum()),
    ("a short IP header", |packet| match packet.is_ipv6() {
        true => packet,
        false => packet.flip(0, 0x01).with_right_ip_sum(),
    }),
    ("options", |packet| match packet.is_ipv6() {
        true => packet,
        false => packet.with_ip_options(&[1; 4]),
    }),
    ("a damaged payload", |packet| {
        let end = packet.bytes().len() - 1;
        packet.flip(end, 0x01)
    }),
];

fn field(packet: Packet, at: usize, change: impl Fn(u16) -> u16) -> Packet {
    let old = u16::from_be_bytes([packet.bytes()[at], packet.bytes()[at + 1]]);
    packet.write(at, &change(old).to_be_bytes())
}

fn udp_field(packet: Packet, at: usize, change: impl Fn(u16) -> u16) -> Packet {
    let at = packet.payload_at() + at;
    field(packet, at, change)
}

fn ip_len(packet: Packet, change: impl Fn(u16) -> u16) -> Packet {
    let at = if packet.is_ipv6() { 4 } else { 2 };
    field(packet, at, change).with_right_ip_sum()
}

/// The attached port has delivered the same bytes as the plain one, from the client.
fn agree(v6: bool, n: u16, (attached, plain): (Read, Read)) -> Result<bool> {
    let payloads = |read: &Read| read.iter().map(|(_, payload)| payload.clone()).collect::<Vec<_>>();
    ensure!(payloads(&attached) == payloads(&plain), "attached: {attached:?}, plain: {plain:?}");
    ensure!(attached.iter().all(|(from, _)| *from == client(v6, n)), "{attached:?}");
    Ok(!plain.is_empty())
}

fn datagrams_that_a_kernel_drops_are_neither_delivered_nor_learnt(bed: &Bed) -> Result<()> {
    for checks in ["off", "on"] {
        let ports = Ports::make(bed, checks)?;
        for v6 in [false, true] {
            let before = ports.flows()?;
            let mut delivered = 1; // the marker
            for (n, (name, change)) in (1..).zip(CHANGES) {
                let read = ports.both(v6, n, b"some bytes", &change)?;
                let is_delivered =
                    agree(v6, n, read).with_context(|| format!("{name}, IPv6: {v6}, rx {checks}"))?;
                delivered += u64::from(is_delivered);
            }
            ensure!(delivered > 1, "nothing was delivered at all");
            let flows = ports.flows()? - before;
            ensure!(
                flows == delivered,
                "{delivered} were delivered and {flows} learnt: {}",
                ports.stage.status()?
            );
        }
    }
    Ok(())
}

fn each_bit_of_the_headers_may_be_damaged(bed: &Bed) -> Result<()> {
    let ports = Ports::make(bed, "off")?;
    for v6 in [false, true] {
        let headers = if v6 { 48 } else { 28 };
        let before = ports.flows()?;
        let mut delivered = 1;
        for bit in 0..headers * 8 {
            let n = u16::try_from(1 + bit)?;
            let read = ports.both(v6, n, b"some bytes", &|packet| packet.flip(bit / 8, 1 << (bit % 8)))?;
            delivered += u64::from(agree(v6, n, read).with_context(|| format!("bit {bit}, IPv6: {v6}"))?);
        }
        let flows = ports.flows()? - before;
        ensure!(
            flows == delivered,
            "{delivered} were delivered and {flows} learnt: {}",
            ports.stage.status()?
        );
    }
    Ok(())
}

const QUEUE: u16 = 0x8100;

/// The kernel removes a tag that has only a priority, and delivers on the same device.
fn a_datagram_with_a_priority_tag_is_judged_as_any_other(bed: &Bed) -> Result<()> {
    let ports = Ports::make(bed, "on")?;
    for v6 in [false, true] {
        for (n, id) in [(1, 0), (2, 0xe000)] {
            let packet = ports.with_header(v6, n, b"tagged")?.packet();
            ports.stage.wire.send_frame(&Wire::frame(&packet, &[Tag { ethertype: QUEUE, id }]))?;
            let read = ports.read_attached(v6)?;
            ensure!(read == [(client(v6, n), b"tagged".to_vec())], "{read:?}");
            let bare = Datagram { payload: b"no header".to_vec(), ..ports.with_header(v6, n, b"")? };
            ports.stage.wire.send_frame(&Wire::frame(&bare.packet(), &[Tag { ethertype: QUEUE, id }]))?;
            ensure!(ports.read_attached(v6)?.is_empty());
        }
    }
    ports.stage.counts("refused_no_header", 4)
}

/// Kernels may interpret it as "everything" (IPv6 jumbograms), and would deliver the header.
fn a_length_of_zero_bypasses_nothing(bed: &Bed) -> Result<()> {
    let ports = Ports::make(bed, "on")?;
    let (attached, _) = ports.both(true, 1, b"some bytes", &|packet| udp_field(packet, 4, |_| 0))?;
    ensure!(attached.is_empty(), "{attached:?}");
    ports.stage.counts("refused_damaged", 1)
}

/// How a datagram reaches the host.
type Sending<'a> = &'a dyn Fn(&Datagram) -> Result<()>;

/// By a device that appeared after `attach`, behind two priority tags, or to a port that the host's firewall
/// redirects. Earlier judged datagrams from the same address and port make no difference.
fn no_path_bypasses_the_checks(bed: &Bed) -> Result<()> {
    let ports = Ports::make(bed, "on")?;
    let wire = &ports.stage.wire;
    let other = wire.another_device("other")?;
    let rules = "table inet t { chain c { type nat hook prerouting priority dstnat; udp dport 8053 redirect to :53; }; }";
    ports.stage.run("nft", &[rules])?;
    let tags = [Tag { ethertype: QUEUE, id: 0 }; 2];
    let by_other =
        |datagram: &Datagram| Ok(other.send(&Wire::frame_to([2, 0, 0, 0, 1, 2], &datagram.packet(), &[]))?);
    let by_tags = |datagram: &Datagram| wire.send_frame(&Wire::frame(&datagram.packet(), &tags));
    let by_redirect = |datagram: &Datagram| {
        let to = SocketAddr::new(datagram.to.ip(), 8053);
        wire.send(&Datagram { to, ..datagram.clone() }.packet())
    };
    let ways: [(&str, Sending<'_>); 3] =
        [("another device", &by_other), ("two tags", &by_tags), ("redirected", &by_redirect)];
    for v6 in [false, true] {
        let itself = Datagram {
            payload: [headers::v2_local(), b"LOCAL".to_vec()].concat(),
            ..ports.with_header(v6, 1, b"")?
        };
        let bare = Datagram { payload: b"no header".to_vec(), ..itself.clone() };
        for (name, send) in ways {
            wire.send(&itself.packet())?;
            let read = ports.read_attached(v6)?;
            ensure!(read == [(itself.from, b"LOCAL".to_vec())], "{read:?}");
            for datagram in [&bare, &ports.with_header(v6, 1, b"named")?, &itself] {
                send(datagram)?;
                std::thread::sleep(Duration::from_millis(20)); // another device's queue
                let read = ports.read_attached(v6)?;
                ensure!(read.is_empty(), "{name}, IPv6: {v6}: {read:?}");
            }
        }
    }
    ports.stage.counts("refused_unjudged", 18)
}

/// The server of a mapped port is bound to another port, to which a sender could also send.
fn the_backends_own_port_bypasses_no_mapped_one(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let server = stage.wire.host.run(|| socket("[::]:5353"))??;
    stage.attach(&["--port", "53:5353/udp", "--allow", "any"])?;
    for v6 in [false, true] {
        let from = SocketAddr::new(if v6 { "fd77::1".parse()? } else { "10.77.0.1".parse()? }, 4000);
        let destination = if v6 { "[2001:db8::1]:53" } else { "192.0.2.1:53" };
        let bare = Datagram { from, to: stage.wire.host.at(v6, 5353), payload: b"no header".to_vec() };
        stage.wire.send(&bare.packet())?;
        let payload = [v2(client(v6, 1), destination)?, b"marker".to_vec()].concat();
        stage.wire.send(&Datagram { from, to: stage.wire.host.at(v6, 53), payload }.packet())?;
        let read = read_to_marker(&server)?;
        ensure!(read.is_empty(), "{read:?}");
    }
    stage.counts("refused_unjudged", 2)
}
