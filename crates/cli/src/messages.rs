//! The messages for wrong command lines, literally: `messages.txt`, as users read them.

use std::ffi::OsString;
use std::path::Path;

use super::{Invocation, UsageError, command, parse};
use truepeer_config::plan::{Problems, attach_rules, run_settings, setup_options};

/// Each line gets a message, or warnings.
const LINES: &[&str] = &[
    "truepeer proxy --allow Cargo.toml",
    "truepeer proxy --allow nobody",
    "truepeer proxy --allow 10.0.0.7,nobody",
    "truepeer proxy --allow ./no-such-list",
    "truepeer proxy --allowed-subnets no-such-list",
    "truepeer proxy --allow /dev/null",
    "truepeer proxy --deny-clients 192.0.2.300",
    "truepeer proxy --deny-clients no-such-list",
    "truepeer proxy -4 [::1]:80",
    "truepeer proxy -6 127.0.0.1:80",
    "truepeer proxy -l :8443 -4 127.0.0.1:80",
    "truepeer proxy -4 localhost",
    "truepeer proxy -l 8443",
    "truepeer proxy -l 127.0.0.1:443 -4 127.0.0.1:443",
    "truepeer proxy -l 127.0.0.1:1 -l 127.0.0.1:1",
    "truepeer proxy --udp-dialect first",
    "truepeer proxy -p udp --tls-cert c.pem",
    "truepeer proxy -p udp --send-proxy v1",
    "truepeer proxy -p udp -l :69 -4 127.0.0.1:6969 -6 [::1]:6969",
    "truepeer proxy -p both -l :6969 -4 127.0.0.1:69 -6 [::1]:69",
    "truepeer proxy -p udp -l :19132 -4 127.0.0.1:19133 -6 [::1]:19133",
    "truepeer proxy --send-proxy spp",
    "truepeer proxy --tls-cert Cargo.toml",
    "truepeer proxy --tls-cert no-such-file.pem",
    "truepeer proxy --tls-key k.pem",
    "truepeer proxy --tls-alpn h2",
    "truepeer proxy --client-cert optional",
    "truepeer proxy --origin-key k.pem --origin-tls",
    "truepeer proxy --origin-ca ca.pem",
    "truepeer proxy --drain-timeout soon",
    "truepeer proxy --header optional --allow any",
    "truepeer proxy --header 0.0.0.0/0=optional --allow any",
    "truepeer proxy --header forbid --header require",
    "truepeer proxy --header maybe",
    "truepeer proxy --header-timeout 5d",
    "truepeer proxy --dynamic-destination",
    "truepeer proxy --quiet --verbose",
    "truepeer proxy --alow any",
    "truepeer proxy --allow any",
    "truepeer https --origin http://127.0.0.1:1",
    "truepeer https",
    "truepeer https --tls-cert c.pem",
    "truepeer https --tls-cert Cargo.toml --origin app:80",
    "truepeer https --tls-cert c.pem --origin http://127.0.0.1:1 --origin-insecure",
    "truepeer https --tls-cert c.pem --origin http://127.0.0.1:1 --stack vpp --routes auto",
    "truepeer ban",
    "truepeer ban 0.0.0.0/0",
    "truepeer ban nobody",
    "truepeer ban 192.0.2.7 --for 0s",
    "truepeer ban 192.0.2.7 --port 0",
    "truepeer unban",
    "truepeer unban 192.0.2.7 --all",
    "truepeer bans 192.0.2.7",
    "truepeer detach",
    "truepeer start",
    "truepeer restart",
    "truepeer version",
    "truepeer logs",
    "truepeer -c truepeer.toml serve",
    "truepeer check truepeer.toml",
    "truepeer proxy :8443 [::1]:443",
    "truepeer proxy -l :8443 --backend 127.0.0.1:443",
    "truepeer proxy --port=8443 -4 127.0.0.1:443",
    "truepeer https -l :443 --upstream http://127.0.0.1:8080",
    "truepeer proxy -p udp --udp-dialect haproxy",
    "truepeer proxy --sender f5",
    "truepeer proxy -p udp --sender aws-nlb",
    "truepeer proxy -l :2222 -4 127.0.0.1:22 -6 [::1]:22 --sender aws-nlb",
    "truepeer attach --port 53/udp --sender aws-nlb",
    "truepeer attach --port 24-26 --sender aws-nlb",
    "truepeer attach --port 443 --header forbid --allow ./no-such-list",
    "truepeer attach 8080",
    "truepeer attach -p 443 --allow 10.0.0.7",
    "truepeer attach --listen :443",
    "truepeer attach --port 443 10.0.0.7",
    "truepeer attach --port 443 --from 10.0.0.7",
    "truepeer attach --port 53 --proto udp",
    "truepeer attach stop",
    "truepeer attach list",
    "truepeer attach detach --port 443",
    "truepeer attach remove 443",
    "truepeer proxy -l :8443 --send-proxy-v2",
    "truepeer proxy -l :8443 --accept-proxy",
    "truepeer proxy --daemon",
    "truepeer proxy --log-level debug",
    "truepeer proxy --config truepeer.toml",
    "truepeer proxy -4 10.255.255.9 --listen-transparent",
    "truepeer https --domain site.example --origin http://127.0.0.1:8080",
    "truepeer https --letsencrypt",
    "truepeer https --email",
    "truepeer https --acme *.a.example --origin http://127.0.0.1:8080",
    "truepeer https --acme a.example --acme-directory pebble --origin http://127.0.0.1:8080",
    "truepeer https --acme a.example --acme-eab-id 7 --origin http://127.0.0.1:8080",
    "truepeer https --tls-cert self --acme-email a@b.example --origin http://127.0.0.1:8080",
    "truepeer https --tls-cert self --host 192.0.2.1 --origin http://127.0.0.1:8080",
    "truepeer proxy -p udp --max-per-client 3",
    "truepeer https --redirect",
    "truepeer https --tls-cert self --tls-key site.key --origin http://127.0.0.1:8080",
    "truepeer https --tls-cert self --origin http://127.0.0.1:8080",
    "truepeer serve --check",
    "truepeer sessions kill 192.0.2.7",
    "truepeer sessions --kill 192.0.2.7",
    "truepeer routes add",
    "truepeer doctor --port 443",
    "truepeer status 443",
    "truepeer go-mmproxy -l 0.0.0.0:25577",
    "truepeer attach --port nosuch",
    "truepeer attach --port 90-80",
    "truepeer attach --port 80:8080",
    "truepeer attach --port 443 --header forbid",
    "truepeer attach --port 443 --header 10.0.0.0/8=forbid",
    "truepeer attach --port 443 --udp-dialect every",
    "truepeer attach --port 53/udp --udp-dialect haproxy",
    "truepeer attach --port 69/udp",
    "truepeer attach --port 60-70/udp",
    "truepeer attach --port 6969:69/udp",
    "truepeer attach --port 25565:19132/udp",
    "truepeer attach --port 443 --max-flows 0",
    "truepeer attach",
    "truepeer run --allow 10.0.0.7",
    "truepeer run --port 0 -- true",
    "truepeer run --header optional --header require -- true",
    "truepeer run --header optional --allow any -- true",
    "truepeer run --allow /dev/null -- true",
    "truepeer connect --from nowhere -- true",
    "truepeer connect --send-proxy v3 -- true",
    "truepeer connect --udp-dialect first -- true",
    "truepeer doctor -4 [::1]:80",
    "truepeer routes show -4 localhost",
    "truepeer https --tls-cert c.pem --origin http://127.0.0.1:1 --origin-keepalive many",
    "truepeer sessions --kill",
    "truepeer completion",
    "truepeer server",
    "truepeer --compat nginx proxy",
    "truepeer proxy 8443 127.0.0.1:443",
    "truepeer proxy -l :8443 -4 127.0.0.1 443",
    "truepeer proxy -l :8443 -4 http://127.0.0.1:80/ --allow 10.0.0.7",
    "truepeer proxy -l :8443 -4 127.0.0.1:443 --ban 203.0.113.7",
    "truepeer proxy -l :99999 -4 127.0.0.1:443",
    "truepeer proxy -l :8443 -4 127.0.0.1:443 -c /etc/truepeer/truepeer.toml",
    "truepeer attach --port 443 --allow lb.example.com",
    "truepeer attach --pid nginx --port 80 --allow 10.0.0.7",
    "truepeer attach --docker web --port 80 --allow 10.0.0.7",
    "truepeer attach --interface eth0 --port 80 --allow 10.0.0.7",
    "truepeer attach --remove --port 443",
    "truepeer attach status --port 443",
    "truepeer unattach --port 443",
    "truepeer run --allow 10.0.0.7 -p 8000 -- python3 -m http.server 8000",
    "truepeer attach --port 80 443 --allow 10.0.0.7",
    "truepeer attach --port 443 --allow 10.0.0.7 --permanent",
    "truepeer attach --port 443 --pod web",
    "truepeer attach --service nginx --port 80",
    "truepeer attach nginx",
    "truepeer attach remove",
    "truepeer attach update --port 443",
    "truepeer attach --port 443 --optional",
    "truepeer proxy -l :8443,:8444 -4 127.0.0.1:443",
    "truepeer proxy --bind :8443 -4 127.0.0.1:443",
    "truepeer proxy -l :8443 -4 127.0.0.1:443 --tls",
    "truepeer proxy -l :8443 -4 127.0.0.1:443 --log /var/log/truepeer.log",
    "truepeer proxy -l :8443 -4 127.0.0.1:443 --max-connections 100",
    "truepeer proxy -l :8443 --frobnicate",
    "truepeer proxy -l :8443 frobnicate",
    "truepeer run -c truepeer.toml",
    "truepeer https --tls-cert self -4 127.0.0.1:8080",
    "truepeer https --tls-cert site.crt site.key --origin http://127.0.0.1:8080",
    "truepeer https --tls-cert self --origin http://127.0.0.1:8080 --http2",
    "truepeer connect 10.0.0.1:443",
    "truepeer connect --to 10.0.0.1 443 -- curl http://10.0.0.1",
    "truepeer doctor --fix",
    "truepeer doctor 127.0.0.1:443",
    "truepeer doctor 53 udp",
    "truepeer status --follow",
    "truepeer status -v",
    "truepeer top --refresh 5",
    "truepeer check --file truepeer.toml",
    "truepeer upgrade --to 0.2",
    "truepeer kill 17",
    "truepeer enable",
    "truepeer frobnicate",
    "truepeer --verbose proxy -l :8443",
    "truepeer routes flush",
    "truepeer probe",
    "truepeer probe 8443",
    "truepeer probe 127.0.0.1:80 --listen 7000",
    "truepeer probe --listen localhost",
    "truepeer probe --listen 7000 --as http",
    "truepeer probe 127.0.0.1:80 --count 2",
    "truepeer probe 127.0.0.1:80 --patience soon",
    // As new users type them who know other programs.
    "truepeer -l 0.0.0.0:25577 -4 127.0.0.1:25578",
    "truepeer -t",
    "truepeer -s reload",
    "truepeer mmproxy -l 0.0.0.0:443",
    "truepeer ATTACH --port 443",
    "truepeer attach —port 443",
    "truepeer attach port=443",
    "truepeer attach run nginx",
    "truepeer attach web --allow 10.0.0.7",
    "truepeer attach --container web:80",
    "truepeer attach --port 443 --allow 10.0.0.7 10.0.0.8",
    "truepeer attach --port 443 --allow [10.0.0.7,10.0.0.8]",
    "truepeer attach --port 443 --allow 10.0.0.0/255.255.255.0",
    "truepeer attach --port 443 --allow 10.0.0.0-10.0.0.255",
    "truepeer attach --port 443 --allow 10.0.0.*",
    "truepeer attach --port 443 --allow 10.0.0.7:5000",
    "truepeer attach --port 443 --allow 0.0.0.0",
    "truepeer attach --port 443 --allow lb.txt",
    "truepeer attach --port 443 --allow = 10.0.0.7",
    "truepeer attach --port 0.0.0.0:443",
    "truepeer attach --port udp/53",
    "truepeer attach --port 70000",
    "truepeer attach --port 443 --dev eth0,eth1",
    "truepeer attach --port 443 --header true",
    "truepeer attach --port 443 -d eth0",
    "truepeer attach --port 443 -4 10.0.0.5:443",
    "truepeer attach --port 443 --send-proxy v2",
    "truepeer attach -c truepeer.toml",
    "truepeer attach status 443",
    "truepeer attach enable --port 443",
    "truepeer run python3 -m http.server 8000 --allow 10.0.0.7",
    "truepeer run -- --allow 10.0.0.7 nginx",
    "truepeer run --allow 10.0.0.7 -p 8080:80 nginx",
    "truepeer run -it --rm nginx",
    "truepeer run --service nginx",
    "truepeer run --port 8000:8000 -- true",
    "truepeer proxy -l :::8443 -6 ::1:443",
    "truepeer proxy -l :8443 -6 ::1:443",
    "truepeer proxy -l https://0.0.0.0:8443",
    "truepeer proxy -l 25565:25566",
    "truepeer proxy -4 127.0.0.1:443,127.0.0.1:444",
    "truepeer proxy -4 127.0.0.1:443 -4 127.0.0.1:444",
    "truepeer proxy -4 https://127.0.0.1",
    "truepeer proxy -4 0.0.0.0:443",
    "truepeer proxy -4 300.1.1.1:443",
    "truepeer proxy -p udp,tcp",
    "truepeer proxy -v debug",
    "truepeer proxy --verbose 2",
    "truepeer proxy --allowed-subnets 10.0.0.0/8",
    "truepeer proxy --set-real-ip-from 10.0.0.0/8",
    "truepeer proxy --forward-host 10.0.0.5:443",
    "truepeer proxy --balance roundrobin",
    "truepeer proxy --idle-timeout 1d",
    "truepeer proxy --splice yes",
    "truepeer proxy --admin http://127.0.0.1:9144",
    "truepeer proxy --tls-cert /",
    "truepeer proxy --origin http://127.0.0.1:8080",
    "truepeer proxy start",
    "truepeer https --ssl-certificate site.pem",
    "truepeer https --tls-cert self --origin 8080",
    "truepeer https --tls-cert self --origin http://127.0.0.1:8080/app",
    "truepeer https --tls-cert self --origin http://127.0.0.1:8080 --max-body 10MB",
    "truepeer https --acme localhost --origin http://127.0.0.1:8080",
    "truepeer serve --dry-run",
    "truepeer check -",
    "truepeer status truepeer.service",
    "truepeer top --once",
    "truepeer sessions 192.0.2.7",
    "truepeer ban 203.0.113.9 1h",
    "truepeer ban 203.0.113.9 for 1h",
    "truepeer ban 203.0.113.9 --for 10minutes",
    "truepeer bans add 203.0.113.9",
    "truepeer unban everyone",
    "truepeer doctor https://site.example",
    "truepeer probe 127.0.0.1 8080",
    "truepeer completion --shell bash",
    // Other notations, and words of other commands.
    "truepeer attach 443 --allow 10.0.0.7",
    "truepeer attach --port 443 --header=require,optional",
    "truepeer attach --port 8000 - 8010",
    "truepeer attach --port -443",
    "truepeer attach --port 443 --allow 10.0.0.1-10.0.0.9",
    "truepeer attach --port 443 --allow=10.0.0.7 10.0.0.8",
    "truepeer attach --port 443 --proxy-protocol v2",
    "truepeer proxy -4 127.0.0.1:443 -t 30",
    "truepeer proxy -4 127.0.0.1:443 --timeout 30",
    "truepeer proxy -4 127.0.0.1:443 -k key.pem",
    "truepeer proxy -4 [127.0.0.1]:443",
    "truepeer proxy -4 127.0.0.1:443 --idle-timeout -1",
    "truepeer proxy -4 127.0.0.1:443 --workers -2",
    "truepeer proxy -4 127.0.0.1:443 send-proxy",
    "truepeer proxy -L 8443:127.0.0.1:443",
    "truepeer proxy -l :53/udp -4 127.0.0.1:5353",
    "truepeer proxy -4 /run/server.sock",
    "truepeer https --tls-cert a.pem,a.key --origin http://127.0.0.1:8080",
    "truepeer https --tls-cert self --origin unix:/run/app.sock",
    "truepeer https --tls-cert self --origin http://127.0.0.1:1,http://127.0.0.1:2",
    "truepeer run -e PORT=8000 node server.js",
    "truepeer sessions kill 42",
    "truepeer sessions --kill 42",
    "truepeer ban 203.0.113.7 --for 1d12h",
    "truepeer attach --port 443 --allow !10.0.0.7",
    "truepeer attach --container web:latest --port 80",
    "truepeer attach --container web",
    "truepeer attach --port 443 --allow 10.0.0.7 status",
    "truepeer attach reload",
    "truepeer proxy --from :8443 -4 127.0.0.1:443",
    "truepeer proxy -l 8443 127.0.0.1 443",
    "truepeer proxy -l :8443 ssl -4 127.0.0.1:443",
    "truepeer proxy -4 127.0.0.1:443 --workers auto",
    "truepeer proxy -u -4 127.0.0.1:53",
    "truepeer https -d www.site.example --origin http://127.0.0.1:8080",
    "truepeer run -d python3 -m http.server 8000",
    "truepeer doctor -p udp 53",
    "truepeer upgrade --binary /usr/bin/truepeer",
    "truepeer unban 203.0.113.7 --all-ports",
];

