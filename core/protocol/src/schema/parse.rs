//! From the schema's JSON to the model.

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use serde_json::{Map, Value};

use super::{Body, Field, Fields, Method, Model, Shape, Type, Variant};

/// A schema is not understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// It is not JSON.
    #[error("the schema is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// It lacks a definition that every app-server has.
    #[error("the schema has no definition of {name}")]
    Missing {
        /// The definition.
        name: String,
    },
    /// A definition has a shape that is not understood.
    #[error("the schema's {at} is not understood: {why}")]
    Shape {
        /// The definition, and where in it.
        at: String,
        /// What is not understood.
        why: String,
    },
}

/// What a method is answered, where the names do not tell.
const RESPONSES: &[(&str, &str)] = &[
    ("account/gatewayOAuth/cancel", "GatewayOAuthCancelResponse"),
    ("account/gatewayOAuth/login", "GatewayOAuthLoginResponse"),
    ("account/gatewayOAuth/read", "GatewayOAuthReadResponse"),
    ("account/logout", "LogoutAccountResponse"),
    ("account/rateLimits/read", "GetAccountRateLimitsResponse"),
    (
        "account/securitySetup/read",
        "GetAccountSecuritySetupResponse",
    ),
    ("account/usage/read", "GetAccountTokenUsageResponse"),
    (
        "account/workspaceMessages/read",
        "GetWorkspaceMessagesResponse",
    ),
    ("accountSession/list", "AccountSessionsResponse"),
    ("config/batchWrite", "ConfigWriteResponse"),
    ("config/mcpServer/reload", "McpServerRefreshResponse"),
    ("config/value/write", "ConfigWriteResponse"),
    ("configRequirements/read", "ConfigRequirementsReadResponse"),
    (
        "externalAgentConfig/import/readHistories",
        "ExternalAgentConfigImportHistoriesReadResponse",
    ),
    ("memory/reset", "MemoryResetResponse"),
    ("modelProvider/default/set", "ConfigWriteResponse"),
    ("remoteControl/disable", "RemoteControlDisableResponse"),
    ("remoteControl/enable", "RemoteControlEnableResponse"),
    (
        "remoteControl/status/read",
        "RemoteControlStatusReadResponse",
    ),
    ("rollout/compress", "RolloutCompressResponse"),
    (
        "windowsSandbox/readiness",
        "WindowsSandboxReadinessResponse",
    ),
];

/// Definitions that are no types of their own.
const LISTS: &[&str] = &[
    "ClientNotification",
    "ClientRequest",
    "JSONRPCError",
    "JSONRPCErrorError",
    "JSONRPCMessage",
    "JSONRPCNotification",
    "JSONRPCRequest",
    "JSONRPCResponse",
    "ServerNotification",
    "ServerRequest",
];

type Result<T, E = SchemaError> = core::result::Result<T, E>;
type Object = Map<String, Value>;

pub(super) fn model(schema: &str) -> Result<Model> {
    let schema = crate::parse(schema)?;
    let top = definitions(&schema, "definitions")?;
    let mut all: BTreeMap<&str, &Value> = BTreeMap::new();
    let nested = top.get("v2").and_then(Value::as_object);
    let top = top.iter().filter(|(name, _)| *name != "v2");
    for (name, definition) in nested.into_iter().flatten().chain(top) {
        all.insert(name, definition);
    }
    let mut model = Model::default();
    for (name, definition) in &all {
        if LISTS.contains(name) || name.starts_with("Nullable") {
            continue;
        }
        let mut reader = Reader { model: &mut model };
        reader.define(name, definition)?;
    }
    model.requests = methods(&all, "ClientRequest", Some("Response"))?;
    model.server_requests = methods(&all, "ServerRequest", Some("Response"))?;
    model.notifications = methods(&all, "ServerNotification", None)?;
    Ok(model)
}

fn definitions<'a>(schema: &'a Value, name: &str) -> Result<&'a Object> {
    let found = schema.get(name).and_then(Value::as_object);
    found.ok_or_else(|| SchemaError::Missing {
        name: name.to_owned(),
    })
}

