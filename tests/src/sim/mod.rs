//! The simulator: a machine, a server, a disk, a network, a clock and an application, all from one seed, without threads and
//! without real time.
//!
//! [`run`] plays one seed: first with faults, as its [`Plan`] says; then everything heals, and all must come to rest. Checkers
//! look at every step, one file each under `check/`. A run that fails gives a [`Failure`], whose text is the command that plays
//! it again; [`shrink`] switches off what it does not need.

mod application;
mod check;
mod companion;
mod disk;
mod life;
mod marks;
mod plan;
pub(crate) mod rng;
pub mod server;
mod shrink;
mod wire;
mod world;

pub use self::{
    companion::{CRASHES, Script, scripts},
    life::Bug,
    plan::{Fault, Plan, Tally},
    shrink::shrink,
    world::{Failure, run, run_logged, run_with},
};
