//! `truepeer whois` where no process runs: from the kernel's own tables.

use anyhow::{Result, ensure};
use serde_json::Value;
use truepeer_testbed::{Bed, Program, Test, client, tests};

use crate::bans::operate;
use crate::kit::{DESTINATION, attach, echo, header, is_answered, session, start};

pub(crate) fn tests() -> Vec<Test> {
    tests![whois_tells_the_client_of_a_connection_without_a_process]
}

fn ask(bed: &Bed, address: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(&operate(bed, &["whois", address, "--json"])?)?)
}

fn whois_tells_the_client_of_a_connection_without_a_process(bed: &Bed) -> Result<()> {
    let server = echo(bed)?;
    start(bed, &[])?;
    let mut named = session(&header("203.0.113.7:1001")?)?;
    is_answered(&mut named)?;
    server.wait_for_log("203.0.113.7:1001")?;
    let with_secret = [(0xE5, &b"a-secret-of-the-balancer-0001"[..])];
    let mut v6 = session(&client::v2_with_tlvs("203.0.113.7:1002", DESTINATION, &with_secret)?)?;
    is_answered(&mut v6)?;
    let sender = named.local_addr()?.to_string();
    for asked in ["203.0.113.7:1001", &sender] {
        let [one] = &ask(bed, asked)?[..] else { anyhow::bail!("{asked}") };
        ensure!(one["client"] == "203.0.113.7:1001" && one["sender"] == *sender, "{one}");
        ensure!(one["listener"] == "127.0.0.1:80" && one["kind"] == "tcp" && one["attachment"] == 0, "{one}");
        ensure!(one["why"] == "the sender's header names it" && one["netns"].is_u64(), "{one}");
    }
    let both = ask(bed, "203.0.113.7")?;
    ensure!(both.len() == 2 && !format!("{both:?}").contains("a-secret"), "{both:?}");
    // A health check, and a sender that says nothing yet.
    let mut local = session(&client::v2_local())?;
    is_answered(&mut local)?;
    let [one] = &ask(bed, &local.local_addr()?.to_string())?[..] else { anyhow::bail!("LOCAL") };
    ensure!(one["client"] == one["sender"] && one["why"].to_string().contains("stands for itself"), "{one}");
    let silent = session(b"")?;
    let silent = silent.local_addr()?.to_string();
    bed.wait_for("the connection", || ask(bed, &silent).is_ok())?;
    let [one] = &ask(bed, &silent)?[..] else { anyhow::bail!("silent") };
    ensure!(one["client"].is_null() && one["why"] == "its header has not come yet", "{one}");

    drop(named);
    bed.wait_for("its end", || ask(bed, "203.0.113.7:1001").is_err())?;
    let pins = bed.dir().join("bpf/truepeer");
    let whois = Program::new(env!("CARGO_BIN_EXE_truepeer")).args(["whois", "203.0.113.7:1001", "--pins"]);
    let whois = whois.arg(&pins).start(bed)?;
    ensure!(!whois.wait_end()?.success());
    ensure!(whois.log().contains("truepeer attach: no open connection has it"), "{}", whois.log());
    attach(bed, &["detach", "--now"])?;
    Ok(())
}
