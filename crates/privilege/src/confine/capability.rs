//! The capabilities that truepeer can use, by name and by the kernel's bit.

use std::fmt;

use rustix::thread::CapabilitySet;

macro_rules! capabilities {
    ($($variant:ident = $name:literal $bits:ident;)*) => {
        /// A capability of capabilities(7).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Capability {
            $(#[doc = $name] $variant,)*
        }

        impl Capability {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            /// As setcap(8) spells it.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            pub(crate) const fn set(self) -> CapabilitySet {
                match self { $(Self::$variant => CapabilitySet::$bits,)* }
            }
        }
    };
}

capabilities! {
    NetRaw = "cap_net_raw" NET_RAW;
    NetAdmin = "cap_net_admin" NET_ADMIN;
    NetBindService = "cap_net_bind_service" NET_BIND_SERVICE;
    SysResource = "cap_sys_resource" SYS_RESOURCE;
    DacReadSearch = "cap_dac_read_search" DAC_READ_SEARCH;
    DacOverride = "cap_dac_override" DAC_OVERRIDE;
    SetUid = "cap_setuid" SETUID;
    SetGid = "cap_setgid" SETGID;
    Bpf = "cap_bpf" BPF;
    Perfmon = "cap_perfmon" PERFMON;
    SysAdmin = "cap_sys_admin" SYS_ADMIN;
    SysPtrace = "cap_sys_ptrace" SYS_PTRACE;
}

impl Capability {
    pub(crate) fn is_in(self, set: CapabilitySet) -> bool {
        set.contains(self.set())
    }

    /// Those of `set`, `cap_net_raw cap_net_admin`; `none` if it is empty.
    pub fn names_in(set: CapabilitySet) -> String {
        let names: Vec<_> = Self::ALL.iter().filter(|one| one.is_in(set)).map(|one| one.name()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(" ") }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().to_uppercase())
    }
}

/// This thread's effective capabilities.
pub fn held() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}
