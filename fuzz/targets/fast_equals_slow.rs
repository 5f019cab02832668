//! What the hot path takes it reads as the cold path and a plain reader of JSON do.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::fast_equals_slow);
