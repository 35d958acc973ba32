//! The messages for wrong configurations, literally: `messages.txt`, as users read them.

use std::path::Path;

use annotate_snippets::Renderer;

use super::judge::judge;

/// Each gets messages, or warnings.
const WRONG: &[&str] = &[
    "[[run]]\ncommand = \"python3 -m http.server\"",
    "[[https]]\norigin = { \"/api\" = \"http://127.0.0.1:9000\", \"/\" = \"http://127.0.0.1:8080\" }",
    "[log]\nlevel = \"error\"\n[admin]\nlisten = \"localhost:9144\"\n[[proxy]]",
    // Text that is not TOML.
    "[[proxy]]\nlisten = \":8443",
    "[[proxy]]\nlisten = :8443\nmark = 1 2",
    "[[proxy]\nlisten = \":1\"",
    "[[proxy]]\nlisten = \":1\"\nlisten = \":2\"",
    "[[proxy]]\nallow = [\"10.0.0.0/8\"",
    "[[proxy]]\nlisten \":1\"",
    // Tables.
    "",
    "# only a comment",
    "[proxy]\nlisten = \":8443\"",
    "[[proxi]]\nlisten = \":8443\"",
    "[[log]]\nlevel = \"info\"",
    "admin = 5\n[[proxy]]",
    "proxy = true",
    "[[proxy]]\n[[proxy.listen]]\naddress = \":1\"",
    "[[proxy]]\n[proxy.senders]\nallow = \"any\"",
    "[server]\nport = 1\n[[proxy]]",
    // Keys.
    "[[proxy]]\nlistn = \":8443\"",
    "[[proxy]]\nListen = \":8443\"\nl = \":8443\"\n4 = \"127.0.0.1:1\"",
    "[[proxy]]\nlisten-addr = \":1\"\nallow_claims = \"loopback\"",
    "[[proxy]]\ncertificate = \"site.pem\"",
    "[[proxy]]\nworkers = 4",
    "[[proxy]]\nlog-format = \"json\"\nverbose = true\nadmin = \"/run/t.sock\"",
    "[[https]]\nstack = \"vpp\"\nipv4 = \"127.0.0.1:1\"",
    "[[attach]]\nport = 443\ndry-run = true\nlisten = \":1\"",
    "workrs = 4\nlisten = \":1\"\n[[proxy]]",
    "[[proxy]]\n[admin]\nlistn = \"/run/t.sock\"\n[log]\nv = 1",
    // Types.
    "[[proxy]]\nlisten = 8443\nmark = \"one\"",
    "[[proxy]]\ntls-min = 1.2\nidle-timeout = 0.5",
    "[[proxy]]\npseudo-ipv4 = \"yes\"\ndynamic-destination = 1",
    "[[proxy]]\nipv4 = [\"127.0.0.1:1\", \"127.0.0.1:2\"]",
    "[[proxy]]\nallow = [[\"10.0.0.0/8\"]]\ndeny-clients = { file = \"x\" }",
    "[[proxy]]\nallow = 10\ntls-cert = true\nclose-after = 2026-01-01",
    "[[proxy]]\nmax-flows = 1\nheader-max = 99999999999999999999999",
    "[admin]\nlisten = \"nowhere\"\n[log]\nlevel = \"loud\"\nformat = true\n[[proxy]]",
    // Values.
    "[[proxy]]\nlisten = [\":8443\", \"nowhere\", \":1\"]\nipv4 = \"localhost\"\nmark = -1",
    "workers = 0\ndrain-timeout = \"soon\"\nmax-flows = \"many\"\n[[proxy]]",
    "[[proxy]]\nlisten = \"\"\nprotocol = \"sctp\"\nudp-dialect = \"guess\"",
    "[[proxy]]\nallow = [\"10.0.0.0/33\", \"lan\", \"Cargo.toml\"]",
    "[[proxy]]\nheader = [\"maybe\", \"10.0.0.0/8=often\"]\nheader-timeout = 0\nheader-max = \"1MiB\"",
    "[[proxy]]\nroutes = \"off\"\ntable = 254\non-conflict = \"retry\"\nnat64-prefix = \"10.0.0.0/8\"\nsend-proxy = \"v3\"",
    "[[https]]\norigin = \"app:80\"\nmethods = \"get\"\nclient-address = \"none\"\ntls-suite = \"RC4\"",
    "[[attach]]\nport = [\"nosuch\", \"90-80\", \"80:8080\", 0]\nudp-dialect = \"guess\"",
    // Missing keys, and contradictions.
    "[[https]]\nlisten = \"127.0.0.1:1\"\ntls-cert = \"Cargo.toml\"\norigin = \"http://127.0.0.1:2\"\n\n[[https]]\nlisten = \"127.0.0.1:1\"\ntls-cert = \"Cargo.toml\"\norigin = \"http://127.0.0.1:3\"",
    "[acme]\neab-id = \"7\"\n\n[[https]]\nacme = \"a.example\"\norigin = \"http://127.0.0.1:2\"",
    "[acme]\ndirectory = \"pebble\"\n\n[[https]]\nacme = \"*.a.example\"\nacme-email = \"a@b.example\"\norigin = \"http://127.0.0.1:2\"",
    "[[https]]",
    "[[https]]\norigin = \"http://127.0.0.1:1\"",
    "[[attach]]\nallow = \"10.0.0.7\"",
    "[[attach]]\nport = 443\ncgroup = \"/x\"\nunit = \"y\"",
    "[[proxy]]\nudp-dialect = \"first\"\ntls-alpn = \"h2\"\nipv4 = \"[::1]:80\"\ntls-key = \"site.key\"\ndynamic-allow = \"any\"\norigin-ca = \"ca.pem\"",
    "[[proxy]]\nheader = [\"forbid\", \"require\"]",
    "[[proxy]]\nheader = \"optional\"\nallow = \"any\"",
    "[[proxy]]\ndynamic-destination = true",
    "[[proxy]]\nprotocol = \"both\"\nsend-proxy = \"spp\"",
    "[[proxy]]\nprotocol = \"udp\"\ntls-cert = \"c.pem\"",
    "[[proxy]]\ntls-cert = [\"a.pem\", \"b.pem\"]\ntls-key = \"a.key\"\nclient-cert = \"optional\"",
    "[[proxy]]\norigin-tls = true\nipv4 = \"127.0.0.1:443\"\nipv6 = \"[::1]:443\"",
    "[[https]]\ntls-cert = \"c.pem\"\norigin = \"http://127.0.0.1:1\"\norigin-insecure = true",
    "[[attach]]\nport = 443\nheader = \"forbid\"",
    "[[attach]]\nport = 443\nheader = \"10.0.0.0/8=forbid\"",
    "[[attach]]\nport = \"53/udp\"\nsender = \"frp\"\nallow = \"./no-such-list\"\ndeny-clients = \"/nonexistent/list\"",
    // As a new user types them.
    "listen = [\":8443\"]\nipv4 = \"127.0.0.1:443\"\nallow = [\"10.0.0.7\"]",
    "[[proxy]]\nlisten = \":8443\"\nipv4 = 127.0.0.1:443",
    "proxy:\n  - listen: \":8443\"\n    ipv4: 127.0.0.1:443",
    "[log]\nlevel = \"verbose\"\nfile = \"/var/log/truepeer.log\"\n\n[[proxy]]\nlisten = \":8443\"",
    "[[proxy]]\nlisten = \":8443\"\nipv4 = \"127.0.0.1\"\nport = 443\ntimeout = \"30s\"",
    "[[https]]\nlisten = \":443\"\n[[https.origin]]\nurl = \"http://127.0.0.1:8080\"",
    "[[proxy]]\nallow = [\"10.0.0.7\"\ndeny-clients = [\"./banned\"]",
    "{\n  \"proxy\": [{ \"listen\": \":8443\" }]\n}",
    // As users of other programs type them.
    "proxy {\n    listen 8443;\n}",
    "[[proxy]]\nlisten: \":8443\"\nipv4 => \"127.0.0.1:443\"\nmark 5;\n// a remark\nidle-timeout = 5m",
    "[[proxy]]\nlisten = [\":8443\" \":8444\"]",
    "[[proxy]]\nallow = \"10.0.0.7\"\nallow = \"10.0.0.8\"",
    "[[proxy]]\nlisten = 8443\nallow = \"10.0.0.7 10.0.0.8\"\nheader-timeout = \"1 minute\"",
    "[[proxy]]\nsend-proxy = true",
    "[[proxy]]\nbackend = \"[::1]:443\"\nthreads = 4\nbind = 8443",
    "[[proxy]]\ntrusted_proxies = [\"10.0.0.0/8\"]\nname = \"web\"",
    "[[https]]\nserver_name = \"www.site.example\"\nssl_certificate = \"a.pem\"",
    "[[https]]\nproxy_pass = \"http://127.0.0.1:8080\"\nemail = \"a@b.example\"",
    "[[https]]\ntls = { cert = \"site.pem\", key = \"site.key\" }",
    "[[attach]]\nprotocol = \"udp\"\ninterfaces = [\"eth0\"]\nallow = \"${LB}\"",
    "[global]\nworkers = 4\n\n[listener]\nbackend = \"127.0.0.1:443\"",
    "[Service]\nExecStart=/usr/bin/truepeer",
    "include = \"/etc/truepeer/conf.d\"\nlog_level = \"debug\"\n[admin]\nport = 9144",
    "port = 443\nallow = \"10.0.0.7\"",
    "[[https]]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\ntls-cert = \"self\"\norigin = \"http://a:1\"",
    // Values that are wrong on this machine.
    "[[proxy]]\nlisten = \"127.0.0.1:443\"\nipv4 = \"127.0.0.1:443\"",
    "[[proxy]]\nlisten = [\"127.0.0.1:1\", \"127.0.0.1:1\"]\n\n[[proxy]]\nlisten = \"127.0.0.1:1\"",
    "[[attach]]\nport = 443\n\n[[attach]]\nport = 53\n\n[[attach]]\nport = 22\npins = \"/sys/fs/bpf/other\"",
    "[[proxy]]\nallow = [\"10.0.0.0/8\", \"./no-such-list\"]\ndeny-clients = \"no-such-list\"\nallowed-subnets = \"/nonexistent/list\"",
    "[[proxy]]\ntls-cert = [\"no-such.pem\", \"Cargo.toml\"]",
    "[[proxy]]\nallow = \"./Cargo.toml\"\n\n[[https]]\ntls-cert = \"Cargo.toml\"\norigin = \"https://127.0.0.1:1\"\norigin-ca = \"Cargo.toml\"",
    // Warnings.
    "[[proxy]]\nallow = \"any\"\nallow-claims = \"loopback\"\nipv6 = \"127.0.0.1:80\"",
    "[[attach]]\nport = 443\nudp-dialect = \"every\"\nclose-after = 9",
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

#[test]
fn every_wrong_configuration_gets_a_message_with_its_place() {
    for wrong in WRONG {
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
