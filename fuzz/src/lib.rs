//! What the fuzz targets have in common: each is one function of [`turnkeep_tests::fuzzing`].
//!
//! `cargo xtask fuzz` builds and runs them. Without cargo-fuzz each is a program that gives the files which are named to it to that
//! function, so that a crash can be looked at in a plain build: `cargo run -p turnkeep-fuzz --bin line_split -- FILE…`.

use std::{env, fs};

#[doc(hidden)]
#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Makes a fuzz target of a function that takes bytes.
#[macro_export]
macro_rules! target {
    ($function:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| $function(bytes));

        #[cfg(not(fuzzing))]
        fn main() {
            $crate::replay($function);
        }
    };
}

/// Gives every file that is named on the command line to a function.
///
/// # Panics
///
/// A file cannot be read, or the function panics.
pub fn replay(function: fn(&[u8])) {
    for path in env::args_os().skip(1) {
        println!("{}", path.display());
        let bytes = fs::read(&path).expect("a file that can be read");
        function(&bytes);
    }
}
