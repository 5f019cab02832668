//! Every sentence of section 2 of the specification stands in a table with the tests that show it, see
//! `spec/section-2.tests.md`: nothing is left out, nothing goes without a test, and every test is there.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const SECTION: &str = include_str!("../spec/section-2.md");
const TABLE: &str = include_str!("../spec/section-2.tests.md");

/// A sentence, and what shows it.
#[derive(Debug, Default)]
struct Entry {
    id: String,
    sentence: String,
    tests: Vec<String>,
}

/// Joins what may be spread over lines.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The section without its heading.
fn section(text: &str) -> String {
    let body = text.lines().filter(|line| !line.starts_with("## "));
    words(&body.collect::<Vec<_>>().join("\n"))
}

/// The entries of a table. A line that means nothing is in the second list.
fn entries(table: &str) -> (Vec<Entry>, Vec<String>) {
    let mut entries: Vec<Entry> = Vec::new();
    let mut strange = Vec::new();
    // A note goes on to the next empty line.
    let mut in_note = false;
    for line in table.lines() {
        in_note = !line.is_empty() && (in_note || line.starts_with("Note: "));
        if let Some(id) = line.strip_prefix("## ") {
            entries.push(Entry {
                id: id.to_owned(),
                ..Entry::default()
            });
            continue;
        }
        // What stands before the first entry explains the table.
        let Some(entry) = entries.last_mut() else {
            continue;
        };
        let test = line
            .strip_prefix("- `")
            .and_then(|test| test.strip_suffix('`'));
        if let Some(part) = line.strip_prefix("> ") {
            entry.sentence = words(&format!("{} {part}", entry.sentence));
        } else if let Some(test) = test {
            entry.tests.push(test.to_owned());
        } else if !line.is_empty() && !in_note {
            strange.push(line.to_owned());
        }
    }
    (entries, strange)
}

/// Where in an entry another sentence begins.
fn second_sentence(text: &str) -> Option<&str> {
    // "**Round.** 1. `begin`: …" is one.
    let mut start = 0;
    if let Some(end) = text.strip_prefix("**").and_then(|rest| rest.find("**")) {
        start = end + 4;
    }
    let rest = text[start..].trim_start();
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = rest.strip_prefix(". ").unwrap_or(rest);
    let ends = rest.match_indices(". ").chain(rest.match_indices(".) "));
    let mut after = ends.map(|(at, end)| &rest[at + end.len()..]);
    after.find(|next| next.starts_with(|c: char| c.is_uppercase() || "`*(".contains(c)))
}

/// All that is wrong with a table.
fn faults(section: &str, table: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let (entries, strange) = entries(table);
    let mut faults: Vec<String> = strange
        .iter()
        .map(|line| format!("a line that says nothing: {line}"))
        .collect();
    let mut ids = BTreeSet::new();
    let mut rest = section;
    for entry in &entries {
        let (id, sentence) = (&entry.id, entry.sentence.as_str());
        if !ids.insert(id) {
            faults.push(format!("{id} is there twice"));
        }
        match rest.find(sentence).filter(|_| !sentence.is_empty()) {
            None => faults.push(format!("{id} is not in the section: {sentence}")),
            Some(at) => {
                let left_out = rest[..at].trim();
                if !left_out.is_empty() {
                    faults.push(format!("no entry before {id} has: {left_out}"));
                }
                rest = rest[at + sentence.len()..].trim_start();
            }
        }
        if let Some(second) = second_sentence(sentence) {
            faults.push(format!("{id} is more than one sentence: … {second}"));
        }
        if entry.tests.is_empty() {
            faults.push(format!("{id} has no test: {sentence}"));
        }
        let mut named = BTreeSet::new();
        for test in &entry.tests {
            if !named.insert(test) {
                faults.push(format!("{id} names {test} twice"));
            } else if !tests.contains(test) {
                faults.push(format!("{id} names a test that is not there: {test}"));
            }
        }
    }
    if !rest.is_empty() {
        faults.push(format!("no entry at the end has: {rest}"));
    }
    faults
}

