//! The command line as written: every option is a field, and no default is filled in. Flags fill these structs
//! now; a file's keys will.
//!
//! An option is declared once: its field has its type, [`defaults::OPTIONS`] its default and help. Options shared
//! by several commands are in `groups`, flattened into each.
#![allow(rustdoc::broken_intra_doc_links, reason = "[::1] is an address")]

mod address;
mod attach;
mod confine;
mod connect;
pub(crate) mod defaults;
mod device;
mod doctor;
mod groups;
mod https;
mod operate;
mod origin;
mod port;
mod proxy;
mod routes;
mod routing;
mod run;
mod serve;
mod splice;
pub(crate) mod table;
pub(crate) mod text;
mod texts;
pub(crate) mod values;
mod vpp;

pub(crate) use address::{AdminAddr, Family, HostPort, ListenAddr, OriginUrl};
pub(crate) use attach::{
    AttachAction, AttachArgs, AttachSpec, AttachTarget, Engine, OciHookArgs, PlaceArgs, Unshowable,
};
pub(crate) use confine::{ConfineMode, ConfineSpec, UserName};
pub(crate) use connect::ConnectArgs;
pub(crate) use device::VppDevice;
pub(crate) use doctor::DoctorArgs;
pub(crate) use groups::{AdminSpec, LogSpec, OriginSpec, ProcessSpec, RoutesSpec, SendersSpec, TlsSpec};
pub(crate) use https::HttpsSpec;
pub(crate) use operate::{AskSpec, SessionsArgs, StatusArgs, TopArgs};
pub(crate) use origin::{HealthOption, OriginMatch, OriginRule};
pub(crate) use port::{AttachPorts, Port};
pub(crate) use proxy::ProxySpec;
pub(crate) use routes::{RoutesAction, RoutesArgs};
pub(crate) use routing::RoutingArgs;
pub(crate) use run::{HowArgs, RunArgs, Via};
pub(crate) use serve::{
    AdminTable, CheckArgs, FileSpec, LogTable, ProcessTable, ReloadArgs, ServeArgs, UpgradeArgs,
};
pub(crate) use splice::{SpliceAfter, SpliceLinger, SpliceMode};
pub(crate) use texts::{CompletionArgs, ManArgs};
pub(crate) use truepeer_routes::options::RoutesMode;
pub(crate) use values::{
    Carried, ClientAddressConfig, ClientCert, Deny, HeaderOption, LogFormat, OnHttp, OriginProtocolConfig,
    PrefixesOrFile, Protocol, SendProxy, SenderRule, Verbosity,
};
pub(crate) use vpp::{Stack, StackArgs, UpArgs, VppAction, VppArgs, VppDemoArgs, VppPlaceArgs, VppRunArgs};
