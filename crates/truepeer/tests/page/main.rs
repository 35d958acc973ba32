//! The status page in a real browser: wide and narrow, light and dark, with hostile text in every field. And
//! the documentation as a site.

mod browser;
mod hostile;
mod site;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use truepeer_config::spec::AdminAddr;
use truepeer_ops::admin::Running as _;
use truepeer_testbed::{Bed, Behaviour, Program, Test, client, tests};

use self::browser::Browser;
use self::hostile::{HOSTILE, Hostile};

const TRUEPEER: &str = env!("CARGO_BIN_EXE_truepeer");
const ADMIN: &str = "127.0.0.1:9144";
const URL: &str = "http://127.0.0.1:9144/";
/// The page has renewed itself so often.
const POLLS: &str = "Number(document.querySelector('#news').dataset.polls ?? 0)";

fn main() -> ExitCode {
    let mut all: Vec<Test> = tests![
        hostile_text_in_every_field_is_shown_and_runs_nothing,
        rates_of_the_last_minutes_are_drawn,
        a_client_is_found_by_its_address,
    ];
    all.push(Test::new("each_page_of_the_site_fits_a_phone", site::fits_a_phone).long());
    truepeer_testbed::main(all)
}

/// The admin's server before a truepeer with hostile names.
fn hostile() -> Result<(truepeer_ops::admin::Admin, Arc<Hostile>)> {
    let hostile = Arc::new(Hostile::new());
    let listen = [AdminAddr::Tcp(ADMIN.parse()?)];
    let admin = truepeer_ops::admin::start(&listen, &mut Vec::new(), Arc::clone(&hostile) as Arc<_>)?;
    Ok((admin, hostile))
}

/// `innerWidth` would say nothing: on a phone it grows with a page that is too wide.
fn is_within_the_window(browser: &mut Browser, width: u32) -> Result<()> {
    let whole = browser.evaluate("document.documentElement.scrollWidth")?;
    ensure!(whole.as_u64() <= Some(width.into()), "the page is {whole} wide");
    Ok(())
}

fn hostile_text_in_every_field_is_shown_and_runs_nothing(bed: &Bed) -> Result<()> {
    let (_admin, _hostile) = hostile()?;
    let mut browser = Browser::start(bed)?;
    let mut grounds = Vec::new();
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")] {
        browser.resize(width, scheme)?;
        browser.open(URL)?;
        browser.wait_for(bed, &format!("{POLLS} > 0"))?;
        is_within_the_window(&mut browser, width).with_context(|| format!("{width} {scheme}"))?;
        browser.photograph(&format!("hostile-{width}-{scheme}.png"))?;
        grounds.push(browser.evaluate("getComputedStyle(document.body).backgroundColor")?);
        let shown = Value::from(&HOSTILE[..100]);
        for place in ["warnings", "listeners", "lately", "refusals", "stays", "attached", "bans", "sessions"]
        {
            let has_it = format!("document.getElementById('{place}').innerText.includes({shown})");
            ensure!(browser.evaluate(&has_it)? == true, "{place} lacks the text, {width} {scheme}");
        }
        let made = "document.querySelectorAll('img, iframe, main script, main svg[onload]').length";
        ensure!(browser.evaluate(made)? == 0, "the text has become elements");
        ensure!(browser.evaluate("window.hacked === undefined")? == true, "a script of the text has run");
        let rows = browser.evaluate("document.querySelectorAll('#sessions tbody tr').length")?;
        ensure!(rows == 200, "{rows} sessions are listed");
    }
    ensure!(grounds[0] == grounds[2] && grounds[1] == grounds[3] && grounds[0] != grounds[1], "{grounds:?}");
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    Ok(())
}

fn rates_of_the_last_minutes_are_drawn(bed: &Bed) -> Result<()> {
    let (admin, hostile) = hostile()?;
    let mut browser = Browser::start(bed)?;
    browser.resize(1280, "light")?;
    browser.open(URL)?;
    for polls in 1..=4 {
        hostile.go_on(polls);
        browser.wait_for(bed, &format!("{POLLS} >= {polls}"))?;
    }
    let lines = browser.evaluate(
        "[...document.querySelectorAll('#numbers path.spark')].map((path) => path.getAttribute('d'))",
    )?;
    let lines: Vec<String> = serde_json::from_value(lines)?;
    ensure!(lines.len() == 5, "{lines:?}");
    // Of three rates at least, with a highest and a lower one.
    for line in &lines {
        ensure!(line.matches('L').count() >= 2, "{lines:?}");
    }
    ensure!(lines[4].contains(" 4.0"), "the highest rate has the whole height: {lines:?}");
    let down = browser.evaluate("document.querySelector('[data-rate=down] b').textContent")?;
    ensure!(down.as_str().is_some_and(|text| text.ends_with("/s")), "{down}");
    browser.photograph("rates.png")?;
    // Without an answer the page says so, and what it had stays.
    admin.stop(true);
    browser.wait_for(bed, "document.querySelector('#news').textContent.includes('no answer')")?;
    ensure!(browser.evaluate("document.querySelectorAll('#listeners tbody tr').length")? == 1);
    ensure!(hostile.listeners().len() == 1);
    Ok(())
}

