//! The way `proxy`: backend and relay on the same loopback.

use std::path::PathBuf;

use anyhow::ensure;

use super::attach::mount_bpf_in_place;
use super::{Deliver, Delivered, Way};
use crate::backend::Behaviour;
use crate::bed::Bed;
use crate::harness::Test;
use crate::passwd::User;
use crate::program::Program;
use crate::truepeer::Truepeer;

const BACKEND: [&str; 2] = ["127.0.0.1:80", "[::1]:80"];
const LISTENERS: [&str; 2] = ["127.0.0.1:8443", "[::1]:8443"];

/// The cases whose sessions last long enough to leave.
const LEAVE: [&str; 3] = [
    "a_slow_backends_bytes_all_arrive",
    "a_slow_client_gets_everything",
    "any_mixture_of_sizes_and_paces_arrives_whole",
];

/// Delivers by `truepeer proxy`.
#[derive(Debug)]
pub struct ByProxy {
    exe: PathBuf,
    as_plain_user: bool,
    is_spliced: bool,
}

impl ByProxy {
    /// Uses this binary, run by root, which creates its own routes.
    pub fn new(exe: impl Into<PathBuf>) -> ByProxy {
        ByProxy { exe: exe.into(), as_plain_user: false, is_spliced: false }
    }

    /// Run by a plain user whose only capability is CAP_NET_RAW. That suffices for IP_TRANSPARENT, but not
    /// for routes, which root creates before. The kernel's quotas for plain users (pipes) apply.
    pub fn as_plain_user(self) -> ByProxy {
        ByProxy { as_plain_user: true, ..self }
    }

    /// Each session leaves user space as soon as it can.
    pub fn spliced(self) -> ByProxy {
        ByProxy { is_spliced: true, ..self }
    }

    fn apply_routes(&self, bed: &Bed) -> anyhow::Result<()> {
        let apply = ["routes", "apply", "-4", BACKEND[0], "-6", BACKEND[1]];
        Program::new(&self.exe).args(apply).run(bed).map(drop)
    }
}

impl Deliver for ByProxy {
    fn way(&self) -> Way {
        Way::Proxy
    }

    fn column(&self) -> String {
        let whose = if self.as_plain_user { "_as_plain_user" } else { "" };
        let how = if self.is_spliced { "_spliced" } else { "" };
        format!("{}{whose}{how}", self.way().name())
    }

    fn needs(&self, test: Test) -> Test {
        if self.as_plain_user { test.needs_several_users() } else { test }
    }

    fn verify(&self, bed: &Bed, case: &str) -> anyhow::Result<()> {
        if !self.is_spliced {
            return Ok(());
        }
        ensure!(
            bed.times_logged("has left user space") > 0 || !LEAVE.contains(&case),
            "no session has left user space"
        );
        Ok(())
    }

    fn put_behind(&self, bed: &Bed, behaviour: Behaviour, options: &[&str]) -> anyhow::Result<Delivered> {
        let backend = behaviour.start(bed, &BACKEND)?;
        let mut truepeer = Truepeer::proxy(&self.exe).ipv4(BACKEND[0]).ipv6(BACKEND[1]).args(options);
        truepeer = LISTENERS.iter().fold(truepeer, |truepeer, address| truepeer.listen(address));
        if self.as_plain_user {
            self.apply_routes(bed)?;
            truepeer = truepeer.args(&["--routes", "manual"]);
            truepeer = truepeer.with(|program| program.as_user(User::TESTER).with_capabilities(&["net_raw"]));
        }
        if self.is_spliced {
            mount_bpf_in_place()?;
            truepeer = truepeer.args(&["--splice-after", "0", "-v", "2"]);
        }
        let truepeer = truepeer.start(bed)?;
        if self.is_spliced {
            // Not relayed because the programs were refused.
            truepeer.wait_for_log("sessions may leave user space")?;
        }
        let [v4, v6] = LISTENERS;
        Ok(Delivered { v4: v4.parse()?, v6: v6.parse()?, truepeer: Some(truepeer), backend })
    }
}
