//! The client's side of sessions that a backend accounts for, by the client's name and a digest of its bytes
//! ([`Behaviour::Account`]).

use std::io::{self, Read as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};

use crate::Behaviour;
use crate::pattern::{Digest, Pattern};
use crate::peers::peer;

/// The behaviour of the backend that gives the account.
pub fn behaviour() -> Behaviour {
    if half_closes() { Behaviour::Account } else { Behaviour::Counted }
}

/// go-mmproxy ends both directions when one ends, so with a half-close none of its sessions would get an
/// answer.
fn half_closes() -> bool {
    peer().as_deref() != Some("go-mmproxy")
}

/// The bytes of a client, `length` of them at least. No other client's are the same.
pub fn data_of(client: SocketAddr, length: usize) -> Vec<u8> {
    let address = match client.ip() {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let number = u64::try_from(address & 0xFFFF).unwrap_or_default() << 16 | u64::from(client.port());
    // Multiples of the golden ratio: any two are at least a hundred MiB apart.
    let mut pattern = Pattern::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 1);
    let head = if half_closes() { Vec::new() } else { (length as u64 + 8).to_be_bytes().to_vec() };
    let mut data = vec![0; head.len() + length];
    let (front, rest) = data.split_at_mut(head.len());
    front.copy_from_slice(&head);
    pattern.fill(rest);
    data
}

/// The backend's account of these bytes.
pub fn account_of(client: SocketAddr, bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    format!("{client} {}", digest.report())
}

/// Ends the client's direction, and reads the backend's account to its end. What came before an error is
/// returned, too.
pub fn read_account(stream: &mut TcpStream) -> (String, io::Result<()>) {
    let mut answer = Vec::new();
    let ended = if half_closes() { stream.shutdown(Shutdown::Write) } else { Ok(()) };
    let read = ended.and_then(|()| stream.read_to_end(&mut answer).map(drop));
    (String::from_utf8_lossy(&answer).trim_end().to_owned(), read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_clients_send_the_same() {
        let data = |client: &str| data_of(client.parse().expect("an address"), 1000);
        let all =
            ["203.0.113.7:5000", "203.0.113.7:5001", "203.0.113.8:5000", "[2001:db8::7]:5000"].map(data);
        for (number, one) in all.iter().enumerate() {
            for other in &all[..number] {
                let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(same < 50, "{same} of 1000 bytes are the same");
            }
        }
    }
}
