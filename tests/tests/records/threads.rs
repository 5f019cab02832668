//! The records of what is asked of a thread beside rounds.

use turnkeep_core::{
    Authorization, CommandId, ConversationId, ConversationKey, Nonce, Outcome, Settings, TurnId,
    compaction::{CompactionChange, CompactionEnd},
    fork::Forked,
    naming::NamingChange,
    record::{Record, RequestEnd},
};

/// What is asked of a thread beside rounds.
pub(crate) fn records() -> Vec<Record> {
    let conversation = ConversationId(1);
    let (command, turn) = (CommandId(5), TurnId::new("trn_1").unwrap());
    let namings = [
        NamingChange::Asked { name: "n".into() },
        NamingChange::Given,
        NamingChange::Refused,
    ];
    let ends = [
        CompactionEnd::Request(RequestEnd::Refused { code: -32_600 }),
        CompactionEnd::Request(RequestEnd::Unknown),
        CompactionEnd::Turn(Box::new(Outcome::Interrupted)),
    ];
    let asked = [None, Some(turn.clone())];
    let asked = asked.map(|after| CompactionChange::Asked { command, after });
    let compactions = asked.into_iter().chain([CompactionChange::Began { turn }]);
    let compactions = compactions.chain(ends.map(|end| CompactionChange::Ended { end }));
    let named = namings.map(|change| Record::Naming {
        conversation,
        change,
    });
    let compacted = compactions.map(|change| Record::Compaction {
        conversation,
        change,
    });
    let mark = format!("turnkeep-create-{}", "0".repeat(32));
    let forked = [None, Some(mark)].map(|mark| {
        Record::Forked(Box::new(Forked {
            conversation: ConversationId(2),
            key: ConversationKey::new("f").unwrap(),
            nonce: Nonce([8; 12]),
            settings: Box::new(Settings::new().name("n")),
            authorization: Authorization::None,
            from: conversation,
            mark,
        }))
    });
    let all = named.into_iter().chain(compacted);
    all.chain(forked).collect()
}
