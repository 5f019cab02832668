//! However the same bytes are cut into reads, the same frames, records and events come out.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::chunking);
