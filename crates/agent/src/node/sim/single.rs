//! One pod, step by step.

use super::*;
use crate::sender_limit::SenderLimit;
use crate::statuses::State;

const POD: &str = "pod";
/// The kernel's clock, after the sandbox began.
const TICKS: u64 = 100;

fn sandbox() -> Sandbox {
    Sandbox::new(7, 7, Instant::now())
}

fn rules(allow: &str) -> Rules {
    Rules { ports: [Port::Tcp(80)].into(), allow: [allow.parse().unwrap()].into(), ..Rules::default() }
}

fn addresses(all: &[&str]) -> Addresses {
    all.iter().map(|ip| ip.parse().unwrap()).collect()
}

fn desired(want: Want, has_condition: bool, is_serving: bool) -> Desired {
    let name = Name { namespace: None, name: POD.to_owned() };
    Desired { name, want, process: None, claim: None, has_condition, is_serving }
}

/// An agent that has found this in the kernel, and heard of the pod.
fn agent(kernel: Vec<Status>, limit: &str, want: Want, has_condition: bool, now: Instant) -> Core {
    let limit = SenderLimit::of(&[limit.parse().unwrap()]).unwrap();
    let mut core = Core::new(9, Inherited::of(TICKS, kernel), now).with_limit(limit);
    core.update(Change::Set(POD.to_owned(), desired(want, has_condition, false)), now);
    core.update(Change::Only([POD.to_owned()].into()), now);
    core
}

/// Looks for the pod's process, and tells what is begun.
fn begun(core: &mut Core, sandbox: &Sandbox, at: &[&str], now: Instant) -> Vec<Started> {
    let found = Found { place: sandbox.place(), addresses: Some(addresses(at)) };
    core.found(core.missing(now).into_keys().map(|key| (key, found.clone())).collect(), now);
    core.start_steps(now)
}

fn end(core: &mut Core, started: Started, at: &[&str], outcome: Outcome, now: Instant) {
    let Started { key, number, place, .. } = started;
    let addresses = Some(addresses(at));
    core.finish(Done { key, number, place, addresses, took: LITTLE, outcome }, now).unwrap();
}

const LITTLE: Duration = Duration::from_millis(50);

fn step(started: &[Started]) -> Option<&Step> {
    started.first().map(|started| &started.step)
}

/// An agent that leaves waits until no condition is left: also those of pods to which nothing was attached.
#[test]
fn a_condition_of_a_pod_that_asks_for_nothing_is_told_of() {
    for has_condition in [true, false] {
        let core = agent(Vec::new(), "any", Want::Nothing, has_condition, Instant::now());
        let states: Vec<State> = core.rows().map(|(_, row)| row.state).collect();
        assert_eq!(states, if has_condition { vec![State::Idle] } else { Vec::new() });
    }
}

/// Or by an agent before this one, which was not through when this one looked first.
#[test]
fn what_is_attached_later_to_a_pod_that_asks_for_nothing_is_detached() {
    let (mut now, mut sandbox) = (Instant::now(), sandbox());
    let mut core = agent(Vec::new(), "any", Want::Nothing, false, now);
    let places: BTreeMap<Key, Place> = [(POD.to_owned(), sandbox.place())].into();
    core.find_unasked(&places, None, now);
    assert!(begun(&mut core, &sandbox, &[], now).is_empty());

    sandbox.attach(rules("0.0.0.0/0"));
    let all = vec![sandbox.status()];
    let compare = |core: &mut Core, asked: Instant, now: Instant| {
        core.compare(&all, asked);
        if core.has_unknown(&all) {
            core.find_unasked(&places, Inherited::of(TICKS, all.clone()).map(|all| (asked, all)), now);
        }
    };
    let asked = now + LITTLE;
    now = asked + LITTLE;
    compare(&mut core, asked, now);
    let mut started = begun(&mut core, &sandbox, &["10.244.0.7"], now);
    assert_eq!(step(&started), Some(&Step::Detach));
    now += LITTLE;
    end(&mut core, started.remove(0), &[], Outcome::Detached, now);
    // The kernel was asked before the detach: its answer tells nothing any more.
    compare(&mut core, asked, now);
    assert!(begun(&mut core, &sandbox, &["10.244.0.7"], now).is_empty());
}

#[test]
fn a_typo_keeps_no_senders_that_the_operator_forbids() {
    let typo = || Want::Unclear("a typo".to_owned());
    for (allow, is_kept) in [("10.0.0.7/32", true), ("0.0.0.0/0", false)] {
        let (now, mut sandbox) = (Instant::now(), sandbox());
        sandbox.attach(rules(allow));
        let mut core = agent(vec![sandbox.status()], "10.0.0.0/8", typo(), false, now);
        let mut started = begun(&mut core, &sandbox, &["10.244.0.7"], now);
        assert_eq!(step(&started), (!is_kept).then_some(&Step::Detach), "{allow}");
        let state = |core: &Core| core.rows().next().unwrap().1.state;
        if is_kept {
            assert!(matches!(state(&core), State::Refused { kept: Some(_), .. }), "{:?}", state(&core));
            continue;
        }
        assert!(matches!(state(&core), State::Detaching { .. }), "{:?}", state(&core));
        end(&mut core, started.remove(0), &[], Outcome::Detached, now);
        assert_eq!(state(&core), State::Refused { why: "a typo".to_owned(), kept: None });
    }
}

