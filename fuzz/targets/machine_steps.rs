//! Whatever comes to a machine, in whatever order: no panic, every invariant, no growth without bound.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::machine_steps);
