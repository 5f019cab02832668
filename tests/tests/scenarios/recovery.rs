//! Crashes of ours: what the next life makes of the journal.
