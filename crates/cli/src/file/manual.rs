//! truepeer.toml(5): the keys of each table, from the options that they are.

use clap_mangen::roff::{Roff, bold, italic, roman};

use super::entry::{ENTRIES, grammar, rows};
use super::keys::{self, Grammar, in_keys};
use crate::table::{self, Commands};
use truepeer_config::date;
use truepeer_config::spec::{AcmeTable, AdminTable, LogTable, ProcessTable, defaults};

const ABOUT: &str = "\
truepeer serve does what this file says, in one process. It is TOML: tables of keys and values. [[proxy]], [[https]] and \
[[attach]] may stand any number of times; their keys are the long options of truepeer-proxy(1), truepeer-https(1) and \
truepeer-attach(1). A switch is true or false. An option that takes a number takes it as it is; times and sizes with a unit, \
addresses and names are strings. An option that can be repeated takes a list. Relative paths begin at the file's directory.";

/// The page.
pub(crate) fn manual() -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"]).text([roman("truepeer.toml - the configuration of truepeer serve")]);
    roff.control("SH", ["SYNOPSIS"]).text([bold(defaults::CONFIG)]);
    roff.control("SH", ["DESCRIPTION"]).text([roman(ABOUT)]);
    roff.control("PP", []).text([roman("truepeer check prints everything that is wrong in the file.")]);
    section(&mut roff, "BEFORE THE FIRST TABLE", &keys::of_table::<ProcessTable>(), table::PROXY);
    section(&mut roff, "[admin]", &keys::of_table::<AdminTable>(), table::ADMIN_TABLE);
    section(&mut roff, "[log]", &keys::of_table::<LogTable>(), table::LOG_TABLE);
    section(&mut roff, "[acme]", &keys::of_table::<AcmeTable>(), table::ACME_TABLE);
    for entry in ENTRIES {
        section(&mut roff, &format!("[[{entry}]]"), &grammar(entry), rows(entry));
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("truepeer(1), truepeer-serve(1), truepeer-check(1)")]);
    date::title("truepeer.toml", 5) + &roff.render()
}

fn section(roff: &mut Roff, title: &str, grammar: &Grammar, rows: Commands) {
    roff.control("SH", [title]);
    let mut keys: Vec<_> =
        grammar.keys().filter_map(|arg| Some((arg, table::find(rows, arg.get_long()?)?))).collect();
    keys.sort_by_key(|(_, (place, _))| *place);
    for (arg, (_, row)) in keys {
        let value = if arg.get_action().takes_values() { row.value } else { "true|false" };
        roff.control("TP", []).text([bold(row.name), roman(" = "), italic(value)]);
        roff.text([roman(in_keys(&row.text()))]);
    }
}
