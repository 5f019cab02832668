//! One connection: bytes on their way, cut and joined as chance has it.

use std::collections::VecDeque;

use turnkeep_core::{CloseReason, Epoch};

use super::rng::Rng;

#[derive(Debug)]
pub(super) struct Wire {
    pub(super) epoch: Epoch,
    /// The life of ours that opened it.
    pub(super) life: u32,
    pub(super) pid: u32,
    /// Lines on their way to the server.
    up: VecDeque<(u64, Vec<u8>)>,
    /// Bytes on their way to us.
    down: VecDeque<(u64, Vec<u8>)>,
    last_up: u64,
    last_down: u64,
    /// Whether we still read and write.
    pub(super) ours: bool,
    /// Whether the server still does.
    pub(super) theirs: bool,
    /// How it ends for us once all that is on its way has been read.
    pub(super) closing: Option<CloseReason>,
}

impl Wire {
    pub(super) fn new(epoch: Epoch, life: u32, pid: u32) -> Self {
        Self {
            epoch,
            life,
            pid,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: 0,
            last_down: 0,
            ours: true,
            theirs: true,
            closing: None,
        }
    }

    /// A line leaves for the server. Returns when it is there.
    pub(super) fn send(&mut self, now: u64, delay: u64, line: Vec<u8>) -> u64 {
        self.last_up = self.last_up.max(now + delay);
        self.up.push_back((self.last_up, line));
        self.last_up
    }

    /// A line that has arrived at the server.
    pub(super) fn arrived(&mut self, now: u64) -> Option<Vec<u8>> {
        match self.up.front() {
            Some((at, _)) if *at <= now => self.up.pop_front().map(|(_, line)| line),
            _ => None,
        }
    }

    /// A line leaves for us, in one piece or several. Returns when each is there.
    pub(super) fn say(&mut self, now: u64, rng: &mut Rng, steady: bool, line: String) -> Vec<u64> {
        let mut bytes = line.into_bytes();
        bytes.push(b'\n');
        if steady {
            self.last_down = self.last_down.max(now + 1_000);
            self.down.push_back((self.last_down, bytes));
            return vec![self.last_down];
        }
        let pieces = match rng.below(10) {
            0 => 3,
            1 => 2,
            _ => 1,
        };
        let mut times = Vec::new();
        for left in (0..pieces).rev() {
            let cut = if left == 0 {
                bytes.len()
            } else {
                rng.at(bytes.len())
            };
            let rest = bytes.split_off(cut);
            let piece = std::mem::replace(&mut bytes, rest);
            if piece.is_empty() {
                continue;
            }
            let delay = match rng.below(20) {
                0 => rng.between(1_000, 300_000),
                _ => rng.between(20, 2_000),
            };
            self.last_down = self.last_down.max(now + delay);
            self.down.push_back((self.last_down, piece));
            times.push(self.last_down);
        }
        times
    }

    /// One read: a piece, or all that are there.
    pub(super) fn read(&mut self, now: u64, rng: &mut Rng) -> Option<Vec<u8>> {
        let is_there = |piece: Option<&(u64, Vec<u8>)>| piece.is_some_and(|(at, _)| *at <= now);
        if !is_there(self.down.front()) {
            return None;
        }
        let (_, mut bytes) = self.down.pop_front()?;
        if rng.one_in(2) {
            while is_there(self.down.front()) {
                bytes.extend(self.down.pop_front()?.1);
            }
        }
        Some(bytes)
    }

    pub(super) fn all_read(&self) -> bool {
        self.down.is_empty()
    }

    /// The server's end is gone: what it wrote is read, what it did not read is lost.
    pub(super) fn lose_server(&mut self, reason: CloseReason) {
        self.theirs = false;
        self.up.clear();
        if self.closing.is_none() {
            self.closing = Some(reason);
        }
    }

    /// Our end is gone: what we wrote is read, what the server wrote is lost.
    pub(super) fn lose_us(&mut self) {
        self.ours = false;
        self.down.clear();
        self.closing = None;
    }

    /// It is cut: of what is on its way some is lost, each way; the rest may take long to the server.
    pub(super) fn cut(&mut self, rng: &mut Rng) {
        let kept = rng.at(self.down.len() + 1);
        self.down.truncate(kept);
        self.cut_up(rng);
    }

    /// Of what is on its way to the server some is lost.
    pub(super) fn cut_up(&mut self, rng: &mut Rng) {
        let kept = rng.at(self.up.len() + 1);
        self.up.truncate(kept);
    }

    /// Holds up what is on its way to the server. Returns when the last of it is there.
    pub(super) fn hold_up(&mut self, span: u64) -> Vec<u64> {
        for (at, _) in &mut self.up {
            *at += span;
        }
        self.last_up += span;
        self.up.iter().map(|(at, _)| *at).collect()
    }

    pub(super) fn last_up(&self) -> u64 {
        self.last_up
    }

    pub(super) fn last_down(&self) -> u64 {
        self.last_down
    }
}
