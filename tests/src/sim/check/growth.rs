//! Rule 10: Nothing grows without bound, and nothing is done without a reason.

/// How many records one step may make. A start tells what all turns of all conversations came to.
const MOST_RECORDS: usize = 500;

/// How many frames may leave for one input, on average, and how many beside.
const FRAMES_PER_INPUT: u64 = 4;
const FRAMES_BESIDE: u64 = 200;

#[derive(Debug, Default)]
pub(super) struct Growth {
    inputs: u64,
    frames: u64,
}

impl Growth {
    pub(super) fn life_begins(&mut self) {
        *self = Self::default();
    }

    pub(super) fn input(&mut self) {
        self.inputs += 1;
    }

    pub(super) fn batch(&mut self, records: usize) {
        assert!(records > 0, "10: a batch holds records");
        assert!(
            records < MOST_RECORDS,
            "10: one step makes {records} records"
        );
    }

    pub(super) fn frame(&mut self) {
        self.frames += 1;
        assert!(
            self.frames <= self.inputs * FRAMES_PER_INPUT + FRAMES_BESIDE,
            "10: {} frames for {} inputs",
            self.frames,
            self.inputs
        );
    }
}
