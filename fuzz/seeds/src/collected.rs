//! The inputs that earlier runs have found and `libFuzzer -merge=1` has kept: one file for each target under
//! `found`, one input a line, escaped as in a string of Rust.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

const FOUND: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/found");
/// A target's file becomes no longer than this: shorter inputs are kept first.
const MOST_BYTES: usize = 20 << 10;

/// Makes a target's file of the inputs in a directory.
pub fn collect(corpus: &Path, file: &Path) -> io::Result<()> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(corpus)? {
        inputs.push(fs::read(entry?.path())?);
    }
    inputs.sort_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
    inputs.dedup();
    let (mut out, mut bytes) = (io::BufWriter::new(fs::File::create(file)?), 0);
    for input in inputs.iter().filter(|input| !input.is_empty()) {
        let line = input.escape_ascii().to_string();
        bytes += line.len() + 1;
        if bytes > MOST_BYTES {
            break;
        }
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Writes the inputs of all targets below `root`, one file for each.
pub fn write_all(root: &Path) -> io::Result<()> {
    for entry in fs::read_dir(FOUND)? {
        let path = entry?.path();
        let Some(target) = path.file_stem().filter(|_| path.extension().is_some_and(|kind| kind == "seeds"))
        else {
            continue;
        };
        let directory = root.join(target);
        fs::create_dir_all(&directory)?;
        for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
            let input = unescaped(line).ok_or_else(|| {
                io::Error::other(format!("{}:{}: a wrong escape", path.display(), number + 1))
            })?;
            fs::write(directory.join(format!("found-{number:04}")), input)?;
        }
    }
    Ok(())
}

fn unescaped(line: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut input) = (Vec::new(), line.bytes());
    while let Some(byte) = input.next() {
        bytes.push(match byte {
            b'\\' => match input.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [input.next()?, input.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                quoted @ (b'\\' | b'"' | b'\'') => quoted,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}
