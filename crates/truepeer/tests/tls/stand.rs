//! The set-up of most tests: truepeer terminates TLS before a backend.
//!
//! ```text
//! client ──TLS──▶ 127.0.0.1:8443, [::1]:8443 truepeer ──as the client──▶ 127.0.0.1:8000, [::1]:8000
//! ```

use truepeer_testbed::{Bed, Behaviour, Program, Running, Truepeer};

use crate::authority::Authority;

pub(crate) const DOOR_V4: &str = "127.0.0.1:8443";
pub(crate) const DOOR_V6: &str = "[::1]:8443";
pub(crate) const BACKEND_V4: &str = "127.0.0.1:8000";
pub(crate) const BACKEND_V6: &str = "[::1]:8000";

/// `truepeer proxy` that creates its routes and logs everything.
pub(crate) fn bare_proxy() -> Truepeer {
    Truepeer::proxy(env!("CARGO_BIN_EXE_truepeer")).args(&[
        "--log-format",
        "text",
        "-v",
        "1",
        "--routes",
        "auto",
    ])
}

/// truepeer with a certificate for site.test, its backend, and the authority that clients trust.
pub(crate) struct Stand {
    pub(crate) truepeer: Running,
    pub(crate) backend: Running,
    pub(crate) authority: Authority,
}

impl Stand {
    pub(crate) fn new(bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Stand> {
        let backend = behaviour.start(bed, &[BACKEND_V4, BACKEND_V6])?;
        let authority = Authority::new(bed, "authority")?;
        let truepeer = terminating(bed, &authority)?.args(options).start(bed)?;
        Ok(Stand { truepeer, backend, authority })
    }
}

/// truepeer on the listening addresses, with a certificate for site.test, and the backends.
pub(crate) fn terminating(bed: &Bed, authority: &Authority) -> anyhow::Result<Truepeer> {
    let site = authority.certify(bed, "site", &["site.test"])?;
    let proxy = bare_proxy().listen(DOOR_V4).listen(DOOR_V6).ipv4(BACKEND_V4).ipv6(BACKEND_V6);
    Ok(proxy.option("--tls-cert", site.cert).option("--tls-key", site.key))
}

/// The start of Python clients: `open(to, first=…, source=…, name=…)` performs a handshake, after sending
/// `first`.
const PRELUDE: &str = "
import hashlib, os, socket, ssl, sys, threading, time
context = ssl.create_default_context(cafile=sys.argv[1])
def open(to=('127.0.0.1', 8443), first=b'', source=None, name='site.test', context=context, session=None):
    tcp = socket.create_connection(to, 20, source)
    tcp.sendall(first)
    return context.wrap_socket(tcp, server_hostname=name, session=session)
def close(tls):
    try: tls.unwrap().close()
    except (ssl.SSLError, OSError): pass
";

/// A Python client that trusts the authority. Its further arguments start at `sys.argv[2]`.
pub(crate) fn python(authority: &Authority, script: &str) -> Program {
    Program::new("python3").args(["-c", &format!("{PRELUDE}\n{script}"), &authority.ca])
}