const FILE: &str = r#"
[admin]
listen = ["./admin.sock", "127.0.0.1:9144"]

[[proxy]]
listen = ["127.0.0.1:8443"]
ipv4 = "127.0.0.1:80"
ipv6 = "[::1]:80"
allow = ["127.0.0.1"]
routes = "auto"
"#;

fn session(client: &str) -> Result<TcpStream> {
    let mut stream = client::connect("127.0.0.1:8443")?;
    let to = if client.starts_with('[') { "[2001:db8::5]:443" } else { "192.0.2.5:443" };
    stream.write_all(&client::v2(client, to)?)?;
    stream.write_all(b"echo")?;
    stream.read_exact(&mut [0; 4]).context("the echo")?;
    Ok(stream)
}

fn search(browser: &mut Browser, text: &str) -> Result<()> {
    let text = Value::from(text);
    let typed = format!(
        "{{ const field = document.querySelector('#search'); field.value = {text}; \
         field.dispatchEvent(new Event('input')); }}"
    );
    browser.evaluate(&typed).map(drop)
}

fn a_client_is_found_by_its_address(bed: &Bed) -> Result<()> {
    let _echo = Behaviour::Echo.start(bed, &["127.0.0.1:80", "[::1]:80"])?;
    bed.write("truepeer.toml", FILE)?;
    let truepeer = Program::new(TRUEPEER).args(["serve", "-c", "truepeer.toml"]).start(bed)?;
    truepeer.wait_listening("127.0.0.1:8443")?;
    truepeer.wait_listening(ADMIN)?;
    let clients = ["203.0.113.7:5001", "203.0.113.8:5002", "[2001:db8::7]:5003", "198.51.100.8:5004"];
    let _open = clients.iter().map(|client| session(client)).collect::<Result<Vec<_>>>()?;
    let mut stranger = client::connect_from("127.0.0.9:0", "127.0.0.1:8443")?;
    let _ = stranger.read(&mut [0]); // its end, or a reset
    let ban = ["ban", "-c", "truepeer.toml", "--why", "five <b>wrong</b> passwords", "192.0.2.66"];
    Program::new(TRUEPEER).args(ban).run(bed)?;

    let mut browser = Browser::start(bed)?;
    browser.resize(1280, "light")?;
    browser.open(URL)?;
    let rows = "[...document.querySelectorAll('#sessions tbody tr td.client')].map((cell) => cell.innerText)\
        .sort().join(' ')";
    let is_listed = |clients: &[&str]| {
        let mut sorted = clients.to_vec();
        sorted.sort_unstable();
        format!("{rows} === {}", Value::from(sorted.join(" ")))
    };
    browser.wait_for(bed, &is_listed(&clients))?;
    for (text, found) in [
        ("203.0.113.8", &[clients[1]][..]),
        ("203.0.113", &clients[..2]),
        ("203.0.113.0/24", &clients[..2]),
        ("2001:db8::7", &[clients[2]]),
        ("[2001:DB8", &[clients[2]]),
        (".8:", &[clients[1], clients[3]]),
        ("relaying", &clients),
        ("203.0.113.99", &[]),
    ] {
        search(&mut browser, text)?;
        browser.wait_for(bed, &is_listed(found)).context(text)?;
    }
    // Who was refused, and who is banned, with their reasons.
    let is_visible = |about: &str, words: &str| {
        format!(
            "[...document.querySelectorAll('tr[data-about=\"{about}\"]')]\
             .some((row) => row.checkVisibility() && row.innerText.includes({}))",
            Value::from(words)
        )
    };
    search(&mut browser, "127.0.0.9")?;
    let refused = "the sender is not on the allow-list; if it is your load balancer, add it to allow \
        sender_not_allowed";
    browser.wait_for(bed, &is_visible("127.0.0.9", refused))?;
    ensure!(browser.evaluate(&is_visible("192.0.2.66", ""))? == false, "the search hides others");
    search(&mut browser, "192.0.2.66")?;
    browser.wait_for(bed, &is_visible("192.0.2.66", "five <b>wrong</b> passwords"))?;
    search(&mut browser, "")?;
    browser.wait_for(bed, &format!("{POLLS} >= 3"))?;
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light")] {
        browser.resize(width, scheme)?;
        is_within_the_window(&mut browser, width)?;
        browser.photograph(&format!("status-{width}-{scheme}.png"))?;
    }
    ensure!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    Ok(())
}