fn said(line: &str) -> String {
    let invocation = match parse(line.split_whitespace().map(OsString::from)) {
        Ok(invocation) => invocation,
        Err(UsageError::Clap(error)) => return error.to_string().trim().to_owned(),
        Err(UsageError::Problem(problems)) => return errors(&problems),
        Err(error) => return format!("error: {:#}", anyhow::Error::new(error)),
    };
    match warnings(invocation) {
        Ok(warnings) if warnings.is_empty() => "fine".to_owned(),
        Ok(warnings) => {
            warnings.iter().map(|warning| format!("warning: {warning}")).collect::<Vec<_>>().join("\n")
        }
        Err(problems) => errors(&problems),
    }
}

fn errors(problems: &Problems) -> String {
    problems.to_string().lines().map(|problem| format!("error: {problem}")).collect::<Vec<_>>().join("\n")
}

fn warnings(invocation: Invocation) -> Result<Vec<String>, Problems> {
    match invocation {
        Invocation::Proxy(config, _) | Invocation::Https(config, _) => Ok(config.check()?.warnings()),
        Invocation::Attach(args) => Ok(attach_rules(&args.spec)?.1),
        Invocation::Run(args) => Ok(run_settings(&args)?.1),
        Invocation::Routes(args) => Ok(setup_options(&args.routing).map(|_| Vec::new())?),
        Invocation::Doctor(args) => Ok(setup_options(&args.routing).map(|_| Vec::new())?),
        Invocation::Connect(_)
        | Invocation::OciHook(_)
        | Invocation::Vpp(_)
        | Invocation::Serve(_)
        | Invocation::Check(_)
        | Invocation::Status(_)
        | Invocation::Sessions(_)
        | Invocation::Top(_)
        | Invocation::Probe(_)
        | Invocation::Ban(_)
        | Invocation::Unban(_)
        | Invocation::Bans(_)
        | Invocation::Print(_)
        | Invocation::Completion(_)
        | Invocation::Man(_)
        | Invocation::Reload(_)
        | Invocation::Upgrade(_) => Ok(Vec::new()),
    }
}

