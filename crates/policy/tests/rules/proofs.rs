//! A sender proves itself, or its header names nobody.

use std::time::Duration;

use truepeer_policy::{
    ClientAddr, DIGEST_WINDOW, HeaderRule, Policy, PrefixSet, Proof, Refusal, Secrets, SecretsError, Senders,
    SentTlv, SentValue, Unproved,
};
use truepeer_proto::tlv::UNIQUE_ID;
use truepeer_proto::{Addresses, Command, Decoded, Header, Limits, Tlvs, Transport, V2Encoder, decode};

use crate::common::unproved::{self, FILE, KIND, Random};
use crate::common::{policy, sender};

const LB: &str = "127.0.0.1:1";

fn secrets() -> Secrets {
    Secrets::parse(FILE).expect("a file of secrets")
}

fn demanding(proof: &Proof) -> Policy {
    let mut policy = policy();
    policy.senders.set_proof(&PrefixSet::any(), proof);
    policy
}

fn by_secret() -> Policy {
    demanding(&Proof::secret(KIND, &secrets()))
}

fn decoded(bytes: &[u8]) -> Option<Header<'_>> {
    match decode(bytes, Limits { max_len: 70_000, ..Limits::default() }) {
        Ok(Decoded::Done { header, .. }) => Some(header),
        _ => None,
    }
}

