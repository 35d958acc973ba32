//! Truepeer with `--splice auto` before a backend, and sessions through it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Running, Truepeer, client};

use crate::family::Family;

pub(crate) const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
pub(crate) const DOOR: &str = "127.0.0.1:8443";
pub(crate) const BACKEND: &str = "127.0.0.1:8000";
pub(crate) const SITE: &str = "192.0.2.1:443";

pub(crate) struct Stand {
    pub(crate) truepeer: Running,
    pub(crate) backend: Running,
    pub(crate) admin: PathBuf,
}

fn proxy_at(bed: &Bed, listener: &str, backend: &str, options: &[&str]) -> Truepeer {
    let admin = bed.dir().join("admin").display().to_string();
    let always = ["--routes", "auto", "--log-format", "text", "-v", "2", "--admin", &admin];
    let truepeer = Truepeer::proxy(TRUEPEER).listen(listener).args(&always).args(options);
    match Family::of(backend) {
        Family::V4 => truepeer.ipv4(backend),
        Family::V6 => truepeer.ipv6(backend),
    }
}

pub(crate) fn proxy(bed: &Bed, options: &[&str]) -> Truepeer {
    proxy_at(bed, DOOR, BACKEND, options)
}

const AT_ONCE: [&str; 4] = ["--splice", "auto", "--splice-after", "0"];

/// For senders of this host.
pub(crate) fn spliced_to(bed: &Bed, backend: &str, options: &[&str]) -> Truepeer {
    proxy_at(bed, Family::of(backend).listener_here(), backend, &[&AT_ONCE, options].concat())
}

/// With a backend on this host.
pub(crate) fn spliced_at(bed: &Bed, listener: &str, options: &[&str]) -> Truepeer {
    proxy_at(bed, listener, Family::of(listener).backend(), &[&AT_ONCE, options].concat())
}

pub(crate) fn spliced(bed: &Bed, options: &[&str]) -> Truepeer {
    spliced_to(bed, BACKEND, options)
}

impl Stand {
    pub(crate) fn make(bed: &Bed, options: &[&str]) -> Result<Stand> {
        mount_bpf_in_place()?;
        Self::on_this_host(bed, Family::V4, options)
    }

    /// With sender and backend on this host.
    pub(crate) fn on_this_host(bed: &Bed, family: Family, options: &[&str]) -> Result<Stand> {
        let backend = Behaviour::Echo.start(bed, &[family.backend()])?;
        let truepeer = spliced_to(bed, family.backend(), options).start(bed)?;
        Ok(Stand { truepeer, backend, admin: bed.dir().join("admin") })
    }

    pub(crate) fn ask(&self, bed: &Bed, arguments: &[&str]) -> Result<String> {
        Program::new(TRUEPEER).args(arguments).arg("--admin").arg(&self.admin).run(bed)
    }

    /// All these sessions have left. A session leaves while bytes move. Returns how many bytes each has
    /// echoed.
    pub(crate) fn wait_spliced(&self, bed: &Bed, streams: &mut [TcpStream]) -> Result<usize> {
        let mut echoed = 0;
        for _ in 0..100 {
            streams.iter_mut().try_for_each(|stream| echo(stream, b"bytes move"))?;
            echoed += 10;
            std::thread::sleep(Duration::from_millis(50));
            if echoed % 50 == 0 && self.ask(bed, &["sessions"])?.matches(" spliced ").count() == streams.len()
            {
                return Ok(echoed);
            }
        }
        bail!("not all have left:\n{}\n{}", self.ask(bed, &["sessions"])?, self.ask(bed, &["status"])?)
    }
}

/// A session of this client that has echoed once.
pub(crate) fn open(number: u16) -> Result<TcpStream> {
    open_at(DOOR, number)
}

pub(crate) fn open_at(listener: &str, number: u16) -> Result<TcpStream> {
    let mut stream = client::connect(listener)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let family = Family::of(listener);
    stream.write_all(&client::v2(family.client(number), family.site())?)?;
    echo(&mut stream, b"first")?;
    Ok(stream)
}

pub(crate) fn echo(stream: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes)?;
    stream.read_exact(&mut back).context("the echo")?;
    ensure!(back == bytes, "other bytes came back");
    Ok(())
}

/// A read that finds a reset.
pub(crate) fn is_reset(stream: &mut TcpStream) -> Result<()> {
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
        other => bail!("{other:?} instead of a reset"),
    }
}
