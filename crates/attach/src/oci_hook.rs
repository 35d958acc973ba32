//! `truepeer oci-hook`: a hook of the OCI runtime specification (createRuntime). The runtime calls it when
//! the container's namespaces exist and its program has not been started, with the container's state on
//! stdin. If it fails, the container is not started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use truepeer_config::spec::AttachArgs;

/// Longer than any state or configuration.
const LONGEST: u64 = 16 << 20;
const PREFIX: &str = "truepeer.dev/";
/// Each annotation is an option; the values of lists are separated by commas or blanks. Podman's command line
/// takes no commas in an annotation.
const OPTIONS: [(&str, &str, bool); 4] = [
    ("ports", "--port", true),
    ("allow", "--allow", true),
    ("header", "--header", true),
    ("udp-dialect", "--udp-dialect", false),
];

/// The state of a container (runtime-spec, runtime.md), as far as it matters here.
#[derive(Deserialize)]
struct State {
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    bundle: Option<PathBuf>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// The configuration of a container, likewise.
#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Attaches to the container whose state comes from `input`, if its annotations say so.
pub fn run(
    pins: Option<&Path>,
    input: impl Read,
    parse: impl FnOnce(Vec<OsString>) -> Result<AttachArgs>,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let mut text = String::new();
    input.take(LONGEST).read_to_string(&mut text).context("reading the container's state on stdin")?;
    let state: State = serde_json::from_str(&text)
        .context("stdin: expected the container's state as the OCI runtime gives it to a hook")?;
    let annotations = annotations(&state)?;
    let Some(mut words) = words(&annotations)? else { return Ok(()) };
    ensure!(state.pid > 0, "stdin: the container's state names no process: expected a createRuntime hook");
    // Several containers of a pod share its network namespace: each brings its ports, or the same ones again.
    words.extend(["--replace".to_owned(), format!("--pid={}", state.pid)]);
    words.extend(pins.map(|pins| format!("--pins={}", pins.display())));
    let line = ["truepeer", "attach", "add"].map(str::to_owned).into_iter().chain(words).map(OsString::from);
    let args = parse(line.collect()).context("the container's annotations")?;
    super::run(&args, out)
}

/// Those of the state. Some runtimes leave them to the configuration.
fn annotations(state: &State) -> Result<BTreeMap<String, String>> {
    let is_ours =
        |annotations: &BTreeMap<String, String>| annotations.keys().any(|name| name.starts_with(PREFIX));
    let Some(bundle) = state.bundle.as_ref().filter(|_| !is_ours(&state.annotations)) else {
        return Ok(state.annotations.clone());
    };
    let path = bundle.join("config.json");
    let mut text = String::new();
    let file = File::open(&path).with_context(|| path.display().to_string())?;
    file.take(LONGEST).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    let config: Config = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(config.annotations)
}

/// The options that the annotations stand for; `None`: there are none. Options take their values after `=`,
/// so no value can become another option.
fn words(annotations: &BTreeMap<String, String>) -> Result<Option<Vec<String>>> {
    let ours = annotations.iter().filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
    let mut words = Vec::new();
    for (name, value) in ours {
        let Some((_, option, is_list)) = OPTIONS.iter().find(|(known, ..)| *known == name) else {
            // Of the node agent, or of a later version.
            continue;
        };
        let parts: Vec<&str> = if *is_list { value.split(',').collect() } else { vec![value] };
        ensure!(
            parts.iter().all(|part| !part.trim().is_empty()),
            "annotation {PREFIX}{name}: \"\" among its values: expected values separated by commas or blanks"
        );
        for value in parts.into_iter().flat_map(str::split_whitespace) {
            if name == "allow" && (value.starts_with('/') || value.starts_with('.')) {
                bail!(
                    "annotation {PREFIX}{name}: {value}: expected a prefix, or loopback, private or any; a container names no file of the host"
                );
            }
            words.push(format!("{option}={value}"));
        }
    }
    if words.is_empty() {
        return Ok(None);
    }
    let has = |name: &str| annotations.contains_key(&format!("{PREFIX}{name}"));
    ensure!(
        has("ports"),
        "annotation {PREFIX}ports is missing: expected the container's ports, such as 80,53/udp"
    );
    ensure!(
        has("allow"),
        "annotation {PREFIX}allow is missing: expected the load balancers that connect, such as 10.0.0.7,10.1.0.0/16"
    );
    Ok(Some(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(annotations: &[(&str, &str)]) -> String {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        match words(&annotations.collect()) {
            Ok(Some(words)) => words.join(" "),
            Ok(None) => "nothing".to_owned(),
            Err(error) => format!("{error:#}"),
        }
    }

    #[test]
    fn annotations_become_options_and_no_other_words() {
        assert_eq!(words_of(&[]), "nothing");
        assert_eq!(words_of(&[("io.podman.annotations", "x"), ("truepeer.dev/attached", "x")]), "nothing");
        let all = [
            ("truepeer.dev/ports", "80 81, 53/udp"),
            ("truepeer.dev/allow", "10.0.0.7,any"),
            ("truepeer.dev/header", "require,10.0.0.1=optional"),
            ("truepeer.dev/udp-dialect", "spp"),
        ];
        assert_eq!(
            words_of(&all),
            "--allow=10.0.0.7 --allow=any --header=require --header=10.0.0.1=optional --port=80 --port=81 --port=53/udp --udp-dialect=spp"
        );
        assert_eq!(
            words_of(&[("truepeer.dev/ports", "--pins,/tmp"), ("truepeer.dev/allow", "any")]),
            "--allow=any --port=--pins --port=/tmp"
        );
    }

    #[test]
    fn wrong_annotations_are_quoted() {
        let ports = ("truepeer.dev/ports", "80");
        assert!(words_of(&[ports]).contains("truepeer.dev/allow is missing"));
        assert!(words_of(&[("truepeer.dev/allow", "any")]).contains("truepeer.dev/ports is missing"));
        assert!(words_of(&[ports, ("truepeer.dev/allow", "10.0.0.1,,")]).contains("\"\" among its values"));
        assert!(words_of(&[ports, ("truepeer.dev/allow", "/etc/shadow")]).contains("no file of the host"));
    }
}