fn why(policy: &Policy, header: &Header<'_>) -> Option<Unproved> {
    match policy.client(sender(LB), Some(header)) {
        Ok(_) => None,
        Err(Refusal::HeaderUnproved { sender: from, why }) => {
            assert_eq!(from, sender(LB));
            Some(why)
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_header_with_one_of_the_secrets_counts() {
    let (policy, mut random) = (by_secret(), Random::new(1));
    for _ in 0..500 {
        let (bytes, _) = unproved::proved(&mut random);
        let header = decoded(&bytes).expect("a header");
        let client = policy.client(sender(LB), Some(&header)).expect("a client");
        assert_eq!(Some(client.addr), header.client().map(ClientAddr::new));
        // Nothing that is shown or passed on has it.
        let shown = policy.senders.without_proof(sender(LB), header);
        assert!(shown.tlvs.raw().all(|(kind, _)| kind != KIND) && shown.tlvs.value(KIND).is_none());
        assert_eq!(shown.tlvs.raw().count() + 1, header.tlvs.raw().count());
    }
}

#[test]
fn of_20_000_mutations_none_is_believed() {
    let (policy, mut random) = (by_secret(), Random::new(2));
    let mut refused = std::collections::BTreeMap::<_, u32>::new();
    for _ in 0..20_000 {
        let (what, bytes) = unproved::mutation(&mut random);
        // A header that ends within a TLV is none.
        let Some(header) = decoded(&bytes) else { continue };
        assert!(why(&policy, &header).is_some(), "{what}: {bytes:02x?}");
        *refused.entry(what).or_default() += 1;
    }
    assert!(refused.len() >= 11 && refused.values().all(|count| *count > 100), "{refused:?}");
}

#[test]
fn a_refusal_says_what_is_wrong_and_never_the_secret() {
    let policy = by_secret();
    let made = |tlvs: &[(u8, &[u8])]| {
        let bytes = header(Command::Proxy, tlvs);
        why(&policy, &decoded(&bytes).expect("a header"))
    };
    let wrong = b"not-this-one-but-as-long-as-some";
    let value = secrets().iter().next().expect("one").to_vec();
    assert_eq!(made(&[(UNIQUE_ID, b"1")]), Some(Unproved::Missing(KIND)));
    assert_eq!(made(&[(KIND, wrong)]), Some(Unproved::Wrong(KIND)));
    assert_eq!(made(&[(KIND, &value), (KIND, &value)]), Some(Unproved::Twice(KIND)));
    assert_eq!(made(&[(KIND, &value)]), None);
    let line = decoded(b"PROXY TCP4 192.0.2.1 198.51.100.1 1000 443\r\n").expect("a header");
    assert_eq!(why(&policy, &line), Some(Unproved::Version1));
    // LOCAL and UNKNOWN name nobody, but whoever may send them gets to the backend.
    let local = header(Command::Local, &[]);
    assert_eq!(why(&policy, &decoded(&local).expect("a header")), Some(Unproved::Missing(KIND)));
    let local = header(Command::Local, &[(KIND, &value)]);
    assert_eq!(why(&policy, &decoded(&local).expect("a header")), None);
    let said = Refusal::HeaderUnproved { sender: sender(LB), why: Unproved::Wrong(KIND) }.to_string();
    assert!(said.contains("0xe5") && said.contains("compare the files"), "{said}");
    let shown = format!("{policy:?} {:?}", secrets());
    assert!(!shown.contains("0123456789") && !shown.contains("An-old"), "{shown}");
}

#[test]
fn the_longest_prefix_decides_what_a_sender_must_send() {
    let mut senders = Senders::new(PrefixSet::any(), HeaderRule::Require);
    let set = |text: &str| text.parse::<PrefixSet>().expect(text);
    senders.set_proof(&set("10.0.0.0/8"), &Proof::secret(0xE1, &secrets()));
    senders.set_proof(&set("10.1.0.0/16"), &Proof::secret(0xE2, &secrets()));
    let kind = |from: &str| senders.proof(sender(from)).map(Proof::kind);
    assert_eq!(kind("10.0.0.1:1"), Some(0xE1));
    assert_eq!(kind("[::ffff:10.1.0.1]:1"), Some(0xE2));
    assert_eq!((kind("11.0.0.1:1"), kind("[2001:db8::1]:1")), (None, None));
}

#[test]
fn a_file_of_secrets_is_whole_or_refused_by_line() {
    let long = "x".repeat(65);
    let five = "0123456789abcdef\n".repeat(5);
    for (text, error) in [
        ("", SecretsError::None),
        ("# only a comment\n", SecretsError::None),
        ("0123456789abcde\n", SecretsError::Length(1)),
        (&long, SecretsError::Length(1)),
        ("\n0123456789 abcdef\n", SecretsError::Character(2)),
        ("0123456789abcdef\u{e9}", SecretsError::Character(1)),
        (&five, SecretsError::TooMany(5)),
    ] {
        assert_eq!(Secrets::parse(text.as_bytes()), Err(error), "{text}");
        assert!(!error.to_string().contains("0123"), "{error}");
    }
    let read = Secrets::parse(b" 0123456789abcdef\r\n#no\nfedcba9876543210").expect("two");
    assert_eq!(read.iter().collect::<Vec<_>>(), [b"0123456789abcdef", b"fedcba9876543210"]);
}

fn noon() -> Duration {
    Duration::from_secs(1_800_000_000)
}

fn header(command: Command, tlvs: &[(u8, &[u8])]) -> Vec<u8> {
    let mut buffer = [0; 512];
    let mut encoder = V2Encoder::new(&mut buffer, command, &addresses()).expect("a header");
    for (kind, value) in tlvs {
        encoder = encoder.tlv(*kind, value).expect("a TLV");
    }
    let len = encoder.finish().expect("a header");
    buffer[..len].to_vec()
}

fn addresses() -> Addresses<'static> {
    let [source, destination] =
        ["192.0.2.1:1000", "198.51.100.1:443"].map(|text| text.parse().expect("an address"));
    Addresses::Inet { transport: Transport::Stream, source, destination }
}

fn signed(sent: &SentTlv) -> Vec<u8> {
    let SentValue::Digest(time) = sent.value() else { panic!("a digest") };
    let mut buffer = [0; 512];
    let encoder = V2Encoder::new(&mut buffer, Command::Proxy, &addresses()).expect("a header");
    let encoder = encoder.copy_tlvs(Tlvs::EMPTY).and_then(|encoder| encoder.tlv(UNIQUE_ID, b"42"));
    let encoder = encoder.expect("a TLV").with_crc32c();
    let len = encoder.finish_with_digest(sent.kind(), time, |signed| sent.mac(signed)).expect("a header");
    buffer[..len].to_vec()
}

#[test]
fn a_digest_covers_each_bit_of_the_header_and_its_time() {
    let policy = demanding(&Proof::keyed(KIND, secrets(), noon));
    let bytes = signed(&SentTlv::keyed(KIND, &secrets(), noon));
    assert_eq!(why(&policy, &decoded(&bytes).expect("a header")), None);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Some(header) = decoded(&changed) {
            assert!(policy.client(sender(LB), Some(&header)).is_err(), "bit {bit}");
        }
    }
    // A TLV behind it, with the length mended.
    let mut longer = bytes.clone();
    longer.extend([0x04, 0, 0]);
    let declared = u16::try_from(longer.len() - 16).expect("a short header");
    longer[14..16].copy_from_slice(&declared.to_be_bytes());
    assert_eq!(why(&policy, &decoded(&longer).expect("a header")), Some(Unproved::Wrong(KIND)));
    // A secret is no digest.
    let plain = header(Command::Proxy, &[(KIND, secrets().iter().next().expect("one"))]);
    assert_eq!(why(&policy, &decoded(&plain).expect("a header")), Some(Unproved::Wrong(KIND)));
}

#[test]
fn a_digest_counts_for_half_a_minute() {
    let policy = demanding(&Proof::keyed(KIND, secrets(), noon));
    let told = |time: fn() -> Duration| {
        let bytes = signed(&SentTlv::keyed(KIND, &secrets(), time));
        why(&policy, &decoded(&bytes).expect("a header"))
    };
    let late = DIGEST_WINDOW + Duration::from_millis(1);
    assert_eq!(told(|| noon() - DIGEST_WINDOW), None);
    assert_eq!(told(|| noon() + DIGEST_WINDOW), None);
    let stale = |is_old| Some(Unproved::Stale { kind: KIND, by: late, is_old });
    assert_eq!(told(|| noon() - DIGEST_WINDOW - Duration::from_millis(1)), stale(true));
    assert_eq!(told(|| noon() + DIGEST_WINDOW + Duration::from_millis(1)), stale(false));
    let other = Secrets::parse(b"0123456789abcdef0123456789abcdeX").expect("a secret");
    let bytes = signed(&SentTlv::keyed(KIND, &other, noon));
    assert_eq!(why(&policy, &decoded(&bytes).expect("a header")), Some(Unproved::Wrong(KIND)));
}
