//! Handshakes that the kernel has given up while they waited for their header. For the sender the connection
//! is open, as at a plain port.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use truepeer_testbed::packets::{ACK, FIN, RST, SYN, Segment, Talker, timestamps};
use truepeer_testbed::{Bed, Test, skip, tests, wait_for};

use crate::handshake::{blind, set};
use crate::kit::{CLIENT, for_both_families, header, is_closed, is_served};
use crate::stage::Stage;

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        one_that_was_given_up_is_served,
        it_is_what_the_syn_ack_promised,
        a_blind_segment_ends_none_that_was_given_up,
        a_header_in_parts_is_put_together_by_the_sender,
        a_part_that_was_acknowledged_stays_so,
        a_sender_that_starts_again_is_told,
        a_full_accept_queue_is_waited_for,
        one_that_is_late_is_refused,
        a_silent_sender_is_served_where_headers_are_optional,
        a_blind_syn_makes_no_other_handshake_after_a_cookie,
        where_it_can_not_go_on_it_is_refused,
    ];
    all.into_iter().map(|test| test.of_group("again")).collect()
}

/// The kernel gives requests up after a second.
fn make<'b>(bed: &'b Bed, args: &[&str]) -> Result<Stage<'b>> {
    let stage = Stage::make(bed, args)?;
    set(&stage, "ipv4/tcp_synack_retries", "0")?;
    needs_linux_6_9(&stage)?;
    Ok(stage)
}

fn needs_linux_6_9(stage: &Stage<'_>) -> Result<()> {
    if stage.status()?["begins_again"] == false {
        return skip("the kernel makes no connection of a handshake that it has given up: Linux 6.9");
    }
    Ok(())
}

fn is_given_up(stage: &Stage<'_>) -> Result<()> {
    wait_for("the kernel to give its handshake up", || {
        let requests = || -> Result<usize> {
            let all = stage.wire.host.run(|| -> std::io::Result<String> {
                let of = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
                Ok(of("tcp")? + &of("tcp6")?)
            })??;
            // TCP_SYN_RECV
            Ok(all.lines().filter(|line| line.split_whitespace().nth(3) == Some("03")).count())
        };
        requests().is_ok_and(|count| count == 0)
    })
}

/// A handshake whose SYN has every option that both ends negotiate.
fn open_with_options(talker: &mut Talker<'_>) -> Result<Segment> {
    let mut options = vec![2, 4, 0x05, 0x50, 1, 3, 3, 9, 1, 1, 4, 2];
    if let Some((now, _)) = talker.clock {
        options.extend(timestamps(now, 0));
    }
    talker.send(&Segment { options, ..talker.syn() })?;
    let answer = talker.hear("the SYN-ACK", |segment| segment.flags & SYN != 0)?;
    talker.seq = talker.isn.wrapping_add(1);
    talker.ack = answer.seq.wrapping_add(1);
    if let (Some((now, _)), Some((value, _))) = (talker.clock, answer.timestamps()) {
        talker.clock = Some((now, value));
    }
    talker.send(&talker.segment(ACK, b""))?;
    Ok(answer)
}

fn one_that_was_given_up_is_served(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for (n, clock) in [None, Some(0xffff_fff0)].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 2 * u16::try_from(n)?, |mut talker| {
            talker.clock = clock.map(|now| (now, 0));
            open_with_options(&mut talker)?;
            is_given_up(&stage)?;
            stage.wire.forget()?;
            is_served(&stage, &mut talker)
        })?;
    }
    stage.counts("begun_again", 4)?;
    stage.counts("header_v2", 4)
}

