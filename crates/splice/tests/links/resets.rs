//! Resets of our own sockets, after bytes were translated past them.

use std::io::{ErrorKind, Read};

use anyhow::{Result, ensure};
use truepeer_splice::Progress;
use truepeer_testbed::Bed;

use crate::line::Line;

/// truepeer is killed in TAIL: both peers believe the resets of its sockets, though these don't know what was translated. `is_forgotten`: the
/// tables forget the flow before the sockets are closed.
pub(crate) fn believed(bed: &Bed, v6: bool, is_forgotten: bool) -> Result<()> {
    let line = Line::make(bed)?;
    let mut session = line.session(v6)?;
    session.say(0, b"before")?;
    session.say(1, b"the same")?;
    line.arm(&mut session)?;
    session.say(0, b"heard")?;
    session.say(1, b"as well")?;
    session.go_to(Progress::Tail)?;
    session.say(0, &[7; 4000])?;
    session.say(1, &[8; 3000])?;
    if is_forgotten {
        session.forget();
    }
    session.die();
    for (side, end) in session.ends.iter().enumerate() {
        let seen = (&*end).read(&mut [0; 10]);
        let is_reset = matches!(&seen, Err(error) if error.kind() == ErrorKind::ConnectionReset);
        ensure!(is_reset, "end {side} sees {seen:?}, no reset");
    }
    Ok(())
}
