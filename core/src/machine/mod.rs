//! The machine.
use crate::{config::*, effect::*, input::*, time::*};
/// Machine.
#[derive(Debug)]
pub struct Machine {}
/// Counters.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {}
impl Machine {
    /// new
    /// # Errors
    /// x
    pub fn new(
        _config: Config,
        _seed: u64,
        _now: Timestamp,
    ) -> Result<(Self, Effects), ConfigError> {
        todo!()
    }
    /// step
    pub fn step(&mut self, _now: Timestamp, _input: Input) -> Effects {
        todo!()
    }
}
