//! How often the core allocates, counted.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use turnkeep_core::{
    Batch, Command, Effect, Event, Input, Recovery, Timestamp, TurnNo, TurnUpdate, codec::journal,
};
use turnkeep_tests::rig::{self, Rig};

struct Counting;

thread_local! {
    // By thread: tests run side by side.
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
    static GROWN: Cell<u64> = const { Cell::new(0) };
    static HELD: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        GROWN.set(GROWN.get() + 1);
        HELD.set(HELD.get() + size as i64 - layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Count {
    deltas: u64,
    events: u64,
    text: u64,
    reads: u64,
    allocated: u64,
    grown: u64,
}

fn count(merge: bool, conversations: usize) -> Count {
    const DELTAS: usize = 100_000;
    let mut config = turnkeep_tests::one_connection();
    config.merge_deltas = merge;
    let mut rig = Rig::new(config, conversations);
    let bytes = rig::deltas(DELTAS, |i| (i * 7_919) % conversations);
    // What is allocated once, before the first delta, does not count.
    let warm = rig::deltas(conversations * 2, |i| i % conversations);
    drop(rig.read(&warm));
    let (mut events, mut text, mut reads) = (0, 0, 0);
    let before = (ALLOCATED.get(), GROWN.get());
    for read in bytes.chunks(64 << 10) {
        let effects = rig.read(read);
        for effect in &effects.list {
            if let Effect::Emit(Event::Delta(delta)) = effect {
                events += 1;
                text += delta.text.len() as u64;
            }
        }
        reads += 1;
    }
    Count {
        deltas: DELTAS as u64,
        events,
        text,
        reads,
        allocated: ALLOCATED.get() - before.0,
        grown: GROWN.get() - before.1,
    }
}

#[test]
fn a_delta_costs_one_allocation_and_a_merged_one_next_to_none() {
    let single = count(false, 1);
    assert_eq!(single.events, single.deltas);
    // Beside the text of each event: the read itself and the list of effects, once a read, and
    // the text so far, in blocks of 64 KiB, each of which grows by doubling.
    let beside = single.allocated - single.deltas;
    assert!(
        beside <= 2 * single.reads + single.text / (64 << 10) + 8,
        "{beside} beside {} reads",
        single.reads
    );

    let merged = count(true, 1);
    assert!(
        merged.events <= 2 * merged.reads,
        "{} events",
        merged.events
    );
    let per_delta = (merged.allocated + merged.grown) as f64 / merged.deltas as f64;
    assert!(per_delta <= 0.05, "{per_delta} a delta");

    let many = count(false, 1_000);
    let beside = many.allocated - many.deltas;
    assert!(
        beside <= 2 * many.reads + 1_008,
        "{beside} beside {} reads",
        many.reads
    );
}

#[test]
fn an_idle_conversation_is_small() {
    const CONVERSATIONS: usize = 10_000;
    let before = HELD.get();
    let mut rig = Rig::new(turnkeep_tests::one_connection(), CONVERSATIONS);
    let running = HELD.get() - before;
    for n in 0..CONVERSATIONS {
        let frame = rig::completed(n);
        drop(rig.read(frame.as_bytes()));
        let turn = TurnNo(u32::try_from(n + 1).unwrap());
        rig.command(Command::Acknowledge { turn });
    }
    assert_eq!(rig.machine.durable().prompts().count(), 0, "all at rest");
    let idle = (HELD.get() - before) / CONVERSATIONS as i64;
    let running = running / CONVERSATIONS as i64;
    println!("{idle} bytes an idle conversation, {running} a running one");
    assert!(idle < 4_096, "{idle} bytes an idle conversation");
    // Recovered they are no larger.
    let (seq, record) = rig.machine.checkpoint();
    drop(rig);
    let before = HELD.get();
    let mut recovery = Recovery::new(turnkeep_tests::one_connection(), 8).unwrap();
    let at = Timestamp(0);
    let entry = journal::Entry {
        seq,
        at,
        records: vec![record],
    };
    recovery.push(&entry).unwrap();
    drop(entry);
    let (machine, effects) = recovery.finish(at);
    drop(effects);
    let recovered = (HELD.get() - before) / CONVERSATIONS as i64;
    println!("{recovered} bytes a recovered conversation");
    assert!(recovered < 4_096, "{recovered} bytes");
    drop(machine);
}

#[test]
fn an_effect_is_small() {
    assert!(size_of::<Effect>() < 64, "{}", size_of::<Effect>());
}

#[test]
fn a_huge_frame_is_looked_at_once() {
    let mut rig = Rig::new(turnkeep_tests::one_connection(), 1);
    let frame = rig::delta("item/agentMessage/delta", 0, "", &"x".repeat(16 << 20));
    let before = rig.machine.bytes_examined();
    let mut text = 0;
    for read in frame.as_bytes().chunks(4 << 10) {
        for effect in rig.read(read).list {
            if let Effect::Emit(Event::Delta(delta)) = effect {
                text += delta.text.len();
            }
        }
    }
    assert_eq!(text, 16 << 20);
    assert_eq!(rig.machine.bytes_examined() - before, frame.len() as u64);
}

#[test]
fn a_huge_text_is_told_whole_at_an_end_however_it_was_read() {
    let delta = |text: &str| rig::delta("item/agentMessage/delta", 0, "", text);
    let huge = "é\"x\n".repeat(300_000);
    let texts = ["a", &huge, "b", &huge];
    let frames = texts.map(delta).concat() + &rig::completed(0);
    for size in [64 << 10, frames.len()] {
        let mut rig = Rig::new(turnkeep_tests::one_connection(), 1);
        let (mut told, mut end) = (String::new(), None);
        for read in frames.as_bytes().chunks(size) {
            let mut effects = rig.read(read).list;
            while let Some(effect) = (!effects.is_empty()).then(|| effects.remove(0)) {
                match effect {
                    Effect::Emit(Event::Delta(delta)) => told.push_str(&delta.text),
                    Effect::Emit(Event::Turn(event)) => {
                        if let TurnUpdate::Ended(ended) = event.update {
                            end = ended.text;
                        }
                    }
                    Effect::Append(Batch { through, .. }) => {
                        let through = Input::Appended { through };
                        effects.extend(rig.machine.step(Timestamp(0), through).list);
                    }
                    _ => {}
                }
            }
        }
        // Compared this way a failure does not print them.
        assert!(told == texts.concat(), "{} bytes", told.len());
        assert!(end == Some(told), "{:?} bytes", end.map(|end| end.len()));
    }
}
