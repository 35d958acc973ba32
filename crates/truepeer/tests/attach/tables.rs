//! The kernel memory of an attachment, and tables that grow.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use truepeer_testbed::{Bed, Behaviour, Test, client, tests};

use crate::kit::{
    BACKEND, all_flows_end, attach, command, echo, header, is_answered, longer_header, open, session, start,
    status,
};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_namespace_at_rest_takes_little_memory,
        tables_grow_when_no_connection_is_open,
        connections_that_begin_while_tables_grow_are_named,
    ]
}

const MIB: u64 = 1 << 20;

/// What the kernel says, in bytes.
fn memory(status: &Value) -> Result<u64> {
    let of = |kind: &str| status["memory"][kind].as_u64().with_context(|| format!("{kind} in {status}"));
    Ok(of("tables")? + of("programs")?)
}

fn a_namespace_at_rest_takes_little_memory(bed: &Bed) -> Result<()> {
    start(bed, &[])?;
    let tcp = memory(&status(bed)?)?;
    ensure!(tcp < 4 * MIB, "{tcp} bytes");
    let said = attach(bed, &["status"])?;
    ensure!(said.contains("room for 32768 open connections\n"), "{said}");

    // An eighth for the filter of banned addresses. Datagrams that travel together are taken apart in a table
    // with an entry for each processor.
    let each_cpu = 128 * 1024 * thread::available_parallelism()?.get() as u64;
    start(bed, &["--port", "53:5353/udp"])?;
    let both = memory(&status(bed)?)?;
    ensure!(both > tcp && both < 4 * MIB + MIB / 8 + each_cpu, "{both} bytes");
    let said = attach(bed, &["status"])?;
    ensure!(said.contains("room for 32768 open connections and 2048 UDP flows"), "{said}");

    // Without UDP its memory is free again.
    start(bed, &["--replace"])?;
    let after = memory(&status(bed)?)?;
    ensure!(after < tcp + MIB / 2, "{after} bytes, {tcp} before");
    Ok(())
}

fn tables_grow_when_no_connection_is_open(bed: &Bed) -> Result<()> {
    let _echo = echo(bed)?;
    start(bed, &["--max-flows", "1000"])?;
    let mut first = session(&header("203.0.113.1:1001")?)?;
    is_answered(&mut first)?;
    let mut translated = session(&longer_header("203.0.113.2:1002")?)?;
    is_answered(&mut translated)?;

    let growing = command(bed, &["--port", "80", "--max-flows", "100000"])?.start(bed)?;
    ensure!(growing.wait_end()?.success(), "{}", growing.log());
    let said = growing.stderr();
    ensure!(said.contains("room for 1000 connections, because some are open"), "{said}");
    ensure!(status(bed)?["max_flows"] == 1000);
    is_answered(&mut first)?;
    is_answered(&mut translated)?;
    ensure!(open(bed, "translated")? == 1);

    ensure!(client::ask(&mut first, b"end")? == "end");
    ensure!(client::ask(&mut translated, b"end")? == "end");
    all_flows_end(bed)?;
    start(bed, &["--max-flows", "100000"])?;
    ensure!(status(bed)?["max_flows"] == 100_000);
    is_answered(&mut session(&header("203.0.113.3:1003")?)?)?;
    Ok(())
}

fn connections_that_begin_while_tables_grow_are_named(bed: &Bed) -> Result<()> {
    let _who = Behaviour::Who.start(bed, &[BACKEND])?;
    start(bed, &["--max-flows", "1000"])?;
    let has_ended = AtomicBool::new(false);
    const GROWTHS: u16 = 6;
    let (count, grown) = thread::scope(|scope| -> Result<(u16, bool)> {
        let asking = scope.spawn(|| -> Result<u16> {
            let mut port = 1000;
            while !has_ended.load(Ordering::Acquire) {
                port += 1;
                let client = format!("203.0.113.1:{port}");
                let seen = client::ask(&mut session(&header(&client)?)?, b"")?;
                ensure!(seen.trim() == client, "{client} was seen as {seen}");
                // Let the kernel forget it: the tables grow only between two connections.
                thread::sleep(Duration::from_millis(5));
            }
            Ok(port - 1000)
        });
        let grow = || -> Result<bool> {
            for number in 0..GROWTHS {
                start(bed, &["--max-flows", &(2000 + number).to_string()])?;
            }
            Ok(status(bed)?["max_flows"] != 1000)
        };
        let grown = grow();
        has_ended.store(true, Ordering::Release);
        let count = asking.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        Ok((count, grown?))
    })?;
    ensure!(count > GROWTHS && grown, "{count} connections, grown: {grown}");
    Ok(())
}
