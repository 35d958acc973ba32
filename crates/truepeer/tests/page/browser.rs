//! Debian's Chromium without a window, steered by the DevTools protocol: messages of JSON, each with a zero
//! byte after it, on the browser's descriptors 3 and 4.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use truepeer_testbed::{Bed, Program, Running, skip};

/// How long the browser may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    _program: Running,
    pipe: UnixStream,
    received: Vec<u8>,
    number: u64,
    /// The page's session.
    session: String,
    /// What the page was forbidden, and its errors.
    pub(crate) complaints: Vec<String>,
}

/// `make browser` unpacks it; `TRUEPEER_BROWSER` names another place.
fn directory() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    std::env::var_os("TRUEPEER_BROWSER").map_or_else(|| cache.join("truepeer/browser"), PathBuf::from)
}

impl Browser {
    /// Starts it with an empty page. Skips the test if there is none.
    pub(crate) fn start(bed: &Bed) -> Result<Self> {
        let root = directory().join("root");
        let names = ["chromium-headless-shell", "chromium"];
        let file =
            names.iter().map(|name| root.join("usr/lib/chromium").join(name)).find(|file| file.is_file());
        let Some(file) = file else { return skip("no browser is unpacked (make browser)") };
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let path = std::env::join_paths([&libraries, &libraries.join("pulseaudio")])?;
        let fonts = bed.write(
            "fonts.conf",
            format!(
                "<?xml version=\"1.0\"?><!DOCTYPE fontconfig SYSTEM \"fonts.dtd\"><fontconfig><dir>{}</dir>\
                 <cachedir>{}</cachedir></fontconfig>",
                root.join("usr/share/fonts").display(),
                bed.dir().join("fonts").display()
            ),
        )?;
        let profile = format!("--user-data-dir={}", bed.dir().join("profile").display());
        let (pipe, its) = UnixStream::pair()?;
        pipe.set_read_timeout(Some(PATIENCE))?;
        let program = Program::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4<&0 </dev/null"])
            .arg(&file)
            .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args(["--headless", "--remote-debugging-pipe", &profile, "about:blank"])
            .env("LD_LIBRARY_PATH", path)
            .env("FONTCONFIG_FILE", fonts)
            .env("HOME", bed.dir())
            .stdin(its)
            .start(bed)?;
        let (received, session, complaints) = Default::default();
        let mut browser = Self { _program: program, pipe, received, number: 0, session, complaints };
        let page = browser.ask("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", attach)?;
        browser.session = attached["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.ask(domain, json!({}))?;
        }
        Ok(browser)
    }

    /// Sets the window's width and the preferred colours.
    pub(crate) fn resize(&mut self, width: u32, scheme: &str) -> Result<()> {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.ask("Emulation.setDeviceMetricsOverride", metrics)?;
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", features).map(drop)
    }

    /// Opens a page.
    pub(crate) fn open(&mut self, url: &str) -> Result<()> {
        let opened = self.ask("Page.navigate", json!({"url": url}))?;
        ensure!(opened.get("errorText").is_none(), "{url}: {opened}");
        Ok(())
    }

    /// The value of an expression in the page.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", asked)?;
        ensure!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, bed: &Bed, expression: &str) -> Result<()> {
        let mut last = Ok(Value::Null);
        let waited = bed.wait_for(expression, || {
            last = self.evaluate(expression);
            last.as_ref().is_ok_and(|value| *value == true)
        });
        waited.with_context(|| format!("{last:?}"))
    }

    /// Where `TRUEPEER_SCREENSHOTS` names a directory: writes the whole page there, to be looked at.
    pub(crate) fn photograph(&mut self, name: &str) -> Result<()> {
        let Some(directory) = std::env::var_os("TRUEPEER_SCREENSHOTS") else { return Ok(()) };
        let size = self.evaluate("[innerWidth, Math.min(document.documentElement.scrollHeight, 3000)]")?;
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let picture = json!({"captureBeyondViewport": true, "clip": clip});
        let picture = self.ask("Page.captureScreenshot", picture)?;
        let bytes = decoded(picture["data"].as_str().unwrap_or_default());
        std::fs::write(Path::new(&directory).join(name), bytes)?;
        Ok(())
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.pipe.write_all(format!("{message}\0").as_bytes())?;
        loop {
            let message = self.receive().with_context(|| format!("{method}: no answer"))?;
            if message["id"] == self.number {
                ensure!(message.get("error").is_none(), "{method}: {message}");
                return Ok(message["result"].clone());
            }
            self.note(&message);
        }
    }

    /// Events: what was forbidden or has failed in the page.
    fn note(&mut self, message: &Value) {
        let is_complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Page.javascriptDialogOpening") => true,
            Some("Log.entryAdded") => message["params"]["entry"]["level"] == "error",
            _ => false,
        };
        if is_complaint {
            self.complaints.push(message["params"].to_string());
        }
    }

    fn receive(&mut self) -> Result<Value> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(serde_json::from_slice(&message[..end])?);
            }
            let mut piece = [0; 65536];
            match self.pipe.read(&mut piece)? {
                0 => bail!("the browser has ended"),
                length => self.received.extend_from_slice(&piece[..length]),
            }
        }
    }
}

/// The bytes of base64 text.
fn decoded(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0_u32);
    for six in text.bytes().filter_map(value) {
        (held, bits) = (held << 6 | u32::from(six), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.extend(u8::try_from(held >> bits & 0xff));
        }
    }
    bytes
}
