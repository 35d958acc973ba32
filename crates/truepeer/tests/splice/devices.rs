//! A device changes under a session that has left user space: the session goes on, or both of its ends learn
//! at once that it is over.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Behaviour, NetNs, Program, Test, ip_here, skip};

use crate::family::{Family, in_both};
use crate::stand::{Stand, echo, open_at, spliced_to};
use crate::ways::ipsec_policy;
use crate::wire::{far, link, second_link, stand};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = Vec::from(in_both("an_ipsec_policy_ends_sessions_that_have_left", by_an_ipsec_policy));
    for (device, towards) in [("device", Towards::Sender), ("backends_device", Towards::Backend)] {
        for (name, change) in CHANGES {
            let name = format!("sessions_over_a_{device}_that_is_{name}_go_on");
            all.extend(in_both(&name, move |bed, family| under_open_sessions(bed, family, towards, change)));
        }
        let name = format!("sessions_over_a_{device}_that_is_made_anew_too_late_end");
        all.extend(in_both(&name, move |bed, family| made_anew_too_late(bed, family, towards)));
    }
    all
}

/// What is on the other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Towards {
    Sender,
    Backend,
}

type Change = fn(&NetNs) -> Result<()>;

const CHANGES: [(&str, Change); 7] = [
    ("renamed", |_| ip_here(&["link set near down", "link set near name other", "link set other up"])),
    ("down_for_a_moment", |_| ip_here(&["link set near down", "link set near up"])),
    ("made_a_port_of_a_bridge", |_| becomes_a_port(Duration::ZERO)),
    // The first question leaves by the port, which no route leads by afterwards.
    ("made_a_port_too_early", |_| becomes_a_port(Duration::from_millis(2500))),
    ("made_anew", |far| {
        ip_here(&["link del near"])?;
        link(far)
    }),
    ("elsewhere_for_a_moment", |_| {
        let elsewhere = NetNs::create()?;
        let here = format!("/proc/{}/ns/net", std::process::id());
        let there = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.as_fd().as_raw_fd());
        // A thread of this test may be in another namespace than the process: name this one by the
        // thread.
        let here =
            here.replace("/ns/net", &format!("/task/{}/ns/net", rustix::thread::gettid().as_raw_nonzero()));
        ip_here(&[&format!("link set near netns {there}")])?;
        elsewhere.run(|| ip_here(&[&format!("link set near netns {here}")]))??;
        ip_here(&[
            "addr add 10.78.9.1/24 dev near",
            "addr add fd78:9::1/64 dev near nodad",
            "link set near up",
        ])
    }),
    ("left_by_its_address", |far| {
        // The other device has been there since the start.
        move_addresses(1, "near", "second")?;
        far.run(|| move_addresses(2, "wire", "wire2"))?
    }),
];

/// `pause`: until the bridge gets the port's addresses.
fn becomes_a_port(pause: Duration) -> Result<()> {
    ip_here(&["link add br0 type bridge", "link set br0 up", "link set near master br0"])?;
    sleep(pause);
    move_addresses(1, "near", "br0")
}

fn move_addresses(host: u8, from: &str, to: &str) -> Result<()> {
    ip_here(&[
        &format!("addr del 10.78.9.{host}/24 dev {from}"),
        &format!("addr del fd78:9::{host}/64 dev {from}"),
        &format!("addr add 10.78.9.{host}/24 dev {to}"),
        &format!("addr add fd78:9::{host}/64 dev {to} nodad"),
    ])
}

const SESSIONS: u16 = 8;

/// A session that stands still for 14 s repeats its bytes six times, each time after twice as long.
const REPETITIONS: u32 = 5;

/// Sessions that have left, over the device to be changed.
struct Open {
    far: NetNs,
    stand: Stand,
    towards: Towards,
    family: Family,
    streams: Vec<TcpStream>,
}

impl Open {
    fn begin(bed: &Bed, family: Family, towards: Towards) -> Result<Self> {
        let far = far()?;
        second_link(&far)?;
        // A link that is down loses its addresses otherwise.
        fs::write("/proc/sys/net/ipv6/conf/near/keep_addr_on_down", "1")?;
        let stand = match towards {
            Towards::Sender => stand(bed, family.listener())?,
            Towards::Backend => with_a_far_backend(bed, &far, family)?,
        };
        let mut open = Self { far, stand, towards, family, streams: Vec::new() };
        (0..SESSIONS).try_for_each(|number| open.another(number))?;
        open.stand.wait_spliced(bed, &mut open.streams)?;
        Ok(open)
    }

    fn another(&mut self, number: u16) -> Result<()> {
        let family = self.family;
        self.streams.push(match self.towards {
            Towards::Sender => self.far.run(|| open_at(family.listener(), number))??,
            Towards::Backend => open_at(family.listener_here(), number)?,
        });
        Ok(())
    }

    fn change(&self, change: impl FnOnce(&NetNs) -> Result<()>) -> Result<()> {
        change(&self.far)?;
        match self.towards {
            Towards::Sender => Ok(()),
            Towards::Backend => self.far.run(|| to_the_clients(self.family))?,
        }
    }

    /// A new session leaves as well.
    fn another_leaves(&mut self, bed: &Bed) -> Result<()> {
        self.another(SESSIONS)?;
        self.stand.wait_spliced(bed, &mut self.streams).map(drop)
    }
}

