//! What lives write: batches of turns with a tool call each.

use turnkeep_core::{
    CallId, ConversationId, ConversationKey, Durability, InputItem, JournalSeq, MessageId, Nonce,
    Outcome, RawJson, Record, Settings, ThreadId, Timestamp, ToolCallId, ToolResult, TurnId,
    TurnNo,
    codec::journal,
    effect::Batch,
    event::EndSource,
    prompt::{PromptChange, PromptFields, PromptKind},
    thread::CreationChange,
    tools::{CallAsked, CallChange},
};

/// Records of one turn, in the batches that a client writes them in.
pub(crate) const RECORDS_A_TURN: u64 = 10;

/// Makes batches, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u64,
    seq: u64,
    turn: u32,
}

fn nonce(conversation: u32) -> Nonce {
    let mut nonce = [7; 12];
    nonce[..4].copy_from_slice(&conversation.to_be_bytes());
    Nonce(nonce)
}

impl Writer {
    fn batch(&mut self, records: Vec<Record>) {
        self.seq += 1;
        self.records += records.len() as u64;
        let batch = Batch {
            through: JournalSeq(self.seq),
            durability: Durability::Synced,
            at: Timestamp(1_795_961_833_597_000 + self.seq),
            records,
        };
        journal::encode_into(&batch, &mut self.bytes);
    }

    /// Begins a life.
    pub(crate) fn start(&mut self) {
        self.batch(vec![Record::Start {
            version: "0.1.0".into(),
            seed: 7,
            at: Timestamp(1_795_961_833_597_000),
        }]);
    }

    /// Opens a conversation and makes its thread.
    pub(crate) fn open(&mut self, number: u32) {
        let conversation = ConversationId(number);
        self.batch(vec![Record::ConversationOpened {
            conversation,
            key: ConversationKey::new(&format!("conversation {number}")).unwrap(),
            nonce: nonce(number),
            settings: Box::new(Settings::new().model("gpt-5").cwd("/srv/work")),
            authorization: turnkeep_core::Authorization::None,
        }]);
        let thread = ThreadId::new(&format!("01a2279e-0c12-7f52-9c3b-816d{number:08x}")).unwrap();
        let mark = format!("turnkeep-create-{number:032x}");
        for change in [
            vec![
                CreationChange::Preparing { mark },
                CreationChange::Ready,
                CreationChange::Dispatched,
            ],
            vec![CreationChange::Bound { thread }],
        ] {
            let change = change.into_iter().map(|change| Record::ThreadCreation {
                conversation,
                change,
            });
            self.batch(change.collect());
        }
    }

    /// A turn with one call, from its message to the acknowledgement of its end.
    pub(crate) fn turn(&mut self, conversation: u32) {
        self.turn += 1;
        let turn = self.turn;
        let message = MessageId::new(&format!("msg_{turn:032x}")).unwrap();
        let prompt = |change| Record::Prompt {
            message: message.clone(),
            change,
        };
        let call = |change| Record::ToolCall {
            call: ToolCallId {
                nonce: nonce(conversation),
                sequence: u64::from(turn),
            },
            change,
        };
        let text = "Here is what I found. Oslo: 3 °C, light snow. Lima: 21 °C, fog over the coast.";
        self.batch(vec![prompt(PromptChange::Prepared(Box::new(
            PromptFields {
                conversation: ConversationId(conversation),
                turn: TurnNo(turn),
                kind: PromptKind::Start,
                input: vec![InputItem::text("What is the weather in Oslo and in Lima?")],
                key: None,
                said: None,
                output_schema: None,
                deadline: None,
                until: None,
                place: 0,
            },
        )))]);
        self.batch(vec![prompt(PromptChange::Dispatched)]);
        let native = TurnId::new(&format!("01a2279e-0c13-7ab1-8d4e-5f0a{turn:08x}")).unwrap();
        self.batch(vec![prompt(PromptChange::Accepted { turn: native })]);
        let asked = CallAsked {
            conversation: ConversationId(conversation),
            turn: TurnNo(turn),
            native: CallId::new(&format!("call_{turn:024x}")).unwrap(),
            tool: "weather".into(),
            via: None,
            arguments: RawJson::parse(r#"{"city":"Oslo","units":"metric"}"#).unwrap(),
            malformed: None,
        };
        self.batch(vec![
            call(CallChange::Asked(Box::new(asked))),
            call(CallChange::Launched),
        ]);
        let result = ToolResult::ok("3 °C, light snow");
        self.batch(vec![call(CallChange::Answered {
            result,
            given: true,
        })]);
        self.batch(vec![
            prompt(PromptChange::Output { text: text.into() }),
            prompt(PromptChange::Ended {
                outcome: Outcome::Completed {
                    text: Some(text.into()),
                    structured: None,
                },
                source: EndSource::default(),
                unrecorded: false,
            }),
            prompt(PromptChange::Delivering),
        ]);
        self.batch(vec![prompt(PromptChange::Delivered)]);
    }
}
