//! Whether the time of refusing a header tells how much of its secret is right (`--require-tlv`). The method is
//! dudect's (Reparaz, Balasch, Verbauwhede: "Dude, is my code constant time?"): each try has one of two
//! headers, chosen at random, and Welch's t-test compares the times of both. A control, which compares byte by
//! byte up to the first difference, shows that the measurement would notice.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use truepeer_policy::{Proof, Secrets};
use truepeer_proto::{Limits, decode};
use truepeer_testbed::client;

/// The type of the TLV.
const KIND: u8 = 0xE5;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// From here on dudect says "probably not constant time".
const TOLD_APART: f64 = 4.5;

/// The slowest tries are noise, such as interrupts: the test is made with this share of the fastest, too.
const SHARES: [f64; 4] = [0.5, 0.9, 0.99, 1.0];

/// A wrong secret: right up to its last byte, or wrong from its first byte on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    RightPrefix,
    WrongFirstByte,
}

/// The times of all tries, in nanoseconds, the shortest first.
struct Times {
    all: Vec<(Class, u64)>,
}

/// The program `proof-timing [TRIES]`.
#[must_use]
pub fn main() -> ExitCode {
    match report() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proof-timing: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<()> {
    let tries = std::env::args().nth(1).unwrap_or_else(|| "1000000".to_owned());
    let tries: usize = tries.parse().with_context(|| format!("{tries:?}: expected a number of tries"))?;
    println!("{tries} tries of each; told apart: |t| of {TOLD_APART} and more");
    println!("{:<44} {:>9} {:>9}  |t| of the fastest 50 %, 90 %, 99 %, all", "", "prefix", "first byte");
    by_first_difference(tries)?.print("control: byte by byte, to the first difference");
    in_process(tries)?.print("proxy, https, run: decode, Proof::check");
    in_kernel(tries)
}

/// A header with one of the wrong secrets.
fn header(class: Class) -> Result<Vec<u8>> {
    let mut value = SECRET.to_vec();
    let at = if class == Class::RightPrefix { value.len() - 1 } else { 0 };
    value[at] ^= 1;
    client::v2_with_tlvs("203.0.113.7:50001", "192.0.2.1:443", &[(KIND, &value)])
}

/// Times tries with both headers in turns that nobody can guess (xorshift). Both are made of the same bytes, at
/// the same place: a copy from two places would show in the times.
fn time(tries: usize, mut one: impl FnMut(&[u8]) -> Result<Duration>) -> Result<Times> {
    let headers = [header(Class::RightPrefix)?, header(Class::WrongFirstByte)?];
    let change: Vec<u8> = headers[0].iter().zip(&headers[1]).map(|(one, other)| one ^ other).collect();
    let mut buffer = headers[0].clone();
    let (mut all, mut random) = (Vec::with_capacity(tries), 0x9e37_79b9_7f4a_7c15_u64);
    // The first ones fill caches.
    for number in 0..tries + tries / 100 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let class = if random >> 63 == 0 { Class::RightPrefix } else { Class::WrongFirstByte };
        let mask = black_box(u8::from(class == Class::WrongFirstByte).wrapping_neg());
        for (byte, (one, change)) in buffer.iter_mut().zip(headers[0].iter().zip(&change)) {
            *byte = one ^ (change & mask);
        }
        let took = one(black_box(&buffer))?;
        if number >= tries / 100 {
            all.push((class, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)));
        }
    }
    all.sort_unstable_by_key(|(_, nanos)| *nanos);
    Ok(Times { all })
}

fn in_process(tries: usize) -> Result<Times> {
    let proof = Proof::secret(KIND, &Secrets::parse(SECRET)?);
    let is_refused = |bytes: &[u8]| {
        let decoded = decode(bytes, Limits::default());
        matches!(decoded, Ok(truepeer_proto::Decoded::Done { header, .. }) if proof.check(&header).is_err())
    };
    time(tries, |bytes| {
        let begin = Instant::now();
        let is_refused = black_box(is_refused(bytes));
        let took = begin.elapsed();
        ensure!(is_refused, "a wrong secret was believed");
        Ok(took)
    })
}

fn by_first_difference(tries: usize) -> Result<Times> {
    time(tries, |bytes| {
        let begin = Instant::now();
        let value = &bytes[bytes.len() - SECRET.len()..];
        let is_right = black_box(value.iter().zip(SECRET).all(|(one, other)| black_box(one) == other));
        let took = begin.elapsed();
        ensure!(!is_right, "a wrong secret was believed");
        Ok(took)
    })
}

/// By BPF_PROG_TEST_RUN, whose program is in debug builds only.
#[cfg(debug_assertions)]
fn in_kernel(tries: usize) -> Result<()> {
    use truepeer_bpf::RequiredSecret;
    use truepeer_bpf::test::header::HeaderCheck;
    use truepeer_policy::PrefixSet;

    let mut kernel = HeaderCheck::load(16 * 1024)?;
    let secrets = Secrets::parse(SECRET)?;
    kernel.require(&RequiredSecret { senders: PrefixSet::any(), kind: KIND, secrets })?;
    time(tries, |bytes| Ok(kernel.time_of_proof(bytes)?))?.print("attach: read_v2(), lacks_secret()");
    Ok(())
}

#[cfg(not(debug_assertions))]
fn in_kernel(_: usize) -> Result<()> {
    println!("attach: measured by a debug build, which has the program for it");
    Ok(())
}

impl Times {
    fn print(&self, way: &str) {
        let [prefix, first] = [Class::RightPrefix, Class::WrongFirstByte].map(|class| self.median(class));
        let t: Vec<String> = SHARES.iter().map(|share| format!("{:.2}", self.t(*share).abs())).collect();
        println!("{way:<44} {prefix:>6} ns {first:>6} ns  {}", t.join(", "));
    }

    fn median(&self, class: Class) -> u64 {
        let times: Vec<u64> =
            self.all.iter().filter(|(of, _)| *of == class).map(|(_, nanos)| *nanos).collect();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    /// Welch's t of the two classes, among this share of the fastest tries.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    fn t(&self, share: f64) -> f64 {
        let some = &self.all[..(self.all.len() as f64 * share) as usize];
        let [(one_mean, one_error), (other_mean, other_error)] = [Class::RightPrefix, Class::WrongFirstByte]
            .map(|class| {
                let times: Vec<f64> =
                    some.iter().filter(|(of, _)| *of == class).map(|(_, nanos)| *nanos as f64).collect();
                let count = times.len().max(2) as f64;
                let mean = times.iter().sum::<f64>() / count;
                let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0);
                (mean, variance / count)
            });
        (one_mean - other_mean) / (one_error + other_error).max(f64::MIN_POSITIVE).sqrt()
    }
}
