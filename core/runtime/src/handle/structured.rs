//! Answers of a Rust type.

use std::{fmt, marker::PhantomData};

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use turnkeep_core::{Outcome, RawJson, TurnEnd, event::FailureKind};

use super::{
    Message,
    conversation::{Conversation, SendMessage},
    turn::Turn,
};
use crate::{
    error::{SendError, TurnError},
    runtime::BoxFuture,
};

impl Conversation {
    /// Sends a message whose answer is a `T`: the model is held to its schema. Await it for the turn,
    /// and the turn for the answer.
    ///
    /// ```no_run
    /// # use turnkeep_runtime::Conversation;
    /// #[derive(schemars::JsonSchema, serde::Deserialize)]
    /// struct Weather {
    ///     city: String,
    ///     degrees: i32,
    ///     warning: Option<String>,
    /// }
    ///
    /// # async fn example(conversation: Conversation) -> Result<(), Box<dyn std::error::Error>> {
    /// let turn = conversation.send_typed::<Weather>("What is the weather in Oslo?").await?;
    /// let weather = turn.answer().await?;
    /// println!("{}: {} degrees", weather.city, weather.degrees);
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_typed<T: JsonSchema + DeserializeOwned>(
        &self,
        message: impl Into<Message>,
    ) -> SendTyped<T> {
        self.send(message).typed()
    }
}

impl SendMessage {
    /// Asks for an answer that is a `T`; see [`Conversation::send_typed`].
    pub fn typed<T: JsonSchema + DeserializeOwned>(self) -> SendTyped<T> {
        SendTyped {
            send: self,
            of: PhantomData,
        }
    }
}

/// A message about to be sent, whose answer is a `T`. Await it.
#[must_use = "nothing happens before it is awaited"]
pub struct SendTyped<T> {
    send: SendMessage,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for SendTyped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SendTyped").field(&self.send).finish()
    }
}

/// Why a message whose answer has a type was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendTypedError {
    /// The model cannot be held to the type.
    #[error(transparent)]
    Schema(#[from] StrictSchemaError),
    /// The message was not sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

impl<T: JsonSchema + DeserializeOwned + 'static> IntoFuture for SendTyped<T> {
    type Output = Result<TypedTurn<T>, SendTypedError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let schema = strict_schema::<T>()?;
            // What serde_json writes it reads.
            let raw = RawJson::parse(&schema.to_string()).expect("written JSON can be read");
            let turn = self.send.output_schema(raw).await?;
            Ok(TypedTurn {
                turn,
                schema,
                of: PhantomData,
            })
        })
    }
}

/// A turn whose answer is a `T`.
pub struct TypedTurn<T> {
    turn: Turn,
    schema: Value,
    of: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for TypedTurn<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedTurn").field(&self.turn).finish()
    }
}

/// Why a turn has no answer of its type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The turn did not complete.
    #[error(transparent)]
    Turn(#[from] TurnError),
    /// The answer is not JSON.
    #[error("the answer is not JSON")]
    NotJson {
        /// The answer, as far as there is one.
        text: Option<String>,
        /// The turn's end.
        end: Box<TurnEnd>,
    },
    /// The answer is not what the schema asked for.
    #[error("the answer is not of its schema: {}", violations.join("; "))]
    Invalid {
        /// The answer.
        text: String,
        /// What is wrong with it, each with its place as a JSON pointer.
        violations: Vec<String>,
    },
    /// The answer is of its schema, and the type does not take it all the same.
    #[error("the answer is of its schema, but no such value: {source}")]
    Type {
        /// The answer.
        text: String,
        /// What the type says.
        source: serde_json::Error,
    },
}

impl<T: DeserializeOwned> TypedTurn<T> {
    /// The turn: its events, its calls and questions.
    pub fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// Waits for the end and gives the answer, checked against the schema.
    ///
    /// # Errors
    ///
    /// See [`AnswerError`]; the text is in it where there is one.
    pub async fn answer(mut self) -> Result<T, AnswerError> {
        let end = self.turn.outcome().await?;
        if let Outcome::Failed { error } = &end.outcome {
            if error.kind == FailureKind::StructuredOutput {
                let text = end.text.clone().or_else(|| end.candidate.clone());
                let end = Box::new(end);
                return Err(AnswerError::NotJson { text, end });
            }
        }
        let Outcome::Completed { structured, .. } = &end.outcome else {
            let end = Box::new(end);
            return Err(TurnError::NotCompleted { end }.into());
        };
        let Some(text) = structured.as_ref().map(|raw| raw.get().to_owned()) else {
            let end = Box::new(end);
            return Err(TurnError::NoText { end }.into());
        };
        check(&self.schema, text)
    }
}

