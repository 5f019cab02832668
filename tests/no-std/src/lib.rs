//! turnkeep-core in a library without std. See `Cargo.toml` beside it.
#![no_std]

use core::{
    alloc::{GlobalAlloc, Layout},
    panic::PanicInfo,
    ptr,
};

#[cfg(feature = "control")]
use serde_json as _;
// Only a crate that is named is loaded, with all it uses; a mere entry in Cargo.toml proves nothing.
use turnkeep_core as _;

struct NoMemory;

// SAFETY: it hands out nothing, so there is nothing to keep valid.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