/// It has the window scales, segment size and selective ACKs of a connection whose request the kernel has
/// kept; its timestamps count on.
fn it_is_what_the_syn_ack_promised(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for (n, clock) in [None, Some(5000)].into_iter().enumerate() {
        for_both_families(&stage, 4000 + 4 * u16::try_from(n)?, |first| {
            let mut seen = Vec::new();
            for waits in [false, true] {
                let mut talker =
                    stage.talker(first.from.is_ipv6(), first.from.port() + if waits { 2 } else { 0 });
                let talker = &mut talker;
                talker.clock = clock.map(|now| (now, 0));
                let answer = open_with_options(talker)?;
                if waits {
                    is_given_up(&stage)?;
                }
                stage.wire.forget()?;
                talker.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
                let mut stream = stage.accepts(CLIENT, b"DATA1")?;
                stream.write_all(b"answer")?;
                let said = talker.hear("the answer", |segment| segment.payload == b"answer")?;
                ensure!(said.seq == talker.ack && said.ack == talker.seq, "{said:?}");
                let clocks = (answer.timestamps(), said.timestamps());
                if let (Some((first, _)), Some((later, echo))) = clocks {
                    let waited = later.wrapping_sub(first);
                    ensure!(waited < 20_000, "its clock went from {first} to {later}");
                    ensure!(
                        !waits || waited > 900,
                        "its clock went from {first} to {later} in more than a second"
                    );
                    ensure!(echo == clock.unwrap_or_default(), "{said:?}");
                }
                ensure!(
                    clocks.0.is_some() == clock.is_some() && clocks.1.is_some() == clock.is_some(),
                    "{said:?}"
                );
                seen.push(promised(&stage, talker)?);
                talker.ack = talker.ack.wrapping_add(6);
                is_closed(talker, stream)?;
            }
            ensure!(seen[0] == seen[1], "kept: {:?}, given up: {:?}", seen[0], seen[1]);
            Ok(())
        })?;
    }
    stage.counts("begun_again", 4)
}

/// The connection's options, as ss(8) prints them.
fn promised(stage: &Stage<'_>, talker: &Talker<'_>) -> Result<Vec<String>> {
    let said = stage.run("ss", &["-tinH", "dport", "=", &format!(":{}", talker.from.port())])?;
    let is_wanted = |word: &&str| {
        ["ts", "sack", "ecn"].contains(word)
            || ["wscale:", "mss:", "advmss:"].iter().any(|name| word.starts_with(name))
    };
    let words: Vec<String> = said.split_whitespace().filter(is_wanted).map(str::to_owned).collect();
    ensure!(words.iter().any(|word| word.starts_with("wscale:9,")), "{said:?}");
    Ok(words)
}

fn a_blind_segment_ends_none_that_was_given_up(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        open_with_options(&mut talker)?;
        is_given_up(&stage)?;
        for segment in blind(&talker) {
            talker.send(&segment)?;
        }
        // Everything is right, except for the number that only the sender knows.
        let right = talker.data(&[header(CLIENT), b"FALSE".to_vec()].concat());
        for away in [1, 28, 1 << 31, 0u32.wrapping_sub(1)] {
            talker.send(&Segment { ack: right.ack.wrapping_add(away), ..right.clone() })?;
        }
        talker.send(&Segment { seq: right.seq.wrapping_add(1), ..right.clone() })?;
        stage.wire.send(&right.packet().with_wrong_sum())?;
        stage.nothing_is_accepted()?;
        stage.wire.forget()?;
        is_served(&stage, &mut talker)
    })
}

/// Nobody acknowledges the first part, so it comes once more with the rest.
fn a_header_in_parts_is_put_together_by_the_sender(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_given_up(&stage)?;
        let bytes = header(CLIENT);
        talker.send(&talker.data(&bytes[..7]))?;
        stage.wire.forget()?;
        ensure!(!talker.hears_within(Duration::from_millis(200), |_| true)?, "it was answered");
        is_served(&stage, &mut talker)
    })
}

fn a_part_that_was_acknowledged_stays_so(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        let bytes = header(CLIENT);
        talker.say(&bytes[..7])?;
        talker.is_acknowledged()?;
        is_given_up(&stage)?;
        stage.wire.forget()?;
        let again = Segment { seq: talker.isn.wrapping_add(1), ..talker.data(&bytes[..7]) };
        talker.send(&again)?;
        let told = talker.hear("where it stands", |_| true)?;
        ensure!((told.flags, told.seq, told.ack) == (ACK, talker.ack, talker.seq), "{told:?}");
        talker.say(&[&bytes[7..], b"DATA1"].concat())?;
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        talker.is_acknowledged()?;
        is_closed(&mut talker, stream)
    })
}

fn a_sender_that_starts_again_is_told(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        let answer = open_with_options(&mut talker)?;
        is_given_up(&stage)?;
        let mut again = Talker::new(&stage.wire, talker.from, talker.to, talker.isn.wrapping_add(1 << 30));
        stage.wire.forget()?;
        again.send(&again.syn())?;
        let told = again.hear("where the old one stands", |_| true)?;
        ensure!((told.flags, told.seq, told.ack) == (ACK, talker.ack, talker.seq), "{told:?}");
        // The SYN may have been forged: the window is none that stops the sender.
        let scale =
            answer.options.windows(3).find_map(|option| option.strip_prefix(&[3, 3])).context("no scale")?;
        ensure!(told.window == u16::MAX >> scale[0], "{told:?}");
        again.send(&Segment { seq: told.ack, flags: RST, ..Segment::new(again.from, again.to) })?;
        again.open()?;
        is_served(&stage, &mut again)
    })
}

