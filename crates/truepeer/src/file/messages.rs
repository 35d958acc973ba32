//! The messages for wrong configurations, literally: `messages.txt`, as users read them.

use std::path::Path;

use annotate_snippets::Renderer;

use super::judge::judge;

/// Each gets a message, or warnings. The blank lines are only for the reader.
const WRONG: &[&str] = &[
    "",
    "[[proxy]]\nlisten = \"8443\"",
    "[[proxy]]\nlistn = \":8443\"",
    "[[proxy]]\nlisten = [\":8443\", \"nowhere\", \":1\"]\nipv4 = \"localhost\"\nmark = -1",
    "[[proxy]]\nlisten = \":8443",
    "[[proxy]]\nlisten = :8443\n[[prxy]]\nallow = 5\n[proxy.x]\n",
    "[proxy]\nlisten = \":8443\"",
    "[[proxi]]\nlisten = \":8443\"",
    "[[proxy]]\nallow = \"./no-such-list\"",
    "[[proxy]]\nallow = [\"10.0.0.0/8\", \"./no-such-list\"]",
    "[[proxy]]\nworkers = 4",
    "[[proxy]]\nlog-format = \"json\"\nverbose = true",
    "[[proxy]]\nipv4 = \"[::1]:80\"",
    "[[proxy]]\ntls-min = 1.2",
    "[[proxy]]\npseudo-ipv4 = \"yes\"",
    "[[https]]\ntls-cert = \"c.pem\"",
    "[[https]]\ntls-cert = \"c.pem\"\norigin = \"http://127.0.0.1:1\"\nstack = \"vpp\"",
    "[[attach]]\nport = 443\ncgroup = \"/x\"\nunit = \"y\"",
    "[[attach]]\n\n[[attach]]\nport = 443\n\n[[attach]]\nport = 53",
    "[[attach]]\nport = 443\nworkers = 4",
    "[[proxy]]\nlisten = \":1\"\n\n[[proxy]]\nlisten = \":1\"",
    "[[proxy]]\nallow = \"any\"",
    "[admin]\nlisten = \"nowhere\"\n\n[log]\nlevel = \"loud\"\nformat = true\n",
    "workers = 0\ndrain-timeout = \"soon\"\n[[proxy]]",
    "admin = 5\n[[proxy]]",
];

fn said(text: &str) -> String {
    judge(Path::new("truepeer.toml"), text.to_owned()).findings.render(&Renderer::plain())
}

#[test]
fn messages_are_as_they_were_read_last() {
    let text: String =
        WRONG.iter().map(|wrong| format!("=====\n{wrong}\n-----\n{}\n", said(wrong))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/file/messages.txt");
    if std::env::var_os("TRUEPEER_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    for (said, written) in text.split("=====\n").zip(written.split("=====\n")) {
        assert_eq!(said, written);
    }
    assert_eq!(text.len(), written.len(), "TRUEPEER_WRITE=1 writes the file anew; read it");
}
