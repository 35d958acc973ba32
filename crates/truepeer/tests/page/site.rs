//! The documentation as a site, on a phone: each page fits its width, light and dark.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use truepeer_testbed::{Bed, Program, skip, workspace_dir};

use crate::browser::Browser;

/// A small phone.
const WIDTH: u32 = 360;
/// What reaches beyond [`WIDTH`]. Code and tables scroll by themselves, so only their frames count.
const BEYOND: &str = "[...document.querySelectorAll('main, main *, #mdbook-menu-bar *')]
    .filter((one) => !one.parentElement.closest('pre, .table-wrapper'))
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([, place]) => place.width > 0 && (place.right > 361 || place.left < -1))
    .map(([one, place]) => `${one.tagName} to ${Math.round(place.right)}: ${one.innerText?.slice(0, 60)}`)";

/// Where mdBook is; `make mdbook` builds it.
fn has_mdbook() -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let built = workspace_dir().join("target/tools/bin");
    std::env::split_paths(&paths).chain([built]).any(|dir| dir.join("mdbook").is_file())
}

fn pages(dir: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            pages(&path, all)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            all.push(path);
        }
    }
    Ok(())
}

pub(crate) fn fits_a_phone(bed: &Bed) -> Result<()> {
    if !has_mdbook() {
        return skip("mdBook is not built (make mdbook)");
    }
    let site = bed.dir().join("site");
    Program::new(workspace_dir().join("scripts/book.sh")).arg(&site).run(bed)?;
    let mut all = Vec::new();
    pages(&site, &mut all)?;
    // Of both books; print.html has all chapters once more.
    all.retain(|page| !["print.html", "toc.html", "404.html"].iter().any(|name| page.ends_with(name)));
    all.sort();
    ensure!(all.len() > 50, "{} pages", all.len());
    let mut browser = Browser::start(bed)?;
    let (mut beyond, mut grounds) = (Vec::new(), Vec::new());
    for scheme in ["light", "dark"] {
        browser.resize(WIDTH, scheme)?;
        for page in &all {
            let url = format!("file://{}", page.display());
            let name = page.strip_prefix(&site)?.display().to_string();
            browser.open(&url)?;
            let is_there = format!("location.href === '{url}' && document.readyState === 'complete'");
            browser.wait_for(bed, &is_there).with_context(|| name.clone())?;
            let wide = browser.evaluate("document.documentElement.scrollWidth")?;
            let parts: Vec<String> = serde_json::from_value(browser.evaluate(BEYOND)?)?;
            if wide.as_u64() > Some(WIDTH.into()) || !parts.is_empty() {
                beyond.push(format!("{name}, {scheme}: {wide} wide\n  {}", parts.join("\n  ")));
            }
            grounds.push((
                scheme,
                browser.evaluate("getComputedStyle(document.documentElement).backgroundColor")?,
            ));
            browser.photograph(&format!("site-{scheme}-{}.png", name.replace('/', "-")))?;
        }
    }
    ensure!(beyond.is_empty(), "{}", beyond.join("\n"));
    let add =
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<p style=\"width: 400px\">wide')";
    browser.evaluate(add)?;
    let parts = browser.evaluate(BEYOND)?;
    ensure!(parts.to_string().contains("wide"), "a part that is too wide is not found: {parts}");
    grounds.dedup();
    ensure!(grounds.len() == 2 && grounds[0].1 != grounds[1].1, "one ground for each scheme: {grounds:?}");
    Ok(())
}
