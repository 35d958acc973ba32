use std::ffi::OsString;
use std::path::Path;

use annotate_snippets::Renderer;
use proptest::prelude::*;

use super::entry::{Entry, Shared, meaning};
use super::fuzzed::any_file;
use super::judge::{attachments_in, judge, tables};
use super::show::whole;
use super::written::Written;
use crate::{Invocation, parse};
use truepeer_config::plan::EntryConfig;

const DIR: &str = "/nonexistent/config";

fn written(text: &str) -> Written {
    let (written, findings, is_toml) = tables(&Path::new(DIR).join("truepeer.toml"), text.to_owned());
    assert!(is_toml && !findings.have_errors(), "{text}\n{findings}");
    written
}

/// What the entries of a file do; files that they name aren't read.
fn meanings(text: &str) -> Vec<String> {
    let written = written(text);
    let shared = Shared::of(&written).unwrap().unwrap();
    let entries = written.entries.iter().map(|entry| {
        let matches = entry.matches.as_ref().unwrap();
        let planned = Entry::of(entry.name, matches).unwrap().plan(&shared);
        meaning(&planned.unwrap_or_else(|problem| panic!("{text}\n{problem}"))).unwrap()
    });
    entries.collect()
}

fn invoke(line: &str) -> Invocation {
    parse(line.split_whitespace().map(OsString::from)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Command lines with every option that a file can have, beside defaults.
const LINES: &[&str] = &[
    "proxy",
    "proxy -l :1 -l [::1]:2 --protocol both --udp-dialect first --close-after 28 --max-flows 9",
    "proxy -p udp --send-proxy spp --listeners 4 --workers 3 --drain-timeout 1m30s --mark 0x10",
    "proxy -4 192.0.2.1:80 -6 [2001:db8::1]:80 --connect-timeout 500ms --on-conflict refuse --idle-timeout 1h",
    "proxy -4 name.example:80 --nat64-prefix 64:ff9b::/96 --pseudo-ipv4 --routes manual --table 9",
    "proxy --allow 10.0.0.0/8 --allow /etc/allowed --allowed-subnets /etc/subnets --allow-claims loopback",
    "proxy --deny-clients 192.0.2.0/24 --deny-clients /etc/denied --header 10.0.0.0/8=optional --header forbid",
    "proxy --header-timeout 3 --header-wait 1 --header-max 4KiB --idle-timeout none --listen-transparent",
    "proxy --dynamic-destination --dynamic-allow loopback:10000-20000 --dynamic-allow [2001:db8::/32]:443",
    "proxy --tls-cert /a.pem --tls-key /a.key --tls-min 1.3 --tls-suite TLS_AES_128_GCM_SHA256 --tls-timeout 3",
    "proxy --tls-cert /a.pem --tls-alpn h2 --client-ca /ca --client-cert optional --max-per-client 7",
    "proxy --origin-tls --origin-ca /ca --origin-name x.test --origin-cert /c --origin-key /k --origin-alpn h2",
    "proxy --origin-tls --origin-insecure --origin-name x.test -v 2 --log-format json",
    "proxy --quiet --admin /run/t.sock --admin 127.0.0.1:9144",
    "proxy --verbose --log-format text",
    "proxy -p udp --sender frp -l :1 -4 127.0.0.1",
    "https --tls-cert self --origin http://a:1 --sender aws-nlb",
    "attach --port 53/udp --sender dnsdist",
    "https --tls-cert /a.pem --origin http://127.0.0.1:8080",
    "https -l :1 --tls-cert /a --tls-cert /b --tls-key /a --tls-key /b --origin https://app.test --origin-ca /ca",
    "https --tls-cert /a --origin https://a.test --origin-insecure --origin-name n --origin-cert /c --origin-key /k",
    "https --tls-cert /a --origin http://a:1 --origin b/c=https://d --origin-health /x,2s --origin-health b/c=connect",
    "https -l :443 --listen-http :80 --listen-http :81 --on-http serve --tls-cert /a --origin http://a:1",
    "https --tls-cert /a --origin http://a:1 --no-http2 --origin-protocol h2 --origin-keepalive 0 --origin-idle 3 --access-log",
    "https --tls-cert /a --origin http://a:1 --origin-retry-timeout 0 --response-timeout 3 --client-address proxy",
    "https --tls-cert /a --origin http://a:1 --trusted 10.0.0.0/8 --methods GET,PUT --max-body 1MiB --max-head 4KiB --max-fields 50",
    "https --tls-cert /a --origin http://a:1 --head-timeout 1 --body-timeout 2 --send-timeout 3 --min-rate 0",
    "https --tls-cert /a --origin http://a:1 --keepalive-timeout 4 --tunnel-timeout 5 --tls-min 1.3 --tls-timeout 1",
    "https --tls-cert /a --origin http://a:1 --allow /etc/list --header require --header-wait 2 --header-max 107",
    "https --tls-cert /a --origin http://a:1 --allow-claims any --deny-clients /d --header-timeout 9 --mark 3",
    "https --tls-cert /a --origin http://a:1 --on-conflict refuse --routes auto --table 5 --connect-timeout 1 --workers 2",
    "https --tls-cert /a --origin http://a:1 --client-ca /ca --client-cert optional --max-per-client 0 --drain-timeout 0",
    "https --tls-cert /a --origin http://a:1 --tls-suite TLS_AES_128_GCM_SHA256 -v 1 --admin ./t.sock",
    "https --tls-cert /a --origin http://a:1 --host a.test,b.test --host *.c.test --unknown-host refuse",
    "https --acme a.test,b.test --origin http://a:1 --acme-directory staging --acme-email a@b.test --acme-ca /c",
    "https --acme a.test --origin http://a:1 --acme-state /s --acme-eab-id 7 --acme-eab-key /k",
    "proxy --max-per-client 3",
    "attach --port 443",
    "attach --port 443 --destination header",
    "attach --port 80,443 --port 53:5353/udp --udp-dialect spp --allow 10.0.0.7 --header optional --header-wait 3",
    "proxy -l :8443 -4 127.0.0.1:80 --splice auto --splice-after 1MiB,2s --splice-linger leave",
    "attach --port 8000-8010 --header-timeout 7 --header-max 300 --allow-claims loopback --deny-clients 192.0.2.1",
    "attach --port 53/udp --close-after 9 --max-flows 5 --max-udp-flows 6 --dev lo --dev eth0",
    "attach --port 443 --cgroup /sys/fs/cgroup/x --netns blue --pins /sys/fs/bpf/y",
    "attach --port 443 --unit nginx.service --netns /run/netns/blue --unshowable refuse",
    "attach --port 443 --container web --engine podman",
    "attach --port 443 --pid 4242",
    "attach --port 443 --require-tlv 0xE5=@src/file/secret.txt",
    "proxy --require-tlv ::1,5=hmac:@/s --send-proxy v2 --send-tlv 0xE5=@/t --send-tlv 7=hmac:@/u",
    "https --tls-cert /a --origin http://a:1 --header require --require-tlv 0xE5=@/etc/s",
    "https --tls-cert /a --origin http://a:1 --client-address proxy --send-tlv 0xE6=hmac:@/etc/t",
];

#[test]
fn a_printed_command_line_means_the_same_as_a_file() {
    for line in LINES {
        let Invocation::Print(file) = invoke(&format!("truepeer {line} --print-config")) else {
            panic!("{line}")
        };
        let entry = match invoke(&format!("truepeer {line}")) {
            Invocation::Proxy(config, _) => EntryConfig::Proxy(config),
            Invocation::Https(config, _) => EntryConfig::Https(config),
            Invocation::Attach(args) => EntryConfig::Attach(Box::new(args.spec)),
            other => panic!("{line}: {other:?}"),
        };
        let meant = meaning(&entry).unwrap().replace("./t.sock", "t.sock");
        let here = std::env::current_dir().unwrap();
        let read = meanings(&file).remove(0).replace(&format!("{}/", here.display()), "");
        assert_eq!(read, meant, "{line}\n{file}");
    }
}

/// Except that a file's headers may not name this host's own addresses.
#[test]
fn a_printed_drop_in_means_the_same_as_a_file() {
    for line in [
        "go-mmproxy",
        "go-mmproxy -l 0.0.0.0:25577 -4 127.0.0.1:25578 -allowed-subnets /etc/subnets -mark 5 -v 1 -listeners=2",
        "go-mmproxy -l :443 -p udp -close-after 9 -dynamic-destination -listen-transparent",
        "mmproxy -a /etc/subnets -m 7 -c 30 --ipv6 [::1]:25",
        "truepeer --compat cloudflare -a /etc/subnets -4 127.0.0.1:1 -6 [::1]:1 -P -q -t 9",
    ] {
        let Invocation::Print(file) = invoke(&format!("{line} --print-config")) else { panic!("{line}") };
        let Invocation::Proxy(mut config, _) = invoke(line) else { panic!("{line}") };
        config.listeners.iter_mut().for_each(|listener| listener.claims.allow_host = false);
        assert_eq!(meanings(&file).remove(0), meaning(&EntryConfig::Proxy(config)).unwrap(), "{file}");
    }
}

#[test]
fn the_lines_have_every_key() {
    for entry in super::entry::ENTRIES {
        for key in super::entry::grammar(entry).keys() {
            let option = format!("--{}", key.get_long().unwrap());
            let is_there = LINES.iter().filter(|line| line.starts_with(entry)).any(|line| {
                let short = key.get_short().map(|short| format!("-{short}"));
                line.split(' ').any(|word| word == option || Some(word) == short.as_deref())
            });
            assert!(is_there, "{entry} {option}");
        }
    }
}

#[test]
fn a_file_with_every_default_means_the_same() {
    for line in LINES {
        let Invocation::Print(file) = invoke(&format!("truepeer {line} --print-config")) else {
            panic!("{line}")
        };
        let shown = whole(&written(&file), Path::new(DIR));
        assert_eq!(meanings(&shown), meanings(&file), "{file}\n{shown}");
        assert_eq!(whole(&written(&shown), Path::new(DIR)), shown, "shown twice");
    }
}

#[test]
fn relative_paths_begin_at_the_files_directory() {
    let config = "[admin]\nlisten = [\"./admin.sock\", \"whois:./who.sock\"]\n\
                  [[proxy]]\nallow = [\"./list\", \"10.0.0.1\"]\n\
                  deny-clients = \"denied\"\ntls-cert = \"site.pem\"";
    let said = meanings(config).remove(0);
    for path in ["list", "denied", "site.pem", "admin.sock", "who.sock"] {
        assert!(said.contains(&format!("\"/nonexistent/config/{path}\"")), "{path}: {said}");
    }
}

fn some_file() -> impl Strategy<Value = String> {
    let files: Vec<String> = LINES
        .iter()
        .map(|line| match invoke(&format!("truepeer {line} --print-config")) {
            Invocation::Print(file) => file,
            other => panic!("{other:?}"),
        })
        .collect();
    prop::collection::vec(prop::sample::select(files), 1..3).prop_map(|files| files.join("\n"))
}

proptest! {
    #[test]
    fn any_text_is_read_without_a_panic(text in any::<String>()) {
        any_file(&text);
    }

    #[test]
    fn text_that_looks_like_toml_is_read_without_a_panic(
        text in "(\\[\\[?(proxy|https|attach|admin|log|x)\\]?\\]?|[a-z-]{1,9}|[ =\\[\\]{}\"'#.,\n0-9é]{1,3}|true|listen|port|\\u{0}|\\u{feff}){0,40}"
    ) {
        any_file(&text);
    }

    /// A character of a right file is lost, doubled, or another one.
    #[test]
    fn damaged_files_are_read_without_a_panic(
        file in some_file(),
        damages in prop::collection::vec((any::<prop::sample::Index>(), any::<char>(), 0..3_u8), 1..6),
    ) {
        let mut characters: Vec<char> = file.chars().collect();
        for (place, other, kind) in damages {
            if characters.is_empty() {
                break;
            }
            let at = place.index(characters.len());
            match kind {
                0 => drop(characters.remove(at)),
                1 => characters.insert(at, other),
                _ => characters[at] = other,
            }
        }
        any_file(&characters.into_iter().collect::<String>());
    }
}

#[test]
fn an_option_that_excludes_another_is_explained_by_itself() {
    for (key, value) in [("pid", "4242"), ("container", "\"web\""), ("engine", "\"docker\"")] {
        let file = format!("[[attach]]\nport = [443]\n{key} = {{ is = {value} }}\n");
        let (_, findings, _) = tables(&Path::new(DIR).join("truepeer.toml"), file);
        let findings = findings.to_string();
        assert!(findings.contains(&format!("type {key} = {value}")), "{findings}");
    }
}

/// What is off in the example: lines that begin with `#` and no blank.
fn switched_on(example: &str) -> String {
    let lines = example.lines().map(|line| match line.strip_prefix('#') {
        Some(code) if !code.is_empty() && !code.starts_with(' ') => code,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_example_holds_as_it_stands_and_with_all_that_is_off() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/truepeer.toml");
    let example = std::fs::read_to_string(&path).unwrap();
    let judged = super::judge::read(&path);
    assert!(
        judged.plan.is_some() && judged.findings.is_empty(),
        "{}",
        judged.findings.render(&Renderer::plain())
    );
    // A key may be there twice, off and on: each with one alternative.
    let mut seen = Vec::new();
    let all: Vec<_> = switched_on(&example)
        .lines()
        .filter(|line| {
            if line.starts_with('[') {
                seen.clear();
            }
            let key = line.split(" = ").next().unwrap_or_default().to_owned();
            let is_new = !line.contains(" = ") || line.starts_with('#') || !seen.contains(&key);
            seen.push(key);
            is_new
        })
        .map(str::to_owned)
        .collect();
    let meant = meanings(&all.join("\n"));
    assert_eq!(meant.len(), 4, "{all:#?}");
}

#[test]
fn the_page_about_the_file_shows_one_that_holds() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/config.md")).unwrap();
    let file = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(meanings(file).len(), 3);
    let printed = page.split("--print-config\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let line = "truepeer proxy -l :8443 -4 127.0.0.1:443 -6 [::1]:443 --allow 10.0.0.0/8 --print-config";
    let Invocation::Print(file) = invoke(line) else { panic!("{line}") };
    assert_eq!(file, printed);
}

/// The attach keeper reads them with all privileges.
#[test]
fn attachments_are_read_without_the_names_and_files_of_other_entries() {
    const OTHERS: &str = "[[proxy]]\nlisten = [\":443\"]\nipv4 = \"none.invalid:80\"\nallow = [\"./none\"]\n";
    let attach = |text: &str| format!("{OTHERS}[[attach]]\nport = [25]\nallow = [\"{text}\"]\n");
    let path = Path::new(DIR).join("truepeer.toml");
    let attachments = attachments_in(&path, attach("10.0.0.7")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(attachments.len(), 1);
    assert!(attachments[0].rules.tcp_ports.contains(&25));
    assert!(judge(&path, attach("10.0.0.7")).plan.is_none(), "the other entry is wrong");
    let findings = attachments_in(&path, attach("./none")).unwrap_err();
    assert!(findings.to_string().contains("/none"), "{findings}");
}
