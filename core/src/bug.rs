//! Deliberate bugs: one line each in the machine, to prove that the simulator's checkers bite.
//!
//! A machine gets one by [`Recovery::with_bug`](crate::Recovery::with_bug), which is compiled with
//! the feature `bugs` only.

/// A rule that a machine breaks.
#[allow(unreachable_pub, reason = "it is exported with the feature `bugs`")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Frames do not wait for their records.
    SendsBeforeAppend,
    /// A message in doubt is sent again without a look into the history.
    ResendsWithoutLook,
    /// A message is sent again when the history lacks it once, on a live server.
    ResendsOnFirstAbsence,
    /// A message is sent again though it stands in a turn that was interrupted.
    ResendsWhatWasInterrupted,
    /// A turn without its message is told as interrupted in place of sending the message again.
    LosesWhatWasNeverRecorded,
    /// An acknowledgement is confirmed and not recorded.
    ForgetsAcknowledgements,
    /// The end of a turn is told twice.
    EndsTwice,
    /// A tool call is launched before its record.
    LaunchesBeforeAppend,
    /// The answer to a question that is asked again is sent twice.
    AnswersReplaysTwice,
    /// The server's request ids outlive their connection.
    KeepsRequestIds,
    /// The end of another turn is taken for that of the turn that runs.
    TakesEndsOfOthers,
    /// Records that must be synced are written only.
    SyncsNothing,
    /// A steer that was answered is taken for recorded.
    TakesAnswersForRecords,
    /// Where nobody serves a question it is approved.
    ApprovesByDefault,
    /// What a recorded steer carried goes with the next message too.
    SubmitsABoxTwice,
    /// What arrives during a round is confirmed and not recorded.
    LosesAnArrival,
    /// A tool's message makes a round.
    InertMessageTriggers,
    /// The calls of a stage are answered before its steer is.
    AnswersBeforeTheSteer,
    /// A round begins without the binding that it needs.
    BeginsUnbound,
}

#[cfg(feature = "bugs")]
impl Bug {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::SendsBeforeAppend,
        Self::ResendsWithoutLook,
        Self::ResendsOnFirstAbsence,
        Self::ResendsWhatWasInterrupted,
        Self::LosesWhatWasNeverRecorded,
        Self::ForgetsAcknowledgements,
        Self::EndsTwice,
        Self::LaunchesBeforeAppend,
        Self::AnswersReplaysTwice,
        Self::KeepsRequestIds,
        Self::TakesEndsOfOthers,
        Self::SyncsNothing,
        Self::TakesAnswersForRecords,
        Self::ApprovesByDefault,
        Self::SubmitsABoxTwice,
        Self::LosesAnArrival,
        Self::InertMessageTriggers,
        Self::AnswersBeforeTheSteer,
        Self::BeginsUnbound,
    ];
}
