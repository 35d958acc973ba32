//! Which senders may send a header, which clients they may claim, and where a session goes: pure decisions.
//!
//! No I/O, no clock, no allocation once built, except to change who is banned ([`Bans`]). For this host's
//! addresses it calls a function of the caller ([`HostAddresses`]). Every way of delivery uses it: the relay
//! calls [`Policy::admit`] at accept and [`Policy::route`] once the header is complete. Ways without their own
//! upstream socket (preload, kernel) call [`Policy::admit`] and [`Policy::client`].
//!
//! ```text
//! SenderAddr ──admit──▶ HeaderRule ───(HeaderReader)────▶ client ──route──▶ Route { client, source, backend }
//!                │                                          │        │
//!                └──────────────── Refusal ◀────────────────┴────────┘
//! ```
#![forbid(unsafe_code)]

mod addr;
mod asked;
mod bans;
mod claims;
mod destination;
mod dialect;
mod family;
mod kept;
mod notation;
mod opening;
mod policy;
mod prefixes;
mod proof;
mod refusal;
mod route;
mod senders;

pub use addr::{BackendAddr, ClientAddr, SenderAddr};
pub use asked::{AskedAddress, AskedAddressError, StandIn};
pub use bans::{Ban, BannedPrefix, BannedPrefixError, Bans, BansAt, Lifted, TooManyBans};
pub use claims::{Claims, HostAddresses, SpecialRange, without_nat64};
pub use destination::{Destinations, DestinationsError, Dynamic};
pub use dialect::{Dialect, ParseDialectError};
pub use family::{Nat64Prefix, Nat64PrefixError, pseudo_ipv4};
pub use kept::KEPT_BANS;
pub use notation::{above_255, prefixes_meant};
pub use opening::{HeaderError, HeaderReader, HeaderTimes, LATE_BYTES, Opening};
pub use policy::{Policy, speaks_for_itself};
pub use prefixes::{PrefixError, PrefixFileError, PrefixSet};
pub use proof::{
    DIGEST_WINDOW, MOST_SECRETS, Proof, SECRET_LEN, Secrets, SecretsError, SentTlv, SentValue, Unproved,
};
pub use refusal::{Refusal, UnusableDestination};
pub use route::{Backends, Client, Delivery, OnConflict, Origin, ParseOnConflictError, Route, Source};
pub use senders::{HeaderRule, OptionalForMost, ParseHeaderRuleError, Senders};
