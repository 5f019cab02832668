//! However the frames of a WebSocket are cut, they are read as the standard has them.

#![cfg_attr(fuzzing, no_main)]

turnkeep_fuzz::target!(turnkeep_fuzz::socket_decode);
