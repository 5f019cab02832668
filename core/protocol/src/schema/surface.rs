//! All that a schema has, one thing a line, and what of it each version has.
//!
//! A line is one fact: a method with its types, a type with its kind, a member with its shape, a
//! word. Two servers differ in what their lines differ.

use alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

use super::{Body, Fields, Method, Model, Shape};

/// A version of the server, of which both schemas are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Its version, such as `0.171.0`.
    pub version: String,
    /// What it has for every client.
    pub stable: Model,
    /// What it has for a client that asked for `experimentalApi`: all of `stable`, and more.
    pub experimental: Model,
}

/// Which facts hold for which versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surface {
    versions: Vec<String>,
    facts: BTreeMap<Fact, Vec<Has>>,
}

/// Something that a schema has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fact {
    /// What it is about.
    about: String,
    /// What is so.
    is: String,
}

/// How a version has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Has {
    No,
    Experimental,
    Stable,
}

impl Has {
    const fn letter(self) -> char {
        match self {
            Self::No => '-',
            Self::Experimental => 'x',
            Self::Stable => 's',
        }
    }

    const fn read(letter: char) -> Option<Self> {
        match letter {
            '-' => Some(Self::No),
            'x' => Some(Self::Experimental),
            's' => Some(Self::Stable),
            _ => None,
        }
    }
}

/// A text is no list of facts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no fact of the protocol: {text}")]
#[non_exhaustive]
pub struct SurfaceError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
}

/// How a server differs from what the types know.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drift {
    /// The version that it is compared with.
    pub compared_with: String,
    /// What differs, in order.
    pub differences: Vec<Difference>,
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// What it is about, such as `request thread/list` or `Thread.name`.
    pub about: String,
    /// How it differs.
    pub kind: DifferenceKind,
}

/// How something differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DifferenceKind {
    /// The server has it, and the types do not.
    New {
        /// What it is.
        is: String,
    },
    /// The types have it, and the server does not.
    Gone {
        /// What it was.
        was: String,
    },
    /// Both have it, as something else.
    Changed {
        /// What it was.
        was: String,
        /// What it is.
        is: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = &self.about;
        match &self.kind {
            DifferenceKind::New { is } if is.is_empty() => write!(f, "new      {about}"),
            DifferenceKind::New { is } => write!(f, "new      {about}: {is}"),
            DifferenceKind::Gone { was } if was.is_empty() => write!(f, "gone     {about}"),
            DifferenceKind::Gone { was } => write!(f, "gone     {about}: {was}"),
            DifferenceKind::Changed { was, is } => {
                write!(f, "changed  {about}: {was}, now {is}")
            }
        }
    }
}

impl Surface {
    /// What the types of this crate were made of.
    #[must_use]
    pub fn built_in() -> Self {
        Self::read(include_str!("../generated/surface.txt"))
            .expect("the generator writes what is read here")
    }

    /// What releases have, from the oldest to the newest.
    #[must_use]
    pub fn of(releases: &[Release]) -> Self {
        let mut surface = Self {
            versions: releases.iter().map(|r| r.version.clone()).collect(),
            facts: BTreeMap::new(),
        };
        for (index, release) in releases.iter().enumerate() {
            for (model, has) in [
                (&release.experimental, Has::Experimental),
                (&release.stable, Has::Stable),
            ] {
                for fact in facts(model) {
                    let all = surface.facts.entry(fact);
                    all.or_insert_with(|| alloc::vec![Has::No; releases.len()])[index] = has;
                }
            }
        }
        surface
    }

    /// Reads what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    ///
    /// A line is something else.
    pub fn read(text: &str) -> Result<Self, SurfaceError> {
        let mut lines = text.lines().enumerate();
        let error = |(index, text): (usize, &str)| SurfaceError {
            line: index + 1,
            text: text.to_owned(),
        };
        let mut surface = Self::default();
        match lines.next() {
            Some((_, first)) => surface.versions = first.split(' ').map(str::to_owned).collect(),
            None => return Err(error((0, ""))),
        }
        for (index, line) in lines {
            let parts: Vec<&str> = line.splitn(3, '\t').collect();
            let [letters, about, is] = parts.as_slice() else {
                return Err(error((index, line)));
            };
            let has: Option<Vec<Has>> = letters.chars().map(Has::read).collect();
            let Some(has) = has.filter(|has| has.len() == surface.versions.len()) else {
                return Err(error((index, line)));
            };
            let fact = Fact {
                about: (*about).to_owned(),
                is: (*is).to_owned(),
            };
            surface.facts.insert(fact, has);
        }
        Ok(surface)
    }

