//! Each sentence of the page, and each row of its tables, has one of these phrases, which are compared with
//! the manifests and with the tests that show them. So whoever adds or changes one looks at its comparison.

use super::*;

/// A phrase of the page, and what compares it.
type Claim = (&'static str, fn(&str));

const CLAIMS: &[Claim] = &[
    (
        "root (user 0), read-only root file system, no privilege escalation, the host's process IDs, \
         not the host's network",
        the_agent_runs_as,
    ),
    ("each Linux node that its tolerations admit; by default not the control plane's", nodes_of_the_agent),
    ("user 65534, no capability, seccomp RuntimeDefault", the_job_runs_as),
    ("pinned below /sys/fs/bpf/truepeer", pins),
    ("There is no webhook and no custom resource, and nothing listens but the metrics", nothing_else_is_made),
    ("All others are dropped", all_others_are_dropped),
    ("Pins of others (Cilium's) are not in reach by this mount", pins),
    ("no mount, ptrace, perf_event_open, unshare, module or io_uring", calls_that_the_profile_forbids),
    ("under the strict seccomp profile, also as the kubelet applies it", seccomp_is_tried),
    ("under the AppArmor profile, which the kernels of Debian 12 and 13 enforce", apparmor_is_tried),
    (
        "writes no other file, mounts nothing, reads no process's memory and starts no other program",
        apparmor_is_tried,
    ),
    ("where the runtime's profile includes AppArmor's `abstractions/base`", apparmor_is_tried),
    ("No secrets, no exec, no nodes", no_other_resources),
    ("admits from this account only", the_policys_account),
    (
        "on pods of the token's own node, a change of the condition `truepeer.dev/attached` and nothing else \
         of status or metadata",
        the_policy_on_pods,
    ),
    ("events of pods, in the name of `truepeer.dev/agent` on that node", the_policy_on_events),
    ("without the claim of a node in its token, nothing", the_policy_without_a_node),
    ("With `admissionPolicy.enabled=false`, the only way before Kubernetes 1.30", the_policy_is_optional),
    ("The detach job, while it runs", the_job_only_retires),
    ("SYS_ADMIN with the host's process IDs is root there", root_on_its_node),
    ("pin the image by digest (`image.digest`)", a_digest_is_taken),
    ("read all pods' manifests (not secrets)", no_other_resources),
    ("It can't change labels, addresses, phases or other conditions", attacks_are_tried),
    (
        "refused unless `allowSenders` lists it. `allowSenders` has no default: the install asks",
        senders_have_no_default,
    ),
    ("they are detached", |_| are_tests(&["a_typo_does_not_outlive_the_operators_cap"])),
    ("numbers, prefixes and known words alone are passed on", |_| {
        are_tests(&["a_wrong_annotation_is_explained_and_leaves_what_is_attached"])
    }),
    ("the outermost name that the kernel tells counts, and all hierarchies must agree", |_| {
        are_tests(&["a_container_cannot_pass_for_another_pod"])
    }),
    (
        "probes have places of their own. By default every pod may read the metrics: `metrics.from`",
        metrics_are_guarded,
    ),
    ("steps of a pod wait 1 to 60 s, events are limited to 10 at once, then one a minute", paces),
    ("`maxPods` of a node limits them", |_| are_tests(&["only_so_many_pods_are_attached"])),
    (
        "Kubernetes 1.34 with containerd and runc, kube-proxy (iptables), dual stack, cgroup v2 and hybrid",
        the_tests_cluster,
    ),
    ("needs `seLinuxOptions: {type: spc_t}`", |_| assert!(chart("values.yaml").contains("{type: spc_t}"))),
    ("a pod whose last process has ended is attached anew", |_| {
        are_tests(&["a_sandbox_that_starts_again_is_attached_again"])
    }),
    (
        "A pod whose runtime class has `gvisor`, `runsc` or `kata` in its name is refused",
        classes_that_are_refused,
    ),
    ("left out by `nodeSelector`", nodes_of_the_agent),
    ("a redirected port is refused and named in an event", |_| are_tests(&["a_redirected_port_is_told"])),
    ("A port that it redirects inside the pod is refused and named as above", |_| {
        are_tests(&["a_redirected_port_is_told"])
    }),
];

/// They say nothing of manifests.
const OTHERS: [&str; 7] = [
    "A test compares each sentence",
    "How to use the agent",
    "No byte of a connection passes through a process of truepeer",
    "possible if the prefix contains pods",
    "| nodes that are containers",
    "| Cilium in place of kube-proxy |",
    "| Fargate, Autopilot |",
];

/// Tables that other tests compare, row by row.
const COMPARED: [&str; 4] = ["| capability |", "| path |", "| resource | verbs |", "| profile |"];

/// Sentences, and rows of tables.
fn sentences() -> Vec<String> {
    let page = read(PAGE);
    let mut all = Vec::new();
    for block in page.split("\n\n").filter(|block| !block.starts_with('#')) {
        let lines: Vec<&str> = block.lines().collect();
        if lines[0].starts_with('|') {
            let is_compared = COMPARED.iter().any(|head| lines[0].starts_with(head));
            // Of these, cells that say more than a name stand among the claims as well.
            let rows = lines.iter().skip(2).filter(|row| !is_compared || row.contains("no mount"));
            all.extend(rows.map(|row| (*row).to_owned()));
        } else {
            // A full stop within code or a number ends nothing.
            all.extend(lines.join(" ").split(". ").map(str::to_owned));
        }
    }
    all
}

#[test]
fn each_sentence_of_the_security_review_is_compared() {
    let sentences = sentences();
    assert!(sentences.len() > 30, "{}", sentences.len());
    for sentence in &sentences {
        let is_known = CLAIMS.iter().map(|(phrase, _)| *phrase).chain(OTHERS).any(|phrase| {
            // A phrase may be of two sentences.
            sentence.contains(phrase.split(". ").next().unwrap_or(phrase))
                || phrase.contains(sentence.trim_end_matches('.'))
        });
        assert!(is_known, "compare it with the manifests, and list it: {sentence}");
    }
    let page = read(PAGE).replace('\n', " ");
    for (phrase, compare) in CLAIMS {
        assert!(page.contains(phrase), "the page no longer says: {phrase}");
        compare(phrase);
    }
}

fn pod() -> Value {
    manifest("DaemonSet")["spec"]["template"]["spec"].clone()
}

fn chart(file: &str) -> String {
    read(&format!("deploy/helm/truepeer/{file}"))
}

/// Each text is in the file.
fn says(file: &str, texts: &[&str]) {
    let file_text = read(file);
    texts.iter().for_each(|text| assert!(file_text.contains(text), "{file}: {text}"));
}

/// The number that follows a word.
fn number_after(phrase: &str, word: &str) -> u64 {
    let (_, rest) = phrase.split_once(word).unwrap_or_else(|| panic!("{phrase}: {word}"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{phrase}: no number after {word}"))
}

/// The agent has tests of these names.
fn are_tests(names: &[&str]) {
    fn sources(directory: &Path, all: &mut String) {
        for entry in
            fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                sources(&entry, all);
            } else {
                all.push_str(&fs::read_to_string(&entry).expect("a source"));
            }
        }
    }
    let mut all = String::new();
    ["src", "tests"]
        .iter()
        .for_each(|name| sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &mut all));
    names.iter().for_each(|name| assert!(all.contains(&format!("fn {name}(")), "no test {name}"));
}