#[test]
fn messages_are_as_they_were_read_last() {
    let text: String = LINES.iter().map(|line| format!("$ {line}\n{}\n\n", said(line))).collect();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/messages.txt");
    if std::env::var_os("TRUEPEER_WRITE").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap();
    for (said, written) in text.split("\n\n").zip(written.split("\n\n")) {
        assert_eq!(said, written);
    }
    assert_eq!(text.len(), written.len(), "TRUEPEER_WRITE=1 writes the file anew; read it");
}

/// Options that no command has, or that are typed before one.
const UNKNOWN: [&str; 74] = [
    "--proxy-protocol v2",
    "--timeout 30",
    "--from :8443",
    "--binary",
    "--all-ports",
    "-l 0.0.0.0:25577",
    "truepeer -t",
    "truepeer -s",
    "—port",
    "attach web",
    "attach run",
    "--send-proxy v2",
    "attach -c",
    "run -it",
    "run --service",
    "-p 8080:80",
    "--set-real-ip-from",
    "--forward-host",
    "--balance",
    "proxy --origin http:",
    "proxy start",
    "--ssl-certificate",
    "serve --dry-run",
    "top --once",
    "status truepeer",
    "bans add",
    "unban everyone",
    "--shell",
    "attach --port 443 -4",
    "enable --port",
    "--acme localhost",
    "--letsencrypt",
    "--email",
    "--redirect",
    "--compat",
    "--alow",
    "--backend",
    "--port=8443",
    "--upstream",
    "--listen :443",
    "--from 10.0.0.7",
    "--proto",
    "--send-proxy-v2",
    "--accept-proxy",
    "--daemon",
    "--log-level",
    "--config",
    "--domain",
    "--check",
    "doctor --port",
    "connect --udp-dialect",
    "--ban",
    "--docker",
    "--interface",
    "--remove",
    "status --port",
    "--permanent",
    "--pod",
    "--service",
    "attach update",
    "--optional",
    "--bind",
    "443 --tls",
    "--log /",
    "--max-connections",
    "--frobnicate",
    "--http2",
    "--fix",
    "status --follow",
    "--refresh",
    "--file",
    "--to 0.2",
    "--verbose proxy",
    "truepeer kill",
];

#[test]
fn messages_name_only_options_that_the_command_has() {
    let mut all = command();
    all.build();
    for line in LINES.iter().filter(|line| UNKNOWN.iter().all(|option| !line.contains(option))) {
        let name = line.split(' ').nth(1).unwrap();
        let Some(command) = all.find_subcommand(name) else { continue };
        let message = said(line);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let words = message
            .split(|c: char| !is_part(c))
            .filter(|word| word.starts_with("--") && word[2..].starts_with(|c: char| c.is_ascii_lowercase()));
        for word in words {
            let has = command.get_arguments().any(|arg| arg.get_long() == word.strip_prefix("--"));
            assert!(has, "{line}: there is no {word}: {message}");
        }
    }
}

#[test]
fn an_empty_list_of_denied_clients_is_fine() {
    assert_eq!(said("truepeer proxy --deny-clients /dev/null"), "fine");
}

#[test]
fn messages_have_no_debug_form_and_quote_what_was_typed() {
    for line in LINES {
        let message = said(line);
        for form in ["Some(", "Err(", "Os {", "kind:", "Error(", "Other("] {
            assert!(!message.contains(form), "{line}: {message}");
        }
        assert_ne!(message, "fine", "{line}");
    }
}
