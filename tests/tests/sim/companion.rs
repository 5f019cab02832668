//! Every crash after every step of scripts without chance.

use std::fmt::Write as _;

use turnkeep_tests::sim::{self, Tally};

#[test]
fn every_script_survives_every_crash_after_every_step() {
    let halves = [false, true].map(|socket| {
        std::thread::spawn(move || {
            let (mut tally, mut text) = (Tally::default(), String::new());
            for script in sim::scripts() {
                let (some, failures) = script.crash_everywhere(socket);
                tally.add(&some);
                let count = failures.len();
                for (step, fault, failure) in failures.into_iter().take(1) {
                    let socket = if socket { " --socket" } else { "" };
                    writeln!(
                        text,
                        "{count} crashes of {name}, the first of them: {}\n  again: cargo xtask sim --script {name}{socket} --crash {}@{step}",
                        failure.what,
                        fault.word(),
                        name = script.name,
                    )
                    .unwrap();
                }
            }
            (tally, text)
        })
    });
    let (mut tally, mut failed) = (Tally::default(), String::new());
    for half in halves {
        let (some, text) = half.join().unwrap();
        tally.add(&some);
        failed += &text;
    }
    assert!(failed.is_empty(), "{failed}");
    assert!(tally.runs > 3_000, "{tally}");
    println!("{tally}");
}
