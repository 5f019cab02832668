//! What the generated lists of types are written with.

/// Objects: the members that are always there, then those that may be left out.
macro_rules! objects {
    ($(
        $(#[$doc:meta])*
        $rest:ident $name:ident {
            $($(#[$always_doc:meta])* $always:ident $always_key:literal: $always_type:ty,)*
        } {
            $($(#[$slot_doc:meta])* $slot:ident $slot_key:literal: $slot_type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq)]
        pub struct $name {
            $($(#[$always_doc])* pub $always: $always_type,)*
            $($(#[$slot_doc])* pub $slot: $slot_type,)*
            /// Members that this version does not have, as they came.
            pub unknown: Map<String, Value>,
        }

        impl $name {
            /// One with nothing but what it must have.
            #[must_use]
            pub fn new($($always: impl Into<$always_type>),*) -> Self {
                Self {
                    $($always: $always.into(),)*
                    $($slot: Default::default(),)*
                    unknown: Map::new(),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut shown = f.debug_struct(stringify!($name));
                $(wire::show(&mut shown, stringify!($always), $always_key, &self.$always);)*
                $(wire::show(&mut shown, stringify!($slot), $slot_key, &self.$slot);)*
                shown.field("unknown", &self.unknown).finish()
            }
        }

        impl Object for $name {
            fn decode_but(value: &Value, tag: Option<&str>) -> Result<Self, DecodeError> {
                const KNOWN: &[&str] = &[$($always_key,)* $($slot_key,)*];
                let members = wire::object(value)?;
                Ok(Self {
                    $($always: Always::take(members, $always_key)?,)*
                    $($slot: Slot::take(members, $slot_key)?,)*
                    unknown: wire::rest(members, KNOWN, tag),
                })
            }
        }

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                Self::decode_but(value, None)
            }

            fn encode(&self) -> Value {
                #[allow(unused_mut, reason = "an object may have no members")]
                let mut members = self.unknown.clone();
                $(members.insert($always_key.to_owned(), self.$always.encode());)*
                $(self.$slot.put(&mut members, $slot_key);)*
                Value::Object(members)
            }

            fn strange(&self, found: &mut Strange) {
                $(found.member($always_key, &self.$always);)*
                $(self.$slot.look($slot_key, found);)*
                strange_rest!($rest found self);
            }
        }

        with_serde!($name);
    )*};
}

/// Other members are strange, unless the object is there for them.
macro_rules! strange_rest {
    (closed $found:ident $self:ident) => {
        $found.unknown(&$self.unknown)
    };
    (open $found:ident $self:ident) => {
        let _ = $found;
    };
}

/// Objects that need nothing.
macro_rules! defaults {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }
    )*};
}

/// Words.
macro_rules! words {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$word_doc])* $variant,)*
            /// A value that this version does not have.
            Unknown(Unknown),
        }

        impl $name {
            /// The word, unless it is a value that is none.
            #[must_use]
            pub fn as_str(&self) -> Option<&str> {
                match self {
                    $(Self::$variant => Some($word),)*
                    Self::Unknown(unknown) => unknown.value.as_str(),
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    _ => Self::Unknown(Unknown::new(Value::from(word))),
                }
            }
        }

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                Ok(match value {
                    Value::String(word) => Self::from(word.as_str()),
                    _ => Self::Unknown(Unknown::of(value)),
                })
            }

            fn encode(&self) -> Value {
                match self {
                    $(Self::$variant => Value::from($word),)*
                    Self::Unknown(unknown) => unknown.value.clone(),
                }
            }

            fn strange(&self, found: &mut Strange) {
                if let Self::Unknown(unknown) = self {
                    unknown.strange(found);
                }
            }
        }

        with_serde!($name);
    )*};
}

