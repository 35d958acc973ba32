//! Finds VPP on this machine.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A VPP and its vppctl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Installation {
    pub(super) vpp: PathBuf,
    pub(super) vppctl: PathBuf,
}

const USUAL_DIRS: [&str; 5] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/vpp/bin"];
/// Library directories below a prefix. The first is Debian's and contains the architecture.
const LIBRARY: &str = "libvcl_ldpreload.so";

impl Installation {
    /// Finds the named VPP (its program, or its installation prefix), or the one in PATH or the usual places.
    pub(super) fn find(named: Option<&Path>) -> Result<Self> {
        let vpp = match named {
            Some(named) => [named.to_owned(), named.join("bin/vpp"), named.join("vpp")]
                .into_iter()
                .find(|file| is_executable(file))
                .with_context(|| format!("--vpp {}: no program vpp there", named.display()))?,
            None => search("vpp").context(
                "VPP is not installed: no vpp in PATH or the usual places. Install FD.io's packages vpp and vpp-plugin-core; \
                 if it is installed elsewhere, type --vpp PATH",
            )?,
        };
        let vpp = fs::canonicalize(&vpp).with_context(|| vpp.display().to_string())?;
        let beside = vpp.with_file_name("vppctl");
        let vppctl = if is_executable(&beside) { Some(beside) } else { search("vppctl") };
        let vppctl = vppctl.with_context(|| format!("no vppctl beside {}, nor in PATH", vpp.display()))?;
        Ok(Self { vpp, vppctl })
    }
}

/// Finds VPP's library for programs: the one given by `option`, the running VPP's, or the machine's.
pub(super) fn library(option: &str, named: Option<&Path>, vpp: &Path) -> Result<PathBuf> {
    if let Some(named) = named {
        let file = if named.is_dir() { named.join(LIBRARY) } else { named.to_owned() };
        return loadable(&file).with_context(|| format!("{option} {}: no such library", named.display()));
    }
    let found = library_dirs(vpp).into_iter().find_map(|dir| loadable(&dir.join(LIBRARY)));
    let Some(found) = found else {
        bail!(
            "{LIBRARY} is missing: install FD.io's package vpp; if it is installed elsewhere, type {option} FILE"
        )
    };
    Ok(found)
}

/// The dynamic linker can't load paths with spaces or colons.
fn loadable(file: &Path) -> Option<PathBuf> {
    let file = fs::canonicalize(file).ok()?;
    (file.is_file() && !file.to_string_lossy().contains([' ', ':', '\t'])).then_some(file)
}

fn library_dirs(vpp: &Path) -> Vec<PathBuf> {
    let of_vpp = vpp.ancestors().nth(2).map(Path::to_path_buf);
    let prefixes = of_vpp.into_iter().chain(["/usr", "/usr/local", "/opt/vpp"].map(PathBuf::from));
    let debians = format!("lib/{}-linux-gnu", env::consts::ARCH);
    prefixes.flat_map(|prefix| [debians.as_str(), "lib64", "lib"].map(|dir| prefix.join(dir))).collect()
}

fn search(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs = env::split_paths(&path).chain(USUAL_DIRS.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty installation: a prefix with its files.
    fn prefix(name: &str) -> PathBuf {
        let prefix = env::temp_dir().join(format!("truepeer-vpp-{name}-{}", std::process::id()));
        for (file, mode) in [("bin/vpp", 0o755), ("bin/vppctl", 0o755), ("lib/libvcl_ldpreload.so", 0o644)] {
            let file = prefix.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        prefix
    }

    #[test]
    fn a_named_vpp_is_its_program_or_its_prefix() {
        let prefix = prefix("named");
        let program = prefix.join("bin/vpp");
        for named in [&prefix, &program, &prefix.join("bin")] {
            let found = Installation::find(Some(named)).unwrap();
            assert_eq!((found.vpp, found.vppctl), (program.clone(), prefix.join("bin/vppctl")));
        }
        assert_eq!(library("--library", None, &program).unwrap(), prefix.join("lib/libvcl_ldpreload.so"));
        assert_eq!(
            library("--library", Some(&prefix.join("lib")), Path::new("/")).unwrap(),
            prefix.join("lib/libvcl_ldpreload.so")
        );
        fs::remove_dir_all(prefix).unwrap();
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = Path::new("/nothing-of-that-name");
        let error = Installation::find(Some(missing)).unwrap_err().to_string();
        assert_eq!(error, "--vpp /nothing-of-that-name: no program vpp there");
        let error = library("--library", Some(missing), missing).unwrap_err().to_string();
        assert_eq!(error, "--library /nothing-of-that-name: no such library");
    }
}
