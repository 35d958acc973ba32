//! Linux up to 6.1 rounds the stack frame of each function up to 32 bytes and refuses a program whose calls
//! need more than 512 together. Newer kernels count less, so this is computed from the compiled programs:
//! `splice_in` was once too large for 6.1, and only 6.1 said so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const MOST: u32 = 512;
const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 9;
const EXECUTABLE: u64 = 4;
/// Kinds of symbols.
const FUNCTION: u8 = 2;
const FRAME_POINTER: u8 = 10;

/// An object file of clang: ELF, 64 bits, little endian.
struct Object(Vec<u8>);

struct Section {
    kind: u32,
    flags: u64,
    at: usize,
    len: usize,
    /// Of relocations: the section that they are about.
    about: usize,
}

struct Symbol {
    kind: u8,
    section: usize,
    value: usize,
    len: usize,
}

/// Where a function begins: section, offset.
type Place = (usize, usize);

impl Object {
    fn number(&self, at: usize, len: usize) -> usize {
        self.0[at..at + len].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    fn sections(&self) -> Vec<Section> {
        let (table, len, count) = (self.number(0x28, 8), self.number(0x3a, 2), self.number(0x3c, 2));
        (0..count)
            .map(|number| table + number * len)
            .map(|at| Section {
                kind: u32::try_from(self.number(at + 4, 4)).expect("32 bits"),
                flags: self.number(at + 8, 8) as u64,
                at: self.number(at + 24, 8),
                len: self.number(at + 32, 8),
                about: self.number(at + 44, 4),
            })
            .collect()
    }

    fn symbols(&self, sections: &[Section]) -> Vec<Symbol> {
        let table = sections.iter().find(|section| section.kind == SYMBOLS).expect("symbols");
        (table.at..table.at + table.len)
            .step_by(24)
            .map(|at| Symbol {
                kind: self.0[at + 4] & 15,
                section: self.number(at + 6, 2),
                value: self.number(at + 8, 8),
                len: self.number(at + 16, 8),
            })
            .collect()
    }

    /// Frame and callees of each function.
    fn functions(&self) -> BTreeMap<Place, (u32, Vec<Place>)> {
        let sections = self.sections();
        let symbols = self.symbols(&sections);
        let mut named = BTreeMap::new();
        for relocations in sections.iter().filter(|section| section.kind == RELOCATIONS) {
            for at in (relocations.at..relocations.at + relocations.len).step_by(16) {
                named.insert((relocations.about, self.number(at, 8)), &symbols[self.number(at + 12, 4)]);
            }
        }
        let is_code = |symbol: &&Symbol| {
            symbol.kind == FUNCTION && sections.get(symbol.section).is_some_and(|s| s.flags & EXECUTABLE != 0)
        };
        let function = |symbol: &Symbol| {
            let place = (symbol.section, symbol.value);
            (place, self.function(place, &sections[symbol.section], symbol.len, &named))
        };
        symbols.iter().filter(is_code).map(function).collect()
    }

    fn function(
        &self,
        (section, begin): Place,
        code: &Section,
        len: usize,
        named: &BTreeMap<Place, &Symbol>,
    ) -> (u32, Vec<Place>) {
        let (mut frame, mut callees) = (0, Vec::new());
        // Registers that hold the frame pointer.
        let mut copies = [false; 16];
        let mut at = begin;
        while at < begin + len {
            let bytes = &self.0[code.at + at..][..8];
            let (operation, to, from) = (bytes[0], bytes[1] & 15, bytes[1] >> 4);
            let offset = i16::from_le_bytes([bytes[2], bytes[3]]);
            let operand = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let symbol = named.get(&(section, at));
            let base = if operation & 7 == 1 { from } else { to };
            if matches!(operation & 7, 1..=3) && base == FRAME_POINTER {
                frame = frame.max(i32::from(offset).min(0).unsigned_abs());
            }
            // An addition to a copy of the frame pointer.
            if operation == 0x07 && copies[usize::from(to)] {
                frame = frame.max(operand.min(0).unsigned_abs());
            }
            if matches!(operation & 7, 0 | 1 | 4 | 7) {
                copies[usize::from(to)] = operation == 0xbf && from == FRAME_POINTER;
            }
            let behind = |from: usize| from.wrapping_add_signed((operand as isize + 1) * 8);
            match (operation, from, symbol) {
                (0x85, 1, Some(symbol)) => callees.push((symbol.section, behind(symbol.value))),
                (0x85, 1, None) => callees.push((section, behind(at))),
                // A function whose address is taken: bpf_loop() calls it.
                (0x18, _, Some(symbol)) if symbol.kind == FUNCTION => {
                    callees.push((symbol.section, symbol.value))
                }
                _ => {}
            }
            at += if operation == 0x18 { 16 } else { 8 };
        }
        (frame, callees)
    }
}

/// Of this function and what it calls.
fn stack_of(functions: &BTreeMap<Place, (u32, Vec<Place>)>, place: Place) -> u32 {
    let (frame, callees) = functions.get(&place).expect("a function that is called");
    let deepest = callees.iter().map(|callee| stack_of(functions, *callee)).max();
    (*frame).max(1).next_multiple_of(32) + deepest.unwrap_or(0)
}

#[test]
fn the_frames_of_each_program_fit_into_the_stack_of_linux_6_1() {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(Path::new(env!("OUT_DIR"))).expect("the compiled programs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ending| ending != "o") {
            continue;
        }
        let functions = Object(fs::read(&path).expect("a file")).functions();
        let most = functions.keys().map(|place| stack_of(&functions, *place)).max();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        seen.insert(name, most.expect("a program"));
    }
    println!("{seen:?}");
    assert!(seen.values().all(|stack| *stack <= MOST), "more than {MOST} bytes of stack: {seen:?}");
    // Built without clang, there are none.
    assert!(seen.is_empty() || seen["splice_in"] > 256, "frames were not found: {seen:?}");
}
