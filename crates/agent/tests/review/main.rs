//! docs/situations/security-review.md says what the manifests say: tables here, sentences in `claims`.

mod claims;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn manifest(kind: &str) -> Value {
    let text = read("deploy/kubernetes/agent.yaml");
    let documents = text.split("\n---\n").skip(1).map(serde_saphyr::from_str::<Value>);
    let found = documents.map(|document| document.expect("YAML")).find(|document| document["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// The cells of the table whose head begins so, row by row.
fn table(head: &str) -> Vec<Vec<String>> {
    let page = read(PAGE);
    let lines = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<_> = rows.map(cells).collect();
    assert!(!rows.is_empty(), "no table {head}");
    rows
}

fn set(rows: &[Vec<String>], columns: usize) -> BTreeSet<Vec<String>> {
    rows.iter().map(|row| row[..columns].to_vec()).collect()
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
}

#[test]
fn capabilities_of_the_security_review_are_those_of_the_manifest() {
    let pod = &manifest("DaemonSet")["spec"]["template"]["spec"];
    let security = &pod["containers"][0]["securityContext"];
    let added = words(&security["capabilities"]["add"]).into_iter().map(|name| vec![name]).collect();
    assert_eq!(set(&table("| capability |"), 1), added);
}

#[test]
fn profiles_of_the_security_review_are_those_of_the_manifest() {
    let security = &manifest("DaemonSet")["spec"]["template"]["spec"]["containers"][0]["securityContext"];
    let rows = table("| profile |");
    for (row, name) in rows.iter().zip(["seccompProfile", "appArmorProfile"]) {
        let default = security[name]["type"].as_str().expect("a type");
        assert!(row[1].starts_with(default), "{row:?}");
        let file = row[2].split('`').nth(1).expect("a file");
        assert!(repository().join(file).is_file(), "{file}");
    }
}

#[test]
fn files_of_the_security_review_are_those_of_the_manifest() {
    let pod = &manifest("DaemonSet")["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let is_read_only = |name: &Value| {
        mounts.iter().any(|mount| mount["name"] == *name && mount["readOnly"] == Value::Bool(true))
    };
    let volumes = pod["volumes"].as_array().expect("volumes").iter();
    let paths = volumes.map(|volume| {
        let access = if is_read_only(&volume["name"]) { "read" } else { "write" };
        vec![
            volume["hostPath"]["path"].as_str().unwrap_or("no path of the host").to_owned(),
            access.to_owned(),
        ]
    });
    assert_eq!(set(&table("| path |"), 2), paths.collect());
}

#[test]
fn rights_of_the_security_review_are_those_of_the_manifest() {
    let rules = manifest("ClusterRole")["rules"].as_array().expect("rules").clone();
    let granted = rules.iter().flat_map(|rule| {
        let group = rule["apiGroups"][0].as_str().filter(|group| !group.is_empty());
        let prefix = group.map_or(String::new(), |group| format!("{group}/"));
        let verbs = words(&rule["verbs"]).join(", ");
        words(&rule["resources"])
            .into_iter()
            .map(move |resource| vec![format!("{prefix}{resource}"), verbs.clone()])
    });
    assert_eq!(set(&table("| resource | verbs | limited"), 2), granted.collect());
    for job in ["deploy/helm/truepeer/templates/detach.yaml", "deploy/kubernetes/detach.yaml"] {
        detach_job_is_as_the_page_says(&read(job));
    }
}

fn detach_job_is_as_the_page_says(job: &str) {
    for row in detach_rows() {
        let resource = row[0].split(' ').next().expect("a resource");
        let in_a_line = format!("resources: [{resource}], verbs: [{}]", row[1]);
        let in_lines = format!("resources: [{resource}]\n");
        let verbs = format!("verbs: [{}]", row[1]);
        let is_granted = job.contains(&in_a_line) || job.contains(&in_lines) && job.contains(&verbs);
        assert!(is_granted, "{row:?}");
    }
    assert_eq!(job.matches("verbs: [").count(), detach_rows().len());
}

#[test]
fn the_detach_job_is_of_the_agent_that_is_applied() {
    let text = read("deploy/kubernetes/detach.yaml");
    let documents: Vec<Value> =
        text.split("\n---\n").map(|document| serde_saphyr::from_str(document).expect("YAML")).collect();
    let set = manifest("DaemonSet");
    let (name, namespace) = (&set["metadata"]["name"], &set["metadata"]["namespace"]);
    let of = |kind: &str| documents.iter().find(|document| document["kind"] == kind).expect("a document");
    assert_eq!(of("Role")["rules"][0]["resourceNames"][0], *name);
    let job = of("Job");
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], set["spec"]["template"]["spec"]["containers"][0]["image"]);
    let arguments = words(&container["args"]);
    assert!(arguments.contains(&format!("--daemonset={}", name.as_str().expect("a name"))), "{arguments:?}");
    assert!(arguments.contains(&format!("--namespace={}", namespace.as_str().expect("a name"))));
    let namespaces = documents.iter().map(|document| &document["metadata"]["namespace"]);
    let namespaces: Vec<_> = namespaces.filter(|namespace| !namespace.is_null()).collect();
    assert_eq!(namespaces, vec![namespace; 4]);
}

#[test]
fn privileges_of_each_way_are_those_of_its_manifest() {
    let page = read("docs/kubernetes.md");
    let row = page.lines().find(|line| line.starts_with("| privileges |")).expect("a row");
    let cells = row.trim_matches('|').split('|').skip(1);
    for (cell, name) in cells.zip(["agent", "sidecar", "run"]) {
        let manifest = read(&format!("deploy/kubernetes/{name}.yaml"));
        let added = manifest.split_once("add: [").and_then(|(_, rest)| rest.split(']').next());
        let added: BTreeSet<&str> = added.into_iter().flat_map(|names| names.split(", ")).collect();
        let is_other = |letter: char| !letter.is_ascii_uppercase() && letter != '_';
        let said: BTreeSet<&str> = cell.split(is_other).filter(|word| word.contains('_')).collect();
        assert_eq!(said, added, "{name}");
    }
}

const PAGE: &str = "docs/situations/security-review.md";
const PAGES: [&str; 2] = ["docs/kubernetes.md", PAGE];

#[test]
fn files_that_the_pages_name_are_those_of_the_manifests() {
    let agent = read("deploy/kubernetes/agent.yaml");
    for page in PAGES {
        let text = read(page);
        let words = text.split(|letter: char| letter.is_whitespace() || "`,;:|()".contains(letter));
        for word in words.map(|word| word.trim_end_matches('.')) {
            let is_there = match word.split('/').nth(1) {
                Some("sys" | "run" | "var") if word.starts_with('/') => {
                    agent.contains(&format!("path: {word},"))
                }
                Some(_) if word.starts_with("deploy/") => repository().join(word).exists(),
                _ => true,
            };
            assert!(is_there, "{page}: {word}");
        }
    }
}

#[test]
fn the_pages_deployment_is_that_of_the_file() {
    let file = read("deploy/kubernetes/web.yaml");
    assert!(read("docs/kubernetes.md").contains(&format!("```yaml\n{file}```\n")));
}

#[test]
fn values_that_the_pages_name_are_the_charts() {
    let values: Value = serde_saphyr::from_str(&read("deploy/helm/truepeer/values.yaml")).expect("YAML");
    let mut count = 0;
    for page in PAGES {
        let text = read(page);
        for word in text.split('`').skip(1).step_by(2) {
            let path = word.split(['=', ':', ' ']).next().unwrap_or_default().trim_end_matches(".…");
            let first = path.split('.').next().unwrap_or_default();
            if values.get(first).is_none() {
                continue;
            }
            let found = path.split('.').try_fold(&values, |value, part| value.get(part));
            assert!(found.is_some(), "{page}: {path}");
            count += 1;
        }
    }
    assert!(count > 9, "{count}");
}

fn detach_rows() -> Vec<Vec<String>> {
    let page = read(PAGE);
    let (_, rest) = page.split_once("The detach job, while it runs:").expect("the job's rights");
    let rows = rest.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}
