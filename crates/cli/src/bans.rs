//! `truepeer ban`, `unban`, `bans` and `crowdsec`.

use clap::{Args as _, Command};

use super::dress::{Page, dress, example};
use crate::table;
use truepeer_config::spec::{BanArgs, BansArgs, CrowdsecArgs, UnbanArgs};

const BAN: Page = Page {
    which: table::BAN,
    examples: &[
        example("A client, for an hour", "truepeer ban 203.0.113.7 --for 1h --why \"five wrong passwords\""),
        example("A network, from one port", "truepeer ban 2001:db8:7::/48 --port 443"),
        example("A list, an address or prefix a line", "truepeer ban ./blocklist.txt --for 1d"),
    ],
    notes: "\
A client is whom PROXY headers name, or who connects without one: not the load balancer. New connections, requests and datagrams are refused at once, open ones end within a second. Reload and upgrade keep bans. A second ban of the same client replaces the first one, unless that has another reason (--why) and ends later.

Who may write to the admin socket may ban in that process. A load balancer's own health checks are never banned. Programs under truepeer run can't be told of bans: use truepeer attach or truepeer proxy.",
};

const UNBAN: Page = Page {
    which: table::UNBAN,
    examples: &[
        example("A client", "truepeer unban 203.0.113.7"),
        example("Everybody", "truepeer unban --all"),
    ],
    notes: "A ban ends as a whole: of a banned network, no single address can be let in. It is no error if nobody was banned so.",
};

const BANS: Page = Page {
    which: table::BANS,
    examples: &[example("Who is banned", "truepeer bans"), example("For machines", "truepeer bans --json")],
    notes: "LEFT is the time until the ban ends by itself. BY is the user who set it.",
};

const CROWDSEC: Page = Page {
    which: table::CROWDSEC,
    examples: &[
        example("As root: make a key", "cscli bouncers add truepeer -o raw >/etc/truepeer/crowdsec.key"),
        example("Follow the local API of this host", "truepeer crowdsec --key @/etc/truepeer/crowdsec.key"),
        example("By systemd", "systemctl enable --now truepeer-crowdsec"),
    ],
    notes: "\
Bans are those of truepeer ban --keep: in the running truepeer, at attached ports, and for programs under truepeer run. That takes root. WHY in truepeer bans is \"crowdsec: \" and the scenario. Decisions of type ban about addresses and ranges are followed; others are left out. A ban that truepeer ban --keep has set meanwhile stays.

While the local API is silent, bans end by their own time. The exit status is 1 if it refuses the key.",
};

pub(super) fn ban() -> Command {
    dress(BanArgs::augment_args(Command::new("ban")), &BAN)
}

pub(super) fn unban() -> Command {
    dress(UnbanArgs::augment_args(Command::new("unban")), &UNBAN)
}

pub(super) fn bans() -> Command {
    dress(BansArgs::augment_args(Command::new("bans")), &BANS)
}

pub(super) fn crowdsec() -> Command {
    dress(CrowdsecArgs::augment_args(Command::new("crowdsec")), &CROWDSEC)
}
