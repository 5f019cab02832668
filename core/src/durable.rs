//! placeholder
/// State.
#[derive(Debug, Default)]
pub struct Durable;