fn the_agent_runs_as(phrase: &str) {
    let (pod, security) = (pod(), pod()["containers"][0]["securityContext"].clone());
    assert_eq!(security["runAsUser"], number_after(phrase, "user"));
    assert_eq!(
        (&security["readOnlyRootFilesystem"], &security["allowPrivilegeEscalation"]),
        (&true.into(), &false.into())
    );
    assert!(pod["hostPID"] == true && pod["hostNetwork"].is_null() && pod["hostIPC"].is_null());
    assert!(security["privileged"].is_null() && pod["containers"].as_array().map(Vec::len) == Some(1));
    assert!(pod["initContainers"].is_null());
}

fn nodes_of_the_agent(_: &str) {
    let pod = pod();
    assert_eq!(pod["nodeSelector"], serde_json::json!({"kubernetes.io/os": "linux"}));
    assert!(pod["tolerations"].is_null() && pod["affinity"].is_null());
    let values: Value = serde_saphyr::from_str(&chart("values.yaml")).expect("YAML");
    assert_eq!(values["tolerations"], serde_json::json!([]));
}

const JOBS: [&str; 2] = ["deploy/helm/truepeer/templates/detach.yaml", "deploy/kubernetes/detach.yaml"];

fn the_job_runs_as(phrase: &str) {
    let user = format!("runAsUser: {}", number_after(phrase, "user"));
    for job in JOBS {
        says(
            job,
            &[
                &user,
                "runAsNonRoot: true",
                "capabilities: {drop: [ALL]}",
                "seccompProfile: {type: RuntimeDefault}",
            ],
        );
        assert!(!read(job).contains("hostP") && !read(job).contains("hostN"));
    }
}

