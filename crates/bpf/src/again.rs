//! Handshakes that the kernel has given up begin again by a function of the kernel (`c/attach/restart.h`),
//! whose number is another one in each kernel.

use std::borrow::Cow;
use std::fs;

/// Of Linux 6.9.
const FUNCTION: &str = "bpf_sk_assign_tcp_reqsk";
/// The call in `c/attach/restart.h`: BPF_JMP | BPF_CALL, BPF_PSEUDO_KFUNC_CALL, and "tprq" for the number.
const CALL: [u8; 8] = [0x85, 0x20, 0, 0, b't', b'p', b'r', b'q'];
/// r0 = 1: the function has failed.
const FAILS: [u8; 8] = [0xb7, 0, 0, 0, 1, 0, 0, 0];

/// The function's number. `None`: an older kernel, or its SYN cookies are switched off, without which it
/// makes no connection of them.
pub(crate) fn kernel_function() -> Option<u32> {
    let cookies = fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies").ok()?;
    if cookies.trim() == "0" {
        return None;
    }
    function_in(&fs::read("/sys/kernel/btf/vmlinux").ok()?, FUNCTION)
}

/// Whether [`crate::attach()`] finds what a handshake needs that the kernel gives up
/// ([`crate::Status::begins_again`]).
pub fn can_begin_again() -> bool {
    kernel_function().is_some()
}

/// A program with the function's number in its call; with `None`, the call fails.
pub(crate) fn with_call(program: &[u8], number: Option<u32>) -> Cow<'_, [u8]> {
    let Some(at) = program.windows(CALL.len()).position(|bytes| bytes == CALL) else {
        return Cow::Borrowed(program);
    };
    let mut program = program.to_vec();
    match number {
        Some(number) => program[at + 4..at + 8].copy_from_slice(&number.to_ne_bytes()),
        None => program[at..at + 8].copy_from_slice(&FAILS),
    }
    Cow::Owned(program)
}

/// The number of a function in the kernel's type information (Documentation/bpf/btf.rst).
fn function_in(btf: &[u8], name: &str) -> Option<u32> {
    const FUNC: u32 = 12;
    let word = |at: usize| Some(u32::from_ne_bytes(btf.get(at..at + 4)?.try_into().ok()?));
    let header_len = word(4)? as usize;
    let types = header_len + word(8)? as usize;
    let types_end = types + word(12)? as usize;
    let strings = header_len + word(16)? as usize;
    let is_it = |offset: u32| {
        let text = btf.get(strings + offset as usize..).unwrap_or_default();
        text.starts_with(name.as_bytes()) && text.get(name.len()) == Some(&0)
    };
    let (mut at, mut number) = (types, 1);
    while at < types_end {
        let (offset, info) = (word(at)?, word(at + 4)?);
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        if kind == FUNC && is_it(offset) {
            return Some(number);
        }
        at += 12
            + match kind {
                1 | 14 | 17 => 4,              // INT, VAR, DECL_TAG
                3 => 12,                       // ARRAY
                4 | 5 | 15 | 19 => 12 * count, // STRUCT, UNION, DATASEC, ENUM64
                6 | 13 => 8 * count,           // ENUM, FUNC_PROTO
                2 | 7..=12 | 16 | 18 => 0,     // PTR, FWD, TYPEDEF, CONST and the like, FUNC, FLOAT, TYPE_TAG
                _ => return None,
            };
        number += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_is_given_its_number_or_taken_out() {
        let program = [[1; 8], CALL, [2; 8]].concat();
        assert_eq!(with_call(&program, Some(7))[8..16], [0x85, 0x20, 0, 0, 7, 0, 0, 0]);
        assert_eq!(with_call(&program, None)[8..16], FAILS);
        assert_eq!(with_call(&[3; 24], Some(7)), [3; 24].as_slice());
    }

    /// An integer and a function, as the kernel writes them.
    #[test]
    fn a_function_is_found_among_the_kernels_types() {
        let strings = b"\0int\0one\0another\0";
        let word = |number: u32| number.to_ne_bytes();
        let types = [
            [word(1), word(1 << 24), word(4), word(32)].concat(),
            [word(5), word(12 << 24), word(1)].concat(),
            [word(9), word(12 << 24), word(1)].concat(),
        ]
        .concat();
        let len = u32::try_from(types.len()).expect("short");
        let header = [[0x9f, 0xeb, 1, 0], word(24), word(0), word(len), word(len), word(17)].concat();
        let btf = [header.as_slice(), &types, strings].concat();
        assert_eq!(function_in(&btf, "another"), Some(3));
        assert_eq!(function_in(&btf, "an"), None);
        assert_eq!(function_in(&btf[..60], "another"), None);
    }
}
