//! Whatever a journal holds, it makes a machine or a typed error.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::journal_decode);
