//! Sessions that leave user space while their sender is behind a link that loses packets, and go on so.
//!
//! ```text
//! sender ══ loses 1 % ══ host of truepeer and backend
//! ```

use std::io::{self, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::packets::{BadLink, Mischief};
use truepeer_testbed::pattern::{Digest, Pattern};
use truepeer_testbed::{Bed, Behaviour, Running, Test, client, tests};

use crate::stand::{BACKEND, SITE, spliced};

pub(crate) fn tests() -> Vec<Test> {
    let mut all = tests![sixteen_mebibytes_each_way_survive_a_loss_of_1_percent];
    all.push(
        Test::new("a_gibibyte_each_way_survives_a_loss_of_1_percent", |bed| each_way(bed, 1 << 30))
            .time_limit(Duration::from_secs(600))
            .long(),
    );
    all
}

const LOST_OF_1000: usize = 10;
const DOOR: &str = "10.77.0.2:8443";
const BUFFER: usize = 64 << 10;

struct Far {
    link: BadLink,
    truepeer: Running,
    _backend: Running,
}

impl Far {
    fn make(bed: &Bed) -> Result<Far> {
        mount_bpf_in_place()?;
        let link = BadLink::make(bed, Mischief { lost: LOST_OF_1000, ..Mischief::of_each(0) }, 1)?;
        // The backend's segments must fit through the link.
        link.right.ip(&["link set lo mtu 1500"])?;
        let options = ["--allow", "10.77.0.0/24", "--listen", DOOR];
        let (backend, truepeer) = link.right.run(|| -> Result<_> {
            Ok((Behaviour::Echo.start(bed, &[BACKEND])?, spliced(bed, &options).start(bed)?))
        })??;
        truepeer.wait_for_log(&format!("listening on {DOOR}"))?;
        Ok(Far { link, truepeer, _backend: backend })
    }

    fn open(&self) -> Result<TcpStream> {
        let mut stream = self.link.left.run(|| client::connect(DOOR))??;
        let client: SocketAddr = "203.0.113.7:5000".parse()?;
        stream.write_all(&client::v2(client, SITE)?)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }
}

fn sixteen_mebibytes_each_way_survive_a_loss_of_1_percent(bed: &Bed) -> Result<()> {
    each_way(bed, 16 << 20)
}

/// So many bytes are sent and echoed. Half of the session is data after the sender's end.
fn each_way(bed: &Bed, len: u64) -> Result<()> {
    let far = Far::make(bed)?;
    let mut stream = far.open()?;
    let mut writer = stream.try_clone()?;
    let sending = thread::spawn(move || send(&mut writer, len));
    let received = receive(&mut stream)?;
    let sent = sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    ensure!(received == sent, "sent {sent}, came back {received}");
    let lost = far.link.deeds.lost.load(std::sync::atomic::Ordering::Relaxed);
    ensure!(lost > 50, "only {lost} packets were lost");
    far.truepeer.wait_for_log("has left user space")?;
    far.truepeer.wait_for_log(&format!("bytes_up={len} bytes_down={len} "))
}

fn send(stream: &mut TcpStream, len: u64) -> Result<String> {
    let (mut pattern, mut digest) = (Pattern::default(), Digest::default());
    let mut buffer = vec![0; BUFFER];
    while digest.count() < len {
        pattern.fill(&mut buffer);
        digest.update(&buffer);
        stream.write_all(&buffer).with_context(|| format!("after {} bytes", digest.count()))?;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(digest.report())
}

fn receive(stream: &mut TcpStream) -> Result<String> {
    let mut digest = Digest::default();
    let copied = io::copy(&mut BufReader::with_capacity(BUFFER, stream), &mut digest);
    copied.with_context(|| format!("after {} bytes", digest.count()))?;
    Ok(digest.report())
}
