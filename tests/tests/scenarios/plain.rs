//! Turns without anything special.

use insta::assert_snapshot;
use turnkeep_core::Settings;
use turnkeep_tests::world::Setup;

#[test]
fn a_plain_turn() {
    let mut world = Setup::demo().start();
    let conversation = world.open("a", Settings::new().cwd("/w"));
    let turn = world.send(conversation, "hello");
    world.end_of(turn);
    world.acknowledge(turn);
    assert_snapshot!(world.finish());
}
