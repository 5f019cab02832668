//! A case as steps of four bytes: what is done and three numbers, taken modulo what there is, so that any bytes are steps.

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    // The application asks.
    Open,
    Send,
    Steer,
    Interrupt,
    Abandon,
    Respond,
    Reply,
    Acknowledge,
    Close,
    Request,
    Accept,
    Manage,
    Preflight,
    ToolMessage,
    Change,
    CleanUp,
    Shutdown,
    /// An earlier command once more, under its number.
    Again,
    // The world.
    Opened,
    /// The journal has everything.
    Ack,
    /// The journal has a part, or more than there is.
    AckPart,
    AppendFailed,
    /// The next timer is due.
    Tick,
    /// Time passes.
    Pass,
    Closed,
    SendFailed,
    QueueFull,
    // The server says something; it is read before anything else is done.
    /// It answers a request of ours.
    Answer,
    /// It answers all of them as well as it can, and the journal has everything, until nothing more comes.
    Serve,
    Notify,
    Delta,
    Call,
    Ask,
    /// A frame of a recording, with names that there are.
    Recorded,
    /// So many bytes that follow, as they are.
    Raw,
    /// What was said is read.
    Read,
}

/// All of them, in the order of their numbers.
pub const ALL: [Do; 36] = [
    Do::Open,
    Do::Send,
    Do::Steer,
    Do::Interrupt,
    Do::Abandon,
    Do::Respond,
    Do::Reply,
    Do::Acknowledge,
    Do::Close,
    Do::Request,
    Do::Accept,
    Do::Manage,
    Do::Preflight,
    Do::ToolMessage,
    Do::Change,
    Do::CleanUp,
    Do::Shutdown,
    Do::Again,
    Do::Opened,
    Do::Ack,
    Do::AckPart,
    Do::AppendFailed,
    Do::Tick,
    Do::Pass,
    Do::Closed,
    Do::SendFailed,
    Do::QueueFull,
    Do::Answer,
    Do::Serve,
    Do::Notify,
    Do::Delta,
    Do::Call,
    Do::Ask,
    Do::Recorded,
    Do::Raw,
    Do::Read,
];

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// What is done.
    pub what: Do,
    /// Three numbers that say how, with what and where.
    pub by: [usize; 3],
    /// What it says as it is.
    pub raw: &'a [u8],
}

/// The steps of a case.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a>(pub &'a [u8]);

impl<'a> Iterator for Steps<'a> {
    type Item = Step<'a>;

    fn next(&mut self) -> Option<Step<'a>> {
        let ([what, a, b, c], rest) = self.0.split_first_chunk()?;
        let what = ALL[usize::from(*what) % ALL.len()];
        let by = [*a, *b, *c].map(usize::from);
        let length = match what {
            Do::Raw => by[0] | (by[1] & 3) << 8,
            _ => 0,
        };
        let (raw, rest) = rest.split_at(length.min(rest.len()));
        self.0 = rest;
        Some(Step { what, by, raw })
    }
}

/// Writes a step as the bytes that it is read from.
pub fn write(what: Do, by: [u8; 3], out: &mut Vec<u8>) {
    // There are fewer than 256.
    out.push(what as u8);
    out.extend(by);
}

/// Writes a step that says bytes as they are, up to 1,023.
pub fn write_raw(bytes: &[u8], out: &mut Vec<u8>) {
    let bytes = &bytes[..bytes.len().min(1_023)];
    let [low, high, ..] = bytes.len().to_le_bytes();
    write(Do::Raw, [low, high, 0], out);
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        for what in ALL {
            assert_eq!(ALL[what as usize], what);
            if what != Do::Raw {
                write(what, [1, 2, 3], &mut bytes);
            }
        }
        write_raw(&[b'x'; 700], &mut bytes);
        bytes.push(9);
        let steps: Vec<_> = Steps(&bytes).collect();
        assert_eq!(steps.len(), ALL.len());
        assert_eq!(steps[3].by, [1, 2, 3]);
        assert_eq!(steps[35].raw, [b'x'; 700]);
    }
}
