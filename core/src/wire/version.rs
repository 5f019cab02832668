//! The server's version, from its `userAgent`.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{cmp::Ordering, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A version by the full semver grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    major: u64,
    minor: u64,
    patch: u64,
    pre: Vec<String>,
    build: Option<String>,
}

impl Version {
    /// A release.
    #[must_use]
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self {
            major,
            minor,
            patch,
            pre: Vec::new(),
            build: None,
        }
    }

    /// Reads `MAJOR.MINOR.PATCH[-PRE][+BUILD]`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, build) = match text.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (text, None),
        };
        let (core, pre) = match rest.split_once('-') {
            Some((core, pre)) => (core, Some(pre)),
            None => (rest, None),
        };
        let word =
            |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let number = |n: &str| {
            let plain = n.bytes().all(|b| b.is_ascii_digit()) && (n == "0" || !n.starts_with('0'));
            if plain { n.parse::<u64>().ok() } else { None }
        };
        let mut numbers = core.split('.').map(number);
        let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
        if numbers.next().is_some() {
            return None;
        }
        let pre: Vec<String> = match pre {
            None => Vec::new(),
            Some(pre) => {
                let fits = |w: &str| {
                    let digits = w.bytes().all(|b| b.is_ascii_digit());
                    word(w) && (!digits || w == "0" || !w.starts_with('0'))
                };
                if !pre.split('.').all(fits) {
                    return None;
                }
                pre.split('.').map(String::from).collect()
            }
        };
        if build.is_some_and(|b| !b.split('.').all(word)) {
            return None;
        }
        Some(Self {
            major,
            minor,
            patch,
            pre,
            build: build.map(String::from),
        })
    }

    /// Reads the version out of a `userAgent`: behind the first slash, up to white space.
    #[must_use]
    pub fn of_user_agent(user_agent: &str) -> Option<Self> {
        let (_, rest) = user_agent.split_once('/')?;
        Self::parse(rest.split_whitespace().next()?)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch)
            .cmp(&(other.major, other.minor, other.patch))
            .then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
                // A pre-release counts as below its release.
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => compare_pre(&self.pre, &other.pre),
            })
            // Builds have no precedence; comparing them keeps the order total.
            .then_with(|| self.build.cmp(&other.build))
    }
}

fn compare_pre(a: &[String], b: &[String]) -> Ordering {
    for (a, b) in a.iter().zip(b) {
        let order = match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if !self.pre.is_empty() {
            write!(f, "-{}", self.pre.join("."))?;
        }
        self.build
            .as_ref()
            .map_or(Ok(()), |build| write!(f, "+{build}"))
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom(format!("bad version {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_and_compare_as_semver_says() {
        let order = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "1.0.1",
            "1.1.0",
            "2.0.0",
        ];
        let read: Vec<Version> = order.iter().map(|t| Version::parse(t).unwrap()).collect();
        assert!(read.windows(2).all(|w| w[0] < w[1]));
        assert!(read.iter().zip(order).all(|(v, t)| v.to_string() == t));
        for bad in [
            "1.0", "1.0.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "v1.0.0", "",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_version_stands_behind_the_first_slash() {
        let agent = "probe/0.171.0 (Debian 12.0.0; x86_64) xterm (probe; 0.0.1)";
        assert_eq!(Version::of_user_agent(agent), Some(Version::new(0, 171, 0)));
        let pre = Version::of_user_agent("turnkeep/0.163.0-alpha.3 (x)").unwrap();
        assert!(pre < Version::new(0, 163, 0));
        assert_eq!(Version::of_user_agent("turnkeep"), None);
    }
}
