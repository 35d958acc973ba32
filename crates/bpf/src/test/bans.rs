//! For tests: the programs' look-up of bans, by BPF_PROG_TEST_RUN, with the real tables.

use core::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use aya::programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult};
use typed_arena::Arena;

use crate::error::AttachError;
use crate::load::{Loaded, Loader};
use crate::place::Place;
use crate::programs::UDP_SEND;
use crate::programs::of_tests::BANS_TEST;

const ASKED: &str = "bans_test";
const COST: &str = "bans_cost";
const COST_WITHOUT: &str = "bans_cost_without";
const LEFT: &str = "bans_left";
/// Ethernet's header and IPv6's.
const LEAST: usize = 54;

/// The loaded programs.
pub struct BanCheck(Loaded);

impl BanCheck {
    /// Loads them, and makes the tables. Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.
    pub fn load(place: &Place) -> Result<Self, AttachError> {
        place.make()?;
        let globals = Arena::new();
        let mut loader = Loader::new(place, &globals);
        loader.load(UDP_SEND)?;
        let mut loaded = loader.load(BANS_TEST)?;
        for name in [ASKED, COST, COST_WITHOUT, LEFT] {
            classifier(&mut loaded, name)?.load().map_err(AttachError::attach(name, "the kernel"))?;
        }
        Ok(Self(loaded))
    }

    /// Whether this client is banned from this port.
    pub fn is_banned(&mut self, client: IpAddr, port: u16) -> Result<bool, AttachError> {
        let address = match client {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Ok(self.run(ASKED, address, port, 1)?.return_value == 1)
    }

    /// Of 1000 random clients of 192.0.0.0/8: how many the filter leaves to the table of single addresses.
    pub fn left(&mut self) -> Result<u32, AttachError> {
        Ok(self.run(LEFT, Ipv6Addr::UNSPECIFIED, 0, 1)?.return_value)
    }

    /// What one look-up costs of random clients of 192.0.0.0/8 at port 443.
    pub fn cost(&mut self, look_ups: u32) -> Result<Duration, AttachError> {
        let mut time = |name| self.run(name, Ipv6Addr::UNSPECIFIED, 0, look_ups).map(|run| run.duration);
        Ok(time(COST)?.saturating_sub(time(COST_WITHOUT)?))
    }

    fn run(
        &mut self,
        name: &'static str,
        client: Ipv6Addr,
        port: u16,
        repeat: u32,
    ) -> Result<TestRunResult, AttachError> {
        let mut packet = [0; LEAST];
        packet[..16].copy_from_slice(&client.octets());
        packet[16..18].copy_from_slice(&port.to_be_bytes());
        let options = TestRunOptions { data_in: Some(&packet), repeat, ..TestRunOptions::default() };
        let result = classifier(&mut self.0, name)?.test_run(options);
        result.map_err(AttachError::attach(name, "BPF_PROG_TEST_RUN"))
    }
}

fn classifier<'a>(
    loaded: &'a mut Loaded,
    name: &'static str,
) -> Result<&'a mut SchedClassifier, AttachError> {
    loaded.program(name).try_into().map_err(AttachError::attach(name, "the kernel"))
}
