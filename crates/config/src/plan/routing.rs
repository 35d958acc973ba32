//! The rules and routes that `proxy`, `routes` and `doctor` ask for.

use std::net::SocketAddr;

use ipnet::IpNet;
use truepeer_policy::{Destinations, Source};

use super::checked::Checked;
use super::listener::BackendsConfig;
use super::problem::{OptionName, Problem};
use super::{Config, resolve};
use crate::spec::{Family, HostPort, RoutingArgs, defaults};
use truepeer_routes::options::SetupOptions;

/// Resolves names.
pub fn setup_options(spec: &RoutingArgs) -> Result<SetupOptions, Problem> {
    let transport = spec.protocol.unwrap_or_default().into();
    let listen_transparent = spec.listen_transparent.iter().map(resolve::listen);
    let dynamic = spec.dynamic_allow.iter().flat_map(Destinations::iter);
    Ok(SetupOptions {
        backends: backends(spec)?.into_iter().map(|backend| (backend, transport)).collect(),
        dynamic: dynamic.map(|(prefix, ports)| (prefix, ports, transport)).collect(),
        mark: spec.mark.unwrap_or_default(),
        table: spec.table.unwrap_or(defaults::TABLE),
        listen_transparent: listen_transparent.collect::<Result<_, _>>()?,
        tproxy_ports: spec.tproxy_ports.clone(),
        tproxy_mark: spec.tproxy_mark.unwrap_or(defaults::TPROXY_MARK),
    })
}

/// What the listeners of a plan ask for.
pub fn setup_of(config: &Config, checked: &Checked) -> SetupOptions {
    let mut options = SetupOptions { table: config.routes.table, ..SetupOptions::default() };
    for listener in &checked.listeners {
        let transport = listener.config.protocol.into();
        options.listen_transparent.extend(listener.config.transparent.then_some(listener.config.bind));
        let delivery = &listener.policy.delivery;
        if delivery.source == Source::Any {
            // upstream sockets have our own address: replies come back by themselves
            continue;
        }
        let all = [delivery.backends].into_iter().chain(listener.read.origins.iter().copied());
        for backend in all.flat_map(|backends| [backends.ipv4, backends.ipv6]).flatten() {
            if backend.get().port() == 0 {
                options.dynamic.push((IpNet::from(backend.ip()), 1..=u16::MAX, transport));
            } else {
                options.backends.push((backend.get(), transport));
            }
        }
        let dynamic = delivery.dynamic.iter().flat_map(|dynamic| dynamic.allow.iter());
        options.dynamic.extend(dynamic.map(|(prefix, ports)| (prefix, ports, transport)));
        options.mark = if options.mark == 0 { listener.config.mark } else { options.mark };
    }
    options
}

/// Whether the options say what `proxy` is to do, not only where to look.
pub fn names_routing(spec: &RoutingArgs) -> bool {
    names_backends(spec)
        || spec.protocol.is_some()
        || spec.mark.is_some()
        || spec.table.is_some()
        || !spec.dynamic_allow.is_empty()
        || !spec.listen_transparent.is_empty()
}

/// Whether a backend was given, or the default applies.
pub fn names_backends(spec: &RoutingArgs) -> bool {
    !(spec.ipv4.is_empty() && spec.ipv6.is_empty())
}

fn backends(spec: &RoutingArgs) -> Result<Vec<SocketAddr>, Problem> {
    let usual = BackendsConfig::default();
    let of = |family, written: &[HostPort], usual: Option<HostPort>| -> Result<Vec<_>, Problem> {
        let place = OptionName(if family == Family::Ipv4 { "ipv4" } else { "ipv6" });
        let usual = usual.filter(|_| !names_backends(spec));
        written
            .iter()
            .chain(&usual)
            .map(|backend| {
                if family == Family::Ipv4 {
                    resolve::refuse_ipv6(backend, "")?;
                }
                Ok(resolve::backend(backend, place, family)?.get())
            })
            .collect()
    };
    let mut all = of(Family::Ipv4, &spec.ipv4, usual.ipv4)?;
    all.extend(of(Family::Ipv6, &spec.ipv6, usual.ipv6)?);
    Ok(all)
}
