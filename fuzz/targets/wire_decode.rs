//! Whatever a line holds, it is read as what stands there, or is noise.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::wire_decode);
