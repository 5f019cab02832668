//! Rule 8: What the journal makes is what the machine has.

use turnkeep_core::{Durable, Machine, Record, codec::journal};

#[derive(Debug, Default)]
pub(super) struct Recovery {
    made: Durable,
}

impl Recovery {
    pub(super) fn life_begins(&mut self) {
        self.made = Durable::default();
    }

    pub(super) fn apply(&mut self, record: &Record) {
        if let Err(error) = self.made.apply(record) {
            panic!("8: a record does not fit: {error}: {record:?}");
        }
    }

    /// What the records make.
    pub(super) fn made(&self) -> &Durable {
        &self.made
    }

    pub(super) fn same(&self, live: &Durable) {
        assert!(
            self.made == *live,
            "8: the records do not make the live state:\n{:?}\n{live:?}",
            self.made
        );
    }
}

/// The bytes that were handed to the disk, read back, make the live state; so does its checkpoint.
pub(super) fn same_as_journal(machine: &Machine, bytes: &[u8]) {
    let read = journal::decode(bytes).expect("8: the journal reads back");
    assert_eq!(read.torn, None, "8: whole batches were handed out");
    let mut made = Durable::default();
    for (_, entry) in read.entries {
        for record in entry.records {
            if let Err(error) = made.apply(&record) {
                panic!("8: a record does not fit: {error}: {record:?}");
            }
        }
    }
    let live = machine.durable();
    assert!(
        made == *live,
        "8: the journal does not make the live state:\n{made:?}\n{live:?}"
    );
    let mut again = Durable::default();
    again
        .apply(&live.checkpoint())
        .expect("8: a checkpoint stands first");
    assert!(
        again == *live,
        "8: the checkpoint does not make the live state"
    );
}
