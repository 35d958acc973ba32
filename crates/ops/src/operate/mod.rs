//! Commands that watch and steer a running truepeer: `status`, `sessions`, `whois`, `top`, `ban`, `unban` and
//! `bans`.

mod bans;
mod crowdsec;
mod sessions;
mod status;
mod top;
mod whois;

pub use bans::{ban, bans, unban};
pub use crowdsec::crowdsec;
pub use sessions::sessions;
pub use status::status;
pub use top::top;
pub use whois::whois;
