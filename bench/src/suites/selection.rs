//! Loads by name: one, or all of a suite.

use std::str::FromStr;

use super::load::Load;
use super::suite::Suite;

/// Loads by name: one, or all of a suite.
#[derive(Debug, Clone)]
pub(crate) struct Selection(pub(crate) Vec<Load>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let suite = Suite::ALL.into_iter().find(|suite| suite.name() == name);
        Ok(Self(suite.map_or_else(|| name.parse().map(|load| vec![load]), |suite| Ok(loads_of(suite)))?))
    }
}

/// The loads of a suite, in the order of the tables.
fn loads_of(suite: Suite) -> Vec<Load> {
    Load::ALL.into_iter().filter(|load| load.suite() == suite).collect()
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
        let all: usize = Suite::ALL.into_iter().map(|suite| loads_of(suite).len()).sum();
        assert_eq!(all, Load::ALL.len());
    }
}
