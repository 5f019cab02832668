//! The schema of an app-server (`codex app-server generate-json-schema`), read into a small model:
//! types, methods, and which version has them.
//!
//! The types of this crate are made of it, and so is the list of all that they know
//! ([`Surface::built_in`]), with which the server of any version can be compared.

mod merge;
mod parse;
mod surface;

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

pub use self::{
    merge::Unmergeable,
    parse::{SchemaError, camel},
    surface::{Difference, DifferenceKind, Drift, Release, Surface, SurfaceError},
};

/// All that a schema has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// The types, by name.
    pub types: BTreeMap<String, Type>,
    /// What a client asks, by method.
    pub requests: BTreeMap<String, Method>,
    /// What the server asks, by method.
    pub server_requests: BTreeMap<String, Method>,
    /// What the server tells, by method.
    pub notifications: BTreeMap<String, Method>,
}

/// A method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method {
    /// What the schema says of it.
    pub doc: Option<String>,
    /// The type of its parameters; `None` where it has none.
    pub params: Option<String>,
    /// Whether they may be left out.
    pub optional_params: bool,
    /// The type of its answer; `None` where there is no answer.
    pub response: Option<String>,
}

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Type {
    /// What the schema says of it.
    pub doc: Option<String>,
    /// Whether it is an object that may have any other members.
    pub is_open: bool,
    /// What it is.
    pub body: Body,
}

/// What a type is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// An object.
    Object(Fields),
    /// One of several words, each with what the schema says of it.
    Words(BTreeMap<String, Option<String>>),
    /// One of several objects, which a member tells apart.
    Tagged {
        /// The member.
        tag: String,
        /// The objects, by the member's value.
        variants: BTreeMap<String, Variant>,
    },
    /// A word, or an object with one member, whose name tells what it is.
    Keyed {
        /// The words.
        words: BTreeMap<String, Option<String>>,
        /// The members.
        keys: BTreeMap<String, Shape>,
    },
    /// One of several shapes.
    OneOf(Vec<Shape>),
    /// Another name of a shape.
    Alias(Shape),
}

/// One of several objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variant {
    /// What the schema says of it.
    pub doc: Option<String>,
    /// Its members, the one that tells it apart left out.
    pub fields: Fields,
}

/// The members of an object, by name.
pub type Fields = BTreeMap<String, Field>;

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// What the schema says of it.
    pub doc: Option<String>,
    /// Its shape.
    pub shape: Shape,
    /// Whether it is always there.
    pub required: bool,
    /// Whether it may be null.
    pub nullable: bool,
}

/// The shape of a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// Anything.
    Any,
    /// True or false.
    Bool,
    /// A whole number, in the schema's word for its size, such as `uint64`.
    Integer(String),
    /// A number.
    Number,
    /// A text.
    Text,
    /// A list.
    List(Box<Shape>),
    /// An object with any members of a shape.
    Map(Box<Shape>),
    /// A type.
    Type(String),
    /// Something, or null.
    Nullable(Box<Shape>),
}

impl Model {
    /// Reads the schema that holds all definitions (`codex_app_server_protocol.schemas.json`).
    ///
    /// # Errors
    ///
    /// It is no JSON, or no such schema; the error names the type that is not understood.
    pub fn read(schema: &str) -> Result<Self, SchemaError> {
        parse::model(schema)
    }

    /// What two schemas have together: a member is always there only where both say so, and may be
    /// null where one says so.
    ///
    /// # Errors
    ///
    /// They name two things the same that are too different to be one.
    pub fn merge(&mut self, other: &Self) -> Result<(), Unmergeable> {
        merge::models(self, other)
    }

    /// The names of all types that a type needs in itself, without a list or a map between: what
    /// must be boxed where it needs itself.
    #[must_use]
    pub fn parts(&self, name: &str) -> BTreeSet<String> {
        let mut parts = BTreeSet::new();
        let mut left: Vec<String> = self.direct(name);
        while let Some(part) = left.pop() {
            if parts.insert(part.clone()) {
                left.extend(self.direct(&part));
            }
        }
        parts
    }

    fn direct(&self, name: &str) -> Vec<String> {
        let mut names = Vec::new();
        let mut add = |shape: &Shape| {
            let mut shape = shape;
            while let Shape::Nullable(inner) = shape {
                shape = inner;
            }
            if let Shape::Type(name) = shape {
                names.push(name.to_owned());
            }
        };
        let Some(of) = self.types.get(name) else {
            return names;
        };
        match &of.body {
            Body::Object(fields) => fields.values().for_each(|field| add(&field.shape)),
            Body::Tagged { variants, .. } => variants
                .values()
                .flat_map(|variant| variant.fields.values())
                .for_each(|field| add(&field.shape)),
            Body::Keyed { keys, .. } => keys.values().for_each(add),
            Body::OneOf(shapes) => shapes.iter().for_each(add),
            Body::Alias(shape) => add(shape),
            Body::Words(_) => {}
        }
        names
    }
}
