//! Links that aggregate, lose and reorder packets, and bulk data.

use std::io::{Read, Write};
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use truepeer_testbed::crowd::in_parallel;
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Host, Program, Test, Topology, client, kernel_counter, skip};

use crate::kit::{attach_on, backend_on, converse, counter_on, header, longer_header, who};
use crate::offloads::Offloads;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new(
            "links_with_and_without_offloads_carry_everything",
            links_with_and_without_offloads_carry_everything,
        )
        .needs_program("ethtool"),
        Test::new("lost_packets_are_sent_again", lost_packets_are_sent_again).needs_program("nft"),
        Test::new("overtaken_packets_are_put_in_order", overtaken_packets_are_put_in_order)
            .needs_program("nft")
            .needs_program("tc")
            .needs_program("ethtool"),
        Test::new("fifty_bulk_echoes_arrive_whole", fifty_bulk_echoes_arrive_whole),
        Test::new("a_vlan_is_a_link_like_others", a_vlan_is_a_link_like_others),
    ]
}

/// Bulk data both ways over a link that aggregates (GRO, TSO) and one that doesn't, translated and not.
fn links_with_and_without_offloads_carry_everything(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "backend"])?;
    let (lb, host) = (line.host("lb"), line.host("backend"));
    let _digest =
        Behaviour::Digest.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    attach_on(bed, host, &["--port", "80"])?;
    let bytes = Pattern::bytes(10_000_000);
    for (offloads, port) in [(Offloads::On, 1000), (Offloads::Off, 2000)] {
        offloads.set(bed, lb, host)?;
        for n in 0..6 {
            let client = format!("203.0.113.1:{}", port + n);
            let header = if n % 2 == 0 { longer_header(&client)? } else { header(&client)? };
            let answer = lb.run(|| {
                let mut stream = client::connect(host.at(false, 80))?;
                stream.write_all(&header)?;
                client::ask(&mut stream, &bytes)
            })??;
            ensure!(answer.trim() == Digest::of_pattern(10_000_000), "{offloads:?}, {client}: {answer:?}");
        }
    }
    Ok(())
}

/// One packet of a hundred is lost in each direction, between the sender and the programs; translated and
/// not.
fn lost_packets_are_sent_again(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, host) = (line.host("lb"), line.host("router"), line.host("backend"));
    let drop = "table inet loss { chain forward { type filter hook forward priority 0; numgen random mod 100 < 1 drop; }; }";
    Program::new("nft").arg(drop).in_netns(&router.netns).run(bed)?;
    let _echo =
        Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    attach_on(bed, host, &["--port", "80"])?;
    for n in 0..30_u16 {
        let client = format!("203.0.113.1:{}", 1000 + n);
        let header = if n % 3 == 0 { longer_header(&client)? } else { header(&client)? };
        let report = lb.run(|| echo_in_parts(host.at(false, 80), &header, n % 2 == 0))??;
        ensure!(report == Digest::of_pattern(2_000_000), "{client}: {report}");
    }
    Ok(())
}

/// One packet of a hundred, in each direction, takes a slow band of the link's queue and is overtaken;
/// translated and not.
fn overtaken_packets_are_put_in_order(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "router", "backend"])?;
    let (lb, router, host) = (line.host("lb"), line.host("router"), line.host("backend"));
    for device in ["lb", "backend"] {
        // 6 ms for a packet of 1500 bytes.
        if let Err(error) = Program::new("/bin/sh")
            .args(["-ec", &SLOW_LANE.replace("DEVICE", device)])
            .in_netns(&router.netns)
            .run(bed)
        {
            return skip(format!("this kernel has no htb queue: {error:#}"));
        }
    }
    let choose = "table inet lanes { chain forward { type filter hook forward priority 0; numgen random mod 100 < 1 meta priority set 0x10002; }; }";
    Program::new("nft").arg(choose).in_netns(&router.netns).run(bed)?;
    // Single packets, so that many overtake them.
    for (host, device) in [(lb, "router"), (router, "lb"), (router, "backend"), (host, "router")] {
        Program::new("ethtool")
            .args(["-K", device, "gro", "off", "gso", "off", "tso", "off"])
            .in_netns(&host.netns)
            .run(bed)?;
    }
    let _echo =
        Behaviour::Echo.start_program(bed, &["0.0.0.0:80"], |program| program.in_netns(&host.netns))?;
    attach_on(bed, host, &["--port", "80"])?;
    let mut n = 0_u16;
    // How many are overtaken depends on chance and the machine's speed.
    let out_of_order = |host: &Host| host.run(|| kernel_counter("TCPOFOQueue"))?;
    while n < 12 || out_of_order(lb)? < 20 || out_of_order(host)? < 20 {
        let client = format!("203.0.113.1:{}", 1000 + n);
        let header = if n.is_multiple_of(3) { longer_header(&client)? } else { header(&client)? };
        let report = lb.run(|| echo_in_parts(host.at(false, 80), &header, n.is_multiple_of(2)))??;
        ensure!(report == Digest::of_pattern(2_000_000), "{client}: {report}");
        n += 1;
    }
    Ok(())
}

