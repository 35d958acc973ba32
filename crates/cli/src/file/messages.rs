//! The messages for wrong configurations, literally: `messages.txt`, as users read them.

use std::path::Path;

use annotate_snippets::Renderer;

use super::judge::judge;

/// Texts after `=====`, each with the messages, or the warnings, that it gets, after `-----`. To add a text, write
/// it there, and let TRUEPEER_WRITE=1 write its messages.
const FILE: &str = "src/file/messages.txt";

fn wrong() -> Vec<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).unwrap();
    let wrong = text.split("=====\n").filter_map(|entry| entry.split_once("\n-----\n"));
    wrong.map(|(wrong, _)| wrong.to_owned()).collect()
}

fn said(text: &str) -> String {
    judge(Path::new("truepeer.toml"), text.to_owned()).findings.render(&Renderer::plain())
}

#[test]
fn messages_are_as_they_were_read_last() {
    let text: String =
        wrong().iter().map(|wrong| format!("=====\n{wrong}\n-----\n{}\n", said(wrong))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os("TRUEPEER_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    for (said, written) in text.split("=====\n").zip(written.split("=====\n")) {
        assert_eq!(said, written);
    }
    assert_eq!(text.len(), written.len(), "TRUEPEER_WRITE=1 writes the file anew; read it");
}

#[test]
fn every_wrong_configuration_gets_a_message_with_its_place() {
    for wrong in &wrong() {
        let message = said(wrong);
        assert!(message.contains("error: ") || message.contains("warning: "), "{wrong}");
        assert!(message.contains("truepeer.toml:"), "{wrong}\n{message}");
        for form in ["Some(", "Err(", "Os {", "kind:", "Error(", "Other("] {
            assert!(!message.contains(form), "{form:?} in\n{message}");
        }
        // One help is a command line.
        let keys = message.replace("https --stack", "");
        let is_option = |word: &str| {
            word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        };
        assert!(!keys.split_whitespace().any(is_option), "an option instead of a key:\n{message}");
    }
}