/// Enums whose member `tag` tells the variant.
macro_rules! tagged {
    ($(
        $(#[$doc:meta])*
        $name:ident $tag:literal {
            $($(#[$variant_doc:meta])* $variant:ident = $word:literal: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant($type),)*
            /// A value that this version does not have.
            Unknown(Unknown),
        }

        impl $name {
            /// The word that tells the variant, where there is one.
            #[must_use]
            pub fn word(&self) -> Option<&str> {
                match self {
                    $(Self::$variant(_) => Some($word),)*
                    Self::Unknown(unknown) => unknown.word($tag),
                }
            }
        }

        $(impl From<$type> for $name {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                Ok(match value.get($tag).and_then(Value::as_str) {
                    $(Some($word) => match <$type>::decode_but(value, Some($tag)) {
                        Ok(read) => Self::$variant(read),
                        Err(why) => Self::Unknown(Unknown::misshapen(value, why)),
                    },)*
                    _ => Self::Unknown(Unknown::of(value)),
                })
            }

            fn encode(&self) -> Value {
                let (mut value, word) = match self {
                    $(Self::$variant(value) => (value.encode(), $word),)*
                    Self::Unknown(unknown) => return unknown.value.clone(),
                };
                if let Value::Object(members) = &mut value {
                    members.insert($tag.to_owned(), Value::from(word));
                }
                value
            }

            fn strange(&self, found: &mut Strange) {
                match self {
                    $(Self::$variant(value) => value.strange(found),)*
                    Self::Unknown(unknown) => unknown.strange(found),
                }
            }
        }

        with_serde!($name);
    )*};
}

/// Enums that are a word, or an object whose one member tells the variant.
macro_rules! keyed {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$word_doc:meta])* $word_variant:ident = $word:literal,)*
        } {
            $($(#[$key_doc:meta])* $variant:ident = $key:literal: $type:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$word_doc])* $word_variant,)*
            $($(#[$key_doc])* $variant($type),)*
            /// A value that this version does not have.
            Unknown(Unknown),
        }

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                Ok(match value {
                    Value::String(word) => match word.as_str() {
                        $($word => Self::$word_variant,)*
                        _ => Self::Unknown(Unknown::of(value)),
                    },
                    Value::Object(members) if members.len() == 1 => {
                        match members.iter().next() {
                            $(Some((key, _)) if key == $key => {
                                match Always::take(members, $key) {
                                    Ok(read) => Self::$variant(read),
                                    Err(why) => Self::Unknown(Unknown::misshapen(value, why)),
                                }
                            })*
                            _ => Self::Unknown(Unknown::of(value)),
                        }
                    }
                    _ => Self::Unknown(Unknown::of(value)),
                })
            }

            fn encode(&self) -> Value {
                match self {
                    $(Self::$word_variant => Value::from($word),)*
                    $(Self::$variant(value) => {
                        let mut members = Map::new();
                        members.insert($key.to_owned(), value.encode());
                        Value::Object(members)
                    })*
                    Self::Unknown(unknown) => unknown.value.clone(),
                }
            }

            fn strange(&self, found: &mut Strange) {
                match self {
                    $(Self::$word_variant => {})*
                    $(Self::$variant(value) => found.member($key, value),)*
                    Self::Unknown(unknown) => unknown.strange(found),
                }
            }
        }

        with_serde!($name);
    )*};
}

/// Enums that only the shape of a value tells: the first that has nothing strange in it, else the
/// first that can be read.
macro_rules! one_of {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($variant:ident: $type:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $(#[allow(missing_docs, reason = "named for what it is")] $variant($type),)*
            /// A value that this version does not have.
            Unknown(Unknown),
        }

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                let mut second = None;
                $(if let Ok(read) = <$type>::decode(value) {
                    let is_strange = !Strange::of(&read).is_empty();
                    let read = Self::$variant(read);
                    if !is_strange {
                        return Ok(read);
                    }
                    second.get_or_insert(read);
                })*
                Ok(second.unwrap_or_else(|| Self::Unknown(Unknown::of(value))))
            }

            fn encode(&self) -> Value {
                match self {
                    $(Self::$variant(value) => value.encode(),)*
                    Self::Unknown(unknown) => unknown.value.clone(),
                }
            }

            fn strange(&self, found: &mut Strange) {
                match self {
                    $(Self::$variant(value) => value.strange(found),)*
                    Self::Unknown(unknown) => unknown.strange(found),
                }
            }
        }

        with_serde!($name);
    )*};
}

