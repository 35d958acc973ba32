use super::*;

use proptest::prelude::*;

use crate::rules::Port;

fn rules(port: u16) -> Rules {
    Rules { ports: [Port::Tcp(port)].into(), ..Rules::default() }
}

fn place(netns: u64) -> Place {
    Place { pid: 7, started: 1, netns, cgroup: None }
}

fn attached(netns: u64, port: u16) -> Actual {
    Actual::Attached { netns, rules: rules(port) }
}

fn step(want: &Want, place: Option<&Place>, actual: &Actual, doing: Option<Doing>) -> Option<Step> {
    let view = View { want, place, is_lost: false, actual, doing, is_due: true, arrival: 0 };
    plan(&[("pod".to_owned(), view)].into(), 9).steps.pop().map(|(_, step)| step)
}

#[test]
fn what_is_wanted_is_attached_and_changes_are_followed() {
    let (want, here) = (Want::Attach(rules(80)), place(1));
    let attach = Some(Step::Attach(rules(80)));
    assert_eq!(step(&want, None, &Actual::Nothing, None), None);
    assert_eq!(step(&want, Some(&here), &Actual::Nothing, None), attach);
    assert_eq!(step(&want, Some(&here), &Actual::Nothing, Some(Doing::Attach)), None);
    assert_eq!(step(&want, Some(&here), &attached(1, 80), None), None);
    assert_eq!(step(&want, Some(&here), &attached(1, 81), None), attach);
    // Another sandbox.
    assert_eq!(step(&want, Some(&here), &attached(2, 80), None), attach);
}

#[test]
fn what_is_wanted_no_more_is_detached() {
    let here = place(1);
    for want in [Want::Nothing, Want::Forbidden(String::new())] {
        assert_eq!(step(&want, Some(&here), &attached(1, 80), None), Some(Step::Detach));
        assert_eq!(step(&want, Some(&here), &attached(1, 80), Some(Doing::Detach)), None);
        assert_eq!(step(&want, Some(&here), &Actual::Unknown, None), Some(Step::Detach));
        assert_eq!(step(&want, Some(&here), &Actual::Other { netns: 1 }, None), Some(Step::Detach));
        assert_eq!(step(&want, Some(&here), &Actual::Nothing, None), None);
        assert_eq!(step(&want, Some(&here), &attached(2, 80), None), Some(Step::Forget));
    }
}

#[test]
fn a_wrong_annotation_leaves_what_is_attached() {
    let want = Want::Unclear(String::new());
    for actual in [attached(1, 80), Actual::Nothing, Actual::Other { netns: 1 }] {
        assert_eq!(step(&want, Some(&place(1)), &actual, None), None);
    }
    // But what it is must be known.
    assert_eq!(step(&want, Some(&place(1)), &Actual::Unknown, None), Some(Step::Look(None)));
}

#[test]
fn a_detach_that_waits_is_ended_by_new_rules_and_by_the_pods_end() {
    let want = Want::Attach(rules(80));
    assert_eq!(
        step(&want, Some(&place(1)), &attached(1, 80), Some(Doing::Detach)),
        Some(Step::Attach(rules(80)))
    );
    assert_eq!(step(&Want::Nothing, None, &attached(1, 80), Some(Doing::Detach)), Some(Step::Forget));
}

#[test]
fn what_an_earlier_agent_left_is_asked_of_the_kernel() {
    let (want, here) = (Want::Attach(rules(80)), place(1));
    assert_eq!(step(&want, Some(&here), &Actual::Unknown, None), Some(Step::Look(Some(rules(80)))));
    assert_eq!(step(&want, Some(&here), &Actual::Unknown, Some(Doing::Look)), None);
    assert_eq!(step(&want, None, &Actual::Unknown, None), None);
    for netns in [1, 2] {
        assert_eq!(step(&want, Some(&here), &Actual::Other { netns }, None), Some(Step::Attach(rules(80))));
    }
}