/// A full accept queue admits no more of them than of others.
fn a_full_accept_queue_is_waited_for(bed: &Bed) -> Result<()> {
    let stage = make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_given_up(&stage)?;
        socket2::SockRef::from(&stage.listener).listen(0)?;
        let mut first = stage.talker(talker.from.is_ipv6(), talker.from.port() + 100);
        first.open()?;
        first.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
        first.is_acknowledged()?;
        let bytes = [header("203.0.113.2:1002"), b"DATA2".to_vec()].concat();
        talker.send(&talker.data(&bytes))?;
        stage.wire.forget()?;
        ensure!(!talker.hears_within(Duration::from_millis(200), |_| true)?, "it was answered");
        let stream = stage.accepts(CLIENT, b"DATA1")?;
        is_closed(&mut first, stream)?;
        talker.say(&bytes)?;
        stage.accepts("203.0.113.2:1002", b"").context("after there was room")?;
        Ok(())
    })
}

fn one_that_is_late_is_refused(bed: &Bed) -> Result<()> {
    let stage = make(bed, &["--header-timeout", "2s"])?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_given_up(&stage)?;
        std::thread::sleep(Duration::from_secs(2));
        stage.wire.forget()?;
        talker.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
        let answer = talker.hear("the refusal", |segment| segment.flags & RST != 0)?;
        ensure!(answer.seq == talker.ack, "{answer:?}");
        stage.nothing_is_accepted()
    })?;
    stage.counts("refused_timeout", 2)
}

fn a_silent_sender_is_served_where_headers_are_optional(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    let senders = ["--port", "80", "--allow", "10.77.0.0/24", "--allow", "fd77::/64"];
    stage.attach(&[senders.as_slice(), &["--header", "optional", "--header-wait", "2s"]].concat())?;
    needs_linux_6_9(&stage)?;
    set(&stage, "ipv4/tcp_synack_retries", "0")?;
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_given_up(&stage)?;
        talker.send(&talker.segment(ACK, b""))?;
        stage.nothing_is_accepted().context("before --header-wait")?;
        std::thread::sleep(Duration::from_secs(2));
        talker.send(&talker.segment(ACK, b""))?;
        let mut accepted = stage.accept()?;
        ensure!(accepted.client == talker.from, "{}", accepted.client);
        talker.say(b"DATA1")?;
        accepted.brings(b"DATA1")?;
        talker.is_acknowledged()?;
        is_closed(&mut talker, accepted.stream)
    })?;
    stage.counts("begun_again", 2)
}

/// While the queue is full, the kernel answers a blind SYN with another cookie. When there is room again, a
/// handshake by that cookie would take the sender's place.
fn a_blind_syn_makes_no_other_handshake_after_a_cookie(bed: &Bed) -> Result<()> {
    let stage = Stage::make(bed, &[])?;
    for_both_families(&stage, 4000, |mut talker| {
        set(&stage, "ipv4/tcp_syncookies", "2")?;
        talker.open()?;
        set(&stage, "ipv4/tcp_syncookies", "1")?;
        stage.wire.forget()?;
        talker.send(&Segment { seq: talker.isn.wrapping_add(77_777), ..talker.syn() })?;
        let told = talker.hear("where it stands", |_| true)?;
        ensure!((told.flags & (SYN | ACK | FIN), told.ack) == (ACK, talker.seq), "{told:?}");
        is_served(&stage, &mut talker)
    })
}

/// On kernels before Linux 6.9, and on all without SYN cookies.
fn where_it_can_not_go_on_it_is_refused(bed: &Bed) -> Result<()> {
    let stage = Stage::without_attach(bed)?;
    set(&stage, "ipv4/tcp_syncookies", "0")?;
    set(&stage, "ipv4/tcp_synack_retries", "0")?;
    stage.attach(&["--port", "80", "--allow", "any"])?;
    ensure!(stage.status()?["begins_again"] == false, "{}", stage.status()?);
    for_both_families(&stage, 4000, |mut talker| {
        talker.open()?;
        is_given_up(&stage)?;
        stage.wire.forget()?;
        talker.say(&[header(CLIENT), b"DATA1".to_vec()].concat())?;
        let reset = talker.hear("a RST", |segment| segment.flags & RST != 0)?;
        ensure!(reset.seq == talker.ack, "{reset:?}");
        stage.nothing_is_accepted()
    })?;
    stage.counts("refused_redirected", 2)
}
