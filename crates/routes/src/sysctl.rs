//! Reading and writing `/proc/sys`, which shows the network namespace of the thread that opens it.

use std::fs;
use std::io;

use super::item::Switch;

/// A switch's number; `None` where the kernel has no such switch.
pub fn read(switch: Switch) -> Option<i64> {
    read_named(switch.name())
}

/// Any numeric sysctl by its dotted name; a dot within an interface's name must be written as `/`.
pub fn read_named(name: &str) -> Option<i64> {
    fs::read_to_string(path(name)).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Sets a switch.
///
/// # Errors
/// The file's: `EROFS` where a container runtime has made `/proc/sys` read-only.
pub(crate) fn write(switch: Switch, value: u16) -> io::Result<()> {
    fs::write(path(switch.name()), value.to_string())
}

fn path(name: &str) -> String {
    let swapped: String = name
        .chars()
        .map(|c| {
            if c == '.' {
                '/'
            } else if c == '/' {
                '.'
            } else {
                c
            }
        })
        .collect();
    format!("/proc/sys/{swapped}")
}
