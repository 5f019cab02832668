//! A conversation at a terminal: turns are followed, questions are put, signals are heard.

use std::collections::VecDeque;

use serde_json::{Map, Value};
use turnkeep_tokio::{
    Answer, BoxBody, Client, CommandError, Conversation, ConversationEvent, ConversationEvents,
    Question, RawJson, RequestError, SendError, ShutdownSummary, Status, ToolCallId, Turn, TurnEnd,
    TurnEvent, TurnUpdate,
    core::{
        QuestionId,
        command::BusyWhy,
        event::{CallClosedWhy, ConnectionEvent, ConversationUpdate, EndReason},
    },
};

use crate::{
    Failure,
    ask::{self, Filled, Form},
    editor::Written,
    keyboard::Keyboard,
    lines::NoEcho,
    problem::{Exit, Problem},
    signals::{Signal, Signals},
    slash::{is_command, stalled},
    term::{ALERT, DIM, GOOD, NAME, Term, paint, visible},
    toolbox::{Done, Toolbox},
    view::View,
};

/// A conversation at a terminal.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) conversation: Conversation,
    pub(crate) term: Term,
    pub(crate) signals: Signals,
    /// Where messages and answers are typed; questions are declined where there is none.
    pub(crate) keyboard: Option<Keyboard>,
    /// What happens in the conversation beside the turn that is followed.
    pub(crate) events: ConversationEvents,
    /// What the model's tools do.
    pub(crate) tools: Toolbox,
    /// What else is done when something happens in a turn, before it is shown.
    pub(crate) watch: fn(&TurnEvent, &Client),
    /// Whether the server is a process of ours, or one that runs already.
    pub(crate) is_ours: bool,
    /// Whether Ctrl-C was pressed since something was last typed.
    pub(crate) struck: bool,
}

/// How a turn was left.
pub(crate) enum Followed {
    /// It ended.
    Ended(Box<TurnEnd>, Box<View>),
    /// A signal ends the process.
    Left(Signal),
}

/// What came at the prompt.
pub(crate) enum Said {
    Message(String),
    /// The message of the round that failed is to be sent again.
    Retry,
    /// A turn began by itself.
    Turn(Turn),
    Leave(Exit),
}

/// What there was while the prompt waited.
enum Met {
    Message(String),
    Signal(Signal),
    /// The connection is gone, and another one is opened.
    Lost(EndReason),
    Ready,
    /// The connection is gone for good.
    Ended(EndReason),
    Turn(Turn),
    /// A tool has its result.
    Done(Done),
    Event(ConversationEvent),
    End(Exit),
}

enum Typed {
    Line(Option<String>),
    Signal(Signal),
    /// The question is settled meanwhile.
    Gone,
}

enum Answered {
    Is(Answer),
    Signal(Signal),
    Gone,
}

impl Session {
    /// Sends a message and follows its turn to the end.
    pub(crate) async fn say(&mut self, message: &str) -> Result<Followed, Failure> {
        loop {
            let sent = tokio::select! {
                turn = self.conversation.send(message) => turn,
                signal = self.signals.next() => return Ok(Followed::Left(signal)),
            };
            match sent {
                Ok(mut turn) => return self.follow(&mut turn).await,
                Err(SendError::Request(RequestError::Command(CommandError::Busy {
                    why, ..
                }))) => match why {
                    // An earlier turn failed, and whoever says something new goes on.
                    BusyWhy::Stalled { .. } => self.dismiss().await?,
                    _ => break,
                },
                Err(error) => return Err(Problem::send(&error).into()),
            }
        }
        // Something else came first: the message goes with it, or right after it.
        let body = BoxBody::user(message);
        let accepted = self.conversation.accept([body]).await;
        accepted.map_err(|e| Problem::request(&e))?;
        match self.next_turn().await? {
            Some(followed) => Ok(followed),
            None => Err(
                Problem::failed("the message waits: the conversation begins no turn")
                    .hint("/status tells why")
                    .into(),
            ),
        }
    }

    /// Leaves the round that failed behind.
    pub(crate) async fn dismiss(&mut self) -> Result<(), Failure> {
        match self.conversation.dismiss().await {
            Ok(()) | Err(RequestError::Command(CommandError::NotStalled { .. })) => Ok(()),
            Err(error) => Err(Problem::request(&error).into()),
        }
    }

