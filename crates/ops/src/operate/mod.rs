//! Commands that watch and steer a running truepeer: `status`, `sessions`, `whois`, `top`, `ban`, `unban` and
//! `bans`.

mod bans;
mod sessions;
mod status;
mod top;
mod whois;

pub use bans::{BanPlaces, BanTerms, ban, ban_clients, bans, unban, unban_clients};
pub use sessions::sessions;
pub use status::status;
pub use top::top;
pub use whois::whois;
