//! The pages of the repository: each relative link refers to a file, each fragment to a heading, and each
//! page is in one of the two books.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn markdown_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of pages").flatten() {
        let path = entry.path();
        if path.is_dir() {
            markdown_below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// The pages beside `Cargo.toml`, those of `docs/`, and `fuzz/README.md`.
fn pages() -> Vec<PathBuf> {
    let repository = repository();
    let mut pages = vec![repository.join("fuzz/README.md")];
    for entry in fs::read_dir(&repository).expect("the repository").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "md") {
            pages.push(entry.path());
        }
    }
    markdown_below(&repository.join("docs"), &mut pages);
    pages
}

fn events(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES)
}

/// The anchors of a page's headings as GitHub and mdBook generate them: lower case, spaces become hyphens,
/// punctuation is removed.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in events(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let name = heading.take().expect("a heading begins before it ends");
                let kept = name
                    .to_lowercase()
                    .chars()
                    .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                    .collect::<String>();
                found.insert(kept.trim().replace(' ', "-"));
            }
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    found
}

/// Links and images, without those to other hosts.
fn relative_links(text: &str) -> Vec<String> {
    events(text)
        .filter_map(|event| match event {
            Event::Start(Tag::Link { link_type, dest_url, .. }) if link_type != LinkType::Email => {
                Some(dest_url.to_string())
            }
            Event::Start(Tag::Image { dest_url, .. }) => Some(dest_url.to_string()),
            _ => None,
        })
        .filter(|link| !link.contains("://"))
        .collect()
}

fn broken(page: &Path, link: &str) -> Option<String> {
    let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() {
        page.to_path_buf()
    } else {
        page.parent().expect("a page has a folder").join(file)
    };
    if !target.exists() {
        return Some(format!("{}: {link}: no such file", page.display()));
    }
    if !fragment.is_empty() && !anchors(&fs::read_to_string(&target).expect("a page")).contains(fragment) {
        return Some(format!("{}: {link}: the page has no such heading", page.display()));
    }
    None
}

#[test]
fn every_link_leads_somewhere() {
    let mut faults = Vec::new();
    let mut links = 0;
    for page in pages() {
        for link in relative_links(&fs::read_to_string(&page).expect("a page")) {
            links += 1;
            faults.extend(broken(&page, &link));
        }
    }
    assert!(links > 50, "only {links} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_page_is_in_the_book() {
    let docs = repository().join("docs");
    let books = ["SUMMARY.md", "INSIDE.md"];
    let listed: BTreeSet<PathBuf> = books
        .iter()
        .map(|book| fs::read_to_string(docs.join(book)).expect("a book's contents"))
        .flat_map(|contents| relative_links(&contents))
        .map(|link| docs.join(link))
        .collect();
    let mut pages = Vec::new();
    markdown_below(&docs, &mut pages);
    let missing: Vec<_> = pages
        .iter()
        .filter(|page| !books.iter().any(|book| page.ends_with(book)) && !listed.contains(*page))
        .collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md and docs/INSIDE.md lack {missing:?}");
}

/// The pages of `docs/`, as `wc -w` counts, without those that list the results of runs.
#[test]
fn the_pages_have_at_most_45000_words() {
    let mut pages = Vec::new();
    markdown_below(&repository().join("docs"), &mut pages);
    let of_runs = ["attach-cost.md", "conformance.md", "conformance-tls.md", "kernels.md", "tried.md"];
    pages.retain(|page| !of_runs.iter().any(|name| page.ends_with(name)));
    let mut words: Vec<_> = pages
        .iter()
        .map(|page| (fs::read_to_string(page).expect("a page").split_whitespace().count(), page))
        .collect();
    words.sort();
    let all: usize = words.iter().map(|(count, _)| count).sum();
    assert!(all > 30_000, "only {all} words were found");
    assert!(all <= 45_000, "{all} words; the longest pages: {:?}", &words[words.len() - 8..]);
}

#[test]
fn a_broken_link_is_found() {
    let page = repository().join("README.md");
    assert!(broken(&page, "docs/no-such-page.md").is_some());
    assert!(broken(&page, "README.md#no-such-heading").is_some());
    assert!(broken(&page, "README.md#limits").is_none());
}
