//! Loads that are compared with each other: each suite has its contestants, its summary and its page.

use std::str::FromStr;

use super::Load;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// A PROXY header, then any protocol.
    Proxy,
    /// HTTPS in, HTTPS out.
    Https,
    /// The same, on the kernel's network stack and on VPP's.
    Stacks,
}

impl Suite {
    pub(crate) const ALL: [Suite; 3] = [Suite::Proxy, Suite::Https, Suite::Stacks];

    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Https => "https",
            Self::Stacks => "stacks",
        }
    }

    pub(crate) fn loads(self) -> Vec<Load> {
        Load::ALL.into_iter().filter(|load| load.suite() == self).collect()
    }
}

/// Loads by name: one, or all of a suite.
#[derive(Debug, Clone)]
pub(crate) struct Selection(pub(crate) Vec<Load>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name);
        Ok(Self(suite.map_or_else(|| name.parse().map(|load| vec![load]), |suite| Ok(suite.loads()))?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_mean_several_loads() {
        assert_eq!("https-10".parse::<Selection>().unwrap().0, [Load::Https10]);
        assert!("https".parse::<Selection>().unwrap().0.len() > 1);
        assert!("streaming".parse::<Load>().is_ok_and(|load| load.suite() == Suite::Proxy));
        assert!("nothing".parse::<Selection>().is_err());
        let all: usize = Suite::ALL.iter().map(|suite| suite.loads().len()).sum();
        assert_eq!(all, Load::ALL.len());
    }
}