    /// The versions, from the oldest to the newest.
    #[must_use]
    pub fn versions(&self) -> &[String] {
        &self.versions
    }

    /// How many methods of a kind (`request`, `server request`, `notification`) a version has, for
    /// every client and in all.
    #[must_use]
    pub fn count(&self, kind: &str, version: &str) -> Option<(usize, usize)> {
        let index = self.versions.iter().position(|known| known == version)?;
        let mut methods: BTreeMap<&str, Has> = BTreeMap::new();
        for (fact, has) in &self.facts {
            if fact
                .about
                .strip_prefix(kind)
                .is_some_and(|rest| rest.starts_with(' '))
            {
                let known = methods.entry(&fact.about).or_insert(Has::No);
                *known = (*known).max(has[index]);
            }
        }
        let stable = methods.values().filter(|has| **has == Has::Stable).count();
        let all = methods.values().filter(|has| **has != Has::No).count();
        Some((stable, all))
    }

    /// How something is held by each version, in letters: `s` for every client, `x` for those that
    /// asked for `experimentalApi`, `-` not at all.
    #[must_use]
    pub fn letters(&self, about: &str) -> String {
        let mut best = alloc::vec![Has::No; self.versions.len()];
        for (fact, has) in &self.facts {
            if fact.about == about {
                for (best, has) in best.iter_mut().zip(has) {
                    *best = (*best).max(*has);
                }
            }
        }
        best.into_iter().map(Has::letter).collect()
    }

    /// What one version has.
    fn facts_of(&self, index: usize) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut facts: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (fact, has) in &self.facts {
            if has[index] != Has::No {
                facts.entry(&fact.about).or_default().insert(&fact.is);
            }
        }
        facts
    }

    /// What differs between two of its versions.
    #[must_use]
    pub fn between(&self, older: &str, newer: &str) -> Option<Vec<Difference>> {
        let index = |version| self.versions.iter().position(|known| known == version);
        let (older, newer) = (index(older)?, index(newer)?);
        Some(differences(&self.facts_of(older), &self.facts_of(newer)))
    }

    /// How a server differs from the types: from its own version where they were made of it, else
    /// from the newest.
    #[must_use]
    pub fn drift(&self, version: &str, server: &Model) -> Drift {
        let own = self.versions.iter().position(|known| known == version);
        let newest = self.versions.len().saturating_sub(1);
        let index = own.unwrap_or(newest);
        let facts = facts(server);
        let mut now: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for fact in &facts {
            now.entry(&fact.about).or_default().insert(&fact.is);
        }
        Drift {
            compared_with: self.versions.get(index).cloned().unwrap_or_default(),
            differences: differences(&self.facts_of(index), &now),
        }
    }
}

fn differences(
    was: &BTreeMap<&str, BTreeSet<&str>>,
    is: &BTreeMap<&str, BTreeSet<&str>>,
) -> Vec<Difference> {
    let text = |all: &BTreeSet<&str>| {
        // A member may differ with and without the experimental API: the fuller one comes last.
        all.iter().copied().collect::<Vec<_>>().join(" or ")
    };
    let abouts: BTreeSet<&str> = was.keys().chain(is.keys()).copied().collect();
    let mut differences: Vec<Difference> = Vec::new();
    for about in abouts {
        let kind = match (was.get(about), is.get(about)) {
            (None, Some(is)) => DifferenceKind::New { is: text(is) },
            (Some(was), None) => DifferenceKind::Gone { was: text(was) },
            (Some(was), Some(is)) if was.is_disjoint(is) => DifferenceKind::Changed {
                was: text(was),
                is: text(is),
            },
            _ => continue,
        };
        // What is in a type that is new or gone as a whole says nothing more.
        let within = |whole: &Difference| {
            !matches!(whole.kind, DifferenceKind::Changed { .. })
                && whole
                    .about
                    .strip_prefix("type ")
                    .zip(about.strip_prefix("type "))
                    .and_then(|(whole, about)| about.strip_prefix(whole))
                    .is_some_and(|rest| rest.starts_with(['.', ' ', ':']))
        };
        if differences.iter().rev().any(within) {
            continue;
        }
        differences.push(Difference {
            about: about.to_owned(),
            kind,
        });
    }
    differences
}

