//! Headers with a secret, and mutations of them that must not be believed. The tests of the kernel programs
//! use them, too.

use truepeer_proto::{Addresses, Command, Transport, V2Encoder};

/// The type of the TLV.
pub(crate) const KIND: u8 = 0xE5;

/// A file of secrets.
pub(crate) const FILE: &[u8] = b"# the new one\n0123456789abcdef0123456789abcdef\n\nAn-old-one-is-as-good-while-it-stays-in-the-file-64-characters--\n";

/// One of [`FILE`], by number.
fn secret(number: usize) -> &'static [u8] {
    let mut lines = FILE.split(|byte| *byte == b'\n').filter(|line| line.len() > 20);
    lines.nth(number % 2).expect("two secrets")
}

type Tlvs = Vec<(u8, Vec<u8>)>;

/// Numbers that are the same in each run (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 32).unwrap_or_default() % limit.max(1)
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.below(256)).unwrap_or_default()).collect()
    }

    /// Up to this many TLVs of other types.
    fn others(&mut self, most: usize) -> Tlvs {
        const KINDS: [u8; 5] = [0x01, 0x02, 0x04, 0xE4, 0xEA];
        let count = self.below(most + 1);
        (0..count)
            .map(|_| {
                let (kind, len) = (KINDS[self.below(KINDS.len())], self.below(40));
                (kind, self.bytes(len))
            })
            .collect()
    }
}

fn header(random: &mut Random, tlvs: &Tlvs) -> Vec<u8> {
    let pair = match random.below(2) {
        0 => ("192.0.2.1:1000", "198.51.100.1:443"),
        _ => ("[2001:db8::1]:1000", "[2001:db8::2]:443"),
    };
    let [source, destination] = [pair.0, pair.1].map(|text| text.parse().expect("an address"));
    let addresses = Addresses::Inet { transport: Transport::Stream, source, destination };
    let mut buffer = vec![0; 70_000];
    let mut encoder = V2Encoder::new(&mut buffer, Command::Proxy, &addresses).expect("a header");
    for (kind, value) in tlvs {
        encoder = encoder.tlv(*kind, value).expect("a TLV");
    }
    let len = encoder.finish().expect("a header");
    buffer.truncate(len);
    buffer
}

/// A header with one of the secrets, and where its TLV begins.
pub(crate) fn proved(random: &mut Random) -> (Vec<u8>, usize) {
    let (mut tlvs, after) = (random.others(6), random.others(6));
    let number = random.below(2);
    tlvs.push((KIND, secret(number).to_vec()));
    tlvs.extend(after.clone());
    let bytes = header(random, &tlvs);
    let behind: usize = after.iter().map(|(_, value)| 3 + value.len()).sum();
    let at = bytes.len() - behind - 3 - secret(number).len();
    (bytes, at)
}

/// What was done to a header, and the header. None of them proves anything.
pub(crate) fn mutation(random: &mut Random) -> (&'static str, Vec<u8>) {
    let right = secret(random.below(2));
    let (mut tlvs, after) = (random.others(4), random.others(4));
    let place = tlvs.len();
    let wrong = |random: &mut Random| {
        let mut wrong = right.to_vec();
        wrong[random.below(right.len())] ^= 1 << random.below(8);
        wrong
    };
    let (what, own): (_, Vec<Vec<u8>>) = match random.below(11) {
        0 => ("one bit is wrong", vec![wrong(random)]),
        1 => ("all of it is wrong", vec![random.bytes(right.len())]),
        2 => ("it is missing", vec![]),
        3 => ("it is cut", vec![right[..random.below(right.len())].to_vec()]),
        4 => {
            let more = 1 + random.below(80);
            ("zeros follow it", vec![[right, &vec![0; more]].concat()])
        }
        5 => ("it is there twice", vec![right.to_vec(); 2]),
        6 => ("it is there behind a wrong one", vec![wrong(random), right.to_vec()]),
        7 => ("it is there before a wrong one", vec![right.to_vec(), wrong(random)]),
        8 => ("both secrets are there", vec![secret(0).to_vec(), secret(1).to_vec()]),
        9 => ("it is upper case", vec![right.iter().map(|byte| byte ^ 0x20).collect()]),
        _ => {
            let bytes = header(random, &tlvs);
            return beyond_the_header(random, bytes, right);
        }
    };
    tlvs.extend(own.into_iter().map(|value| (KIND, value)));
    if what == "it is missing" {
        // Its bytes in another TLV, or within an SSL TLV.
        let inner = [&[KIND, 0, 32][..], right].concat();
        match random.below(3) {
            0 => tlvs.push((KIND - 1, right.to_vec())),
            1 => tlvs.push((0x04, inner)),
            _ => {}
        }
    }
    let spread = random.below(2) == 1 && tlvs.len() == place + 2;
    if spread {
        // Not side by side.
        let last = tlvs.pop();
        tlvs.extend(after);
        tlvs.extend(last);
    } else {
        tlvs.extend(after);
    }
    (what, header(random, &tlvs))
}

/// The secret stands where the application's data begins.
fn beyond_the_header(random: &mut Random, mut bytes: Vec<u8>, right: &[u8]) -> (&'static str, Vec<u8>) {
    let len = u8::try_from(right.len()).expect("a short secret");
    let tlv = [&[KIND, 0, len][..], right].concat();
    match random.below(3) {
        0 => (),
        1 => {
            // The header ends within the TLV.
            let more = u16::try_from(1 + random.below(tlv.len() - 1)).expect("a short secret");
            let declared = u16::from_be_bytes([bytes[14], bytes[15]]) + more;
            bytes[14..16].copy_from_slice(&declared.to_be_bytes());
        }
        _ => {
            let mut line = b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n".to_vec();
            line.extend(tlv);
            return ("version 1, and it is behind the line", line);
        }
    }
    bytes.extend(tlv);
    ("it is behind the header", bytes)
}
