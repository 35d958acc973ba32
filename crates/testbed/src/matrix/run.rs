//! The way `run`: truepeer starts the backend with one of its mechanisms.

use std::path::PathBuf;

use super::{Deliver, Delivered, Way};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::harness::Test;
use crate::passwd::User;

/// AF_INET6 sockets, which can show clients of either family. Senders connect to 127.0.0.1 and ::1. A plain
/// user may listen on these ports.
const BACKEND: [&str; 2] = ["[::ffff:127.0.0.1]:8080", "[::1]:8080"];

/// Delivers by `truepeer run --via MECHANISM`.
#[derive(Debug)]
pub struct ByRun {
    exe: PathBuf,
    mechanism: &'static str,
    as_plain_user: bool,
}

impl ByRun {
    /// Uses this binary and a mechanism (`notify`), both run by root.
    pub fn new(exe: impl Into<PathBuf>, mechanism: &'static str) -> ByRun {
        ByRun { exe: exe.into(), mechanism, as_plain_user: false }
    }

    /// Both run by a plain user without capabilities.
    pub fn as_plain_user(self) -> ByRun {
        ByRun { as_plain_user: true, ..self }
    }
}

impl Deliver for ByRun {
    fn way(&self) -> Way {
        Way::Run
    }

    fn column(&self) -> String {
        let whose = if self.as_plain_user { "_as_plain_user" } else { "" };
        format!("{}_by_{}{whose}", self.way().name(), self.mechanism)
    }

    fn needs(&self, test: Test) -> Test {
        if self.as_plain_user { test.needs_several_users() } else { test }
    }

    fn put_behind(&self, bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Delivered> {
        let launch = [&["run", "--via", self.mechanism], options, &["--"]].concat();
        let backend = behaviour.start_program(bed, &BACKEND, |program| {
            let program = program.launched_by(&self.exe, &launch);
            if self.as_plain_user { program.as_user(User::TESTER) } else { program }
        })?;
        Ok(Delivered { v4: "127.0.0.1:8080".parse()?, v6: BACKEND[1].parse()?, truepeer: None, backend })
    }
}
