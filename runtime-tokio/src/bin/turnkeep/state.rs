//! Where runs keep their files.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use turnkeep_tokio::{LOCK_FILE, journal_files};

use crate::problem::{Problem, quoted};

/// The recording's name in a run's directory.
pub(crate) const RECORDING_FILE: &str = "session.trace";

/// `$XDG_STATE_HOME/turnkeep`, else `~/.local/state/turnkeep`.
fn base() -> Option<PathBuf> {
    // A relative path there is to be ignored, says the XDG specification.
    let absolute = |name| {
        let path = PathBuf::from(env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("turnkeep"))
}

/// The file of the messages that were written; its directory is made where it is missing.
pub(crate) fn history() -> Option<PathBuf> {
    let base = base()?;
    private(true).create(&base).ok()?;
    Some(base.join("history"))
}

/// Makes a directory that no other run has.
pub(crate) fn fresh(kind: &str, flag: &str) -> Result<PathBuf, Problem> {
    let Some(base) = base() else {
        return Err(
            Problem::usage("there is no place for the journal: HOME is not set")
                .hint(format!("name a directory: {flag} DIR")),
        );
    };
    let cannot = |path: &Path, error: &io::Error| {
        Problem::usage(format!("cannot create {}: {error}", path.display()))
            .hint(format!("name a directory elsewhere: {flag} DIR"))
    };
    private(true)
        .create(&base)
        .map_err(|error| cannot(&base, &error))?;
    let now = jiff::ZonedDateTime::now()
        .strftime("%Y%m%d-%H%M%S")
        .to_string();
    let mut n = 1;
    loop {
        let name = match n {
            1 => format!("{kind}-{now}"),
            n => format!("{kind}-{now}-{n}"),
        };
        let path = base.join(name);
        match private(false).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => n += 1,
            Err(error) => return Err(cannot(&path, &error)),
        }
    }
}

/// The newest directory of a kind that holds a journal.
pub(crate) fn newest(kind: &str) -> Result<PathBuf, Problem> {
    let base = base();
    let entries = base.as_ref().and_then(|base| fs::read_dir(base).ok());
    let of_kind = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&format!("{kind}-")))
            && journal_files(path).is_ok_and(|files| !files.is_empty())
    };
    let modified = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    let paths = entries.into_iter().flatten().flatten().map(|e| e.path());
    let found = paths
        .filter(of_kind)
        .max_by_key(|path| (modified(path), path.clone()));
    found.ok_or_else(|| {
        let place = base.map_or_else(String::new, |base| format!(" in {}", base.display()));
        Problem::usage(format!("there is no earlier conversation{place}"))
            .hint("begin one: turnkeep chat")
            .hint("or name its journal: --journal DIR")
    })
}

fn private(recursive: bool) -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(recursive).mode(0o700);
    builder
}

/// Takes a directory away again in which nothing was done.
pub(crate) fn discard(directory: &Path) {
    let journal = journal_files(directory).unwrap_or_default();
    let others = [LOCK_FILE, RECORDING_FILE].map(|name| directory.join(name));
    for path in journal.iter().chain(&others) {
        let _ = fs::remove_file(path);
    }
    // It fails where somebody put something of their own there.
    let _ = fs::remove_dir(directory);
}

/// Refuses to write a recording over something that is none.
pub(crate) fn may_record_to(path: &Path) -> Result<(), Problem> {
    let head = match fs::File::open(path) {
        Ok(mut file) => {
            let mut head = [0; 18];
            io::Read::read(&mut file, &mut head).map(|n| head[..n].to_vec())
        }
        Err(_) => return Ok(()),
    };
    match head {
        Ok(head) if head.is_empty() || head.starts_with(br#"{"turnkeep_trace":"#) => Ok(()),
        Ok(_) => Err(Problem::usage(format!(
            "{} exists and is no recording; it would be overwritten",
            path.display()
        ))
        .hint("name another file, or remove it first")),
        Err(error) => Err(Problem::usage(format!(
            "cannot read {}: {error}",
            path.display()
        ))),
    }
}

/// A path as it can be pasted into a shell.
pub(crate) fn pasteable(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}