/// By plugins of several networks, or IPv6. The pod stays ready.
#[test]
fn a_pod_that_gets_another_address_is_attached_once_more() {
    let (mut now, sandbox) = (Instant::now(), sandbox());
    let wanted = rules("10.0.0.7/32");
    let mut core = agent(Vec::new(), "any", Want::Attach(wanted.clone()), false, now);
    let mut at = vec!["10.244.0.7"];
    for address in ["fd00::7", "10.1.0.7"] {
        let mut started = begun(&mut core, &sandbox, &at, now);
        assert_eq!(step(&started), Some(&Step::Attach(wanted.clone())), "{at:?}");
        now += LITTLE;
        let attached = Outcome::Attached { rules: wanted.clone(), warnings: Vec::new() };
        end(&mut core, started.remove(0), &at, attached, now);
        assert_eq!(core.attached_places(false, now).len(), 1);
        core.heed([(POD.to_owned(), addresses(&at))].into());
        assert!(core.start_steps(now + Duration::from_secs(60)).is_empty());
        at.push(address);
        core.heed([(POD.to_owned(), addresses(&at))].into());
        let state = core.rows().next().unwrap().1.state;
        assert!(matches!(state, State::Attached { .. }), "{state:?}");
        // Steps of a pod don't follow each other at once.
        now += Duration::from_secs(60);
    }
    let mut started = begun(&mut core, &sandbox, &at, now);
    let attached = Outcome::Attached { rules: wanted.clone(), warnings: Vec::new() };
    end(&mut core, started.remove(0), &at, attached, now);
    // Also if the annotation is wrong at that time.
    at.push("10.2.0.7");
    for (want, is_attached) in [(Want::Unclear("a typo".to_owned()), false), (Want::Attach(wanted), true)] {
        now += Duration::from_secs(60);
        core.update(Change::Set(POD.to_owned(), desired(want, true, false)), now);
        core.heed([(POD.to_owned(), addresses(&at))].into());
        assert_eq!(core.start_steps(now).len(), usize::from(is_attached));
    }
}

#[test]
fn an_attachment_that_does_not_know_an_address_of_its_pod_is_not_adopted() {
    let (now, mut sandbox) = (Instant::now(), sandbox());
    let wanted = rules("10.0.0.7/32");
    sandbox.attach(wanted.clone());
    let mut status = sandbox.status();
    let in_force = status.attachments[0].rules.as_mut().unwrap();
    in_force.claims_refused = vec!["10.244.0.7/32".parse().unwrap()];
    for (at, is_adopted) in [(vec!["10.244.0.7"], true), (vec!["10.244.0.7", "fd00::7"], false)] {
        let mut core = agent(vec![status.clone()], "any", Want::Attach(wanted.clone()), false, now);
        let started = begun(&mut core, &sandbox, &at, now);
        assert_eq!(step(&started), (!is_adopted).then_some(&Step::Attach(wanted.clone())), "{at:?}");
    }
}

/// Without a process of the sandbox, as with CRI-O: the pod stays ready.
#[test]
fn the_first_containers_end_leaves_a_pod_attached() {
    let (now, sandbox) = (Instant::now(), sandbox());
    let wanted = rules("10.0.0.7/32");
    for (started, is_same) in [(8, true), (TICKS + 1, false)] {
        let mut core = agent(Vec::new(), "any", Want::Attach(wanted.clone()), false, now);
        let mut begun = begun(&mut core, &sandbox, &["10.244.0.7"], now);
        let attached = Outcome::Attached { rules: wanted.clone(), warnings: Vec::new() };
        end(&mut core, begun.remove(0), &["10.244.0.7"], attached, now);
        core.check_places(TICKS, |_| true, now);
        core.check_places(TICKS + 9, |_| false, now);
        // Another process: beside the first one, or after it in a network namespace with the same number.
        let place = Place { pid: 9, started, ..sandbox.place() };
        let found = Found { place, addresses: Some(addresses(&["10.244.0.7"])) };
        core.found([(POD.to_owned(), found)].into(), now);
        let state = core.rows().next().unwrap().1.state;
        assert_eq!(matches!(state, State::Attached { .. }), is_same, "{state:?}");
        let looks = core.start_steps(now);
        assert_eq!(step(&looks), (!is_same).then_some(&Step::Look(Some(wanted.clone()))));
    }
}

/// Containers that begin before the server's may take minutes.
#[test]
fn a_server_is_missed_only_where_containers_are_ready() {
    let (mut now, sandbox) = (Instant::now(), sandbox());
    let wanted = Want::Attach(rules("10.0.0.7/32"));
    let mut core = agent(Vec::new(), "any", wanted.clone(), false, now);
    let mut begun = begun(&mut core, &sandbox, &["10.244.0.7"], now);
    let attached = Outcome::Attached { rules: rules("10.0.0.7/32"), warnings: Vec::new() };
    end(&mut core, begun.remove(0), &["10.244.0.7"], attached, now);
    now += 2 * SERVER;
    assert!(core.without_known_server(now).is_empty());
    core.update(Change::Set(POD.to_owned(), desired(wanted, true, true)), now);
    assert!(core.without_known_server(now).is_empty());
    now += SERVER;
    assert_eq!(core.without_known_server(now).len(), 1);
    assert!(core.without_known_server(now).is_empty());
}
