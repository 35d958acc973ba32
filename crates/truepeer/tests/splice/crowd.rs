//! Many sessions that have left at a time.

use std::io::Read as _;
use std::net::Shutdown;
use std::time::Duration;

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Test, client};

use crate::stand::{Stand, echo, open};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        Test::new("two_thousand_sessions_leave_and_each_ends_in_its_way", in_their_ways)
            .needs_open_files(8192)
            .time_limit(Duration::from_secs(300))
            .long(),
    ]
}

/// A third ends in order, a third by a reset, and the operator ends a third. That harms no other session.
fn in_their_ways(bed: &Bed) -> Result<()> {
    const COUNT: usize = 2001;
    let stand = Stand::make(bed, &[])?;
    let mut streams = (0..COUNT).map(|number| open(u16::try_from(number)?)).collect::<Result<Vec<_>>>()?;
    stand.wait_spliced(bed, &mut streams)?;
    streams.iter_mut().try_for_each(|stream| echo(stream, &[3; 20_000]))?;
    let killed = streams.split_off(COUNT * 2 / 3);
    let reset = streams.split_off(COUNT / 3);
    for stream in &mut streams {
        stream.shutdown(Shutdown::Write)?;
        ensure!(stream.read(&mut [0])? == 0, "no end");
    }
    reset.into_iter().try_for_each(client::reset)?;
    let lines = |close: &str| stand.truepeer.log().matches(&format!("close=\"{close}\"")).count();
    let all_ended = || lines("finished") == COUNT / 3 && lines("reset_by_client") == COUNT / 3;
    stand.truepeer.wait_state("the lines of those that have ended", all_ended)?;
    let mut killed = killed;
    killed.iter_mut().try_for_each(|stream| echo(stream, b"goes on"))?;
    stand.ask(bed, &["sessions", "--client", "203.0.113.7", "--kill"])?;
    killed.iter_mut().try_for_each(crate::stand::is_reset)?;
    stand
        .truepeer
        .wait_state("the lines of those that were ended", || lines("ended_by_operator") == COUNT / 3)?;
    let listed = stand.ask(bed, &["sessions"])?;
    ensure!(!listed.contains("203.0.113.7"), "{listed}");
    Ok(())
}
