//! The parties on either stack: NGINX as the origin, truepeer, the load.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::Context;
use truepeer_testbed::{Bed, Program, Running};

use super::args::LoadArgs;
use super::stop::Stop;
use super::words::{AS_LOAD, PAGE, WHO};
use crate::credentials::{Credential, Credentials, HOST, KeyKind};
use crate::nginx;
use crate::page::page;

/// The guide's ports.
const ORIGIN_PORT: u16 = 8445;
const PROXY_PORT: u16 = 8089;

/// The parts that all of them need.
pub(crate) struct Parties<'a> {
    pub(super) bed: &'a Bed,
    pub(super) truepeer: PathBuf,
    load: LoadArgs,
    credentials: Credentials,
}

/// Their addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(super) server: Ipv4Addr,
    pub(super) proxy: Ipv4Addr,
}

impl Addresses {
    pub(crate) fn origin(&self) -> SocketAddr {
        SocketAddrV4::new(self.server, ORIGIN_PORT).into()
    }

    pub(crate) fn entrance(&self) -> SocketAddr {
        SocketAddrV4::new(self.proxy, PROXY_PORT).into()
    }
}

impl<'a> Parties<'a> {
    /// Creates the certificates, without questions.
    pub(crate) fn new(bed: &'a Bed, truepeer: &Path, load: LoadArgs, keys: KeyKind) -> anyhow::Result<Self> {
        let truepeer = fs::canonicalize(truepeer)
            .with_context(|| format!("{}: expected the program truepeer", truepeer.display()))?;
        let credentials = Credentials::make(bed.dir(), keys)?;
        Ok(Self { bed, truepeer, load, credentials })
    }

    /// NGINX with the guide's configuration, and a page that names the client that it sees.
    pub(crate) fn origin(&self, at: &Addresses) -> anyhow::Result<Program> {
        let blocks = format!(
            "  server {{
    listen {address} ssl;
    server_name $hostname;
{tls}    root html;
    location / {{
      try_files $uri $uri/ =404;
    }}
    location = {WHO} {{
      return 200 \"the origin sees $remote_addr, and is told of $http_x_forwarded_for\";
    }}
  }}
",
            address = at.origin(),
            tls = nginx::tls(&self.credentials.origin),
        );
        nginx::program(self.bed, None, "origin", &blocks, |dir| {
            fs::create_dir(dir.join("html"))?;
            Ok(fs::write(dir.join("html").join(&PAGE[1..]), page())?)
        })
    }

    /// `truepeer https` configured like the guide's NGINX: TLS 1.3 and one suite on both sides, kept
    /// connections, GET alone.
    pub(super) fn proxy_words(&self, at: &Addresses) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        let entrance = &self.credentials.entrance;
        vec![
            "https".to_owned(),
            format!("--listen={}", at.entrance()),
            format!("--cert={}", shown(&entrance.certificate)),
            format!("--key={}", shown(&entrance.key)),
            "--tls-min=1.3".to_owned(),
            "--tls-suite=TLS_AES_128_GCM_SHA256".to_owned(),
            format!("--origin=https://{}", at.origin()),
            format!("--origin-ca={}", shown(&self.credentials.origin.certificate)),
            format!("--origin-name={HOST}"),
            "--origin-keepalive=1024".to_owned(),
            "--methods=GET".to_owned(),
            "--workers=1".to_owned(),
            "--log-format=text".to_owned(),
        ]
    }

    /// truepeer with these arguments.
    pub(crate) fn proxy(&self, at: &Addresses) -> Program {
        Program::new(&self.truepeer).args(self.proxy_words(at))
    }

    /// NGINX as the proxy, with the guide's configuration.
    pub(crate) fn nginx_proxy(&self, at: &Addresses) -> anyhow::Result<Program> {
        nginx::proxy(
            self.bed,
            None,
            &nginx::listen_tls(at.entrance(), &self.credentials.entrance),
            at.origin(),
        )
    }

    /// The load on the proxy: this program again.
    pub(crate) fn load(&self, at: &Addresses) -> anyhow::Result<Program> {
        self.load_on(at.entrance(), &self.credentials.entrance)
    }

    /// The load on the origin itself.
    pub(crate) fn load_without_proxy(&self, at: &Addresses) -> anyhow::Result<Program> {
        self.load_on(at.origin(), &self.credentials.origin)
    }

    fn load_on(&self, to: SocketAddr, credential: &Credential) -> anyhow::Result<Program> {
        let exe = std::env::current_exe().context("/proc/self/exe")?;
        Ok(Program::new(exe)
            .args([AS_LOAD, &to.to_string()])
            .arg(&credential.certificate)
            .args(self.load.words()))
    }

    /// Runs the load to its end, or until a signal, and shows its output.
    pub(super) fn measure(&self, load: &Program, stop: &Stop) -> anyhow::Result<()> {
        let load = load.start(self.bed)?;
        let mut shown = 0;
        loop {
            let alive = load.is_alive(); // asked before reading: its last output counts
            let said = load.stdout();
            print!("{}", said.get(shown..).unwrap_or_default());
            std::io::Write::flush(&mut std::io::stdout())?;
            shown = said.len();
            stop.heed()?;
            if !alive {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let status = load.wait_end()?;
        anyhow::ensure!(status.success(), "the load has failed ({status}): {}", load.stderr());
        Ok(())
    }
}

/// A command in a form that can be typed.
pub(super) fn announce(words: impl IntoIterator<Item = impl AsRef<str>>) {
    let words: Vec<String> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
    println!("$ {}", words.join(" "));
}

/// Ends `running` and prints that.
pub(super) fn end(name: &str, running: Running) {
    drop(running);
    println!("stopped: {name}");
}
