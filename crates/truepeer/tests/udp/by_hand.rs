//! Datagrams by hand, at a wire that is sender and backend at once: what is not as usual reaches the backend
//! as it does without the kernel's help, and never while truepeer is stopped.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use truepeer_sys::packet::PacketSocket;
use truepeer_testbed::packets::{Datagram, Packet, Wire};
use truepeer_testbed::{Bed, Program, Running, Test};

use crate::kit::{CLIENTS, DESTINATIONS, proxy, spp, start, v2, v2_with_tlvs};
use crate::leaving::{DIALECTS, while_stopped};

const SENDERS: [&str; 2] = ["10.77.0.5:7000", "[fd77::5]:7000"];
const STRANGERS: [&str; 2] = ["10.77.0.77:7000", "[fd77::77]:7000"];
const BACKENDS: [&str; 2] = ["10.77.0.9:53", "[fd77::9]:53"];
const THIRD_HOSTS: [&str; 2] = ["10.77.0.10:53", "[fd77::10]:53"];
const LOOPBACK: [&str; 2] = ["127.0.0.1:7000", "[::1]:7000"];
const OTHER_CLIENTS: [&str; 2] = ["192.0.2.8:5000", "[2001:db8::8]:5000"];
/// How long an answer may take on a busy machine, and how long silence is listened to.
const STALL: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(300);

pub(crate) fn tests() -> Vec<Test> {
    let all = DIALECTS.into_iter().flat_map(|dialect| [(dialect, 0), (dialect, 1)]);
    let hops = [0, 1].map(|family| {
        let name = format!("hops_and_df_are_those_of_a_socket_over_ipv{}", 4 + 2 * family);
        Test::new(name, move |bed| of_a_socket(bed, family)).needs_program("ethtool")
    });
    all.map(|(dialect, family)| {
        let name =
            format!("what_is_unusual_arrives_as_without_the_kernel_in_{dialect}_over_ipv{}", 4 + 2 * family);
        Test::new(name, move |bed| as_without(bed, dialect, family)).needs_program("ethtool")
    })
    .chain(hops)
    .collect()
}

struct Hand {
    wire: Wire,
    ear: PacketSocket,
    truepeer: Running,
    dialect: &'static str,
    family: usize,
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

impl Hand {
    fn new(bed: &Bed, dialect: &'static str, family: usize, options: &str) -> Result<Hand> {
        Self::at(Wire::make()?, bed, dialect, family, options)
    }

    fn at(wire: Wire, bed: &Bed, dialect: &'static str, family: usize, options: &str) -> Result<Hand> {
        let ear = wire.another_socket()?;
        let options =
            format!("--routes auto --allow 10.77.0.5 --allow fd77::5 --udp-dialect {dialect} {options}");
        let truepeer = proxy(&options).ipv4(BACKENDS[0]).ipv6(BACKENDS[1]);
        let truepeer = truepeer.with(|program| program.in_netns(&wire.host.netns));
        let listeners = [false, true].map(|v6| wire.host.at(v6, 5300).to_string());
        let truepeer = start(bed, truepeer, &listeners.each_ref().map(String::as_str))?;
        wire.host.ip(&[
            "neigh add 10.77.0.9 lladdr 02:00:00:00:00:01 dev wire",
            "neigh add 10.77.0.5 lladdr 02:00:00:00:00:01 dev wire",
        ])?;
        // What truepeer sends together comes one by one.
        let alone = ["-K", "wire", "tx-udp-segmentation", "off"];
        Program::new("ethtool").args(alone).in_netns(&wire.host.netns).run(bed)?;
        Ok(Hand { wire, ear, truepeer, dialect, family })
    }

    fn listener(&self) -> SocketAddr {
        self.wire.host.at(self.family == 1, 5300)
    }

    fn header(&self, client: &str) -> Result<Vec<u8>> {
        let destination = DESTINATIONS[self.family];
        if self.dialect == "spp" { spp(client, destination) } else { v2(client, destination) }
    }

    fn has_header(&self) -> bool {
        matches!(self.dialect, "every" | "spp")
    }

    /// As the flow's sender says it, once the flow has begun.
    fn said(&self, payload: &[u8]) -> Result<Datagram> {
        let header = if self.has_header() { self.header(CLIENTS[self.family])? } else { Vec::new() };
        Ok(Datagram {
            from: address(SENDERS[self.family]),
            to: self.listener(),
            payload: [&header, payload].concat(),
        })
    }

    fn from(&self, from: &str, payload: &[u8]) -> Result<Datagram> {
        Ok(Datagram { from: address(from), ..self.said(payload)? })
    }

