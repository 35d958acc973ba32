//! Several attachments in one network namespace share its programs and tables. Here: what all of them need
//! together, and what one may not take from the others unasked.

use std::collections::BTreeSet;

use crate::error::AttachError;
use crate::place::Place;
use crate::rules::{Others, Rules};
use crate::sizes::Sizes;
use crate::tables::Tables;

/// Refuses what would take something from others unasked.
pub(crate) fn check(tables: &Tables, rules: &Rules, others: Others) -> Result<(), AttachError> {
    tables.check_room(rules)?;
    let none_or = |ports: Vec<String>, error: fn(Vec<String>) -> AttachError| {
        if ports.is_empty() { Ok(()) } else { Err(error(ports)) }
    };
    match others {
        Others::AreNamed => none_or(tables.left_by(rules)?, |ports| AttachError::LeftOut { ports }),
        Others::Leave => Ok(()),
        Others::Stay { may_be_taken } => {
            if !may_be_taken {
                none_or(tables.taken_from(rules)?, |ports| AttachError::Taken { ports })?;
            }
            tables.shared_backend(rules)?.map_or(Ok(()), |port| Err(AttachError::SharedBackend(port)))
        }
    }
}

/// What the programs serve: these rules, and those that stay.
pub(crate) struct Whole {
    /// These rules, with all attached ports.
    pub(crate) rules: Rules,
    /// The TCP ports that need the programs, also those that drain.
    pub(crate) tcp_ports: BTreeSet<u16>,
}

impl Whole {
    pub(crate) fn of(
        place: &Place,
        rules: &Rules,
        others: Others,
        known: Option<&Tables>,
    ) -> Result<Self, AttachError> {
        let mut rules = rules.clone();
        let Some(tables) = known else { return Ok(Self { tcp_ports: rules.tcp_ports.clone(), rules }) };
        if matches!(others, Others::Stay { .. }) {
            rules.tcp_ports.extend(tables.judged_ports()?);
            for (number, udp_port) in tables.udp_ports()? {
                rules.udp_ports.entry(number).or_insert(udp_port.rule());
            }
            rules.max_flows = Sizes::in_use(place, "tp_flows")?.unwrap_or(rules.max_flows);
            rules.max_udp_flows = Sizes::in_use(place, "tp_udp_flows")?.unwrap_or(rules.max_udp_flows);
        }
        let tcp_ports = rules.tcp_ports.iter().copied().chain(tables.ports()?.into_keys()).collect();
        Ok(Self { rules, tcp_ports })
    }
}
