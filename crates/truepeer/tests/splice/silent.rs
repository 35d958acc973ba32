//! Silent peers: some have nothing to say, others are gone.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use truepeer_sys::repair;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Test};

use crate::stand::{BACKEND, Stand, echo, is_reset, open, spliced};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("a_peer_that_is_gone_is_found_out_and_a_silent_one_is_not", gone_and_silent).long()]
}

/// Echoes until a line ends with `!`.
fn until_told(mut stream: TcpStream) -> Result<TcpStream> {
    let mut bytes = [0; 4096];
    loop {
        let length = stream.read(&mut bytes)?;
        stream.write_all(&bytes[..length])?;
        if length == 0 || bytes[..length].ends_with(b"!") {
            return Ok(stream);
        }
    }
}

fn gone_and_silent(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let listener = TcpListener::bind(BACKEND)?;
    let backend = Behaviour::Echo.start(bed, &["127.0.0.1:8001"])?;
    let stand = Stand { truepeer: spliced(bed, &[]).start(bed)?, backend, admin: bed.dir().join("admin") };
    let accepting = thread::spawn(move || -> Result<Vec<_>> {
        Ok((0..2)
            .map(|_| listener.accept().map(|(stream, _)| thread::spawn(move || until_told(stream))))
            .collect::<std::io::Result<_>>()?)
    });
    let mut streams = [open(0)?, open(1)?];
    let backends = accepting.join().expect("no panic")?;
    stand.wait_spliced(bed, &mut streams)?;
    let [mut gone, mut silent] = streams;
    echo(&mut gone, b"forget me!")?;
    let mut backends = backends.into_iter();
    let forgetting = backends.next().context("none")?.join().expect("no panic")?;
    // As after a power cut: no end, no reset.
    repair::silence(&[forgetting.as_fd()])?;
    drop(forgetting);
    gone.set_read_timeout(Some(Duration::from_secs(75)))?;
    is_reset(&mut gone)?;
    stand.truepeer.wait_for_log("close=\"reset_by_backend\"")?;
    echo(&mut silent, b"still here!")?;
    // The backend's end.
    drop(backends);
    drop(silent);
    stand.truepeer.wait_for_log("close=\"finished\"")
}
