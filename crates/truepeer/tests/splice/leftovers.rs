//! Tables and programs of a network namespace that is gone.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use truepeer_testbed::matrix::mount_bpf_in_place;
use truepeer_testbed::{Bed, NetNs, Program, Test, ip_here, tests};

use crate::family::Family;
use crate::stand::{Stand, TRUEPEER, echo, open};

const PINS: &str = "/sys/fs/bpf/truepeer-splice";

pub(crate) fn tests() -> Vec<Test> {
    tests![
        a_sweep_removes_the_tables_of_namespaces_that_are_gone,
        the_next_start_removes_the_tables_of_namespaces_that_are_gone,
    ]
}

/// Killed while a session is open, a truepeer leaves its tables, so that the next one finds the session.
fn leaves_tables_of_a_namespace_that_is_gone(bed: &Bed) -> Result<()> {
    mount_bpf_in_place()?;
    NetNs::create()?.run(|| -> Result<()> {
        ip_here(&["link set lo up"])?;
        let stand = Stand::on_this_host(bed, Family::V4, &[])?;
        let mut stream = open(0)?;
        stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
        stand.truepeer.signal(Signal::KILL)?;
        stand.truepeer.wait_end()?;
        stand.backend.stop().map(drop)
    })??;
    let _ = fs::remove_file(bed.dir().join("admin"));
    bed.wait_for("the end of the namespace", || {
        truepeer_bpf::gone(Path::new(PINS)).is_ok_and(|gone| gone.len() == 1)
    })
}

fn the_next_start_removes_the_tables_of_namespaces_that_are_gone(bed: &Bed) -> Result<()> {
    leaves_tables_of_a_namespace_that_is_gone(bed)?;
    let stand = Stand::on_this_host(bed, Family::V4, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let gone = truepeer_bpf::gone(Path::new(PINS))?;
    ensure!(gone.is_empty(), "{gone:?}");
    Ok(())
}

fn a_sweep_removes_the_tables_of_namespaces_that_are_gone(bed: &Bed) -> Result<()> {
    leaves_tables_of_a_namespace_that_is_gone(bed)?;
    let sweep = || Program::new(TRUEPEER).args(["attach", "sweep"]).run(bed);
    let said = sweep()?;
    ensure!(said.contains("leftovers of network namespaces that no longer exist: 1"), "{said}");
    ensure!(fs::read_dir(PINS)?.count() == 0, "something is left");
    let stand = Stand::on_this_host(bed, Family::V4, &[])?;
    let mut stream = open(0)?;
    stand.wait_spliced(bed, std::slice::from_mut(&mut stream))?;
    let said = sweep()?;
    ensure!(!said.contains("no longer exist"), "{said}");
    echo(&mut stream, b"undisturbed")
}
