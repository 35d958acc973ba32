//! Reads any text as truepeer.toml, and checks the result. `tests.rs` and fuzz/ call it.

use std::path::Path;

use annotate_snippets::Renderer;

use super::entry::Shared;
use super::judge::tables;
use super::show::whole;

/// Reads a text as a file and prints what is found wrong. A file that is accepted means the same when it is
/// shown. Reads no other file.
///
/// # Panics
///
/// If the shown file is refused, or showing it again gives another text.
pub fn any_file(text: &str) {
    let directory = Path::new("/nonexistent/config");
    let read = |text: &str| tables(&directory.join("truepeer.toml"), text.to_owned());
    let (written, findings, is_toml) = read(text);
    let _ = (findings.render(&Renderer::styled()), findings.to_string());
    if is_toml && !findings.have_errors() && Shared::of(&written).is_some() {
        let shown = whole(&written, directory);
        let (again, findings, _) = read(&shown);
        assert!(!findings.have_errors(), "{text}\n{shown}\n{findings}");
        assert_eq!(whole(&again, directory), shown, "{text}");
    }
}
