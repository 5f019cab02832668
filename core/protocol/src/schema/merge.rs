//! Two schemas in one.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

use super::{Body, Field, Fields, Method, Model, Shape, Type, Variant};

/// Two schemas name two things the same that are too different to be one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {one} in one schema and {other} in another")]
#[non_exhaustive]
pub struct Unmergeable {
    /// The name.
    pub name: String,
    /// What it is in one.
    pub one: String,
    /// What it is in the other.
    pub other: String,
}

type Result<T = ()> = core::result::Result<T, Unmergeable>;

pub(super) fn models(to: &mut Model, from: &Model) -> Result {
    for (name, of) in &from.types {
        match to.types.get_mut(name) {
            Some(known) => types(name, known, of)?,
            None => {
                to.types.insert(name.clone(), of.clone());
            }
        }
    }
    methods(&mut to.requests, &from.requests)?;
    methods(&mut to.server_requests, &from.server_requests)?;
    methods(&mut to.notifications, &from.notifications)
}

fn methods(to: &mut BTreeMap<String, Method>, from: &BTreeMap<String, Method>) -> Result {
    for (name, of) in from {
        let Some(known) = to.get_mut(name) else {
            to.insert(name.clone(), of.clone());
            continue;
        };
        known.doc = of.doc.clone().or(known.doc.take());
        // What had no parameters may get some; then they may be left out.
        known.optional_params |= of.optional_params || known.params.is_none();
        known.params = one_of(name, known.params.take(), of.params.clone())?;
        known.response = one_of(name, known.response.take(), of.response.clone())?;
    }
    Ok(())
}

fn one_of(name: &str, one: Option<String>, other: Option<String>) -> Result<Option<String>> {
    match (one, other) {
        (Some(one), Some(other)) if one != other => Err(unmergeable(name, one, other)),
        (one, other) => Ok(one.or(other)),
    }
}

fn unmergeable(name: &str, one: impl ToString, other: impl ToString) -> Unmergeable {
    Unmergeable {
        name: name.to_owned(),
        one: one.to_string(),
        other: other.to_string(),
    }
}

fn types(name: &str, to: &mut Type, from: &Type) -> Result {
    // The newer schema comes last, and knows better.
    to.doc = from.doc.clone().or(to.doc.take());
    to.is_open |= from.is_open;
    match (&mut to.body, &from.body) {
        (Body::Object(to), Body::Object(from)) => {
            fields(to, from);
            Ok(())
        }
        (Body::Words(to), Body::Words(from)) => {
            to.extend(from.clone());
            Ok(())
        }
        (
            Body::Tagged { tag, variants },
            Body::Tagged {
                tag: other,
                variants: from,
            },
        ) if tag == other => {
            merge_variants(variants, from);
            Ok(())
        }
        (
            Body::Keyed { words, keys },
            Body::Keyed {
                words: other_words,
                keys: other_keys,
            },
        ) => {
            words.extend(other_words.clone());
            for (key, shape) in other_keys {
                match keys.get_mut(key) {
                    Some(known) => *known = shapes(known, shape),
                    None => {
                        keys.insert(key.clone(), shape.clone());
                    }
                }
            }
            Ok(())
        }
        // Words get members that say more.
        (body @ Body::Words(_), Body::Keyed { words, keys }) => {
            let mut words = words.clone();
            if let Body::Words(known) = body {
                words.extend(core::mem::take(known));
            }
            let keys = keys.clone();
            *body = Body::Keyed { words, keys };
            Ok(())
        }
        (Body::OneOf(to), Body::OneOf(from)) => {
            let new: Vec<Shape> = from.iter().filter(|s| !to.contains(s)).cloned().collect();
            to.extend(new);
            Ok(())
        }
        (Body::Alias(to), Body::Alias(from)) => {
            *to = shapes(to, from);
            Ok(())
        }
        (one, other) => Err(unmergeable(name, one.word(), other.word())),
    }
}

fn merge_variants(to: &mut BTreeMap<String, Variant>, from: &BTreeMap<String, Variant>) {
    for (word, variant) in from {
        match to.get_mut(word) {
            Some(known) => {
                known.doc = variant.doc.clone().or(known.doc.take());
                fields(&mut known.fields, &variant.fields);
            }
            None => {
                to.insert(word.clone(), variant.clone());
            }
        }
    }
}

fn fields(to: &mut Fields, from: &Fields) {
    for (name, known) in to.iter_mut() {
        known.required &= from.contains_key(name);
    }
    for (name, field) in from {
        match to.get_mut(name) {
            Some(known) => {
                known.doc = field.doc.clone().or(known.doc.take());
                known.required &= field.required;
                known.nullable |= field.nullable;
                known.shape = shapes(&known.shape, &field.shape);
            }
            None => {
                // Not every server has it.
                let field = Field {
                    required: false,
                    ..field.clone()
                };
                to.insert(name.clone(), field);
            }
        }
    }
}

/// What both shapes are; anything, where they have nothing in common.
fn shapes(one: &Shape, other: &Shape) -> Shape {
    match (one, other) {
        (one, other) if one == other => one.clone(),
        (Shape::Nullable(one), Shape::Nullable(other)) => {
            Shape::Nullable(Box::new(shapes(one, other)))
        }
        (Shape::Nullable(one), other) | (other, Shape::Nullable(one)) => {
            Shape::Nullable(Box::new(shapes(one, other)))
        }
        (Shape::List(one), Shape::List(other)) => Shape::List(Box::new(shapes(one, other))),
        (Shape::Map(one), Shape::Map(other)) => Shape::Map(Box::new(shapes(one, other))),
        _ => Shape::Any,
    }
}
