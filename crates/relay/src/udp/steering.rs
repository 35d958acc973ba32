//! Assigns each flow to one worker.
//!
//! Each worker has its own socket of a SO_REUSEPORT group. By default the kernel chooses by the sender's
//! address and port. That is right where bare datagrams are identified by exactly those. Where each datagram
//! names its client, the same client may come from several sender ports. Two workers would then open two
//! upstream sockets with one tuple, and only the newer one would receive replies. So a classic BPF program
//! chooses by the header's client and destination.
//!
//! For anything other than such a header the program returns a socket that does not exist, and the kernel
//! makes its own choice (`reuseport_select_sock`: "no bpf or invalid bpf result: fall back to hash usage").

use truepeer_policy::Dialect;

/// A program for `workers` sockets, or `None` if the kernel's choice is right.
pub(super) fn program(dialect: Dialect, workers: usize) -> Option<Vec<libc::sock_filter>> {
    if workers < 2 || dialect.has_bare_datagrams() {
        return None;
    }
    let workers = u32::try_from(workers).ok()?;
    Some(match dialect {
        Dialect::Spp => by_spp_header(workers),
        _ => by_v2_header(workers),
    })
}

/// The source and destination address and both ports of a v2 header for UDP over IPv4 (PROXY 2.2).
const V2_IPV4_WORDS: [u32; 3] = [16, 20, 24];
/// The same over IPv6.
const V2_IPV6_WORDS: [u32; 9] = [16, 20, 24, 28, 32, 36, 40, 44, 48];
/// The client and proxy address and both ports, after the magic.
const SPP_WORDS: [u32; 9] = [2, 6, 10, 14, 18, 22, 26, 30, 34];

/// The v2 signature (PROXY 2.2) in words, and the bytes after it: version 2, command PROXY, and UDP over IPv4
/// or IPv6.
const SIGNATURE: [u32; 3] = [0x0D0A_0D0A, 0x000D_0A51, 0x5549_540A];
const PROXY_UDP_IPV4: u32 = 0x2112;
const PROXY_UDP_IPV6: u32 = 0x2122;
const SPP_MAGIC: u32 = 0x56EC;

fn by_v2_header(workers: u32) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    require_length(&mut program, 16 + 12);
    for (offset, word) in (0..).step_by(4).zip(SIGNATURE) {
        program.push(instruction(LOAD_WORD, offset));
        require_equal(&mut program, word);
    }
    let ipv4 = choose_by(&V2_IPV4_WORDS, workers);
    program.push(instruction(LOAD_HALF, 12));
    program.push(branch(JUMP_IF_EQUAL, PROXY_UDP_IPV4, 0, u8::try_from(ipv4.len()).unwrap_or(u8::MAX)));
    program.extend(ipv4);
    require_equal(&mut program, PROXY_UDP_IPV6);
    require_length(&mut program, 16 + 36);
    program.extend(choose_by(&V2_IPV6_WORDS, workers));
    program
}

fn by_spp_header(workers: u32) -> Vec<libc::sock_filter> {
    let mut program = Vec::new();
    require_length(&mut program, 38);
    program.push(instruction(LOAD_HALF, 0));
    require_equal(&mut program, SPP_MAGIC);
    program.extend(choose_by(&SPP_WORDS, workers));
    program
}

/// A load beyond the datagram's end makes the kernel return 0: the first worker, whichever has the flow. So
/// check the length first.
fn require_length(program: &mut Vec<libc::sock_filter>, bytes: u32) {
    program.push(instruction(LOAD_LENGTH, 0));
    program.push(branch(JUMP_IF_AT_LEAST, bytes, 1, 0));
    program.push(instruction(RETURN, KERNELS_CHOICE));
}

fn require_equal(program: &mut Vec<libc::sock_filter>, word: u32) {
    program.push(branch(JUMP_IF_EQUAL, word, 1, 0));
    program.push(instruction(RETURN, KERNELS_CHOICE));
}

/// Mixes the words at these offsets into a number below `workers`.
fn choose_by(offsets: &[u32], workers: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![instruction(LOAD_WORD, offsets[0])];
    for &offset in &offsets[1..] {
        // Multiply between any two words: changes in a client's address and port must not cancel out.
        program.push(instruction(MULTIPLY, GOLDEN));
        program.push(instruction(TO_X, 0));
        program.push(instruction(LOAD_WORD, offset));
        program.push(instruction(XOR_X, 0));
    }
    // The upper bits of a product are mixed best.
    program.extend([
        instruction(MULTIPLY, GOLDEN),
        instruction(SHIFT_RIGHT, 16),
        instruction(MODULO, workers),
        instruction(RETURN_A, 0),
    ]);
    program
}

/// No socket has this number.
const KERNELS_CHOICE: u32 = u32::MAX;

/// 2^32 divided by the golden ratio, odd: Knuth's multiplicative hash.
const GOLDEN: u32 = 0x9E37_79B1;

// linux/bpf_common.h and linux/filter.h: class | size or operation | mode or operand.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const MULTIPLY: u16 = 0x24;
const MODULO: u16 = 0x94;
const XOR_X: u16 = 0xac;
const SHIFT_RIGHT: u16 = 0x74;
const TO_X: u16 = 0x07;
const LOAD_LENGTH: u16 = 0x80;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;

/// The socket that `program` chooses for a datagram; `None`: the kernel chooses. For those that came before
/// it was attached.
pub(super) fn choice(program: &[libc::sock_filter], datagram: &[u8]) -> Option<usize> {
    let (mut a, mut x, mut next) = (0_u32, 0_u32, 0);
    loop {
        let libc::sock_filter { code, jt, jf, k } = *program.get(next)?;
        next += 1;
        let jump = |is_so| usize::from(if is_so { jt } else { jf });
        match code {
            LOAD_WORD => a = u32::from_be_bytes(*datagram.get(k as usize..)?.first_chunk()?),
            LOAD_HALF => a = u16::from_be_bytes(*datagram.get(k as usize..)?.first_chunk()?).into(),
            LOAD_LENGTH => a = u32::try_from(datagram.len()).ok()?,
            MULTIPLY => a = a.wrapping_mul(k),
            MODULO => a = a.checked_rem(k)?,
            XOR_X => a ^= x,
            SHIFT_RIGHT => a = a.checked_shr(k)?,
            TO_X => x = a,
            JUMP_IF_EQUAL => next += jump(a == k),
            JUMP_IF_AT_LEAST => next += jump(a >= k),
            RETURN_A => return usize::try_from(a).ok(),
            RETURN if k != KERNELS_CHOICE => return usize::try_from(k).ok(),
            _ => return None,
        }
    }
}

const fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

const fn branch(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