impl fmt::Display for Surface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.versions.join(" "))?;
        self.facts.iter().try_for_each(|(fact, has)| {
            let letters: String = has.iter().map(|has| has.letter()).collect();
            writeln!(f, "{letters}\t{}\t{}", fact.about, fact.is)
        })
    }
}

fn facts(model: &Model) -> BTreeSet<Fact> {
    let mut facts = BTreeSet::new();
    let mut add = |about: String, is: String| {
        facts.insert(Fact { about, is });
    };
    for (kind, methods) in [
        ("request", &model.requests),
        ("server request", &model.server_requests),
        ("notification", &model.notifications),
    ] {
        for (name, method) in methods {
            add(format!("{kind} {name}"), method_text(method));
        }
    }
    for (name, of) in &model.types {
        let about = format!("type {name}");
        add(about.clone(), of.body.text());
        match &of.body {
            Body::Object(fields) => members(&about, fields, &mut add),
            Body::Words(words) => {
                for word in words.keys() {
                    add(format!("{about} {word:?}"), String::new());
                }
            }
            Body::Tagged { variants, .. } => {
                for (word, variant) in variants {
                    let about = format!("{about}:{word}");
                    add(about.clone(), String::new());
                    members(&about, &variant.fields, &mut add);
                }
            }
            Body::Keyed { words, keys } => {
                for word in words.keys() {
                    add(format!("{about} {word:?}"), String::new());
                }
                for (key, shape) in keys {
                    add(format!("{about}:{key}"), shape.to_string());
                }
            }
            Body::OneOf(_) | Body::Alias(_) => {}
        }
    }
    facts
}

fn members(about: &str, fields: &Fields, add: &mut impl FnMut(String, String)) {
    for (name, field) in fields {
        let mut is = field.shape.to_string();
        if field.nullable {
            is += " or null";
        }
        if !field.required {
            is += ", may be left out";
        }
        add(format!("{about}.{name}"), is);
    }
}

fn method_text(method: &Method) -> String {
    let mut text = method
        .params
        .clone()
        .unwrap_or_else(|| "nothing".to_owned());
    if method.optional_params && method.params.is_some() {
        text += " or nothing";
    }
    if let Some(response) = &method.response {
        text += " -> ";
        text += response;
    }
    text
}

impl Body {
    /// Its kind, in a word.
    pub(super) const fn word(&self) -> &'static str {
        match self {
            Self::Object(_) => "an object",
            Self::Words(_) => "words",
            Self::Tagged { .. } => "tagged objects",
            Self::Keyed { .. } => "words and members",
            Self::OneOf(_) => "one of several",
            Self::Alias(_) => "another name",
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Tagged { tag, .. } => format!("objects told apart by {tag}"),
            Self::OneOf(shapes) => {
                let shapes: Vec<String> = shapes.iter().map(ToString::to_string).collect();
                shapes.join(" | ")
            }
            Self::Alias(shape) => shape.to_string(),
            _ => self.word().to_owned(),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("anything"),
            Self::Bool => f.write_str("boolean"),
            Self::Integer(format) => f.write_str(format),
            Self::Number => f.write_str("number"),
            Self::Text => f.write_str("string"),
            Self::List(of) => write!(f, "list of {of}"),
            Self::Map(of) => write!(f, "map of {of}"),
            Self::Type(name) => f.write_str(name),
            Self::Nullable(of) => write!(f, "{of} or null"),
        }
    }
}