/// The names of the tests in a source file, with the modules inside of it. What is ignored shows nothing.
fn tests_of(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut modules: Vec<(usize, &str)> = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines() {
        let code = line.trim_start();
        let depth = line.len() - code.len();
        // Sources are formatted: a module ends with a brace below its first letter.
        if code == "}" && modules.last().is_some_and(|(of, _)| *of == depth) {
            modules.pop();
        }
        if let Some(name) = code
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            modules.push((depth, name));
        }
        is_test |= code == "#[test]" || code.starts_with("#[tokio::test");
        is_ignored |= code.starts_with("#[ignore");
        let function = code.strip_prefix("async ").unwrap_or(code);
        if let Some(rest) = function.strip_prefix("fn ") {
            if is_test && !is_ignored {
                let name = rest.split(['(', '<']).next().unwrap();
                let path = modules.iter().map(|(_, module)| *module).chain([name]);
                names.push(path.collect::<Vec<_>>().join("::"));
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    names
}

/// The tests that `live!` makes, as `file::name`: one for each version of the server.
fn live_tests(source: &str) -> Vec<String> {
    let Some((_, list)) = source.split_once("\nlive! {\n") else {
        return Vec::new();
    };
    let (list, _) = list.split_once("\n}").unwrap();
    let files = list.split(';').filter_map(|of| of.split_once(':'));
    let names = files.flat_map(|(file, names)| {
        // The first file of a part stands behind the part's name.
        let file = file.rsplit(['{', '}']).next().unwrap_or_default().trim();
        names
            .split_whitespace()
            .map(move |name| format!("{file}::{name}"))
    });
    names.collect()
}

/// Puts the tests of a folder's files under their modules.
fn collect(folder: &Path, module: &str, tests: &mut BTreeSet<String>) {
    let mut below = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        below.insert(
            entry.file_name().into_string().unwrap(),
            entry.file_type().unwrap().is_dir(),
        );
    }
    for (name, is_folder) in below {
        let path = folder.join(&name);
        let inner = |stem: &str| match (module, stem) {
            (of, "main" | "mod" | "lib") => of.to_owned(),
            ("", stem) => stem.to_owned(),
            (of, stem) => format!("{of}::{stem}"),
        };
        if is_folder {
            collect(&path, &inner(&name), tests);
        } else if let Some(stem) = name.strip_suffix(".rs") {
            let source = fs::read_to_string(&path).unwrap();
            let module = inner(stem);
            let all = tests_of(&source).into_iter().chain(live_tests(&source));
            tests.extend(all.map(|test| format!("{module}::{test}")));
        }
    }
}

/// Every test that a table may name.
fn all_tests() -> BTreeSet<String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    collect(&here.join("tests"), "", &mut tests);
    collect(&here.join("../core/src"), "core", &mut tests);
    tests
}

#[test]
fn every_sentence_of_section_2_has_its_tests() {
    let (entries, _) = entries(TABLE);
    let faults = faults(&section(SECTION), TABLE, &all_tests());
    println!("{} sentences and clauses", entries.len());
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn what_is_wrong_with_a_table_is_told_all_at_once() {
    let section =
        section("## A title\n\n**One.** 1. A sentence; a\nclause. Another one.\nThe last.\n");
    let tests = ["a::shown", "a::b::shown"].map(str::to_owned).into();
    let of = |table: &str| faults(&section, table, &tests);
    let good = "# Words\n\nabove\n\n## a\n\n> **One.** 1. A sentence;\n\n- `a::shown`\n\n## b\n\n> a clause.\n\n\
                - `a::shown`\n- `a::b::shown`\n\nNote: more\nof it.\n\n## c\n\n> Another\n> one.\n\n- `a::shown`\n\n\
                ## d\n\n> The last.\n\n- `a::shown`\n";
    assert_eq!(of(good), [""; 0]);
    let without_one = good.replace("## b\n\n> a clause.\n\n", "");
    assert_eq!(
        of(&without_one),
        ["a names a::shown twice", "no entry before c has: a clause."]
    );
    let without_last = good.split_once("## d").unwrap().0;
    assert_eq!(of(without_last), ["no entry at the end has: The last."]);
    let bad = good
        .replace("> a clause.\n\n- `a::shown`\n- `a::b::shown`", "> a pause.")
        .replace(
            "Another\n> one.\n\n- `a::shown`",
            "Another\n> one. The last.\n\n- `a::hidden`",
        )
        .replace("## d", "## a")
        .replace("Note: more\n", "");
    assert_eq!(
        of(&bad),
        [
            "a line that says nothing: of it.",
            "b is not in the section: a pause.",
            "b has no test: a pause.",
            "no entry before c has: a clause.",
            "c is more than one sentence: … The last.",
            "c names a test that is not there: a::hidden",
            "a is there twice",
            "a is not in the section: The last.",
        ]
    );
}

#[test]
fn tests_are_found_by_their_names() {
    let source = "#[test]\nfn one() {\n}\nfn helper() {}\n#[test]\n#[ignore = \"slow\"]\nfn none() {}\n\
                  proptest! {\n    #[test]\n    fn two(x in any()) {}\n}\n\
                  mod tests {\n    mod inner {\n        #[tokio::test(start_paused = true)]\n        \
                  async fn three() {}\n    }\n\n    #[test]\n    fn four() {}\n}\n#[test]\nfn five() {}\n";
    assert_eq!(
        tests_of(source),
        ["one", "two", "tests::inner::three", "tests::four", "five"]
    );
    let source = "x\nlive! {\n    any {\n        turns:\n            plain\n            second;\n        tools:\n            \
         third;\n    }\n    stdio {\n        lives:\n            fourth;\n    }\n}\n";
    assert_eq!(
        live_tests(source),
        [
            "turns::plain",
            "turns::second",
            "tools::third",
            "lives::fourth"
        ]
    );
    let all = all_tests();
    for name in [
        "core::tools::tests::a_router_records_the_inner_call",
        "live::turns::plain_turn",
        "props::lines_do_not_depend_on_the_cuts",
        "scenarios::plain::a_plain_turn",
        "spec::tests_are_found_by_their_names",
    ] {
        assert!(all.contains(name), "{name} is one");
    }
}
