//! Cases that other clients met over sockets, at every moment of a turn.

use turnkeep_tests::sim::{self, Fault, Script, Tally};

fn script(name: &str) -> Script {
    let all = sim::scripts();
    all.into_iter().find(|script| script.name == name).unwrap()
}

/// Plays a script over a socket with one fault after every step.
fn after_every_step(name: &str, fault: Fault, check: impl Fn(u64, &Tally)) {
    let script = script(name);
    for step in 1..=script.steps(true).unwrap() {
        let tally = script
            .run(true, Some((step, fault)))
            .unwrap_or_else(|failure| panic!("{} at step {step}", failure.what));
        check(step, &tally);
    }
}

/// Case 36: one approval for the user, not two, whenever the connection is lost.
#[test]
fn case_36_an_approval_that_is_open_at_the_disconnect_is_asked_once() {
    after_every_step("slow-approval", Fault::Reset, |step, tally| {
        assert_eq!(tally.others["questions told"], 1, "reset at step {step}");
        assert_eq!(tally.accepted, 1, "reset at step {step}");
    });
}

/// Case A8: a server that is replaced under the client is resumed, and no message is sent to it again that the old one had.
#[test]
fn case_a8_a_server_that_is_replaced_is_asked_nothing_twice() {
    after_every_step("two-messages", Fault::KillServer, |step, tally| {
        assert_eq!(tally.accepted, 2, "killed at step {step}");
    });
}