fn the_job_only_retires(_: &str) {
    JOBS.iter().for_each(|job| {
        says(job, &["- retire\n", "helm.sh/hook: pre-delete\n"][..if job.contains("helm") { 2 } else { 1 }])
    });
}

fn pins(_: &str) {
    let pod = pod();
    let volumes = pod["volumes"].as_array().expect("volumes");
    let paths = volumes.iter().filter_map(|volume| volume["hostPath"]["path"].as_str());
    assert_eq!(
        paths.filter(|path| path.starts_with("/sys/fs/bpf")).collect::<Vec<_>>(),
        ["/sys/fs/bpf/truepeer"]
    );
    let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
    let place =
        mounts.iter().find(|mount| mount["name"] == "pins").and_then(|mount| mount["mountPath"].as_str());
    let option = format!("--pins={}", place.expect("a place"));
    assert!(words(&pod["containers"][0]["args"]).contains(&option), "{option}");
}

fn nothing_else_is_made(_: &str) {
    let agent = read("deploy/kubernetes/agent.yaml");
    assert!(!agent.contains("WebhookConfiguration") && !agent.contains("CustomResourceDefinition"));
    assert!(!agent.contains("kind: Service\n") && agent.matches("containerPort:").count() == 1);
    assert!(agent.contains("name: metrics, containerPort"));
}

fn all_others_are_dropped(_: &str) {
    let security = pod()["containers"][0]["securityContext"].clone();
    assert_eq!(words(&security["capabilities"]["drop"]), ["ALL"]);
    // And each of those that are added is tried to be left out.
    let added: Vec<String> = words(&security["capabilities"]["add"])
        .iter()
        .map(|name| format!("\"{}\"", name.to_lowercase()))
        .collect();
    let needed = format!("NEEDED: [&str; {}] = [{}];", added.len(), added.join(", "));
    says("crates/agent/tests/cluster/needs.rs", &[&needed]);
    are_tests(&["each_capability_is_necessary", "three_capabilities_are_enough"]);
}

/// The system calls of a word of the page.
fn calls(word: &str) -> &'static [&'static str] {
    match word {
        "mount" => &[
            "mount",
            "umount2",
            "fsopen",
            "fsmount",
            "move_mount",
            "open_tree",
            "mount_setattr",
            "pivot_root",
        ],
        "ptrace" => &["ptrace", "process_vm_readv", "process_vm_writev"],
        "perf_event_open" => &["perf_event_open"],
        "unshare" => &["unshare"],
        "module" => &["init_module", "finit_module", "delete_module"],
        "io_uring" => &["io_uring_setup", "io_uring_enter", "io_uring_register"],
        other => panic!("no system call is known for {other}"),
    }
}

fn calls_that_the_profile_forbids(phrase: &str) {
    let strict: Value = serde_json::from_str(&read("deploy/kubernetes/seccomp-agent.json")).expect("JSON");
    let allowed = words(&strict["syscalls"][0]["names"]);
    assert_eq!(
        (&strict["defaultAction"], strict["syscalls"].as_array().map(Vec::len)),
        (&"SCMP_ACT_ERRNO".into(), Some(1))
    );
    assert!(["bpf", "setns"].iter().all(|name| allowed.iter().any(|allowed| allowed == name)));
    let listed = phrase.trim_start_matches("no ").split([',', ' ']).filter(|word| !["", "or"].contains(word));
    for call in listed.flat_map(calls) {
        assert!(!allowed.iter().any(|allowed| allowed == call), "{call}");
    }
}