    /// Sends the message of the round that failed again.
    pub(crate) async fn retry(&mut self) -> Result<Followed, Failure> {
        let mut turn = tokio::select! {
            turn = self.conversation.restart() => turn.map_err(|e| Problem::restart(&e))?,
            signal = self.signals.next() => return Ok(Followed::Left(signal)),
        };
        self.follow(&mut turn).await
    }

    /// Follows the next turn that begins by itself, as long as one is to be expected: something waits
    /// to go to the model, or a deferred tool runs.
    pub(crate) async fn follow_up(&mut self) -> Result<Option<Followed>, Failure> {
        loop {
            if let Some(followed) = self.next_turn().await? {
                return Ok(Some(followed));
            }
            if self.tools.is_idle() {
                return Ok(None);
            }
            let names: Vec<_> = self.tools.running().map(|(tool, _)| tool).collect();
            self.term
                .working(&format!("waiting for {}", names.join(", ")));
            tokio::select! {
                biased;
                signal = self.signals.next() => return Ok(Some(Followed::Left(signal))),
                Some(event) = self.events.next() => self.heard(event),
                done = self.tools.next() => self.respond(done).await,
            }
        }
    }

    /// Follows the next turn that begins by itself, if one has or is about to.
    async fn next_turn(&mut self) -> Result<Option<Followed>, Failure> {
        let mut turn = loop {
            let newest = self.conversation.current_turn().await;
            if let Some(turn) = newest.map_err(|e| Problem::request(&e))? {
                break turn;
            }
            if self.conversation.status() != Status::Running {
                return Ok(None);
            }
            tokio::select! {
                biased;
                signal = self.signals.next() => return Ok(Some(Followed::Left(signal))),
                turn = self.conversation.next_turn() => match turn {
                    Some(turn) => break turn,
                    None => return Ok(None),
                },
                Some(event) = self.events.next() => self.heard(event),
                done = self.tools.next() => self.respond(done).await,
            }
        };
        Ok(Some(self.follow(&mut turn).await?))
    }

    /// Hands the result of a tool on.
    async fn respond(&mut self, done: Done) {
        let Done {
            call,
            tool,
            took,
            result,
        } = done;
        let (mark, style) = match result.success {
            true => ("✓", GOOD),
            false => ("✗", ALERT),
        };
        self.term.note(format!(
            "{} {}",
            paint(style, format!("{mark} {}", visible(&tool))),
            paint(DIM, format!("after {:.1} s", took.as_secs_f64()))
        ));
        match self.conversation.respond(call, result).await {
            // It was closed meanwhile, and an event tells so.
            Ok(()) | Err(RequestError::Command(CommandError::CallClosed { .. })) => {}
            Err(error) => self.term.note(paint(ALERT, error)),
        }
    }

    /// Takes in what happens in the conversation beside the turn that is followed.
    fn heard(&mut self, event: ConversationEvent) {
        if let ConversationEvent::Conversation(ConversationUpdate::CallClosed { call, why }) = event
        {
            self.closed(call, why);
        }
    }

    /// Stops a call that nobody waits for any more.
    fn closed(&mut self, call: ToolCallId, why: CallClosedWhy) {
        if let Some(tool) = self.tools.stop(call) {
            let why = match why {
                CallClosedWhy::TimeLimit => "its time limit is over",
                CallClosedWhy::Interrupted => "the turn was interrupted",
                CallClosedWhy::Dismissed => "its round is given up",
                _ => "nobody waits for it any more",
            };
            let text = format!("✗ {} is stopped: {why}", visible(&tool));
            self.term.note(paint(ALERT, text));
        }
    }

    /// Tells in a line what earlier runs left open, and gives their turns, which are to be followed.
    pub(crate) async fn picked_up(&mut self) -> Result<Vec<Turn>, Failure> {
        let Some(found) = self.client.recovered() else {
            return Ok(Vec::new());
        };
        let runs = counted(found.lives, "earlier run");
        let open = match (found.turns, found.ends) {
            (0, 0) => "nothing was open".to_owned(),
            (turns, 0) => format!("{} open", counted(turns, "turn")),
            (0, ends) => format!("{} not shown yet", counted(ends, "end")),
            (turns, ends) => {
                let (turns, ends) = (counted(turns, "turn"), counted(ends, "end"));
                format!("{turns} open, {ends} not shown yet")
            }
        };
        self.term
            .note(paint(GOOD, format!("picked up after {runs}: {open}")));
        let turns = self.conversation.recovered().await;
        Ok(turns.map_err(|e| Problem::request(&e))?)
    }

