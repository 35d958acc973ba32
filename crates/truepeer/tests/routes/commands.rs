//! The printed commands do the same as truepeer itself.

use anyhow::{Result, ensure};
use truepeer_testbed::{Bed, Program, Test, ip_here, tests};

use crate::support::{TRUEPEER, routes, state};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_printed_commands_do_what_apply_does,
        the_printed_removal_does_what_remove_does,
        show_names_missing_and_existing_items,
        a_foreign_table_without_the_needed_source_is_named,
        the_kernel_says_in_words_what_it_refuses,
    ]
}

const EVERYTHING: &str = "-4 127.0.0.1:80 -6 [::1]:80 -4 10.9.0.1:81 -6 [fd00:9::1]:81 -4 10.5.5.2:82 \
    -6 [fd05::2]:82 --table 1234";

/// The kernel adds an IPv6 address's own routes a moment later. Wait for them before comparing.
fn addresses(bed: &Bed) -> Result<()> {
    ip_here(&["addr add 10.9.0.1/32 dev lo", "addr add fd00:9::1/128 dev lo"])?;
    let is_whole =
        |state: &str| ["\nlocal fd00:9::1 dev lo", "\nfd00:9::1 dev lo"].iter().all(|r| state.contains(r));
    bed.wait_for("the routes of the address", || state(bed).is_ok_and(|state| is_whole(&state)))
}

fn run_script(bed: &Bed, script: &str) -> Result<()> {
    Program::new("sh").args(["-e", "-c", script]).run(bed).map(drop)
}

fn untagged(state: &str) -> String {
    state
        .lines()
        .filter(|line| !line.contains("nop"))
        .map(|line| line.replace(" proto 124", "") + "\n")
        .collect()
}

fn the_printed_commands_do_what_apply_does(bed: &Bed) -> Result<()> {
    addresses(bed)?;
    for options in [EVERYTHING, "-p udp -4 127.0.0.1:53 -6 [::1]:53 -4 10.9.0.1:54 -6 [fd00:9::1]:54"] {
        routes(bed, &format!("apply {options}"))?;
        let applied = state(bed)?;
        routes(bed, "remove")?;
        let script = routes(bed, &format!("apply {options} --print"))?;
        run_script(bed, &script)?;
        let typed = state(bed)?.replace(" proto boot", "").replace(" proto static", "");
        ensure!(untagged(&applied) == typed, "applied:\n{}\ntyped:\n{typed}", untagged(&applied));
        let shown = routes(bed, &format!("show {options}"))?;
        ensure!(shown.contains("not truepeer's") && !shown.contains("MISSING"), "{shown}");
        clean(bed, &script)?;
    }
    Ok(())
}

/// Undoes a printed script by hand.
fn clean(bed: &Bed, script: &str) -> Result<()> {
    let undo: String = script
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.replacen(" add ", " del ", 1).replace("=1", "=0") + "\n")
        .collect();
    run_script(bed, &undo)
}

fn the_printed_removal_does_what_remove_does(bed: &Bed) -> Result<()> {
    addresses(bed)?;
    let before = state(bed)?;
    routes(bed, &format!("apply {EVERYTHING}"))?;
    let script = routes(bed, "remove --print")?;
    run_script(bed, &script)?;
    ensure!(state(bed)? == before, "something is left:\n{}", state(bed)?);
    Ok(())
}

fn show_names_missing_and_existing_items(bed: &Bed) -> Result<()> {
    let show = || Program::new(TRUEPEER).args(["routes", "show", "-4", "127.0.0.1:80"]).start(bed);
    let shown = show()?;
    ensure!(!shown.wait_end()?.success(), "something is missing, it was to fail");
    ensure!(shown.stdout().contains("MISSING"), "{}", shown.log());
    routes(bed, "apply -4 127.0.0.1:80")?;
    let shown = show()?;
    ensure!(shown.wait_end()?.success(), "{}", shown.log());
    ensure!(shown.stdout().contains("until removed"), "{}", shown.stdout());
    Ok(())
}

fn the_kernel_says_in_words_what_it_refuses(bed: &Bed) -> Result<()> {
    ip_here(&["link set lo down"])?;
    let refused = Program::new(TRUEPEER).args(["routes", "apply", "-6", "[::1]:80"]).start(bed)?;
    ensure!(!refused.wait_end()?.success(), "it was to fail");
    let said = refused.stderr();
    ensure!(said.contains("the kernel says \"") && said.contains("is not up"), "{said}");
    ensure!(said.contains("ip link set lo up"), "{said}");
    Ok(())
}

fn a_foreign_table_without_the_needed_source_is_named(bed: &Bed) -> Result<()> {
    ip_here(&["route add local 0.0.0.0/0 dev lo table 123"])?;
    let before = state(bed)?;
    let refused =
        Program::new(TRUEPEER).args(["routes", "apply", "-p", "udp", "-4", "127.0.0.1:53"]).start(bed)?;
    ensure!(!refused.wait_end()?.success(), "it was to fail");
    ensure!(refused.stderr().contains("choose another --table"), "{}", refused.log());
    routes(bed, "remove")?;
    ensure!(state(bed)? == before, "changed:\n{}", state(bed)?);
    routes(bed, "apply -p udp -4 127.0.0.1:53 --table 124").map(drop)
}