fn under_open_sessions(bed: &Bed, family: Family, towards: Towards, change: Change) -> Result<()> {
    let mut open = Open::begin(bed, family, towards)?;
    open.change(change)?;
    // A device that was down asks for its addresses of IPv6 for some four seconds, longer under load.
    bed.wait_for("addresses of IPv6", || is_any_tentative().is_ok_and(|any| !any))?;
    for stream in &mut open.streams {
        echo(stream, b"after the change")?;
    }
    let repeated = [repetitions(bed, None)?, repetitions(bed, Some(&open.far))?].concat();
    let all = usize::from(2 * SESSIONS);
    ensure!(repeated.len() >= all, "{} of {all} connections are open", repeated.len());
    ensure!(repeated.iter().all(|times| *times <= REPETITIONS), "too often repeated: {repeated:?}");
    open.another_leaves(bed)
}

/// The ends learn of it as soon as they are reached again.
fn made_anew_too_late(bed: &Bed, family: Family, towards: Towards) -> Result<()> {
    let mut open = Open::begin(bed, family, towards)?;
    ip_here(&["link del near"])?;
    open.stand.truepeer.wait_state("the sessions to end", || {
        open.stand.truepeer.log().matches("close=\"way_lost\"").count() == usize::from(SESSIONS)
    })?;
    open.change(link)?;
    for stream in &mut open.streams {
        is_over(bed, stream)?;
    }
    all_have_ended(&open.stand, family)?;
    // Nobody is kept from coming back.
    open.streams.clear();
    open.another_leaves(bed)
}

fn with_a_far_backend(bed: &Bed, far: &NetNs, family: Family) -> Result<Stand> {
    // The sender's segments must fit through the wire.
    ip_here(&["link set lo mtu 1500"])?;
    let backend_at = family.pick("10.78.9.2:8000", "[fd78:9::2]:8000");
    let backend = far.run(|| {
        to_the_clients(family)?;
        Behaviour::Echo.start(bed, &[backend_at])
    })??;
    let truepeer = spliced_to(bed, backend_at, &[]).start(bed)?;
    Ok(Stand { truepeer, backend, admin: bed.dir().join("admin") })
}

fn to_the_clients(family: Family) -> Result<()> {
    ip_here(&[&format!("route replace default via {}", family.pick("10.78.9.1", "fd78:9::1"))])
}

/// How often the kernel of this host, or of a far one, has repeated something in each open connection.
fn is_any_tentative() -> Result<bool> {
    const TENTATIVE: u8 = 0x40; // IFA_F_TENTATIVE
    let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6")?;
    let mut flags = addresses.lines().filter_map(|line| line.split_whitespace().nth(4));
    Ok(flags.any(|flags| u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & TENTATIVE != 0)))
}

fn repetitions(bed: &Bed, far: Option<&NetNs>) -> Result<Vec<u32>> {
    let list = Program::new("ss").args(["-tinH", "state", "established"]);
    let listed = far.into_iter().fold(list, Program::in_netns).run(bed)?;
    let of_one = |line: &str| -> Result<u32> {
        let times = line.split_whitespace().find_map(|word| word.strip_prefix("retrans:")?.split('/').nth(1));
        times.map_or(Ok(0), |times| times.parse().with_context(|| line.to_owned()))
    };
    // Each connection's second line has its state.
    listed.lines().filter(|line| line.contains(" cwnd:")).map(of_one).collect()
}

/// The sender learns that the session is over, also if it says nothing.
fn is_over(bed: &Bed, stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    bed.wait_for("a reset", || match stream.read(&mut [0; 64]) {
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
        Ok(_) => false,
    })
}

fn all_have_ended(stand: &Stand, family: Family) -> Result<()> {
    for number in 0..SESSIONS {
        stand.backend.wait_for_log(&format!("{} reset", family.client(number)))?;
    }
    stand.truepeer.wait_state("a line for each", || {
        stand.truepeer.log().matches("close=\"way_lost\"").count() == usize::from(SESSIONS)
    })
}

/// At the next looks of the sweeper, within about two seconds; until then bytes go in clear.
fn by_an_ipsec_policy(bed: &Bed, family: Family) -> Result<()> {
    let far = far()?;
    let (stand, listener) = (stand(bed, family.listener())?, family.listener());
    let mut streams =
        far.run(|| (0..SESSIONS).map(|number| open_at(listener, number)).collect::<Result<Vec<_>>>())??;
    stand.wait_spliced(bed, &mut streams)?;
    if ip_here(&[ipsec_policy(family)]).is_err() {
        return skip("this kernel has no IPsec (xfrm_user)");
    }
    streams.iter_mut().try_for_each(|stream| is_over(bed, stream))?;
    all_have_ended(&stand, family)?;
    let mut relayed = far.run(|| open_at(listener, SESSIONS))??;
    echo(&mut relayed, &[3; 3000])?;
    ip_here(&["xfrm policy flush"])?;
    drop(relayed);
    let mut next = far.run(|| open_at(listener, SESSIONS + 1))??;
    stand
        .truepeer
        .wait_state("the relayed one to end", || stand.truepeer.log().contains("close=\"finished\""))?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut next)).map(drop)
}
