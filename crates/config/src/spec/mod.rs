//! The command line as written: every option is a field, and no default is filled in. Flags fill these
//! structs now; a file's keys will.
//!
//! An option is declared once: its field has its type, [`defaults::OPTIONS`] its default and help. Options
//! shared by several commands are in `groups`, flattened into each.
#![allow(rustdoc::broken_intra_doc_links, reason = "[::1] is an address")]

mod acme;
mod address;
mod attach;
mod bans;
mod confine;
mod connect;
pub mod defaults;
mod device;
mod doctor;
mod groups;
mod https;
mod operate;
mod origin;
mod port;
mod probe;
mod proxy;
mod routes;
mod routing;
mod run;
mod sender;
mod serve;
mod splice;
pub mod text;
mod tlv;
pub mod values;
mod vpp;

pub use acme::{AcmeDirectory, AcmeSpec, AcmeTable};
pub use address::{AdminAddr, Family, HostPort, ListenAddr, OriginUrl};
pub use attach::{
    AttachAction, AttachArgs, AttachSpec, AttachTarget, Engine, OciHookArgs, PlaceArgs, Unshowable,
};
pub use bans::{BanArgs, Banned, BansArgs, CrowdsecArgs, UnbanArgs};
pub use confine::{ConfineMode, ConfineSpec, UserName};
pub use connect::ConnectArgs;
pub use device::VppDevice;
pub use doctor::DoctorArgs;
pub use groups::{AdminSpec, LogSpec, OriginSpec, ProcessSpec, RoutesSpec, SendersSpec, TlsSpec};
pub use https::HttpsSpec;
pub use operate::{AskSpec, SessionsArgs, StatusArgs, TopArgs, WhoisArgs};
pub use origin::{HealthOption, OriginMatch, OriginRule};
pub use port::{AttachPorts, Port};
pub use probe::ProbeArgs;
pub use proxy::ProxySpec;
pub use routes::{RoutesAction, RoutesArgs};
pub use routing::RoutingArgs;
pub use run::{HowArgs, RunArgs, Via};
pub use sender::SenderName;
pub use serve::{
    AdminTable, CheckArgs, FileSpec, LogTable, ProcessTable, ReloadArgs, ServeArgs, UpgradeArgs,
};
pub use splice::{SpliceAfter, SpliceLinger, SpliceMode};
pub use tlv::{RequiredTlv, SecretTlv};
pub use truepeer_routes::options::RoutesMode;
pub use values::{
    Carried, ClientAddressConfig, ClientCert, Deny, HeaderOption, LogFormat, OnHttp, OriginProtocolConfig,
    PrefixesOrFile, Protocol, SendProxy, SenderRule, UnknownHost, Verbosity,
};
pub use vpp::{Stack, StackArgs, UpArgs, VppAction, VppArgs, VppDemoArgs, VppPlaceArgs, VppRunArgs};