fn check<T: DeserializeOwned>(schema: &Value, text: String) -> Result<T, AnswerError> {
    let value: Value = match turnkeep_protocol::parse(&text) {
        Ok(value) => value,
        Err(source) => return Err(AnswerError::Type { text, source }),
    };
    let violations: Vec<String> = match jsonschema::validator_for(schema) {
        Ok(validator) => validator
            .iter_errors(&value)
            .map(|error| match error.instance_path().as_str() {
                "" => error.to_string(),
                place => format!("{place}: {error}"),
            })
            .collect(),
        Err(error) => vec![format!("the schema is none: {error}")],
    };
    if !violations.is_empty() {
        return Err(AnswerError::Invalid { text, violations });
    }
    serde_json::from_value(value).map_err(|source| AnswerError::Type { text, source })
}

/// A type has no schema that a model can be held to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no model can be held to the type {of}: {place}: {why}")]
#[non_exhaustive]
pub struct StrictSchemaError {
    /// The type's name.
    pub of: String,
    /// Where in its schema, as a JSON pointer.
    pub place: String,
    /// Why.
    pub why: &'static str,
}

/// The schema of a type in the strict form that models are held to: an object, all members of all
/// objects required and no others allowed, nothing but what the model's side knows.
///
/// An `Option` may be null; a member with a default must be given all the same.
///
/// # Errors
///
/// The type has no such form: it is no object, or has a map, a tuple or anything at all in it.
pub fn strict_schema<T: JsonSchema>() -> Result<Value, StrictSchemaError> {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    let refuse = |(place, why)| StrictSchemaError {
        of: T::schema_name().into_owned(),
        place,
        why,
    };
    strict(&mut schema, "").map_err(refuse)?;
    let is_object = schema.get("type") == Some(&json!("object"));
    if !is_object {
        return Err(refuse((String::new(), "an answer must be an object")));
    }
    Ok(schema)
}

/// What the model's side knows. All else says nothing to a model, or is refused there.
const KNOWN: [&str; 19] = [
    "$defs",
    "$ref",
    "additionalProperties",
    "anyOf",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minimum",
    "multipleOf",
    "pattern",
    "properties",
    "required",
    "type",
];

/// The formats of texts that the model's side knows.
const FORMATS: [&str; 9] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
];

