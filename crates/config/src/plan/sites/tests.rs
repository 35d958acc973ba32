use std::sync::Arc;

use super::*;
use crate::plan::http::HttpConfig;
use crate::plan::tls::TlsConfig;
use crate::plan::{Beside, Change, CheckedListener, Config, Part, diff, join};
use crate::spec::UnknownHost;

/// The listener of a site with a certificate of its own making.
fn site(bind: &str, hosts: &[&str]) -> ListenerConfig {
    let hosts: Vec<_> = hosts.iter().map(|&host| host.to_owned()).collect();
    let certs = vec![crate::plan::tls::certificate(Some(&"self".into()), None).unwrap()];
    ListenerConfig {
        bind: bind.parse().unwrap(),
        tls: Some(TlsConfig { certs, own_names: hosts.clone(), ..TlsConfig::default() }),
        http: Some(HttpConfig { hosts, ..HttpConfig::default() }),
        ..ListenerConfig::default()
    }
}

/// Each listener in an entry of its own.
fn check(listeners: &[ListenerConfig]) -> Result<Vec<Arc<CheckedListener>>, String> {
    let binds = listeners.iter().map(|one| (one.protocol, one.bind)).collect();
    let mut beside = Beside::of(binds);
    let mut all = Vec::new();
    for listener in listeners {
        let config = Config { listeners: vec![listener.clone()], ..Config::default() };
        all.extend(config.check_beside(&mut beside).map_err(|problems| problems.to_string())?.listeners);
    }
    Ok(join(all))
}

#[test]
fn sites_of_one_address_become_one_listener() {
    let all = [
        site("127.0.0.1:1", &["a.test"]),
        site("127.0.0.1:2", &["b.test"]),
        site("127.0.0.1:1", &["c.test", "d.test"]),
    ];
    let joined = check(&all).unwrap();
    assert_eq!(joined.len(), 2);
    let names: Vec<_> = joined[0].sites().unwrap().iter().map(|site| site.name()).collect();
    assert_eq!(names, ["a.test", "c.test"]);
    assert!(joined[1].sites().is_none(), "nobody chooses");
    let refusing = |mut site: ListenerConfig| {
        site.http.as_mut().unwrap().unknown_host = Some(UnknownHost::Refuse);
        site
    };
    let one = check(&[refusing(site("127.0.0.1:1", &["a.test"]))]).unwrap();
    assert_eq!(one[0].sites().unwrap().len(), 1);
    let second = check(&[all[0].clone(), refusing(all[2].clone())]).unwrap();
    assert!(second[0].refuses_unknown_hosts());
}

#[test]
fn sites_that_cannot_share_an_address_are_refused_with_the_reason() {
    let a = || site("127.0.0.1:1", &["a.test"]);
    let b = |change: fn(&mut ListenerConfig)| {
        let mut site = site("127.0.0.1:1", &["b.test"]);
        change(&mut site);
        site
    };
    for (second, said) in [
        (site("127.0.0.1:1", &["x.test", "a.test"]), "has the name a.test;"),
        (site("127.0.0.1:1", &[]), "its certificates have no host name"),
        (b(|site| site.max_per_client = Some(3)), "--max-per-client: it holds before a client names a site"),
        (b(|site| site.claims.deny = "192.0.2.1".parse().unwrap()), "--deny-clients: it holds before"),
        (b(|site| site.senders.allow = "10.0.0.0/8".parse().unwrap()), "--allow: it holds before"),
        (b(|site| site.tls = None), "--listen 127.0.0.1:1 is given twice"),
        (b(|site| (site.http, site.tls) = (None, None)), "--listen 127.0.0.1:1 is given twice"),
    ] {
        let error = check(&[a(), second]).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    let config = Config { listeners: vec![a(), b(|_| ())], ..Config::default() };
    assert!(config.check().unwrap_err().to_string().contains("is given twice"), "one entry is one site");
}

#[test]
fn redirects_to_the_same_port_share_an_address() {
    let plain = |redirect| {
        let mut site = site("127.0.0.1:80", &["a.test"]);
        site.tls = None;
        site.http.as_mut().unwrap().redirect = redirect;
        site
    };
    assert_eq!(check(&[plain(Some(443)), plain(Some(443))]).unwrap().len(), 1);
    for other in [Some(444), None] {
        let error = check(&[plain(Some(443)), plain(other)]).unwrap_err();
        assert!(error.starts_with("--on-http: "), "{error}");
    }
}

#[test]
fn a_name_without_a_certificate_is_warned_of() {
    let mut without = site("127.0.0.1:1", &["a.test", "b.test"]);
    without.tls.as_mut().unwrap().own_names = vec!["*.test".to_owned()];
    let warning = |site: ListenerConfig| {
        let site = check(&[site]).unwrap().remove(0);
        warning_of_names(&site.names, site.tls.as_deref().unwrap())
    };
    assert_eq!(warning(without.clone()), None);
    without.tls.as_mut().unwrap().own_names = vec!["a.test".to_owned()];
    let warning = warning(without).unwrap();
    assert!(warning.starts_with("--host b.test: no certificate"), "{warning}");
}

#[test]
fn a_reload_names_the_sites_that_have_come_changed_or_gone() {
    let at = |name: &str| site("127.0.0.1:1", &[name]);
    let words = |old: &[ListenerConfig], new: &[ListenerConfig]| {
        let changes = diff(&check(old).unwrap(), &check(new).unwrap());
        let said = |change: &Change| match change {
            Change::SetRules(_, parts) => parts.iter().map(Part::to_string).collect::<Vec<_>>().join(", "),
            Change::Open(_) | Change::Close(_) => "another socket".to_owned(),
        };
        changes.iter().map(said).collect::<Vec<_>>()
    };
    let mut other = at("b.test");
    other.http.as_mut().unwrap().methods = vec!["GET".to_owned()];
    let two = [at("a.test"), at("b.test")];
    assert_eq!(words(&two, &two), [""; 0]);
    assert_eq!(words(&two[..1], &two), ["site b.test"]);
    assert_eq!(words(&two, &[at("a.test"), other.clone()]), ["site b.test"]);
    assert_eq!(words(&two, &[at("b.test"), at("a.test")]), ["first site b.test"]);
    assert_eq!(
        words(&two, &[at("c.test"), other]),
        ["first site c.test, site c.test, site b.test, site a.test"]
    );
    let gone = diff(&check(&two).unwrap(), &check(&two[..1]).unwrap());
    assert!(matches!(&gone[..], [Change::SetRules(_, parts)] if *parts == [Part::Gone("b.test".to_owned())]));
}