const SLOW_LANE: &str = "\
tc qdisc add dev DEVICE root handle 1: htb default 1
tc class add dev DEVICE parent 1: classid 1:1 htb rate 100gbit quantum 60000
tc class add dev DEVICE parent 1: classid 1:2 htb rate 2mbit burst 1500 quantum 1500
";

/// Sends a header, whole or in two segments, and two megabytes. Returns a digest of the echo.
fn echo_in_parts(to: SocketAddr, header: &[u8], split: bool) -> Result<String> {
    let mut stream = client::connect(to)?;
    let (first, second) = header.split_at(if split { 20 } else { 0 });
    stream.write_all(first)?;
    stream.write_all(second)?;
    let mut writer = stream.try_clone()?;
    let sending = std::thread::spawn(move || -> std::io::Result<()> {
        writer.write_all(&Pattern::bytes(2_000_000))?;
        writer.shutdown(std::net::Shutdown::Write)
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back)?;
    sending.join().map_err(|_| anyhow::anyhow!("the sending thread panicked"))??;
    let mut digest = Digest::default();
    digest.update(&back);
    Ok(digest.report())
}

/// Half of them are translated to the end.
fn fifty_bulk_echoes_arrive_whole(bed: &Bed) -> Result<()> {
    const LEN: usize = 10_000_000;
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    let _echo = backend_on(bed, host, Behaviour::Echo, &["0.0.0.0:80"])?;
    attach_on(bed, host, &["--port", "80"])?;
    let (bytes, expected) = (Pattern::bytes(LEN), Digest::of_pattern(LEN as u64));
    lb.run(|| {
        in_parallel(4, 50, |n| {
            let client = format!("203.0.113.1:{}", 1000 + n);
            let header = if n % 2 == 0 { longer_header(&client)? } else { header(&client)? };
            let stream = client::connect(host.at(false, 80))?;
            let back = converse(stream, &[header.as_slice(), &bytes].concat())?;
            let mut digest = Digest::default();
            digest.update(&back);
            let report = digest.report();
            ensure!(report == expected, "{client}: {report}");
            Ok(())
        })
    })??;
    let (right, wrong) = (counter_on(bed, host, "guessed_right")?, counter_on(bed, host, "translated")?);
    ensure!(right + wrong == 50 && wrong > 0, "{right} guessed right, {wrong} translated");
    Ok(())
}

fn a_vlan_is_a_link_like_others(bed: &Bed) -> Result<()> {
    let line = Topology::line(&["lb", "host"])?;
    let (lb, host) = (line.host("lb"), line.host("host"));
    if lb.ip(&["link add link host name vlan8 type vlan id 8"]).is_err() {
        return skip("this kernel knows no VLANs (8021q)");
    }
    for (end, (here, device)) in [(lb, "host"), (host, "lb")].into_iter().enumerate() {
        here.ip(&[
            &format!("link add link {device} name vlan7 type vlan id 7"),
            &format!("addr add 10.99.0.{}/24 dev vlan7", end + 1),
            "link set vlan7 up",
        ])?;
    }
    let _who = backend_on(bed, host, Behaviour::Who, &["0.0.0.0:80"])?;
    let said = attach_on(bed, host, &["--port", "80"])?;
    ensure!(said.contains("vlan7"), "{said}");
    for client in ["203.0.113.1:1001", "203.0.113.1:1002"] {
        ensure!(who(lb, "10.99.0.2:80".parse()?, &header(client)?)? == client);
        ensure!(who(lb, host.at(false, 80), &longer_header(client)?)? == client);
    }
    Ok(())
}
