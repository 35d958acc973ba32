//! A listener whose backend is another listener of the same truepeer: segments that are translated from
//! loopback to loopback do not come in again.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, Behaviour, Program, Test, Topology, client, tests};

use crate::stand::{SERVED, echo};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const CONFIGURATION: &str = r#"
[log]
level = "debug"
format = "text"

[[proxy]]
listen = ["DOOR"]
ipv4 = "127.0.0.1:8444"
allow = ["loopback", "private"]
splice = "full"
routes = "auto"

[[proxy]]
listen = ["127.0.0.1:8444"]
ipv4 = "127.0.0.1:80"
allow = ["203.0.113.0/24"]
splice = "full"
routes = "auto"
"#;

pub(crate) fn tests() -> Vec<Test> {
    tests![a_listener_may_be_the_backend_of_another_one]
}

fn a_listener_may_be_the_backend_of_another_one(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    let hosts = Topology::line(&["sender", "relay"])?;
    let (sender, relay) = (hosts.host("sender"), hosts.host("relay"));
    let listener = relay.at(false, 8443).to_string();
    let backend =
        Behaviour::Echo.start_program(bed, &["127.0.0.1:80"], |program| program.in_netns(&relay.netns))?;
    let file = bed.write("truepeer.toml", CONFIGURATION.replace("DOOR", &listener))?.display().to_string();
    let program = Program::new(TRUEPEER).args(["serve", "-c", &file]).in_netns(&relay.netns);
    let truepeer = program.start(bed)?;
    for listener in [&listener, "127.0.0.1:8444"] {
        truepeer.wait_for_log(&format!("{SERVED} {listener}"))?;
    }
    let mut streams = Vec::new();
    // From another host, then from this one.
    for (host, ports) in [(sender, 5000..5020), (relay, 5020..5040)] {
        for port in ports {
            let began = Instant::now();
            let mut stream = host.run(|| client::connect(&listener))??;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            let outer = client::v2(format!("203.0.113.7:{port}"), "192.0.2.1:443")?;
            let inner = client::v2(format!("203.0.113.8:{port}"), "192.0.2.1:443")?;
            stream.write_all(&[outer, inner].concat())?;
            echo(&mut stream, &[5; 2000]).with_context(|| format!("session {port}"))?;
            backend.wait_for_log(&format!("203.0.113.8:{port} accepted"))?;
            let took = began.elapsed();
            ensure!(took < Duration::from_secs(3), "session {port} took {took:?}\n{}", truepeer.log());
            streams.push(stream);
        }
    }
    streams.iter_mut().try_for_each(|stream| echo(stream, b"once more"))
}