    /// The next datagram that the host sends.
    fn hear(&self, time: Duration) -> Result<Option<(Datagram, Vec<u8>)>> {
        let mut buffer = vec![0; 70_000];
        loop {
            while let Some(length) = self.ear.try_recv(&mut buffer)? {
                let packet = buffer.get(14..length).unwrap_or_default();
                let is_from_host = buffer.get(6..12) == Some(&[2, 0, 0, 0, 0, 2]);
                if let Some(heard) = Datagram::parse(packet).filter(|_| is_from_host) {
                    return Ok(Some((heard, packet.to_vec())));
                }
            }
            let timeout = Timespec::try_from(time).context("a time")?;
            if poll(&mut [PollFd::new(&self.ear, PollFlags::IN)], Some(&timeout))? == 0 {
                return Ok(None);
            }
        }
    }

    fn expect(&self, from: &str, to: &str, payload: &[u8]) -> Result<Vec<u8>> {
        let Some((heard, packet)) = self.hear(STALL)? else {
            bail!("nothing was heard\n{}", self.wire.counters()?);
        };
        let expected = Datagram { from: address(from), to: address(to), payload: payload.to_vec() };
        ensure!(heard == expected, "{heard:?} instead of {expected:?}");
        Ok(packet)
    }

    /// A datagram to the backend, and its answer.
    fn round_trip(&self, datagram: &Datagram, payload: &[u8]) -> Result<[Vec<u8>; 2]> {
        self.wire.send(&datagram.packet())?;
        let (client, backend) = (CLIENTS[self.family], BACKENDS[self.family]);
        let up = self.expect(client, backend, payload)?;
        let answer = Datagram { from: address(backend), to: address(client), payload: payload.to_vec() };
        self.wire.send(&answer.packet())?;
        let header = if self.dialect == "spp" { self.header(client)? } else { Vec::new() };
        let down = self.expect(
            &self.listener().to_string(),
            SENDERS[self.family],
            &[&header[..], payload].concat(),
        )?;
        Ok([up, down])
    }

    fn begin(&self) -> Result<()> {
        let header = self.header(CLIENTS[self.family])?;
        let alone = Datagram { payload: header.clone(), ..self.said(b"")? };
        if self.dialect == "standalone" {
            self.wire.send(&alone.packet())?;
        }
        let first = match self.dialect {
            "first" => Datagram { payload: [&header[..], b"begin"].concat(), ..alone },
            _ => self.said(b"begin")?,
        };
        self.round_trip(&first, b"begin")?;
        (0..3).try_for_each(|_| self.round_trip(&self.said(b"go on")?, b"go on").map(drop))
    }

    /// What user space has to look at, or the kernel has to drop.
    fn unusual(&self) -> Result<Vec<Packet>> {
        let (family, client) = (self.family, CLIENTS[self.family]);
        let header = self.header(client)?;
        let with = |payload: &[u8]| self.said(payload).map(|datagram| datagram.packet());
        let raw =
            |payload: Vec<u8>| -> Result<Packet> { Ok(Datagram { payload, ..self.said(b"")? }.packet()) };
        let mut all = vec![
            raw([&self.header(OTHER_CLIENTS[family])?[..], b"as another client"].concat())?,
            raw([&header[..header.len() - 1]].concat())?,
            raw([&header[..], &header[..], b"two headers"].concat())?,
            raw(b"no header".to_vec())?,
            with(b"a wrong sum")?.with_wrong_sum(),
            with(b"a wrong IP sum")?.with_wrong_ip_sum(),
            self.from(STRANGERS[family], b"of a stranger")?.packet(),
            self.from(LOOPBACK[family], b"of loopback")?.packet(),
            longer_than_udp(with(b"more than UDP counts")?),
            with(b"UDP counts more")?,
            Datagram { from: address(THIRD_HOSTS[family]), to: address(client), payload: b"a".to_vec() }
                .packet(),
            Datagram {
                from: SocketAddr::new(address(BACKENDS[family]).ip(), 54),
                to: address(client),
                payload: b"b".to_vec(),
            }
            .packet(),
        ];
        let udp_length_at = all[9].payload_at() + 4;
        all[9] = all[9].clone().write(udp_length_at, &[0, 200]);
        let without_sum = with(b"no sum")?;
        let at = without_sum.payload_at() + 6;
        all.push(without_sum.write(at, &[0, 0]));
        all.extend(with(b"in fragments, each of which is short")?.fragments(16, 7));
        let behind = with(b"behind other headers")?;
        all.push(if behind.is_ipv6() { behind.behind(&[60]) } else { behind.with_ip_options(&[1; 4]) });
        if self.dialect == "every" {
            let with_tlv = v2_with_tlvs(client, DESTINATIONS[family], &[(4, b"x")])?;
            all.push(raw([&with_tlv[..], b"with a TLV"].concat())?);
            let mut local = header;
            local[12] = 0x20;
            all.push(raw([&local[..], b"of the sender itself"].concat())?);
        }
        Ok(all)
    }