fn methods(
    all: &BTreeMap<&str, &Value>,
    list: &str,
    response: Option<&str>,
) -> Result<BTreeMap<String, Method>> {
    let entries = all.get(list).and_then(|list| list.get("oneOf"));
    let Some(entries) = entries.and_then(Value::as_array) else {
        return Err(SchemaError::Missing {
            name: list.to_owned(),
        });
    };
    let mut methods = BTreeMap::new();
    for entry in entries {
        let method = &entry["properties"]["method"]["enum"][0];
        let Some(method) = method.as_str() else {
            return Err(shape(list, format!("an entry without a method: {entry}")));
        };
        let at = format!("{list}.{method}");
        let (params, optional_params) = match &entry["properties"]["params"] {
            Value::Null => (None, true),
            params if params["type"] == "null" => (None, true),
            params => match reader_shape(&at, params)? {
                Shape::Type(name) => (Some(name), false),
                Shape::Nullable(inner) => match *inner {
                    Shape::Type(name) => (Some(name), true),
                    _ => return Err(shape(&at, format!("its params: {params}"))),
                },
                _ => return Err(shape(&at, format!("its params: {params}"))),
            },
        };
        let response = match response {
            None => None,
            Some(suffix) => {
                let by_name = params.as_deref().map(|params| {
                    let stem = params.strip_suffix("Params").unwrap_or(params);
                    format!("{stem}{suffix}")
                });
                let known = RESPONSES.iter().find(|(known, _)| *known == method);
                let name = known.map(|(_, name)| (*name).to_owned()).or(by_name);
                // The schema does not say which answer belongs to which method: one that the names
                // do not tell is anything.
                name.filter(|name| all.contains_key(name.as_str()))
            }
        };
        let method_of = Method {
            doc: doc(entry),
            params,
            optional_params,
            response,
        };
        methods.insert(method.to_owned(), method_of);
    }
    Ok(methods)
}

fn shape(at: &str, why: impl Into<String>) -> SchemaError {
    SchemaError::Shape {
        at: at.to_owned(),
        why: why.into(),
    }
}

fn doc(of: &Value) -> Option<String> {
    let text = of.get("description")?.as_str()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// A shape where no type of its own can be.
fn reader_shape(at: &str, of: &Value) -> Result<Shape> {
    let mut model = Model::default();
    let mut reader = Reader { model: &mut model };
    reader.shape(of, at)
}

struct Reader<'a> {
    model: &'a mut Model,
}

/// The alternatives of a definition.
fn alternatives(of: &Value) -> Option<&Vec<Value>> {
    of.get("oneOf").or_else(|| of.get("anyOf"))?.as_array()
}

/// The words of an alternative that is nothing else.
fn words(of: &Value) -> Option<impl Iterator<Item = &str>> {
    if of.get("type")?.as_str()? != "string" {
        return None;
    }
    let words = of.get("enum")?.as_array()?;
    Some(words.iter().filter_map(Value::as_str))
}

/// A member with one word, which tells alternatives apart.
fn constant<'a>(of: &'a Value, name: &str) -> Option<&'a str> {
    let member = of.get("properties")?.get(name)?;
    let words: Vec<&str> = words(member)?.collect();
    match words.as_slice() {
        [word] => Some(word),
        _ => None,
    }
}

/// The name of the member that tells alternatives apart.
fn tag(alternatives: &[Value]) -> Option<&str> {
    let first = alternatives.first()?.get("properties")?.as_object()?;
    let tells = |name: &&String| alternatives.iter().all(|of| constant(of, name).is_some());
    // Where several would do, `type` is what is meant.
    let kind = first.keys().find(|name| *name == "type").filter(&tells);
    kind.or_else(|| first.keys().find(tells))
        .map(String::as_str)
}

