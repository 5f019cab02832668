//! C: framing and bytes. D25: a start that fails.

use turnkeep_core::{
    CloseReason, Closed, CommandError, Event, Input, Outcome, Reply, Settings, TurnUpdate,
    command::RequestEffect,
    event::{
        ConnectionEvent, ConversationUpdate, DeltaKind, EndReason, NoiseWhy, Phasing, ProtocolError,
    },
};
use turnkeep_tests::{
    by_hand::{ByHand, EPOCH},
    world::{Reads, Setup, World},
};

use crate::{connection_events, end_reason, in_all_reads, in_all_reads_of, script, text};

/// The second life of a case with two, with a turn of ours that the thread is loaded by.
fn live(lines: &str) -> String {
    let head = r#"X auto all
C {"id":"$id7","method":"turn/start","params":{"threadId":"thr_1","input":"$input7","clientUserMessageId":"$msg7"}}
S {"id":"$id7","result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
S {"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}
"#;
    let tail = r#"
S {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}
"#;
    format!("{head}{lines}{tail}")
}

#[test]
fn case_19_a_huge_line_comes_whole_and_each_byte_is_searched_once() {
    for (size, reads) in [
        (20_971_520, Reads::Writes),
        (20_971_520, Reads::Whole),
        (300_000, Reads::Random(5)),
        (20_000, Reads::Bytes),
    ] {
        let script = script!("19b").replace("20971520", &size.to_string());
        let mut world = Setup::script(&script).reads(reads).start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "after");
        let item = world
            .updates(turn)
            .into_iter()
            .find_map(|update| match update {
                TurnUpdate::ItemCompleted(item) if item.kind == "commandExecution" => {
                    Some(item.clone())
                }
                _ => None,
            });
        assert!(item.unwrap().raw.get().len() > size);
        let examined = world.machine().bytes_examined();
        assert!(
            examined < size as u64 + 20_000,
            "{examined} bytes looked at"
        );
        let _ = world.finish();
    }
}

#[test]
fn case_19_a_line_past_the_limit_ends_every_wait() {
    for reads in [Reads::Writes, Reads::Whole, Reads::Random(5)] {
        let mut world = Setup::script(script!("19b"))
            .config(|config| config.limits.frame = 1 << 20)
            .reads(reads)
            .start();
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let wait = world.request("thread/read", "{}", RequestEffect::Reads);
        let end = world.end_of(turn);
        assert!(matches!(end.outcome, Outcome::Lost { .. }), "{end:?}");
        assert!(world.answer_of(wait).is_err());
        let limit = 1 << 20;
        assert_eq!(
            end_reason(&world),
            Some(EndReason::Protocol {
                error: ProtocolError::FrameTooLarge { limit },
                stderr_tail: String::new(),
            })
        );
        let _ = world.finish();
    }
}

#[test]
fn case_19_a_resume_of_20_mib_is_one_frame() {
    // The second life of the script, on one connection: the server let the thread go.
    let resume = script!("19")
        .lines()
        .find(|line| line.starts_with(r#"S {"id":"$id23""#))
        .unwrap();
    let script = live("")
        + &format!(
            r#"S {{"method":"thread/closed","params":{{"threadId":"thr_1"}}}}
C {{"id":"$id23","method":"thread/resume","params":{{"threadId":"thr_1","excludeTurns":true}}}}
X chunks 4096
{resume}
X chunks off
S {{"method":"thread/status/changed","params":{{"threadId":"thr_1","status":{{"type":"idle"}}}}}}
C {{"id":"$idc","method":"turn/start","params":{{"threadId":"thr_1"}}}}
S {{"id":"$idc","result":{{"turn":{{"id":"trn_9","items":[],"status":"inProgress","error":null}}}}}}
S {{"method":"turn/completed","params":{{"threadId":"thr_1","turn":{{"id":"trn_9","items":[],"status":"completed","error":null}}}}}}
"#
        );
    let mut world = Setup::script(&script).start();
    let conversation = world.open("a", Settings::new());
    let first = world.send(conversation, "go");
    world.end_of(first);
    let second = world.send(conversation, "go on");
    assert!(matches!(
        world.end_of(second).outcome,
        Outcome::Completed { .. }
    ));
    assert!(world.is_played());
    let _ = world.finish();
}

#[test]
fn case_20_a_character_may_be_cut_anywhere() {
    in_all_reads_of(script!("20"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        assert_eq!(world.streamed(turn), "a中bé中😀é中😀");
    });
}

#[test]
fn case_20_every_split_of_2_3_and_4_byte_characters() {
    let line = r#"{"method":"item/agentMessage/delta","params":{"threadId":"thr_1","turnId":"trn_1","itemId":"it_1","delta":"é中😀é"}}"#;
    for at in 1..=line.len() {
        let mut world = hand();
        let bytes = format!("{line}\n").into_bytes();
        let (first, second) = bytes.split_at(at);
        let epoch = turnkeep_core::Epoch(1);
        world.input(turnkeep_core::Input::Received(epoch, first.to_vec()));
        world.input(turnkeep_core::Input::Received(epoch, second.to_vec()));
        assert_eq!(
            world.streamed(turnkeep_core::TurnNo(1)),
            "é中😀é",
            "cut at {at}"
        );
        let _ = world.finish();
    }
}

/// A world whose server the test speaks for, with turn `trn_1` of thread `thr_1` running.
fn hand() -> World {
    let mut world = Setup::hand().start();
    world.say(r#"{"id":1,"result":{"userAgent":"codex/0.171.0 (x)","codexHome":"/h"}}"#);
    let conversation = world.open("a", Settings::new());
    world.send(conversation, "go");
    world.say(r#"{"id":2,"result":{"thread":{"id":"thr_1","turns":[]}}}"#);
    world.say(r#"{"id":3,"result":{"turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}"#);
    world.say(r#"{"method":"turn/started","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"inProgress","error":null}}}"#);
    world
}

#[test]
fn case_21_only_a_line_feed_ends_a_line() {
    in_all_reads_of(script!("21b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        let end = world.end_of(turn);
        assert_eq!(text(&end), "one\u{2028}two\u{2029}three");
    });
}

#[test]
fn case_21_what_looks_like_a_line_end_is_content() {
    let odd = "\u{85}\u{2028}\u{2029}";
    let script = live(&format!(
        "S< {{\"method\":\"item/agentMessage/delta\",\"params\":{{\"threadId\":\"thr_1\",\"turnId\":\"trn_1\",\"itemId\":\"it_1\",\"delta\":\"a{odd}b\"}}}}\\r\\n"
    ));
    in_all_reads_of(&script, |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        world.end_of(turn);
        assert_eq!(world.streamed(turn), format!("a{odd}b"));
    });
}

#[test]
fn case_21_a_last_line_without_its_end_is_a_frame_if_it_is_whole() {
    let whole = r#"S< {"method":"turn/completed","params":{"threadId":"thr_1","turn":{"id":"trn_1","items":[],"status":"completed","error":null}}}"#;
    let begun = live("").rsplit_once("\nS {").unwrap().0.to_owned();
    in_all_reads_of(&format!("{begun}\n{whole}\nX exit 0\n"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert!(matches!(
            world.end_of(turn).outcome,
            Outcome::Completed { .. }
        ));
    });
    let cut = &whole[..whole.len() - 2];
    in_all_reads_of(&format!("{begun}\n{cut}\nX exit 0\n"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert!(matches!(world.end_of(turn).outcome, Outcome::Lost { .. }));
        let cut = connection_events(world).into_iter().any(|event| {
            matches!(
                event,
                ConnectionEvent::Noise {
                    why: NoiseWhy::Cut,
                    ..
                }
            )
        });
        assert!(cut, "the cut frame is told");
    });
}

#[test]
fn case_22_noise_is_told_and_the_stream_goes_on() {
    in_all_reads_of(script!("22"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "fine");
        let noise: Vec<_> = connection_events(world)
            .into_iter()
            .filter_map(|event| match event {
                ConnectionEvent::Noise { why, .. } => Some(why),
                _ => None,
            })
            .collect();
        // The first two writes have one line end between them: one line, one event.
        assert_eq!(noise, [NoiseWhy::NotUtf8, NoiseWhy::NotUtf8]);
        let repaired = connection_events(world)
            .into_iter()
            .any(|event| matches!(event, ConnectionEvent::Warning(_)));
        assert!(!repaired, "bad UTF-8 is never repaired and parsed");
    });
}

#[test]
fn case_22_too_many_bad_lines_end_the_connection() {
    in_all_reads_of(script!("22b"), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert!(matches!(world.end_of(turn).outcome, Outcome::Lost { .. }));
        let count = 64;
        assert_eq!(
            end_reason(world),
            Some(EndReason::Protocol {
                error: ProtocolError::TooMuchNoise { count },
                stderr_tail: String::new(),
            })
        );
        let noise = connection_events(world)
            .into_iter()
            .filter(|event| matches!(event, ConnectionEvent::Noise { .. }));
        assert_eq!(noise.count(), 64);
    });
}

#[test]
fn case_22_a_good_line_between_starts_the_count_again_and_a_copy_is_bounded() {
    let noise = format!("X repeat 63\nS< {}\\n\nX end\n", "x".repeat(5_000));
    let good = r#"S {"method":"warning","params":{"message":"w"}}"#;
    let script = live(&format!("{noise}{good}\n{noise}"));
    let mut world = Setup::script(&script).reads(Reads::Whole).start();
    let conversation = world.open("a", Settings::new());
    let turn = world.send(conversation, "go");
    assert!(matches!(
        world.end_of(turn).outcome,
        Outcome::Completed { .. }
    ));
    for event in connection_events(&world) {
        if let ConnectionEvent::Noise { line, length, .. } = event {
            assert_eq!((line.len(), length), (1_024, 5_000));
        }
    }
    let _ = world.finish();
}

#[test]
fn case_25_a_start_that_fails_tells_its_phase_exit_and_stderr() {
    in_all_reads_of(script!("25"), |world| {
        let conversation = world.open("a", Settings::new());
        let refused = world.send_refused(conversation, "go");
        assert!(refused.is_safe_to_retry());
        let Some(EndReason::Closed {
            phase,
            reason,
            stderr_tail,
        }) = end_reason(world)
        else {
            panic!("{:?}", end_reason(world))
        };
        assert_eq!(phase, Phasing::Initialize);
        assert_eq!(
            reason,
            CloseReason::Exited {
                code: Some(1),
                signal: None
            }
        );
        assert!(stderr_tail.contains("cannot open the state database"));
        let text = end_reason(world).unwrap().to_string();
        assert!(
            text.starts_with("initialize: the server exited with code 1; stderr: "),
            "{text}"
        );
    });
}

#[test]
fn case_25_a_start_that_fails_before_it_reads_tells_its_exit_too() {
    let mut host = ByHand::new(turnkeep_tests::one_connection());
    host.open();
    let seq = host.sent.front().unwrap().seq;
    host.step(Input::SendFailed(EPOCH, seq));
    assert!(host.closed.is_empty(), "{:?}", host.closed);
    let exited = CloseReason::Exited {
        code: Some(1),
        signal: None,
    };
    let closed = Closed::new(exited.clone(), "boo".into());
    host.step(Input::Closed(EPOCH, Box::new(closed)));
    let ended = host.events.iter().find_map(|event| match event {
        Event::Connection(event) => match &**event {
            ConnectionEvent::Ended(reason) => Some(reason.clone()),
            _ => None,
        },
        _ => None,
    });
    let want = EndReason::Closed {
        phase: Phasing::Initialize,
        reason: exited,
        stderr_tail: "boo".into(),
    };
    assert_eq!(ended, Some(want));
}

#[test]
fn case_25_a_start_that_hangs_fails_at_its_own_deadline() {
    in_all_reads(
        || Setup::script(script!("25b")),
        |world| {
            let conversation = world.open("a", Settings::new());
            let turn = world.send(conversation, "go");
            let early = world.request("x", "{}", RequestEffect::Changes);
            let end = world.end_of(turn);
            assert!(matches!(end.outcome, Outcome::Rejected { .. }), "{end:?}");
            assert_eq!(world.elapsed(), 30_000_000);
            let Some(EndReason::HandshakeTimeout { stderr_tail, .. }) = end_reason(world) else {
                panic!("{:?}", end_reason(world))
            };
            assert!(stderr_tail.contains("state database"));
            let Err(CommandError::Disconnected { .. }) = world.answer_of(early) else {
                panic!("{:?}", world.answer(early))
            };
            let frames: Vec<_> = world
                .sent()
                .iter()
                .filter(|f| !f.contains("initialize"))
                .collect();
            assert!(frames.is_empty(), "{frames:?}");
        },
    );
}

#[test]
fn case_43_what_this_version_does_not_know_is_carried() {
    // The live half of the script; the history half needs recovery.
    let live_half: String = script!("43")
        .lines()
        .filter(|line| line.contains("trn_2") && line.contains("\"item/"))
        .map(|line| {
            line.replace("trn_2", "trn_1")
                .replace("$msg4", "$msg7")
                .replace("$input4", "$input7")
                + "\n"
        })
        .collect();
    let extra = r#"S {"method":"holo/gram","params":{"threadId":"thr_1","turnId":"trn_1","beams":3}}
S {"method":"thread/status/changed","params":{"threadId":"thr_1","status":{"type":"dreaming"},"more":1}}
S {"method":"error","params":{"threadId":"thr_1","turnId":"trn_1","willRetry":true,"error":{"message":"m","codexErrorInfo":{"brandNew":{"a":1}},"x":2}}}
"#;
    in_all_reads_of(&live(&format!("{live_half}{extra}")), |world| {
        let conversation = world.open("a", Settings::new());
        let turn = world.send(conversation, "go");
        assert_eq!(text(&world.end_of(turn)), "c");
        let kinds: Vec<_> = world
            .updates(turn)
            .into_iter()
            .filter_map(|update| match update {
                TurnUpdate::ItemStarted(item) | TurnUpdate::ItemCompleted(item) => {
                    Some((item.kind.clone(), item.raw.get().to_owned()))
                }
                _ => None,
            })
            .skip(2)
            .collect();
        let want = [
            ("holograph", r#"{"type":"holograph","id":"it_5"}"#),
            (
                "commandExecution",
                r#"{"type":"commandExecution","id":"it_6","command":["ls"]}"#,
            ),
            (
                "agentMessage",
                r#"{"type":"agentMessage","id":"it_7","text":"c","phase":"epilogue"}"#,
            ),
        ];
        assert_eq!(
            kinds,
            want.map(|(kind, raw)| (kind.to_owned(), raw.to_owned()))
        );
        let unknown = world
            .updates(turn)
            .into_iter()
            .any(|u| matches!(u, TurnUpdate::Unrecognized(u) if u.method == "holo/gram"));
        assert!(unknown);
        let status = world.events().iter().any(|event| {
            matches!(event, Event::Conversation(c) if matches!(&c.update, ConversationUpdate::ThreadStatus(raw) if raw.get().contains("dreaming")))
        });
        assert!(status);
    });
}

#[test]
fn case_43_deltas_of_every_kind_are_told_as_such() {
    let rows = [
        ("item/agentMessage/delta", "", DeltaKind::Agent),
        (
            "item/reasoning/textDelta",
            r#","contentIndex":2"#,
            DeltaKind::Reasoning,
        ),
        (
            "item/reasoning/summaryTextDelta",
            r#","summaryIndex":3"#,
            DeltaKind::ReasoningSummary,
        ),
        ("item/plan/delta", "", DeltaKind::Plan),
        (
            "item/commandExecution/outputDelta",
            "",
            DeltaKind::CommandOutput,
        ),
        (
            "item/fileChange/outputDelta",
            "",
            DeltaKind::FileChangeOutput,
        ),
    ];
    let mut world = hand();
    for (method, part, kind) in rows {
        world.say(&format!(
            r#"{{"method":"{method}","params":{{"threadId":"thr_1","turnId":"trn_1","itemId":"it","delta":"x"{part}}}}}"#
        ));
        let Some(Event::Delta(delta)) = world.events().last() else {
            panic!("{method}: {:?}", world.events().last())
        };
        assert_eq!((delta.kind, delta.text.as_str()), (kind, "x"));
    }
    let read = world.request("thread/read", "{}", RequestEffect::Reads);
    world.say(r#"{"id":4,"result":{"thread":{"items":[{"type":"holograph","beams":3}]}}}"#);
    let Ok(Reply::Response(raw)) = world.answer_of(read) else {
        panic!("{:?}", world.answer(read))
    };
    assert_eq!(
        raw.get(),
        r#"{"thread":{"items":[{"type":"holograph","beams":3}]}}"#
    );
    let _ = world.finish();
}
