//! What clients have sent, compared with what the backends say that they have received, also of sessions that
//! failed.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::ensure;
use truepeer_testbed::account::{account_of, data_of};
use truepeer_testbed::crowd::nth_client;
use truepeer_testbed::{Bed, Test};

pub(crate) fn tests() -> Vec<Test> {
    vec![Test::new("a_wrong_name_and_a_wrong_byte_of_a_failed_session_are_found", wrong_ones_are_found)]
}

/// The clients of one test that have sent a header.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<SocketAddr, Sent>>);

struct Sent {
    /// As given to [`data_of`].
    length: usize,
    /// The backend's account of all of it.
    account: String,
}

/// What the backends' lines say.
#[derive(Default)]
pub(crate) struct Accounts {
    /// Names that no client sent, and bytes that are not the first ones of their client's.
    pub(crate) wrong: Vec<String>,
    /// The clients whose connection to the backend has ended. True: by a FIN, before all bytes had come.
    pub(crate) ended: HashMap<SocketAddr, bool>,
}

impl Ledger {
    /// Writes a client down, before it sends its header. Returns its data, and the account that the backend
    /// must give.
    pub(crate) fn note(&self, client: SocketAddr, length: usize) -> (Vec<u8>, String) {
        let data = data_of(client, length);
        let account = account_of(client, &data);
        self.lock().insert(client, Sent { length, account: account.clone() });
        (data, account)
    }

    /// Compares the lines of these backends ([`truepeer_testbed::backend`]).
    pub(crate) fn compare(&self, outputs: &[String]) -> Accounts {
        let sent = self.lock();
        let mut accounts = Accounts::default();
        for (client, what) in lines(outputs) {
            match sent.get(&client) {
                None => accounts.wrong.push(format!("no client has sent this name: {client} {what}")),
                Some(_) if what == ACCEPTED => {}
                Some(sent) => match sent.ends_early(client, what) {
                    Ok(is_early) => _ = accounts.ended.insert(client, is_early),
                    Err(expected) => accounts.wrong.push(format!("{client} {what}, instead of {expected}")),
                },
            }
        }
        accounts
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sent {
    /// `what` is `END COUNT DIGEST`. An error has the account of as many bytes of this client.
    fn ends_early(&self, client: SocketAddr, what: &str) -> Result<bool, String> {
        let mut words = what.rsplitn(3, ' ');
        let (digest, count, end) = (words.next(), words.next(), words.next());
        let received = format!("{client} {} {}", count.unwrap_or_default(), digest.unwrap_or_default());
        if received == self.account {
            return Ok(false);
        }
        let data = data_of(client, self.length);
        let part = count.and_then(|count| data.get(..count.parse().ok()?)).unwrap_or(&data);
        let expected = account_of(client, part);
        if received == expected { Ok(end == Some("eof")) } else { Err(expected) }
    }
}

/// The clients whose connection to the backend has not ended.
pub(crate) fn open_in(outputs: &[String]) -> HashSet<SocketAddr> {
    let mut open = HashSet::new();
    for (client, what) in lines(outputs) {
        if what == ACCEPTED {
            open.insert(client)
        } else {
            open.remove(&client)
        };
    }
    open
}

const ACCEPTED: &str = "accepted";

fn lines(outputs: &[String]) -> impl Iterator<Item = (SocketAddr, &str)> {
    let words = outputs.iter().flat_map(|output| output.lines()).filter_map(|line| line.split_once(' '));
    words.filter_map(|(client, what)| Some((client.parse().ok()?, what)))
}

fn wrong_ones_are_found(_: &Bed) -> anyhow::Result<()> {
    let (ledger, client) = (Ledger::default(), nth_client(1));
    let (data, _) = ledger.note(client, 1000);
    let compare = |line: String| ledger.compare(&[line]);
    let of =
        |bytes: &[u8], end: &str| compare(account_of(client, bytes).replacen(' ', &format!(" {end} "), 1));
    let is_early = |accounts: Accounts| (accounts.wrong.is_empty(), accounts.ended.get(&client).copied());

    ensure!(is_early(compare(format!("{client} accepted"))) == (true, None));
    for end in ["eof", "reset", "Connection timed out (os error 110)"] {
        ensure!(is_early(of(&data, end)) == (true, Some(false)), "{end}");
        ensure!(is_early(of(&data[..500], end)) == (true, Some(end == "eof")), "{end}");
        let mut changed = data.clone();
        changed[400] ^= 1;
        for wrong in [&data[1..], &changed, &changed[..500], &[&data[..], &[0]].concat()] {
            ensure!(is_early(of(wrong, end)) == (false, None), "{end} after {} bytes", wrong.len());
        }
    }
    ensure!(compare(format!("{} accepted", nth_client(2))).wrong.len() == 1, "a name that nobody sent");
    Ok(())
}
