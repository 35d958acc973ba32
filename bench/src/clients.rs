//! The clients in the headers, and the addresses from which senders connect. Both rotate for two reasons: a
//! four-tuple must not be reused while the kernel keeps it in TIME_WAIT, and a load balancer has many
//! clients.

use std::net::{Ipv4Addr, SocketAddr};

use truepeer_proto::{Addresses, Command, Transport, V1_MAX_LEN, V2Encoder, encode_v1};

/// Claimed clients are in this network, and no other address is: a backend recognises them by it.
pub(crate) const CLAIMED_NETWORK: &str = "11.0.0.0/8";
const CLAIMED: u32 = 0x0B00_0000;
/// The addresses that are used: 11.0.0.1 to 11.239.255.255, repeatedly.
const CLAIMED_COUNT: u32 = 0x00F0_0000 - 1;
/// The ports of claimed clients: the next one each time all addresses have been used.
const FIRST_PORT: u16 = 20_000;
/// Senders connect from 127.1.0.1 to 127.1.15.255 on loopback, and from 198.18.0.1 to 198.18.15.255 over
/// hosts.
const SENDERS: u32 = 0x7F01_0000;
pub(crate) const SENDERS_NETWORK: &str = "198.18.0.0/16";
const SENDERS_OVER_HOSTS: u32 = 0xC612_0000;
const SENDER_COUNT: u32 = 0x1000 - 1;

/// Returns clients without repetition. Each thread of a load takes every n-th.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    next: u32,
    step: u32,
    senders: u32,
}

impl Clients {
    /// Share number `first` of `shares`, for connections to `entrance`.
    pub(crate) fn share(entrance: SocketAddr, first: usize, shares: usize) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(0);
        let senders = if entrance.ip().is_loopback() { SENDERS } else { SENDERS_OVER_HOSTS };
        Self { next: small(first), step: small(shares).max(1), senders }
    }

    /// The next client, and the address that its sender connects from.
    pub(crate) fn take(&mut self) -> (SocketAddr, Ipv4Addr) {
        let number = self.next;
        self.next = self.next.wrapping_add(self.step);
        let lap = u16::try_from(number / CLAIMED_COUNT).unwrap_or(0);
        let client = Ipv4Addr::from(CLAIMED + 1 + number % CLAIMED_COUNT);
        let sender = Ipv4Addr::from(self.senders + 1 + number % SENDER_COUNT);
        (SocketAddr::from((client, FIRST_PORT + lap)), sender)
    }
}

/// Whether a backend sees one of the claimed clients.
pub(crate) fn is_claimed(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V4(address) if address.ip().octets()[0] == 11)
}

/// The line at the start of connections in the seeds' benchmarks.
pub(crate) fn v1_header(client: SocketAddr, entrance: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let mut line = [0; V1_MAX_LEN];
    let addresses = Addresses::Inet { transport: Transport::Stream, source: client, destination: entrance };
    let length = encode_v1(&addresses, &mut line)?;
    Ok(line[..length].to_vec())
}

/// The binary header for a datagram.
pub(crate) fn v2_header(client: SocketAddr, entrance: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let mut header = [0; 64];
    let addresses = Addresses::Inet { transport: Transport::Dgram, source: client, destination: entrance };
    let length = V2Encoder::new(&mut header, Command::Proxy, &addresses)?.finish()?;
    Ok(header[..length].to_vec())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::place::Endpoints;

    #[test]
    fn shares_never_meet() {
        let share = |first| Clients::share(Endpoints::LOOPBACK.entrance, first, 2);
        let (mut even, mut odd) = (share(0), share(1));
        let clients: HashSet<SocketAddr> = (0..10_000).flat_map(|_| [even.take().0, odd.take().0]).collect();
        assert_eq!(clients.len(), 20_000);
        assert!(clients.into_iter().all(is_claimed));
    }
}