type Refusal = (String, &'static str);

fn strict(schema: &mut Value, place: &str) -> Result<(), Refusal> {
    let refuse = |why| Err((place.to_owned(), why));
    let members = match schema {
        Value::Object(members) => members,
        Value::Bool(_) => return refuse("anything at all cannot be asked for"),
        _ => return refuse("a schema is an object"),
    };
    let is_known = |format: &Value| format.as_str().is_some_and(|name| FORMATS.contains(&name));
    if members
        .get("format")
        .is_some_and(|format| !is_known(format))
    {
        members.remove("format");
    }
    if members.contains_key("$ref") {
        // Nothing may stand beside it.
        members.retain(|name, _| name == "$ref" || name == "$defs");
    }
    if let Some(one_of) = members.remove("oneOf") {
        members.insert("anyOf".to_owned(), one_of);
    }
    if let Some(word) = members.remove("const") {
        members.insert("enum".to_owned(), json!([word]));
    }
    if members.contains_key("allOf") || members.contains_key("not") {
        return refuse("several schemas at once cannot be asked for");
    }
    if members.contains_key("prefixItems") {
        return refuse("a tuple cannot be asked for, a list or an object can");
    }
    members.retain(|name, _| KNOWN.contains(&name.as_str()));
    let is_object = members.get("type") == Some(&json!("object"));
    if is_object || members.contains_key("properties") {
        close(members, place)?;
    }
    for name in ["properties", "$defs"] {
        if let Some(Value::Object(all)) = members.get_mut(name) {
            for (key, of) in all {
                strict(of, &format!("{place}/{name}/{key}"))?;
            }
        }
    }
    if let Some(Value::Array(all)) = members.get_mut("anyOf") {
        for (index, of) in all.iter_mut().enumerate() {
            strict(of, &format!("{place}/anyOf/{index}"))?;
        }
    }
    if let Some(items) = members.get_mut("items") {
        return strict(items, &format!("{place}/items"));
    }
    if members.get("type") == Some(&json!("array")) {
        return refuse("a list of anything cannot be asked for");
    }
    let kinds = ["type", "anyOf", "enum", "$ref"];
    match kinds.iter().any(|name| members.contains_key(*name)) {
        true => Ok(()),
        false => refuse("anything at all cannot be asked for"),
    }
}

fn close(members: &mut Map<String, Value>, place: &str) -> Result<(), Refusal> {
    if members
        .get("additionalProperties")
        .is_some_and(|rest| *rest != Value::Bool(false))
    {
        return Err((
            place.to_owned(),
            "a map cannot be asked for, a list of pairs can",
        ));
    }
    let names: Vec<Value> = match members.get("properties") {
        Some(Value::Object(all)) => all.keys().cloned().map(Value::String).collect(),
        _ => Vec::new(),
    };
    members.entry("properties").or_insert_with(|| json!({}));
    members.insert("required".to_owned(), Value::Array(names));
    members.insert("additionalProperties".to_owned(), Value::Bool(false));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    /// A place.
    #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
    struct Weather {
        /// Where.
        city: String,
        degrees: i32,
        warning: Option<String>,
        #[serde(default)]
        sky: Sky,
        near: Vec<Near>,
    }

    #[derive(Debug, Default, Deserialize, JsonSchema, PartialEq)]
    enum Sky {
        #[default]
        Clear,
        Cloudy,
    }

    #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
    #[serde(tag = "kind")]
    enum Near {
        Town { name: String },
        Lake { depth: f64 },
    }

    #[test]
    fn schema_is_strict() {
        let schema = strict_schema::<Weather>().unwrap();
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(
            schema["required"],
            json!(["city", "degrees", "near", "sky", "warning"])
        );
        assert_eq!(
            schema["properties"]["warning"]["type"],
            json!(["string", "null"])
        );
        assert_eq!(
            schema["properties"]["degrees"],
            json!({ "type": "integer" })
        );
        let text = schema.to_string();
        for word in ["$schema", "oneOf", "title", "default", "const\"", "format"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        let near = &schema["$defs"]["Near"]["anyOf"];
        assert_eq!(near[0]["additionalProperties"], false);
        assert_eq!(near[0]["properties"]["kind"]["enum"], json!(["Town"]));
    }

    #[test]
    fn what_the_models_side_does_not_know_is_left_out() {
        #[derive(JsonSchema)]
        struct Words {
            #[expect(dead_code, reason = "only its schema is wanted")]
            all: std::collections::BTreeSet<char>,
        }
        let schema = strict_schema::<Words>().unwrap();
        let all = &schema["properties"]["all"];
        assert_eq!(
            *all,
            json!({ "type": "array", "items": { "type": "string" } })
        );
    }

    #[test]
    fn types_without_a_strict_form_are_refused() {
        #[derive(JsonSchema)]
        struct WithMap {
            #[allow(dead_code, reason = "only its schema is wanted")]
            all: BTreeMap<String, u32>,
        }
        #[derive(JsonSchema)]
        struct WithAny {
            #[allow(dead_code, reason = "only its schema is wanted")]
            any: Value,
        }
        #[derive(JsonSchema)]
        struct WithTuple {
            #[allow(dead_code, reason = "only its schema is wanted")]
            pair: (String, u32),
        }
        let place = |error: StrictSchemaError| (error.place, error.of);
        let of = |error| place(error);
        let map = strict_schema::<WithMap>().unwrap_err();
        assert_eq!(of(map), ("/properties/all".into(), "WithMap".into()));
        let any = strict_schema::<WithAny>().unwrap_err();
        assert_eq!(of(any), ("/properties/any".into(), "WithAny".into()));
        let tuple = strict_schema::<WithTuple>().unwrap_err();
        assert_eq!(of(tuple), ("/properties/pair".into(), "WithTuple".into()));
        assert_eq!(
            strict_schema::<String>().unwrap_err().to_string(),
            "no model can be held to the type string: : an answer must be an object"
        );
    }

    fn answer(text: &str) -> Result<Weather, AnswerError> {
        check(&strict_schema::<Weather>().unwrap(), text.to_owned())
    }

    #[test]
    fn answer_is_checked_and_read() {
        let text = r#"{"city":"Oslo","degrees":-3,"warning":null,"sky":"Cloudy",
            "near":[{"kind":"Lake","depth":2.5}]}"#;
        let weather = answer(text).unwrap();
        assert_eq!(weather.near, [Near::Lake { depth: 2.5 }]);
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_told_with_its_text() {
        let text = r#"{"city":"Oslo","degrees":"cold","warning":null,"sky":"Clear","near":[]}"#;
        let Err(AnswerError::Invalid {
            text: told,
            violations,
        }) = answer(text)
        else {
            panic!("it is not of its schema");
        };
        assert_eq!(told, text);
        assert_eq!(violations.len(), 1);
        assert!(violations[0].starts_with("/degrees: "), "{violations:?}");
    }

    #[test]
    fn value_that_its_type_refuses_is_told_with_its_text() {
        // The schema knows integers of any size.
        let text = r#"{"city":"O","degrees":3000000000,"warning":null,"sky":"Clear","near":[]}"#;
        assert!(matches!(answer(text), Err(AnswerError::Type { .. })));
    }
}