#[test]
fn there_is_room_for_so_many_in_the_order_of_arrival() {
    let (want, here) = (Want::Attach(rules(80)), place(1));
    let (old, nothing) = (attached(1, 80), Actual::Nothing);
    let view = |actual, arrival| View {
        want: &want,
        place: Some(&here),
        is_lost: false,
        actual,
        doing: None,
        is_due: true,
        arrival,
    };
    let views: BTreeMap<Key, View<'_>> = [
        ("a".to_owned(), view(&nothing, 3)),
        ("b".to_owned(), view(&old, 2)),
        ("c".to_owned(), view(&nothing, 1)),
    ]
    .into();
    let two = plan(&views, 2);
    assert_eq!(two.steps, [("c".to_owned(), Step::Attach(rules(80)))]);
    assert_eq!(two.without_room, ["a"]);
    assert_eq!(plan(&views, 3).without_room, Vec::<Key>::new());
    assert_eq!(plan(&views, 0).steps, []);
}

#[test]
fn nothing_is_done_too_soon() {
    let (want, here) = (Want::Attach(rules(80)), place(1));
    let view = View {
        want: &want,
        place: Some(&here),
        is_lost: false,
        actual: &Actual::Nothing,
        doing: None,
        is_due: false,
        arrival: 0,
    };
    assert_eq!(plan(&[("a".to_owned(), view)].into(), 1), Plan::default());
    // The kernel is asked: that changes nothing.
    let asking = View { actual: &Actual::Unknown, ..view };
    let look = ("a".to_owned(), Step::Look(Some(rules(80))));
    assert_eq!(plan(&[("a".to_owned(), asking)].into(), 1).steps, [look]);
}

fn want() -> impl Strategy<Value = Want> {
    prop_oneof![
        Just(Want::Nothing),
        (80u16..83).prop_map(|port| Want::Attach(rules(port))),
        Just(Want::Unclear(String::new())),
        Just(Want::Forbidden(String::new())),
    ]
}

fn actual() -> impl Strategy<Value = Actual> {
    prop_oneof![
        Just(Actual::Nothing),
        (1u64..3, 80u16..83).prop_map(|(netns, port)| attached(netns, port)),
        Just(Actual::Unknown),
        (1u64..3).prop_map(|netns| Actual::Other { netns }),
    ]
}

proptest! {
    /// From any state, the steps lead to what is wanted and then end; never are more attached than there is room for.
    #[test]
    fn steps_end_at_what_is_wanted(
        start in prop::collection::btree_map("[a-e]", (want(), prop::option::of((1u64..3).prop_map(place)), actual()), 1..5),
        max in 0usize..5,
    ) {
        let mut world = start;
        let begins_within = world.values().filter(|(_, _, actual)| *actual != Actual::Nothing).count() <= max;
        for round in 0.. {
            prop_assert!(round < 6, "no end");
            let views = world.iter().map(|(key, (want, place, actual))| {
                (key.clone(), View { want, place: place.as_ref(), is_lost: true, actual, doing: None, is_due: true, arrival: 0 })
            });
            let plan = plan(&views.collect(), max);
            if plan.steps.is_empty() {
                break;
            }
            for (key, step) in plan.steps {
                let (_, place, actual) = world.get_mut(&key).unwrap();
                let netns = place.as_ref().map_or(0, |place| place.netns);
                *actual = match step {
                    Step::Attach(rules) | Step::Look(Some(rules)) => Actual::Attached { netns, rules },
                    Step::Look(None) => Actual::Other { netns },
                    Step::Detach | Step::Forget => Actual::Nothing,
                };
            }
        }
        let count = world.values().filter(|(_, _, actual)| matches!(actual, Actual::Attached { .. })).count();
        if begins_within {
            prop_assert!(count <= max, "{} attached, room for {}", count, max);
        }
        for (want, place, actual) in world.values() {
            match (want, place, actual) {
                (Want::Attach(rules), Some(place), Actual::Attached { netns, rules: attached }) => {
                    prop_assert_eq!((rules, place.netns), (attached, *netns));
                }
                (Want::Attach(_), Some(_), _) => prop_assert!(count + 1 > max || max < world.len()),
                (Want::Nothing | Want::Forbidden(_), Some(_), actual) => prop_assert_eq!(actual, &Actual::Nothing),
                _ => {}
            }
        }
    }
}
