//! Finds a command's file, and whether its dynamic linker would load the library.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, io};

use anyhow::{Context, Result, bail, ensure};

/// The number of interpreters that the kernel follows (BINPRM_BUF_SIZE and its depth limit, execve(2)).
const MOST_SCRIPTS: usize = 5;
const FIRST_LINE_BYTES: usize = 256;

/// A program to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The file to execute.
    pub file: PathBuf,
    /// Its arguments, starting with the name it was called by.
    pub words: Vec<OsString>,
    /// How it is linked.
    pub kind: Kind,
}

/// How a program is linked, and so whether it loads a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Dynamically linked against this machine's glibc.
    Dynamic,
    /// Statically linked.
    Static,
    /// Go: whether dynamically linked or not, it makes system calls without libc.
    Go,
    /// Dynamically linked against another C library, musl for example.
    OtherLibc,
    /// For another processor architecture than the library's.
    OtherMachine,
    /// It changes user or gains capabilities when it starts, so the linker ignores LD_PRELOAD.
    SetUserId,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dynamic => "dynamically linked",
            Self::Static => "statically linked",
            Self::Go => "a Go program",
            Self::OtherLibc => "linked against another C library than glibc",
            Self::OtherMachine => "for another kind of processor",
            Self::SetUserId => "set-user-ID",
        })
    }
}

impl Program {
    /// Finds a command as a shell does, and follows `#!` to the interpreter that will run.
    pub fn find(words: &[OsString]) -> Result<Self> {
        let name = words.first().context("no command")?;
        let file = in_path(name).ok_or_else(|| NotStarted::NotFound(name.display().to_string()))?;
        let about = || NotStarted::NotExecutable(file.display().to_string());
        ensure!(is_executable(&file), about());
        let kind = kind_of(&file, MOST_SCRIPTS).with_context(about)?;
        Ok(Self { file, words: words.to_vec(), kind })
    }
}

/// A command that can't be started. Shells have an exit status for each case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotStarted {
    /// No file of this name is in PATH.
    #[error("{0}: no such program")]
    NotFound(String),
    /// The file is there, and execve() refuses it.
    #[error("{0} can't be executed")]
    NotExecutable(String),
}

impl NotStarted {
    /// The exit status of truepeer.
    pub fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
        }
    }
}

/// Prefers an executable file, otherwise returns a file that only has the name.
fn in_path(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|file| file.exists());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let files = || env::split_paths(&path).map(|dir| dir.join(name));
    files().find(|file| is_executable(file)).or_else(|| files().find(|file| file.is_file()))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn kind_of(file: &Path, depth: usize) -> Result<Kind> {
    let open = File::open(file);
    let open = match open {
        // The file is executable but not readable, so its kind is unknown. The linker treats it with the same
        // care.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_executable(file) => {
            return Ok(Kind::SetUserId);
        }
        open => open?,
    };
    let mut first = Vec::new();
    (&open).take(FIRST_LINE_BYTES as u64).read_to_end(&mut first)?;
    if first.starts_with(b"#!") {
        let Some(next) = interpreter(&first) else { bail!("its first line names no interpreter") };
        anyhow::ensure!(depth > 0, "its interpreter is a script, whose interpreter is one, and so on");
        return kind_of(&next, depth - 1).with_context(|| next.display().to_string());
    }
    if gains_privileges(&open)? {
        return Ok(Kind::SetUserId);
    }
    // Shells run any other file as a shell script. The kernel refuses it, and so does exec.
    Elf::open(&open).map_or(Ok(Kind::Static), |elf| elf.kind())
}

/// `#!/usr/bin/python3 -u`, `#!/usr/bin/env -S python3 -u`.
fn interpreter(first: &[u8]) -> Option<PathBuf> {
    let line = first[2..].split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|word| !word.is_empty());
    let file = PathBuf::from(OsStr::from_bytes(words.next()?));
    if file.file_name() != Some(OsStr::new("env")) {
        return Some(file);
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    name.and_then(|name| in_path(OsStr::from_bytes(name))).or(Some(file))
}

