//! However bytes are cut into reads, the same lines come out.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::line_split);
