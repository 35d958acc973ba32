//! The messages when the kernel programs can't be compiled. The build script is compiled and run alone.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

/// The build script as a separate program, in a directory that is removed with it.
struct Script(PathBuf);

impl Script {
    fn compile(name: &str) -> Script {
        let dir = env::temp_dir().join(format!("truepeer-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("bin")).expect("a directory");
        let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let output = Command::new(rustc)
            .args(["--edition", "2024", "build.rs", "-o"])
            .arg(dir.join("script"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("rustc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Script(dir)
    }

    /// Runs it as cargo does, with `path` as the only place for programs.
    fn run(&self, path: &Path, must_have_clang: bool) -> Output {
        let mut command = Command::new(self.0.join("script"));
        command.env_clear().env("PATH", path).env("OUT_DIR", &self.0);
        command.env("CARGO_CFG_TARGET_ARCH", env::consts::ARCH).current_dir(env!("CARGO_MANIFEST_DIR"));
        if must_have_clang {
            command.env("TRUEPEER_REQUIRE_CLANG", "1");
        }
        command.output().expect("the build script")
    }

    /// Puts a shell script in the place of clang.
    #[cfg(unix)]
    fn replace_clang(&self, commands: &str) {
        use std::os::unix::fs::PermissionsExt;

        let clang = self.nowhere().join("clang");
        fs::write(&clang, format!("#!/bin/sh\n{commands}\n")).expect("clang");
        fs::set_permissions(&clang, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    /// A path without programs.
    fn nowhere(&self) -> PathBuf {
        self.0.join("bin")
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What cargo shows, and what it passes on.
fn lines(output: &Output, kind: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let prefix = format!("cargo::{kind}=");
    text.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

#[test]
fn without_clang_one_line_says_what_is_missing_and_what_to_do() {
    let script = Script::compile("build-without-clang");
    let output = script.run(&script.nowhere(), false);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let warnings = lines(&output, "warning");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("built without `truepeer attach`: can't run clang ("), "{}", warnings[0]);
    assert!(warnings[0].ends_with("): apt-get install clang libbpf-dev"), "{}", warnings[0]);
    assert_eq!(lines(&output, "rustc-cfg"), ["no_programs"]);
}

#[test]
fn where_clang_is_required_its_absence_is_one_error() {
    let script = Script::compile("build-requires-clang");
    let output = script.run(&script.nowhere(), true);
    assert!(!output.status.success() && output.stderr.is_empty(), "{output:?}");
    let errors = lines(&output, "error");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].starts_with("can't run clang ("), "{}", errors[0]);
    assert!(lines(&output, "warning").is_empty() && lines(&output, "rustc-cfg").is_empty());
}

/// With a variable in this list, a shell with another PATH would build most of the workspace again.
#[cfg(unix)]
#[test]
fn what_has_been_compiled_hangs_on_no_variable() {
    let script = Script::compile("build-with-clang");
    script.replace_clang("exit 0");
    let output = script.run(&script.nowhere(), true);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(lines(&output, "rerun-if-env-changed"), [""; 0]);
    let none = Script::compile("build-before-clang");
    let output = none.run(&none.nowhere(), false);
    assert!(lines(&output, "rerun-if-env-changed").contains(&"PATH".to_owned()), "{output:?}");
}

/// A compiler without a header prints many lines, of which one is passed on. A script replaces such a
/// compiler.
#[cfg(unix)]
#[test]
fn without_libbpf_its_package_is_named() {
    let script = Script::compile("build-without-libbpf");
    let said = "c/attach/layout.h:9:10: fatal error: 'bpf/bpf_helpers.h' file not found";
    script.replace_clang(&format!("echo In file included >&2\necho \"{said}\" >&2\nexit 1"));
    let output = script.run(&script.nowhere(), false);
    let warnings = lines(&output, "warning");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains(": apt-get install libbpf-dev (") && warnings[0].contains(said),
        "{}",
        warnings[0]
    );
}