impl Reader<'_> {
    fn define(&mut self, name: &str, of: &Value) -> Result<()> {
        let body = self.body(name, of)?;
        let rest = of.get("additionalProperties");
        let of = Type {
            doc: doc(of),
            is_open: rest.is_some_and(|rest| *rest != Value::Bool(false)),
            body,
        };
        self.model.types.insert(name.to_owned(), of);
        Ok(())
    }

    fn body(&mut self, name: &str, of: &Value) -> Result<Body> {
        if let Some(words) = words(of) {
            return Ok(Body::Words(
                words.map(|word| (word.to_owned(), None)).collect(),
            ));
        }
        let Some(of_several) = alternatives(of) else {
            let rest = of.get("additionalProperties");
            let is_map = of.get("properties").is_none()
                && rest.is_some_and(|rest| rest.is_object() || *rest == Value::Bool(true));
            if of.get("type").and_then(Value::as_str) == Some("object") && !is_map {
                return Ok(Body::Object(self.fields(of, name, None)?));
            }
            return Ok(Body::Alias(self.shape(of, name)?));
        };
        if of_several.iter().all(|of| words(of).is_some()) {
            let mut all = BTreeMap::new();
            for of in of_several {
                for word in words(of).into_iter().flatten() {
                    all.insert(word.to_owned(), doc(of));
                }
            }
            return Ok(Body::Words(all));
        }
        if let Some(tag) = tag(of_several) {
            let tag = tag.to_owned();
            let shared = self.fields(of, name, Some(&tag))?;
            let mut variants = BTreeMap::new();
            for of in of_several {
                let word = constant(of, &tag).unwrap_or_default().to_owned();
                let at = format!("{name}{}", camel(&word));
                let mut fields = shared.clone();
                fields.extend(self.fields(of, &at, Some(&tag))?);
                let variant = Variant {
                    doc: doc(of),
                    fields,
                };
                variants.insert(word, variant);
            }
            return Ok(Body::Tagged { tag, variants });
        }
        if let Some(body) = self.keyed(name, of_several)? {
            return Ok(body);
        }
        let mut shapes = Vec::new();
        for (index, of) in of_several.iter().enumerate() {
            let at = format!("{name}{}", Self::name_of(of, index));
            let shape = self.shape(of, &at)?;
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        match shapes.as_slice() {
            [Shape::Nullable(_)] | [_] => Ok(Body::Alias(shapes.remove(0))),
            _ => Ok(Body::OneOf(shapes)),
        }
    }

    /// What an alternative without a name is called: after the first member that it must have.
    fn name_of(of: &Value, index: usize) -> String {
        let required = of.get("required").and_then(Value::as_array);
        let first = required.and_then(|required| required.first()?.as_str());
        first.map_or_else(|| (index + 1).to_string(), camel)
    }

    fn keyed(&mut self, name: &str, of_several: &[Value]) -> Result<Option<Body>> {
        let mut all_words = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for of in of_several {
            if let Some(words) = words(of) {
                all_words.extend(words.map(|word| (word.to_owned(), doc(of))));
                continue;
            }
            // Anything else may come: that is what the value that is not known is for.
            if of.get("properties").is_none() && of.get("type").is_some_and(Value::is_array) {
                continue;
            }
            let members = of.get("properties").and_then(Value::as_object);
            let Some((key, member)) = members
                .filter(|members| members.len() == 1)
                .and_then(|members| members.iter().next())
                .filter(|_| of.get("additionalProperties") == Some(&Value::Bool(false)))
            else {
                return Ok(None);
            };
            let at = format!("{name}{}", camel(key));
            keys.insert(key.clone(), self.shape(member, &at)?);
        }
        Ok(Some(Body::Keyed {
            words: all_words,
            keys,
        }))
    }

    fn fields(&mut self, of: &Value, at: &str, tag: Option<&str>) -> Result<Fields> {
        let mut fields = Fields::new();
        let required: Vec<&str> = match of.get("required").and_then(Value::as_array) {
            Some(names) => names.iter().filter_map(Value::as_str).collect(),
            None => Vec::new(),
        };
        let members = of.get("properties").and_then(Value::as_object);
        for (name, member) in members.into_iter().flatten() {
            if tag == Some(name) {
                continue;
            }
            let place = format!("{at}{}", camel(name));
            let (shape, nullable) = match self.shape(member, &place)? {
                Shape::Nullable(inner) => (*inner, true),
                shape => (shape, false),
            };
            let field = Field {
                doc: doc(member),
                shape,
                required: required.contains(&name.as_str()),
                nullable,
            };
            fields.insert(name.clone(), field);
        }
        // An object with alternatives has the members of one of them: none is always there.
        if of.get("type").and_then(Value::as_str) == Some("object") {
            for of in alternatives(of).into_iter().flatten() {
                for (name, mut field) in self.fields(of, at, tag)? {
                    field.required = false;
                    fields.entry(name).or_insert(field);
                }
            }
        }
        Ok(fields)
    }

    /// The shape of a value; one that needs a type of its own gets it under the name `at`.
    fn shape(&mut self, of: &Value, at: &str) -> Result<Shape> {
        let object = match of {
            Value::Bool(true) => return Ok(Shape::Any),
            Value::Object(object) => object,
            _ => return Err(shape(at, format!("{of}"))),
        };
        if let Some(name) = object.get("$ref").and_then(Value::as_str) {
            let name = name.rsplit('/').next().unwrap_or(name);
            return Ok(Shape::Type(name.to_owned()));
        }
        if let Some(all) = object.get("allOf").and_then(Value::as_array) {
            return match all.as_slice() {
                [one] => self.shape(one, at),
                _ => Err(shape(at, "several schemas at once")),
            };
        }
        let (kind, nullable) = kind(object, at)?;
        let not_null = match kind {
            None if alternatives(of).is_some() => return self.alternatives(of, at),
            None => return Ok(Shape::Any),
            Some("boolean") => Shape::Bool,
            Some("integer") => {
                let format = object.get("format").and_then(Value::as_str);
                Shape::Integer(format.unwrap_or("int64").to_owned())
            }
            Some("number") => Shape::Number,
            Some("string") if object.contains_key("enum") => {
                self.define(at, of)?;
                Shape::Type(at.to_owned())
            }
            Some("string") => Shape::Text,
            Some("array") => {
                let items = object.get("items").unwrap_or(&Value::Bool(true));
                if items.is_array() {
                    Shape::List(Box::new(Shape::Any))
                } else {
                    Shape::List(Box::new(self.shape(items, at)?))
                }
            }
            Some("object") => {
                match (object.get("properties"), object.get("additionalProperties")) {
                    (None, None | Some(Value::Bool(true))) => Shape::Map(Box::new(Shape::Any)),
                    (None, Some(of)) if of.is_object() => Shape::Map(Box::new(self.shape(of, at)?)),
                    _ => {
                        self.define(at, of)?;
                        Shape::Type(at.to_owned())
                    }
                }
            }
            Some("null") => return Ok(Shape::Nullable(Box::new(Shape::Any))),
            Some(other) => return Err(shape(at, format!("a value of type {other}"))),
        };
        Ok(match nullable {
            true => Shape::Nullable(Box::new(not_null)),
            false => not_null,
        })
    }

    fn alternatives(&mut self, of: &Value, at: &str) -> Result<Shape> {
        let of_several = alternatives(of).map_or(&[][..], Vec::as_slice);
        let is_null = |of: &&Value| of.get("type").and_then(Value::as_str) == Some("null");
        let rest: Vec<&Value> = of_several.iter().filter(|of| !is_null(of)).collect();
        let nullable = rest.len() < of_several.len();
        let inner = match rest.as_slice() {
            [one] => self.shape(one, at)?,
            _ => {
                self.define(at, of)?;
                Shape::Type(at.to_owned())
            }
        };
        Ok(match nullable {
            true => Shape::Nullable(Box::new(inner)),
            false => inner,
        })
    }
}

/// The type that a schema names, and whether null is named beside it.
fn kind<'a>(of: &'a Object, at: &str) -> Result<(Option<&'a str>, bool)> {
    match of.get("type") {
        None => Ok((None, false)),
        Some(Value::String(kind)) => Ok((Some(kind), false)),
        Some(Value::Array(kinds)) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            let named = kinds.iter().copied().filter(|kind| *kind != "null");
            let named: Vec<&str> = named.collect();
            match named.as_slice() {
                [kind] => Ok((Some(kind), named.len() < kinds.len())),
                // Of several types: anything.
                _ => Ok((None, false)),
            }
        }
        Some(other) => Err(shape(at, format!("its type: {other}"))),
    }
}

/// A name in camel case with a capital, of one in any case.
#[must_use]
pub fn camel(name: &str) -> String {
    let mut out = String::new();
    let mut capital = true;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() {
            capital = true;
        } else if capital {
            out.push(c.to_ascii_uppercase());
            capital = false;
        } else {
            out.push(c);
        }
    }
    out
}
