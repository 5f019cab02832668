//! What must not stand in the sources of runtimes.

use turnkeep_tests::lines;

/// All that runs between an application and the core.
const RUNTIMES: [&str; 4] = [
    "core/runtime/src",
    "runtime-async-std/src",
    "runtime-tokio/src/lib.rs",
    "runtime-tokio/src/runtime.rs",
];

#[test]
fn no_runtime_knows_a_method_of_the_protocol() {
    let methods = lines::methods().unwrap();
    for method in [
        "initialize",
        "thread/start",
        "turn/completed",
        "item/tool/call",
    ] {
        assert!(methods.contains(method), "{methods:?}");
    }
    assert!(methods.len() >= 40, "{}", methods.len());
    let files = lines::files(&RUNTIMES);
    assert!(files.len() >= 30, "{files:?}");
    let mut found = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        for (number, line) in lines::code(&text) {
            if methods.iter().any(|method| lines::names(line, method)) {
                found.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    assert_eq!(found, [""; 0]);
}

#[test]
fn every_file_of_a_runtime_is_counted_once() {
    let counted = lines::PARTS
        .iter()
        .flat_map(|(_, places)| lines::files(places));
    let mut counted: Vec<_> = counted.collect();
    counted.sort();
    assert_eq!(counted, lines::files(&RUNTIMES));
}
