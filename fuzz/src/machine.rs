//! A machine and whatever comes to it.

use super::{
    Cuts,
    play::{Player, Reads, config_of},
    steps::Steps,
};

/// How much of a machine's state, as text, a byte that came may leave behind, and how much is there without any.
const GROWTH: usize = 64;
const BASE: usize = 1 << 17;

/// A case behind its configuration: three bytes.
pub(super) fn configured(case: &[u8]) -> ([u8; 3], &[u8]) {
    match case.split_first_chunk() {
        Some((bytes, rest)) => (*bytes, rest),
        None => ([0; 3], case),
    }
}

/// Gives a machine all that a case says, holds the invariants after each step, and looks at how much it has grown.
///
/// A case is three bytes of configuration, the places at which reads are cut, and steps.
pub fn machine_steps(case: &[u8]) {
    let (config, rest) = configured(case);
    let (cuts, steps) = Cuts::read(rest);
    let mut player = Player::new(config_of(config), Reads::Cut(cuts), false);
    player.play(Steps(steps));
    let size = format!("{:?}", player.machine).len();
    let taken = player.taken();
    assert!(
        size < BASE + GROWTH * taken,
        "{size} characters of state for {taken} bytes"
    );
}