    /// All that is heard of these packets.
    fn outcome(&self, packets: &[Packet], is_left: bool) -> Result<Vec<(SocketAddr, SocketAddr, Vec<u8>)>> {
        self.begin()?;
        let mut all = Vec::new();
        let send = || packets.iter().try_for_each(|packet| self.wire.send(packet));
        if is_left {
            // What the kernel takes by itself comes before the last one.
            while_stopped(&self.truepeer, || {
                send()?;
                self.wire.send(&self.said(b"as usual")?.packet())?;
                loop {
                    let (heard, packet) = self.hear(STALL)?.context("the usual one was not heard")?;
                    is_as_of_a_socket(&packet)?;
                    if heard.payload == b"as usual" {
                        return Ok(());
                    }
                    all.push((heard.from, heard.to, heard.payload));
                }
            })?;
        } else {
            send()?;
        }
        let by_kernel = all.len();
        while let Some((heard, _)) = self.hear(SILENCE)? {
            all.push((heard.from, heard.to, heard.payload));
        }
        self.round_trip(&self.said(b"at last")?, b"at last")?;
        ensure!(by_kernel < all.len() || !is_left || !self.has_header(), "nothing came to user space");
        all.sort();
        Ok(all)
    }
}

/// Four bytes behind the datagram that only IP counts.
fn longer_than_udp(packet: Packet) -> Packet {
    let bytes = [packet.bytes(), &[1, 2, 3, 4]].concat();
    let is_ipv6 = packet.is_ipv6();
    let length = u16::try_from(bytes.len() - if is_ipv6 { 40 } else { 0 }).unwrap_or_default();
    let at = if is_ipv6 { 4 } else { 2 };
    Packet::of(&bytes).write(at, &length.to_be_bytes()).with_right_ip_sum()
}

/// Sums, hops and class of service.
fn is_as_of_a_socket(packet: &[u8]) -> Result<()> {
    let packet = Packet::of(packet);
    let sum_at = packet.payload_at() + 6;
    let has_none = packet.bytes().get(sum_at..sum_at + 2) == Some(&[0, 0]) && !packet.is_ipv6();
    ensure!(packet.has_right_sums() || has_none, "{packet:?}");
    let packet = packet.bytes();
    let (class, hops) =
        if packet[0] >> 4 == 4 { (packet[1], packet[8]) } else { (packet[1] | packet[0] & 15, packet[7]) };
    ensure!((class, hops) == (0, 64), "{packet:?}");
    Ok(())
}

fn as_without(bed: &Bed, dialect: &'static str, family: usize) -> Result<()> {
    let of = |options: &str, is_left: bool| -> Result<_> {
        let hand = Hand::new(bed, dialect, family, options)?;
        let outcome = hand.outcome(&hand.unusual()?, is_left);
        outcome.with_context(|| format!("{options}: {}", hand.truepeer.log()))
    };
    let without = of("--splice off", false)?;
    let with = of("--splice-after 0", true)?;
    ensure!(with == without, "{with:?} instead of {without:?}");
    ensure!(without.len() >= 4, "{without:?}");
    let is_known = |from: IpAddr| {
        let of_clients = [CLIENTS[family], OTHER_CLIENTS[family], SENDERS[family]];
        of_clients.iter().any(|client| address(client).ip() == from)
    };
    ensure!(without.iter().all(|(from, ..)| is_known(from.ip())), "{without:?}");
    Ok(())
}

fn of_a_socket(bed: &Bed, family: usize) -> Result<()> {
    let wire = Wire::make()?;
    wire.host.run(|| -> Result<()> {
        let rows = [
            ("ipv4/ip_default_ttl", "77"),
            ("ipv4/ip_no_pmtu_disc", "1"),
            ("ipv6/conf/wire/hop_limit", "77"),
        ];
        for (name, value) in rows {
            std::fs::write(format!("/proc/sys/net/{name}"), value).context(name)?;
        }
        Ok(())
    })??;
    let hand = Hand::at(wire, bed, "every", family, "--splice-after 0")?;
    hand.begin()?;
    let both = || hand.round_trip(&hand.said(b"as usual")?, b"as usual");
    let of_kernel = while_stopped(&hand.truepeer, both)?;
    for packet in of_kernel {
        let what = if family == 0 { (packet[8], packet[6] & 0x40) } else { (packet[7], 0) };
        ensure!(what == (77, 0), "{packet:?}");
    }
    Ok(())
}