fn seccomp_is_tried(_: &str) {
    are_tests(&["the_strict_seccomp_profile_is_enough"]);
    says(
        "scripts/kube.sh",
        &[
            "deploy/kubernetes/seccomp-agent.json",
            "seccompProfile.type=Localhost",
            "install_strictly \"$layout\"",
        ],
    );
}

fn apparmor_is_tried(_: &str) {
    says(
        "deploy/kubernetes/apparmor-agent",
        &[
            "profile truepeer-agent ",
            "deny mount,",
            "deny umount,",
            "/usr/bin/truepeer ",
            "/run/truepeer/** rwk,",
        ],
    );
    let script = "scripts/apparmor.sh";
    says(
        script,
        &[
            "releases=(bookworm trixie)",
            "deploy/kubernetes/apparmor-agent",
            "is_forbidden \"a file elsewhere\"",
            "is_forbidden \"pins of others\"",
        ],
    );
    says(
        script,
        &[
            "is_forbidden \"a mount\"",
            "is_forbidden \"the memory of a process\"",
            "is_forbidden \"another program\"",
            "the agent may look at a container's process",
        ],
    );
    says("scripts/test.sh", &["scripts/apparmor.sh"]);
}

fn no_other_resources(phrase: &str) {
    let resources: Vec<String> = manifest("ClusterRole")["rules"]
        .as_array()
        .expect("rules")
        .iter()
        .flat_map(|rule| words(&rule["resources"]))
        .collect();
    assert_eq!(resources, ["pods", "pods/status", "events"]);
    let agent = read("deploy/kubernetes/agent.yaml");
    assert!(
        ["kind: Role\n", "kind: RoleBinding\n"].iter().all(|kind| !agent.contains(kind))
            && agent.matches("kind: ClusterRole\n").count() == 1
    );
    for absent in ["secrets", "exec", "nodes"].iter().filter(|word| phrase.contains(*word)) {
        assert!(
            !resources.iter().any(|resource| resource.contains(absent))
                || phrase.starts_with("read all pods"),
            "{absent}"
        );
    }
}

