//! `--header optional` before TLS, row by row as in docs/senders.md; the other ways are in the matrix.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use anyhow::ensure;
use truepeer_testbed::{Bed, Behaviour, Test, client, tests};

use crate::stand::{DOOR_V4, Stand, python};

const OPTIONAL: [&str; 4] = ["--header", "optional", "--header-timeout", "2s"];

/// Longer than a busy machine takes for a handshake.
const PATIENT: [&str; 6] = ["--header", "optional", "--header-wait", "3s", "--header-timeout", "4s"];

pub(crate) fn tests() -> Vec<Test> {
    let all = tests![
        where_headers_are_optional_tls_may_begin_at_once_or_behind_one_or_after_a_silence,
        where_headers_are_optional_one_before_tls_is_completed_or_refused,
    ];
    all.into_iter().map(|test| test.needs_program("python3")).collect()
}

fn where_headers_are_optional_tls_may_begin_at_once_or_behind_one_or_after_a_silence(
    bed: &Bed,
) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &PATIENT)?;
    let script = "
def ask(first=b'', silence=0):
    began = time.monotonic()
    tcp = socket.create_connection(('127.0.0.1', 8443), 20)
    tcp.sendall(first)
    time.sleep(silence)
    tls = context.wrap_socket(tcp, server_hostname='site.test')
    line = b''
    while not line.endswith(b'\\n'): line += tls.recv(100)
    took = time.monotonic() - began
    assert silence or took < 3, took
    print('itself' if line.startswith(b'SSH-2.0-testbed 127.0.0.1:') else line)
    close(tls)
ask()
ask(silence=3.3)
ask(silence=4.3)
ask(first=bytes.fromhex(sys.argv[2]))
";
    let header = client::v2("203.0.113.7:5000", "192.0.2.1:443")?;
    let hex: String = header.iter().map(|byte| format!("{byte:02x}")).collect();
    let said = python(&stand.authority, script).arg(hex).run(bed)?;
    let expected = ["itself", "itself", "itself", "b'SSH-2.0-testbed 203.0.113.7:5000\\r\\n'"];
    ensure!(said.lines().eq(expected), "{said}; {}", stand.truepeer.log());
    Ok(())
}

fn where_headers_are_optional_one_before_tls_is_completed_or_refused(bed: &Bed) -> anyhow::Result<()> {
    let stand = Stand::new(bed, Behaviour::Banner, &OPTIONAL)?;
    let mut stream = client::connect(DOOR_V4)?;
    stream.write_all(b"PROXY TCP4 ")?;
    stream.shutdown(Shutdown::Write)?;
    client::read_end(&mut stream)?;
    stand.truepeer.wait_for_log("closed after 11 bytes of a PROXY header")?;
    let (mut stream, began) = (client::connect(DOOR_V4)?, Instant::now());
    stream.write_all(b"PROXY TCP4 ")?;
    client::read_end(&mut stream)?;
    let took = began.elapsed();
    ensure!(took > Duration::from_millis(1900), "after {took:?}");
    stand.truepeer.wait_for_log("no whole PROXY header within 2 s: 11 bytes came")?;
    let mut stream = client::connect(DOOR_V4)?;
    stream.write_all(b"PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n")?;
    client::read_end(&mut stream)?;
    ensure!(!stand.backend.log().contains("accepted"), "{}", stand.backend.log());
    Ok(())
}
