//! A device changes under a session that has left user space: the session goes on, or both of its ends learn
//! at once that it is over.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use anyhow::Result;
use truepeer_testbed::{Bed, NetNs, Test, ip_here, skip, tests};

use crate::stand::{Stand, echo, open_at};
use crate::wire::{DOOR, far, stand};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![an_ipsec_policy_ends_sessions_that_have_left];
    for (name, change, outcome) in CHANGES {
        all.push(Test::new(format!("sessions_over_a_device_that_is_{name}_{}", outcome.name()), {
            move |bed: &Bed| under_open_sessions(bed, change, outcome)
        }));
    }
    all
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    GoOn,
    End,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::GoOn => "go_on",
            Self::End => "end",
        }
    }
}

type Change = fn(&NetNs) -> Result<()>;

const CHANGES: [(&str, Change, Outcome); 6] = [
    (
        "renamed",
        |_| ip_here(&["link set near down", "link set near name other", "link set other up"]),
        Outcome::GoOn,
    ),
    ("down_for_a_moment", |_| ip_here(&["link set near down", "link set near up"]), Outcome::GoOn),
    (
        "made_a_port_of_a_bridge",
        |_| {
            ip_here(&[
                "link add br0 type bridge",
                "link set br0 up",
                "link set near master br0",
                "addr del 10.78.9.1/24 dev near",
                "addr add 10.78.9.1/24 dev br0",
            ])
        },
        Outcome::End,
    ),
    (
        "made_anew",
        |far| {
            ip_here(&["link del near"])?;
            let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
            ip_here(&[
                &format!("link add near type veth peer name wire netns {there}"),
                "addr add 10.78.9.1/24 dev near",
                "link set near up",
            ])?;
            far.run(|| ip_here(&["addr add 10.78.9.2/24 dev wire", "link set wire up"]))?
        },
        Outcome::End,
    ),
    (
        "elsewhere_for_a_moment",
        |_| {
            let elsewhere = NetNs::create()?;
            let here = format!("/proc/{}/ns/net", std::process::id());
            let there = format!("/proc/{}/fd/{}", std::process::id(), elsewhere.as_fd().as_raw_fd());
            // A thread of this test may be in another namespace than the process: name this one by the
            // thread.
            let here = here
                .replace("/ns/net", &format!("/task/{}/ns/net", rustix::thread::gettid().as_raw_nonzero()));
            ip_here(&[&format!("link set near netns {there}")])?;
            elsewhere.run(|| ip_here(&[&format!("link set near netns {here}")]))??;
            ip_here(&["addr add 10.78.9.1/24 dev near", "link set near up"])
        },
        Outcome::End,
    ),
    (
        "left_by_its_address",
        |far| {
            // The other device has been there since the start.
            ip_here(&["addr del 10.78.9.1/24 dev near", "addr add 10.78.9.1/24 dev second"])?;
            far.run(|| ip_here(&["addr del 10.78.9.2/24 dev wire", "addr add 10.78.9.2/24 dev wire2"]))?
        },
        Outcome::GoOn,
    ),
];

const SESSIONS: u16 = 8;

fn under_open_sessions(bed: &Bed, change: Change, outcome: Outcome) -> Result<()> {
    let far = far()?;
    let there = format!("/proc/{}/fd/{}", std::process::id(), far.as_fd().as_raw_fd());
    ip_here(&[
        &format!("link add second type veth peer name wire2 netns {there}"),
        "addr add 10.78.7.1/24 dev second",
        "link set second up",
    ])?;
    far.run(|| ip_here(&["addr add 10.78.7.2/24 dev wire2", "link set wire2 up"]))??;
    let stand = stand(bed, DOOR)?;
    let mut streams =
        far.run(|| (0..SESSIONS).map(|number| open_at(DOOR, number)).collect::<Result<Vec<_>>>())??;
    stand.wait_spliced(bed, &mut streams)?;
    change(&far)?;
    for stream in &mut streams {
        match outcome {
            Outcome::GoOn => echo(stream, b"after the change")?,
            Outcome::End => is_over(bed, stream)?,
        }
    }
    if outcome == Outcome::End {
        all_have_ended(&stand)?;
        // Nobody is kept from coming back.
        let mut again = far.run(|| open_at(DOOR, SESSIONS))??;
        echo(&mut again, b"another session")?;
    }
    Ok(())
}

/// The sender learns that the session is over, also if it says nothing.
fn is_over(bed: &Bed, stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    bed.wait_for("a reset", || match stream.read(&mut [0; 64]) {
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
        Ok(_) => false,
    })
}

fn all_have_ended(stand: &Stand) -> Result<()> {
    for number in 0..SESSIONS {
        stand.backend.wait_for_log(&format!("203.0.113.7:{} reset", 5000 + number))?;
    }
    stand.truepeer.wait_state("a line for each", || {
        stand.truepeer.log().matches("close=\"way_lost\"").count() == usize::from(SESSIONS)
    })
}

/// At the next looks of the sweeper, within about two seconds; until then bytes go in clear.
fn an_ipsec_policy_ends_sessions_that_have_left(bed: &Bed) -> Result<()> {
    let far = far()?;
    let stand = stand(bed, DOOR)?;
    let mut streams =
        far.run(|| (0..SESSIONS).map(|number| open_at(DOOR, number)).collect::<Result<Vec<_>>>())??;
    stand.wait_spliced(bed, &mut streams)?;
    let policy = "xfrm policy add dir out src 10.200.0.1/32 dst 10.200.0.2/32 action allow";
    if ip_here(&[policy]).is_err() {
        return skip("this kernel has no IPsec (xfrm_user)");
    }
    streams.iter_mut().try_for_each(|stream| is_over(bed, stream))?;
    all_have_ended(&stand)?;
    let mut relayed = far.run(|| open_at(DOOR, SESSIONS))??;
    echo(&mut relayed, &[3; 3000])?;
    ip_here(&["xfrm policy flush"])?;
    drop(relayed);
    let mut next = far.run(|| open_at(DOOR, SESSIONS + 1))??;
    stand
        .truepeer
        .wait_state("the relayed one to end", || stand.truepeer.log().contains("close=\"finished\""))?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut next)).map(drop)
}