/// Requests without parameters.
macro_rules! bare {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name;

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                match value {
                    Value::Null => Ok(Self),
                    _ => Err(DecodeError::kind("null", value)),
                }
            }

            fn encode(&self) -> Value {
                Value::Null
            }

            fn strange(&self, _: &mut Strange) {}
        }
    )*};
}

/// Requests whose parameters another request has too.
macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident($params:ty))*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name(
            /// The parameters.
            pub $params,
        );

        impl Wire for $name {
            fn decode(value: &Value) -> Result<Self, DecodeError> {
                <$params>::decode(value).map(Self)
            }

            fn encode(&self) -> Value {
                self.0.encode()
            }

            fn strange(&self, found: &mut Strange) {
                self.0.strange(found);
            }
        }
    )*};
}

macro_rules! with_serde {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.encode().serialize(serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let json::Plain(value) = json::Plain::deserialize(from)?;
                Self::decode(&value).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// Requests of ours: by the parameters that they have.
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $name:ident = $method:literal: $params:ty => $response:ty, $effect:ident, $stage:ident;
    )*) => {
        $(
            impl Request for $params {
                const METHOD: &'static str = $method;
                const EFFECT: Effect = Effect::$effect;
                const STAGE: Stage = Stage::$stage;
                type Response = $response;

                fn params(&self) -> Option<Value> {
                    request::ToParams::to_params(self)
                }
            }
        )*

        /// Every request of every version, by its method.
        pub const METHODS: &[MethodInfo] = &[
            $(MethodInfo {
                name: $method,
                effect: Effect::$effect,
                stage: Stage::$stage,
            },)*
        ];

        /// A request of a client, by its method.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ClientRequest {
            $($(#[$doc])* $name($params),)*
            /// A method that this version does not have.
            Unknown(UnknownMessage),
            /// A method that this version has, with other parameters.
            Malformed(Malformed),
        }

        impl ClientRequest {
            /// Reads a request by its method. Nothing is lost: what cannot be read is kept.
            #[must_use]
            pub fn decode(method: &str, params: Option<&Value>) -> Self {
                match method {
                    $($method => match request::FromParams::from_params(params) {
                        Ok(read) => Self::$name(read),
                        Err(error) => Self::Malformed(Malformed::new(method, params, error)),
                    },)*
                    _ => Self::Unknown(UnknownMessage::new(method, params)),
                }
            }

            /// The method.
            #[must_use]
            pub fn method(&self) -> &str {
                match self {
                    $(Self::$name(_) => $method,)*
                    Self::Unknown(message) => &message.method,
                    Self::Malformed(message) => &message.method,
                }
            }

            /// The parameters as they are written.
            #[must_use]
            pub fn params(&self) -> Option<Value> {
                match self {
                    $(Self::$name(params) => request::ToParams::to_params(params),)*
                    Self::Unknown(message) => message.params.clone(),
                    Self::Malformed(message) => message.params.clone(),
                }
            }

            /// Tells what is in it that its type does not have.
            #[must_use]
            pub fn strange(&self) -> Vec<Stranger> {
                match self {
                    $(Self::$name(params) => request::ToParams::look(params),)*
                    Self::Unknown(_) | Self::Malformed(_) => Vec::new(),
                }
            }
        }

        /// An answer of the server, by the method of its request.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ServerResponse {
            $($(#[$doc])* $name($response),)*
            /// A method that this version does not have.
            Unknown(UnknownMessage),
            /// A method that this version has, answered in another shape.
            Malformed(Malformed),
        }

        impl ServerResponse {
            /// Reads an answer by the method of its request. Nothing is lost: what cannot be read is
            /// kept.
            #[must_use]
            pub fn decode(method: &str, result: &Value) -> Self {
                match method {
                    $($method => match <$response>::decode(result) {
                        Ok(read) => Self::$name(read),
                        Err(error) => {
                            Self::Malformed(Malformed::new(method, Some(result), error))
                        }
                    },)*
                    _ => Self::Unknown(UnknownMessage::new(method, Some(result))),
                }
            }

            /// The result as it is written.
            #[must_use]
            pub fn result(&self) -> Value {
                match self {
                    $(Self::$name(result) => result.encode(),)*
                    Self::Unknown(message) => message.params.clone().unwrap_or_default(),
                    Self::Malformed(message) => message.params.clone().unwrap_or_default(),
                }
            }

            /// Tells what is in it that its type does not have.
            #[must_use]
            pub fn strange(&self) -> Vec<Stranger> {
                match self {
                    $(Self::$name(result) => Strange::of(result),)*
                    Self::Unknown(_) | Self::Malformed(_) => Vec::new(),
                }
            }
        }
    };
}

/// What the server sends by itself, by the method.
macro_rules! messages {
    (
        $(#[$enum_doc:meta])*
        $enum:ident {
            $($(#[$doc:meta])* $name:ident = $method:literal: $params:ty,)*
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $enum {
            $($(#[$doc])* $name($params),)*
            /// A method that this version does not have.
            Unknown(UnknownMessage),
            /// A method that this version has, with other parameters.
            Malformed(Malformed),
        }

        impl $enum {
            /// Reads it by its method. Nothing is lost: what cannot be read is kept.
            #[must_use]
            pub fn decode(method: &str, params: Option<&Value>) -> Self {
                match method {
                    $($method => match <$params>::decode(params.unwrap_or(&Value::Null)) {
                        Ok(read) => Self::$name(read),
                        Err(error) => Self::Malformed(Malformed::new(method, params, error)),
                    },)*
                    _ => Self::Unknown(UnknownMessage::new(method, params)),
                }
            }

            /// Every method that this version has.
            pub const METHODS: &'static [&'static str] = &[$($method,)*];

            /// The method.
            #[must_use]
            pub fn method(&self) -> &str {
                match self {
                    $(Self::$name(_) => $method,)*
                    Self::Unknown(message) => &message.method,
                    Self::Malformed(message) => &message.method,
                }
            }

            /// The parameters as they are written.
            #[must_use]
            pub fn params(&self) -> Option<Value> {
                match self {
                    $(Self::$name(params) => Some(params.encode()),)*
                    Self::Unknown(message) => message.params.clone(),
                    Self::Malformed(message) => message.params.clone(),
                }
            }

            /// Tells what is in it that its type does not have.
            #[must_use]
            pub fn strange(&self) -> Vec<Stranger> {
                match self {
                    $(Self::$name(params) => Strange::of(params),)*
                    Self::Unknown(_) | Self::Malformed(_) => Vec::new(),
                }
            }
        }
    };
}

/// What requests of the server are answered, by the method.
macro_rules! answers {
    ($($name:ident = $method:literal: $answer:ty,)*) => {
        /// An answer to a request of the server, by its method.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ServerRequestAnswer {
            $(#[doc = concat!("`", $method, "`")] $name($answer),)*
            /// A method that this version does not have.
            Unknown(UnknownMessage),
            /// A method that this version has, answered in another shape.
            Malformed(Malformed),
        }

        impl ServerRequestAnswer {
            /// Reads an answer by the method of its request. Nothing is lost: what cannot be read is
            /// kept.
            #[must_use]
            pub fn decode(method: &str, result: &Value) -> Self {
                match method {
                    $($method => match <$answer>::decode(result) {
                        Ok(read) => Self::$name(read),
                        Err(error) => Self::Malformed(Malformed::new(method, Some(result), error)),
                    },)*
                    _ => Self::Unknown(UnknownMessage::new(method, Some(result))),
                }
            }

            /// The result as it is written.
            #[must_use]
            pub fn result(&self) -> Value {
                match self {
                    $(Self::$name(result) => result.encode(),)*
                    Self::Unknown(message) => message.params.clone().unwrap_or_default(),
                    Self::Malformed(message) => message.params.clone().unwrap_or_default(),
                }
            }

            /// Tells what is in it that its type does not have.
            #[must_use]
            pub fn strange(&self) -> Vec<Stranger> {
                match self {
                    $(Self::$name(result) => Strange::of(result),)*
                    Self::Unknown(_) | Self::Malformed(_) => Vec::new(),
                }
            }
        }
    };
}