fn gains_privileges(file: &File) -> Result<bool> {
    let (meta, us) = (file.metadata()?, rustix::process::geteuid());
    let changes_user = meta.mode() & 0o4000 != 0 && meta.uid() != us.as_raw();
    let changes_group = meta.mode() & 0o2010 == 0o2010 && meta.gid() != rustix::process::getegid().as_raw();
    let has_capabilities =
        || rustix::fs::fgetxattr(file, c"security.capability", &mut [0_u8; 64][..]).is_ok();
    Ok(changes_user || changes_group || (!us.is_root() && has_capabilities()))
}

/// The start of an ELF file, from which its linkage can be read (elf(5)); 64-bit, in this machine's byte
/// order.
struct Elf<'f> {
    file: &'f File,
    machine: u16,
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    len: u64,
}

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
/// Interpreter names are shorter than this, and Go's note lies among the first bytes.
const MOST_SEGMENT_BYTES: u64 = 4096;

impl<'f> Elf<'f> {
    fn open(file: &'f File) -> Option<Self> {
        let head = read_at(file, 0, 64)?;
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let is_64_bit = head[4] == 2;
        let machine = if is_64_bit { u16_at(&head, 18)? } else { 0 };
        let (table, size, count) = (u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?);
        let segment = |n: u16| {
            let bytes = read_at(file, table + u64::from(n) * u64::from(size), 56)?;
            Some(Segment { kind: u32_at(&bytes, 0)?, offset: u64_at(&bytes, 8)?, len: u64_at(&bytes, 32)? })
        };
        let segments = if is_64_bit { (0..count).map_while(segment).collect() } else { Vec::new() };
        Some(Self { file, machine, segments })
    }

    fn kind(&self) -> Result<Kind> {
        if self.machine != MACHINE {
            return Ok(Kind::OtherMachine);
        }
        if self.segments(PT_NOTE).any(|note| is_go(&note)) {
            return Ok(Kind::Go);
        }
        Ok(match self.segments(PT_INTERP).next() {
            None => Kind::Static,
            Some(linker) if linker.windows(9).any(|part| part == b"/ld-linux") => Kind::Dynamic,
            Some(_) => Kind::OtherLibc,
        })
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = Vec<u8>> {
        let wanted = self.segments.iter().filter(move |segment| segment.kind == kind);
        wanted.filter_map(|segment| read_at(self.file, segment.offset, segment.len.min(MOST_SEGMENT_BYTES)))
    }
}

/// This processor's number (EM_*, elf.h).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Go's linker adds a note: name "Go", contents the build ID (cmd/internal/buildid).
fn is_go(note: &[u8]) -> bool {
    note.windows(8).any(|window| window == b"\x04\x00\x00\x00Go\x00\x00")
}

fn read_at(file: &File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(place..place + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], place: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(place..place + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], place: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(place..place + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(command: &str) -> Kind {
        Program::find(&[command.into()]).unwrap().kind
    }

    #[test]
    fn this_very_program_is_dynamic() {
        let own = env::current_exe().unwrap();
        assert_eq!(kind(&own.to_string_lossy()), Kind::Dynamic);
        assert_eq!(kind("sh"), Kind::Dynamic);
    }

    #[test]
    fn interpreters_are_followed() {
        let named = |line: &str| interpreter(line.as_bytes()).unwrap();
        assert_eq!(named("#!/bin/sh\necho"), Path::new("/bin/sh"));
        assert_eq!(named("#! /usr/bin/python3 -u\n"), Path::new("/usr/bin/python3"));
        assert_eq!(named("#!/usr/bin/env -S A=b sh -x\n"), in_path(OsStr::new("sh")).unwrap());
        assert_eq!(named("#!/usr/bin/env nothing-of-that-name\n"), Path::new("/usr/bin/env"));
    }

    #[test]
    fn a_missing_command_is_named() {
        let error = Program::find(&["nothing-of-that-name".into()]).unwrap_err().to_string();
        assert_eq!(error, "nothing-of-that-name: no such program");
    }
}