    /// Follows a turn to its end. A first Ctrl-C interrupts it.
    pub(crate) async fn follow(&mut self, turn: &mut Turn) -> Result<Followed, Failure> {
        let mut view = View::new(self.is_ours);
        let mut backlog = VecDeque::new();
        self.term.working("thinking (Ctrl-C interrupts)");
        loop {
            let event = match backlog.pop_front() {
                Some(event) => Some(event),
                None => tokio::select! {
                    biased;
                    signal = self.signals.next() => {
                        if let Some(signal) = self.signalled(signal, turn).await {
                            return Ok(Followed::Left(signal));
                        }
                        continue;
                    }
                    event = turn.next() => event,
                    done = self.tools.next() => {
                        self.respond(done).await;
                        self.term.working("thinking");
                        continue;
                    }
                    Some(event) = self.events.next() => {
                        self.heard(event);
                        continue;
                    }
                },
            };
            let Some(event) = event else {
                let why = turn.outcome().await.err().map(|error| error.to_string());
                let why = why.unwrap_or_else(|| "the turn has no end".into());
                return Err(Problem::failed(why).gone().into());
            };
            (self.watch)(&event, &self.client);
            view.show(&event, &mut self.term)?;
            let TurnEvent::Update(update) = event else {
                continue;
            };
            match update {
                TurnUpdate::ToolCall(call) => {
                    self.tools.start(&call);
                    self.term.working(&format!("running {}", call.tool));
                }
                TurnUpdate::CallClosed { call, why } => self.closed(call, why),
                TurnUpdate::Question(question) => {
                    let left = self.ask(&question, turn, &view, &mut backlog).await?;
                    if let Some(signal) = left {
                        return Ok(Followed::Left(signal));
                    }
                }
                TurnUpdate::Ended(end) => return Ok(Followed::Ended(end, Box::new(view))),
                _ => {}
            }
        }
    }

    /// Interrupts the turn at the first Ctrl-C; gives back the signal that ends the process.
    async fn signalled(&mut self, signal: Signal, turn: &Turn) -> Option<Signal> {
        if signal != Signal::Interrupt || std::mem::replace(&mut self.struck, true) {
            return Some(signal);
        }
        self.term
            .note(paint(ALERT, "interrupting; Ctrl-C again leaves"));
        self.interrupt(turn).await
    }

    async fn interrupt(&mut self, turn: &Turn) -> Option<Signal> {
        self.term.working("interrupting");
        tokio::select! {
            // Where it fails the turn ends as lost and tells so.
            _ = turn.interrupt() => None,
            signal = self.signals.next() => Some(signal),
        }
    }

