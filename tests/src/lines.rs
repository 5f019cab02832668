//! The sources of this repository, read as text: what is counted, and what must not stand in them.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use crate::codex::workspace_dir;

/// What is counted together: its name, and the files and folders.
pub const PARTS: [(&str, &[&str]); 10] = [
    (
        "runtime-tokio",
        &["runtime-tokio/src/lib.rs", "runtime-tokio/src/runtime.rs"],
    ),
    ("runtime-async-std", &["runtime-async-std/src"]),
    (
        "driver",
        &[
            "core/runtime/src/clock.rs",
            "core/runtime/src/driver.rs",
            "core/runtime/src/gate.rs",
            "core/runtime/src/event.rs",
            "core/runtime/src/hub.rs",
            "core/runtime/src/life.rs",
            "core/runtime/src/listeners.rs",
            "core/runtime/src/queue.rs",
            "core/runtime/src/refreshes.rs",
            "core/runtime/src/request.rs",
            "core/runtime/src/runtime.rs",
        ],
    ),
    (
        "transports: what they share",
        &[
            "core/runtime/src/transport/mod.rs",
            "core/runtime/src/transport/pipes.rs",
        ],
    ),
    (
        "transport: child process",
        &[
            "core/runtime/src/transport/child.rs",
            "core/runtime/src/transport/ending.rs",
            "core/runtime/src/transport/orphan.rs",
            "core/runtime/src/transport/process.rs",
        ],
    ),
    (
        "transport: streams",
        &[
            "core/runtime/src/config/streams.rs",
            "core/runtime/src/transport/streams.rs",
        ],
    ),
    (
        "transport: WebSocket",
        &[
            "core/runtime/src/config/websocket.rs",
            "core/runtime/src/transport/websocket.rs",
            "core/runtime/src/transport/websocket",
        ],
    ),
    ("handles", &["core/runtime/src/handle"]),
    ("journal", &["core/runtime/src/journal"]),
    (
        "configuration, errors, recording",
        &[
            "core/runtime/src/config.rs",
            "core/runtime/src/error.rs",
            "core/runtime/src/lib.rs",
            "core/runtime/src/recording.rs",
        ],
    ),
];

/// The lines of code of a file with their numbers: without blank lines, comments and unit tests,
/// which are the last thing in a file.
pub fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines());
    let mut is_test = false;
    numbered.filter(move |(_, line)| {
        let line = line.trim();
        is_test |= line == "mod tests {";
        let is_mark = line == "#[cfg(test)]" || line == "mod tests;";
        !is_test && !is_mark && !line.is_empty() && !line.starts_with("//")
    })
}

/// The files of a part, or of all that no application and no test brings: those of the scripted
/// server and of tests are left out. What is not there (yet) is passed over.
#[must_use]
pub fn files(places: &[&str]) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    for place in places {
        gather(&workspace_dir().join(place), &mut found);
    }
    found.into_iter().collect()
}

fn gather(place: &Path, found: &mut BTreeSet<PathBuf>) {
    let name = place.file_name().and_then(|name| name.to_str());
    if matches!(
        name,
        Some("fake" | "tests" | "tests.rs" | "testing.rs" | "bin")
    ) {
        return;
    }
    if let Ok(entries) = fs::read_dir(place) {
        for entry in entries.flatten() {
            gather(&entry.path(), found);
        }
    } else if place.is_file() && place.extension().is_some_and(|is| is == "rs") {
        found.insert(place.to_owned());
    }
}

/// How many lines of code a part has.
///
/// # Errors
///
/// A file cannot be read.
pub fn count(places: &[&str]) -> io::Result<usize> {
    let texts = files(places).into_iter().map(fs::read_to_string);
    texts.map(|text| Ok(code(&text?).count())).sum()
}

/// The protocol's methods, as the core's own code names them.
///
/// # Errors
///
/// A file cannot be read.
pub fn methods() -> io::Result<BTreeSet<String>> {
    let mut methods = BTreeSet::from(["initialize".to_owned(), "initialized".to_owned()]);
    for file in files(&["core/src"]) {
        let text = fs::read_to_string(file)?;
        for (_, line) in code(&text) {
            methods.extend(
                line.split('"')
                    .filter(|word| is_method(word))
                    .map(str::to_owned),
            );
        }
    }
    Ok(methods)
}

fn is_method(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic());
    text.contains('/') && text.split('/').all(is_word)
}

/// Whether a line of code names a method.
#[must_use]
pub fn names(line: &str, method: &str) -> bool {
    if !method.contains('/') {
        return line.contains(&format!("\"{method}\""));
    }
    let is_part = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphabetic() || *b == b'/');
    line.match_indices(method).any(|(at, _)| {
        let bytes = line.as_bytes();
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !is_part(before) && !is_part(bytes.get(at + method.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_are_no_code() {
        let text = "//! Doc.\n\nuse x;\n/// Doc.\nfn f() {\n    // Why.\n    g(); // what\n}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let lines: Vec<_> = code(text).collect();
        let want = [
            (3, "use x;"),
            (5, "fn f() {"),
            (7, "    g(); // what"),
            (8, "}"),
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn a_method_is_found_as_a_whole() {
        assert!(names("send(\"turn/start\")", "turn/start"));
        assert!(names(r#"{"method":"turn/start","id":1}"#, "turn/start"));
        assert!(!names("send(\"turn/started\")", "turn/start"));
        assert!(!names("open(\"/return/start\")", "turn/start"));
        assert!(names("phase(\"initialize\")", "initialize"));
        assert!(!names("fn initialize() {", "initialize"));
    }
}
