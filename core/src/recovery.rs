//! Records in, machine out: where an earlier life stopped, this one goes on.

use crate::{
    codec::journal::Entry,
    config::{Config, ConfigError},
    durable::Durable,
    effect::Effects,
    error::RecordError,
    id::JournalSeq,
    machine::Machine,
    time::Timestamp,
};

/// A machine in the making: takes what the journal holds, in order, and becomes a [`Machine`].
///
/// ```
/// use turnkeep_core::{Config, Recovery, Timestamp};
///
/// let recovery = Recovery::new(Config::default(), 7)?;
/// // for entry in journal { recovery.push(&entry)?; }
/// let (machine, effects) = recovery.finish(Timestamp::from_millis(1_800_000_000_000));
/// assert_eq!(machine.durable().lives(), 1);
/// # let _ = effects;
/// # Ok::<(), turnkeep_core::ConfigError>(())
/// ```
#[derive(Debug)]
pub struct Recovery {
    config: Config,
    seed: u64,
    durable: Durable,
    seq: JournalSeq,
    at: Timestamp,
    #[cfg(feature = "bugs")]
    bug: Option<crate::bug::Bug>,
}

impl Recovery {
    /// Begins with nothing.
    ///
    /// `seed` is the source of all chance of the life that begins and must differ between two
    /// starts; it is recorded.
    ///
    /// # Errors
    ///
    /// The configuration is refused.
    pub fn new(config: Config, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            seed,
            durable: Durable::default(),
            seq: JournalSeq(0),
            at: Timestamp::default(),
            #[cfg(feature = "bugs")]
            bug: None,
        })
    }

    /// Gives the machine a deliberate bug.
    #[cfg(feature = "bugs")]
    #[must_use]
    pub const fn with_bug(mut self, bug: crate::bug::Bug) -> Self {
        self.bug = Some(bug);
        self
    }

    /// Takes the next batch of the journal.
    ///
    /// # Errors
    ///
    /// A record does not fit those before it: the journal is damaged or another program's, and
    /// nothing is guessed.
    pub fn push(&mut self, entry: &Entry) -> Result<(), RecordError> {
        for record in &entry.records {
            self.durable.apply(record)?;
        }
        self.seq = self.seq.max(entry.seq);
        self.at = self.at.max(entry.at);
        Ok(())
    }

    /// What the records make, so far.
    #[must_use]
    pub const fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The last batch that was taken.
    #[must_use]
    pub const fn seq(&self) -> JournalSeq {
        self.seq
    }

    /// The stamp of the last batch: no later life begins before it.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Begins the next life, and asks for its first connection.
    ///
    /// `now` below the last stamp of the journal counts as that stamp.
    pub fn finish(self, now: Timestamp) -> (Machine, Effects) {
        let mut machine = Machine::blank(self.config, self.seed);
        #[cfg(feature = "bugs")]
        machine.set_bug(self.bug);
        let effects = machine.begin(self.durable, self.seq, now.max(self.at), self.seed);
        (machine, effects)
    }
}