    async fn ask(
        &mut self,
        question: &Question,
        turn: &mut Turn,
        view: &View,
        backlog: &mut VecDeque<TurnEvent>,
    ) -> Result<Option<Signal>, Failure> {
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.lines.forget();
        }
        loop {
            let put = self.put(question, turn, view, backlog).await;
            if let Some(keyboard) = &mut self.keyboard {
                keyboard.lines.stop().await;
            }
            let answer = match put {
                Answered::Is(answer) => answer,
                Answered::Signal(signal) => {
                    self.term.note("");
                    return Ok(self.signalled(signal, turn).await);
                }
                Answered::Gone => return Ok(None),
            };
            let declines = answer == Answer::Decline;
            match turn.answer(question.id, answer).await {
                Ok(()) => {
                    self.term.working("thinking");
                    return Ok(None);
                }
                // Nothing negative was offered: what is left is to stop.
                Err(RequestError::Command(CommandError::BadAnswer { .. })) if declines => {
                    return Ok(self.interrupt(turn).await);
                }
                Err(RequestError::Command(CommandError::BadAnswer { reason })) => {
                    self.term.note(paint(ALERT, reason));
                }
                // It was settled meanwhile, and an event tells so.
                Err(RequestError::Command(CommandError::UnknownQuestion { .. })) => {
                    return Ok(None);
                }
                Err(error) => return Err(Problem::request(&error).into()),
            }
        }
    }

    /// Puts a question once.
    async fn put(
        &mut self,
        question: &Question,
        turn: &mut Turn,
        view: &View,
        backlog: &mut VecDeque<TurnEvent>,
    ) -> Answered {
        let form = ask::pose(question, view, &mut self.term);
        let declined = Answered::Is(Answer::Decline);
        match form {
            Form::Choose { choices, no } => {
                self.term.prompt(ask::choices_line(&choices, &no));
                match self.typed(question.id, turn, backlog).await {
                    Typed::Line(line) => {
                        let answer = ask::chosen(choices, line.as_deref());
                        Answered::Is(answer.unwrap_or(Answer::Decline))
                    }
                    Typed::Signal(signal) => Answered::Signal(signal),
                    Typed::Gone => Answered::Gone,
                }
            }
            Form::Input(questions) => {
                let mut answers = Vec::new();
                for asked in questions {
                    for line in ask::input_lines(&asked) {
                        self.term.note(line);
                    }
                    if asked.secret {
                        let warning = "what you type is not shown, but the journal keeps it";
                        self.term.note(paint(ALERT, warning));
                    }
                    self.term.prompt(format!(
                        "{} {} ",
                        paint(DIM, ask::input_hint(&asked)),
                        paint(NAME, "›")
                    ));
                    let silence = asked.secret.then(NoEcho::new);
                    let typed = self.typed(question.id, turn, backlog).await;
                    drop(silence);
                    let line = match typed {
                        Typed::Line(line) => line,
                        Typed::Signal(signal) => return Answered::Signal(signal),
                        Typed::Gone => return Answered::Gone,
                    };
                    let Some(answer) = ask::picked(&asked.options, line.as_deref()) else {
                        return declined;
                    };
                    answers.push((asked.id, vec![answer]));
                }
                Answered::Is(Answer::Input(answers))
            }
            Form::Fill(fields) => {
                let mut values = Map::new();
                if fields.is_empty() {
                    let yes = RawJson::parse("{}").map_or(Answer::Decline, Answer::Form);
                    let choices = vec![ask::choice("y", "yes", yes)];
                    self.term.prompt(ask::choices_line(&choices, "no"));
                    return match self.typed(question.id, turn, backlog).await {
                        Typed::Line(line) => Answered::Is(
                            ask::chosen(choices, line.as_deref()).unwrap_or(Answer::Decline),
                        ),
                        Typed::Signal(signal) => Answered::Signal(signal),
                        Typed::Gone => Answered::Gone,
                    };
                }
                for field in fields {
                    loop {
                        for line in field.lines() {
                            self.term.note(line);
                        }
                        self.term.prompt(paint(NAME, "› "));
                        let line = match self.typed(question.id, turn, backlog).await {
                            Typed::Line(line) => line,
                            Typed::Signal(signal) => return Answered::Signal(signal),
                            Typed::Gone => return Answered::Gone,
                        };
                        match field.read(line.as_deref()) {
                            Filled::Value(value) => field.put(value, &mut values),
                            Filled::LeftOut => {}
                            Filled::Wrong => {
                                self.term.note(paint(ALERT, "that does not fit"));
                                continue;
                            }
                            Filled::Declined => return declined,
                        }
                        break;
                    }
                }
                let contents = RawJson::of(&Value::Object(values));
                Answered::Is(contents.map_or(Answer::Decline, Answer::Form))
            }
        }
    }

    /// Waits for a line while the question is open. What the turn tells meanwhile is kept.
    async fn typed(
        &mut self,
        question: QuestionId,
        turn: &mut Turn,
        backlog: &mut VecDeque<TurnEvent>,
    ) -> Typed {
        let Some(Keyboard { lines, .. }) = &mut self.keyboard else {
            return Typed::Line(None);
        };
        loop {
            tokio::select! {
                biased;
                signal = self.signals.next() => return Typed::Signal(signal),
                event = turn.next() => {
                    let Some(event) = event else { return Typed::Gone };
                    let gone = settles(&event, question);
                    backlog.push_back(event);
                    if gone {
                        self.term.note("");
                        return Typed::Gone;
                    }
                }
                done = self.tools.next() => {
                    // It is told once the question is settled.
                    let _ = self.conversation.respond(done.call, done.result).await;
                }
                line = lines.next() => {
                    if line.is_none() {
                        self.term.note("");
                    }
                    self.struck = false;
                    return Typed::Line(line);
                }
            }
        }
    }

    /// Waits for a message at the prompt. What happens meanwhile is shown above it.
    pub(crate) async fn prompt(&mut self) -> Result<Said, Failure> {
        let mut connection = self.client.connection_events();
        let newest = self.conversation.current_turn().await;
        if let Some(turn) = newest.map_err(|e| Problem::request(&e))? {
            return Ok(Said::Turn(turn));
        }
        if let Status::Stalled {
            restartable: true, ..
        } = self.conversation.status()
        {
            self.term.note(paint(ALERT, stalled(true)));
        }
        loop {
            let Some(keyboard) = &mut self.keyboard else {
                return Ok(Said::Leave(Exit::Ok));
            };
            keyboard.show(&mut self.term);
            let met = tokio::select! {
                biased;
                signal = self.signals.next() => Met::Signal(signal),
                event = connection.next() => match event {
                    Some(ConnectionEvent::Ended(reason)) => Met::Ended(reason),
                    Some(ConnectionEvent::Lost { reason, .. }) => Met::Lost(reason),
                    Some(ConnectionEvent::Ready { .. }) => Met::Ready,
                    Some(_) => continue,
                    None => Met::End(Exit::Failed),
                },
                turn = self.conversation.next_turn() => match turn {
                    Some(turn) => Met::Turn(turn),
                    None => Met::End(Exit::Failed),
                },
                Some(event) = self.events.next() => match event {
                    ConversationEvent::Conversation(
                        ConversationUpdate::CallClosed { .. }
                        | ConversationUpdate::Status(Status::Stalled { .. }),
                    ) => Met::Event(event),
                    _ => continue,
                },
                done = self.tools.next() => Met::Done(done),
                written = keyboard.next(&mut self.term) => match written {
                    Written::Message(text) => Met::Message(text),
                    Written::Struck => Met::Signal(Signal::Interrupt),
                    Written::End | Written::Failed(_) => Met::End(Exit::Ok),
                },
            };
            keyboard.hide(&mut self.term).await;
            match met {
                Met::Signal(signal) => {
                    let first = !std::mem::replace(&mut self.struck, true);
                    if signal != Signal::Interrupt || !first {
                        return Ok(Said::Leave(signal.exit()));
                    }
                    let text = "Ctrl-C again leaves, and so does Ctrl-D";
                    self.term.note(paint(DIM, text));
                }
                Met::Ended(reason) => return Err(Problem::lost(&reason).into()),
                Met::Lost(reason) => {
                    let why = Problem::lost(&reason).what;
                    let text = match self.is_ours {
                        true => format!("{why}; another one is started"),
                        false => format!("{why}; it is looked for again"),
                    };
                    self.term.note(paint(ALERT, text));
                }
                Met::Ready => self.term.note(paint(GOOD, "the server is there again")),
                Met::Turn(turn) => {
                    self.term.note(paint(DIM, "codex goes on by itself"));
                    return Ok(Said::Turn(turn));
                }
                Met::Done(done) => self.respond(done).await,
                Met::Event(event) => self.heard(event),
                Met::Message(text) => {
                    self.struck = false;
                    match text.trim() {
                        "" => {}
                        "/quit" | "/exit" | "/q" => return Ok(Said::Leave(Exit::Ok)),
                        "/retry" => return Ok(Said::Retry),
                        command if is_command(command) => self.carry_out(command).await?,
                        text => return Ok(Said::Message(text.to_owned())),
                    }
                }
                Met::End(exit) => return Ok(Said::Leave(exit)),
            }
        }
    }

    /// Ends everything in order; another signal cuts it short.
    pub(crate) async fn close(&mut self) -> Option<ShutdownSummary> {
        let names: Vec<_> = self
            .tools
            .running()
            .map(|(tool, _)| visible(tool))
            .collect();
        if !names.is_empty() {
            let text = format!("stopped before its end: {}", names.join(", "));
            self.term.note(paint(ALERT, text));
        }
        self.tools = Toolbox::empty();
        self.term.working("stopping the server");
        let summary = tokio::select! {
            summary = self.client.shutdown() => summary.ok(),
            _ = self.signals.next() => None,
        };
        self.term.rest();
        let failed = summary.as_ref().and_then(|s| s.recording.as_ref());
        if let Some(error) = failed.and_then(|recording| recording.error.as_ref()) {
            let text = format!("the recording is not complete: {error}");
            self.term.note(paint(ALERT, text));
        }
        summary
    }
}

/// A number of things.
pub(crate) fn counted(number: impl Into<u64>, what: &str) -> String {
    match number.into() {
        1 => format!("1 {what}"),
        number => format!("{number} {what}s"),
    }
}

/// Whether nobody waits for the answer after this.
fn settles(event: &TurnEvent, question: QuestionId) -> bool {
    match event {
        TurnEvent::Update(TurnUpdate::Ended(_)) => true,
        TurnEvent::Update(TurnUpdate::QuestionClosed {
            question: closed, ..
        }) => *closed == question,
        _ => false,
    }
}