/// The policy's text, without the breaks of its lines.
fn policy() -> String {
    let policy = manifest("ValidatingAdmissionPolicy");
    assert_eq!(
        manifest("ValidatingAdmissionPolicyBinding")["spec"],
        serde_json::json!({"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]})
    );
    assert_eq!(
        (&policy["metadata"]["name"], &policy["spec"]["failurePolicy"]),
        (&"truepeer-agent".into(), &"Fail".into())
    );
    policy["spec"].to_string().replace("\\\"", "\"")
}

fn the_policys_account(_: &str) {
    let account = manifest("ServiceAccount")["metadata"].clone();
    let name = format!(
        "system:serviceaccount:{}:{}",
        account["namespace"].as_str().expect("a namespace"),
        account["name"].as_str().expect("a name")
    );
    let conditions = manifest("ValidatingAdmissionPolicy")["spec"]["matchConditions"].clone();
    assert_eq!(conditions.as_array().map(Vec::len), Some(1));
    assert_eq!(conditions[0]["expression"], format!("request.userInfo.username == \"{name}\""));
}

fn the_policy_on_pods(phrase: &str) {
    let (policy, condition) = (policy(), phrase.split('`').nth(1).expect("a condition"));
    assert!(
        policy.contains(&format!("c.type != \"{condition}\""))
            && policy.contains("object.spec.?nodeName.orValue(\"\") == variables.node")
    );
    assert!(policy.contains("object.metadata.all(k") && policy.contains("object.status.all(k"));
    are_tests(&["a_taken_over_agent_writes_one_condition_and_nothing_else"]);
}

fn the_policy_on_events(phrase: &str) {
    let (policy, name) = (policy(), phrase.split('`').nth(1).expect("a name"));
    assert!(
        policy.contains(&format!("object.?reportingController.orValue(\"\") == \"{name}\""))
            && policy.contains("== \"Pod\"")
    );
    are_tests(&["a_taken_over_agent_speaks_of_pods_in_its_own_name"]);
}

fn the_policy_without_a_node(_: &str) {
    let policy = policy();
    assert!(
        policy.contains("extra[?\"authentication.kubernetes.io/node-name\"].orValue([\"\"])[0]"),
        "{policy}"
    );
    assert_eq!(policy.matches("variables.node != \"\" && ").count(), 2);
    are_tests(&["a_token_without_a_node_writes_nothing"]);
}

fn the_policy_is_optional(_: &str) {
    let template = chart("templates/admission.yaml");
    assert!(
        template.starts_with("{{- if .Values.admissionPolicy.enabled }}\n{{- if semverCompare \"<1.30.0-0\""),
        "{template}"
    );
}

fn root_on_its_node(_: &str) {
    let pod = pod();
    assert!(
        words(&pod["containers"][0]["securityContext"]["capabilities"]["add"])
            .contains(&"SYS_ADMIN".to_owned())
            && pod["hostPID"] == true
    );
}

fn a_digest_is_taken(_: &str) {
    assert!(chart("templates/_helpers.tpl").contains("@{{ .Values.image.digest }}"));
}

/// Each with the agent's token, on a real API server.
fn attacks_are_tried(_: &str) {
    let attacks =
        ["{\"labels\"", "\"podIP\"", "\"phase\"", "condition(\"Ready\")", "condition(\"example.org/other\")"];
    says("crates/agent/tests/cluster/rights.rs", &attacks);
}

fn senders_have_no_default(_: &str) {
    let values: Value = serde_saphyr::from_str(&chart("values.yaml")).expect("YAML");
    assert_eq!(values["allowSenders"], serde_json::json!([]));
    assert!(
        chart("templates/daemonset.yaml")
            .contains("{{- if not .Values.allowSenders }}\n            {{- fail")
    );
    are_tests(&["the_operators_cap_holds"]);
}

fn metrics_are_guarded(_: &str) {
    let container = pod()["containers"][0].clone();
    for probe in ["livenessProbe", "readinessProbe"] {
        assert!(container[probe]["exec"].is_object() && container[probe]["httpGet"].is_null(), "{probe}");
    }
    assert!(manifest("NetworkPolicy")["spec"]["ingress"][0]["from"].is_null(), "not every pod");
    are_tests(&[
        "probes_are_answered_while_the_metrics_are_flooded",
        "metrics_need_the_token",
        "metrics_can_be_turned_off",
    ]);
}

fn paces(phrase: &str) {
    let (first, longest, at_once) =
        (number_after(phrase, "wait"), number_after(phrase, "to"), number_after(phrase, "limited to"));
    let seconds = |name: &str, count| format!("const {name}: Duration = Duration::from_secs({count});");
    says("crates/agent/src/backoff.rs", &[&seconds("FIRST", first), &seconds("LONGEST", longest)]);
    says(
        "crates/agent/src/kubernetes/limit.rs",
        &[&format!("const AT_ONCE: u32 = {at_once};"), &seconds("REFILL", 60)],
    );
}

fn the_tests_cluster(phrase: &str) {
    let (_, version) = phrase.split_once("Kubernetes ").expect("a version");
    says(
        "scripts/containers/node.sh",
        &[&format!("kube_version={}.", version.split(' ').next().expect("a version"))],
    );
    says("scripts/containers/cluster.sh", &["mode: iptables", "io.containerd.runc.v2"]);
    says("scripts/kube.sh", &["dual_stack \"$layout\""]);
    says("scripts/test.sh", &["layouts=\"v2 hybrid\"", "scripts/kube.sh \"$layouts\""]);
}

fn classes_that_are_refused(phrase: &str) {
    let classes: Vec<String> =
        phrase.split('`').skip(1).step_by(2).map(|class| format!("\"{class}\"")).collect();
    says(
        "crates/agent/src/kubernetes/pod.rs",
        &[&format!("const SANDBOXED: [&str; {}] = [{}];", classes.len(), classes.join(", "))],
    );
    are_tests(&["a_kernel_of_its_own_is_refused"]);
}
