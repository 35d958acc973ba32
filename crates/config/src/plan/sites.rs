//! Several `[[https]]` on one address: sites, told apart by the name that clients ask for (SNI).

use truepeer_stream::tls::ServerTls;

use super::key::ListenerKey;
use super::listener::ListenerConfig;
use super::problem::{OptionName, Problem};

/// The names that clients ask for: those that were given, or those of the certificates.
pub(super) fn names(config: &ListenerConfig, tls: Option<&ServerTls>) -> Vec<String> {
    let given = config.http.as_ref().map(|http| http.hosts.as_slice()).unwrap_or_default();
    match tls {
        None => Vec::new(),
        Some(tls) if given.is_empty() => tls.names().to_vec(),
        Some(_) => given.to_vec(),
    }
}

/// A site among those of its address.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) key: ListenerKey,
    pub(super) config: &'a ListenerConfig,
    pub(super) names: &'a [String],
}

/// Refuses a site that can't share the address of an earlier one.
pub(super) fn refuse_beside<'a>(
    site: Site<'_>,
    mut earlier: impl Iterator<Item = Site<'a>>,
) -> Result<(), Problem> {
    if site.key.copy == 0 || site.key.address.port() == 0 {
        return Ok(());
    }
    let address = (site.key.protocol, site.key.address);
    earlier.try_for_each(|other| {
        if (other.key.protocol, other.key.address) != address {
            return Ok(());
        }
        refuse_unlike(site.config, other.config)?;
        site.names.iter().find(|name| other.names.contains(name)).map_or(Ok(()), |name| {
            let expected = "other certificates or --host NAME";
            let taken =
                format!("an earlier [[https]] of this address has the name {name}; expected {expected}");
            Err(at_listener(site, taken))
        })
    })?;
    if site.names.is_empty() && site.config.tls.is_some() {
        let expected =
            "no client can ask for this site: its certificates have no host name; expected --host NAME"
                .to_owned();
        return Err(at_listener(site, expected));
    }
    Ok(())
}

fn at_listener(site: Site<'_>, expected: String) -> Problem {
    let value = format!(" {}", site.key.address);
    Problem::Value { place: OptionName("listen"), value, expected }
}

/// What holds before a client has named a site must be the same for all of them.
fn refuse_unlike(one: &ListenerConfig, other: &ListenerConfig) -> Result<(), Problem> {
    let redirect = |config: &ListenerConfig| config.http.as_ref().and_then(|http| http.redirect);
    match (&one.tls, &other.tls) {
        (Some(_), Some(_)) => {}
        (None, None) if redirect(one).is_some() && redirect(one) == redirect(other) => {}
        (None, None) => {
            return Err(Problem::at(
                "on-http",
                "without TLS, sites can share an address only for --on-http redirect to the same port",
            ));
        }
        _ => return Err(Problem::ListenTwice { listener: one.bind, is_proxy: false }),
    }
    let unknown = |config: &ListenerConfig| config.http.as_ref().and_then(|http| http.unknown_host);
    let is_contradicted =
        unknown(one).is_some_and(|wanted| unknown(other).is_some_and(|first| first != wanted));
    let rules = [
        (
            "allow",
            one.senders.allow != other.senders.allow || one.senders.allow_files != other.senders.allow_files,
        ),
        ("require-tlv", one.senders.require_tlv != other.senders.require_tlv),
        ("header", one.senders != other.senders),
        ("header-timeout", one.header != other.header),
        (
            "allow-claims",
            (&one.claims.allow, one.claims.allow_host) != (&other.claims.allow, other.claims.allow_host),
        ),
        ("deny-clients", one.claims != other.claims),
        ("max-per-client", one.max_per_client != other.max_per_client),
        ("tls-timeout", one.tls.is_some() && one.tls_timeout != other.tls_timeout),
        ("unknown-host", is_contradicted),
    ];
    let Some((option, _)) = rules.into_iter().find(|(_, differs)| *differs) else { return Ok(()) };
    Err(Problem::at(
        option,
        "it holds before a client names a site; expected the same for each [[https]] of this address",
    ))
}

/// Names that no certificate of the site has.
pub(super) fn warning_of_names(names: &[String], tls: &ServerTls) -> Option<String> {
    let has = |name: &str| {
        let parent = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
        tls.names().iter().any(|one| one == name || Some(one) == parent.as_ref())
    };
    let missing = names.iter().find(|name| !has(name))?;
    Some(format!("--host {missing}: no certificate of this site has the name, so clients will refuse it"))
}

#[cfg(test)]
mod tests;
