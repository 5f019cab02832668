//! A journal that is cut or changed anywhere makes a machine or a typed error, and its whole batches always make one.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::recover_prefix);
