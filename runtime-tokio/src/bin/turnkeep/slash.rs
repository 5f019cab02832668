//! What can be typed at the prompt beside messages.

use turnkeep_tokio::{BoxId, Status};

use crate::{
    Failure,
    problem::Problem,
    session::{Session, counted},
    term::{DIM, NAME, brief, paint, visible},
};

/// How many boxes are shown where no number is said.
const BOXES: u64 = 10;

const HELP: [(&str, &str); 8] = [
    ("/status", "what the conversation does"),
    ("/boxes [N]", "the last N entries of the transcript (10)"),
    ("/tools", "the tools whose calls run"),
    ("/retry", "send the message of a turn that failed again"),
    ("/dismiss", "go on without it"),
    ("/help", "this"),
    ("/quit", "leave; so does Ctrl-D"),
    (
        "a space first",
        "the message is not remembered in the history",
    ),
];

/// Whether a text is meant as a command: a word behind a slash, and no path.
pub(crate) fn is_command(text: &str) -> bool {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.strip_prefix('/')
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase()))
}

/// Why nothing begins after a turn that failed, and what can be done.
pub(crate) fn stalled(restartable: bool) -> &'static str {
    if restartable {
        "codex does not have the message: /retry sends it again; whatever else you say goes on \
         without it"
    } else {
        "say something, and the conversation goes on"
    }
}

impl Session {
    /// Carries a command out that is typed at the prompt.
    pub(crate) async fn carry_out(&mut self, command: &str) -> Result<(), Failure> {
        let (word, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        match word {
            "/help" => {
                for (typed, what) in HELP {
                    self.term
                        .note(format!("{} {what}", paint(NAME, format!("{typed:<14}"))));
                }
            }
            "/status" => self.tell_status().await?,
            "/boxes" => {
                let wanted = match rest.trim() {
                    "" => Some(BOXES),
                    number => number.parse().ok().filter(|n| *n > 0),
                };
                match wanted {
                    Some(wanted) => self.show_boxes(wanted).await?,
                    None => self
                        .term
                        .note(format!("{:?} is no number of boxes", visible(rest))),
                }
            }
            "/tools" => self.show_tools(),
            "/dismiss" => match self.conversation.status() {
                Status::Stalled { .. } => {
                    self.dismiss().await?;
                    self.term
                        .note(paint(DIM, "the turn that failed is left behind"));
                }
                _ => self.term.note("nothing failed that could be left behind"),
            },
            _ => self.term.note(format!(
                "{} is no command here; /help tells those that are",
                visible(word)
            )),
        }
        Ok(())
    }

    async fn tell_status(&mut self) -> Result<(), Failure> {
        let text = match self.conversation.status() {
            Status::Quiet => "nothing is going on".to_owned(),
            Status::Running => "a turn runs, or is about to".into(),
            Status::Stalled {
                message,
                restartable,
            } => format!(
                "the last turn failed: {}; {}",
                visible(&message),
                stalled(restartable)
            ),
            Status::Held { reason } => format!("it is held: {}", visible(&reason)),
            other => format!("{other:?}"),
        };
        self.term.note(text);
        let (_, last) = self.boxes(BoxId(1), 0).await?;
        let key = visible(self.conversation.key().as_str());
        self.term.note(paint(
            DIM,
            format!(
                "conversation {key:?}, {} in the transcript",
                counted(last.0, "entry").replace("entrys", "entries")
            ),
        ));
        if !self.tools.is_idle() {
            self.show_tools();
        }
        Ok(())
    }

    fn show_tools(&mut self) {
        let running: Vec<_> = self
            .tools
            .running()
            .map(|(tool, since)| format!("⚒ {} for {} s", visible(tool), since.as_secs()))
            .collect();
        if running.is_empty() {
            self.term.note("no tool runs");
        }
        for line in running {
            self.term.note(line);
        }
    }

    async fn show_boxes(&mut self, wanted: u64) -> Result<(), Failure> {
        let (_, last) = self.boxes(BoxId(1), 0).await?;
        let first = last.0.saturating_sub(wanted - 1).max(1);
        let limit = u32::try_from(wanted).unwrap_or(u32::MAX);
        let (boxes, _) = self.boxes(BoxId(first), limit).await?;
        if boxes.is_empty() {
            self.term.note("the transcript is empty");
        }
        for entry in boxes {
            let body = &entry.body;
            let text = match body.contents.is_empty() {
                true => &body.hidden_contents,
                false => &body.contents,
            };
            let head = format!("[{} | {}]", entry.id, brief(&body.box_type, 40));
            let text = brief(&text.replace('\n', " "), 120);
            self.term.note(format!("{} {text}", paint(DIM, head)));
        }
        Ok(())
    }

    async fn boxes(
        &self,
        from: BoxId,
        limit: u32,
    ) -> Result<(Vec<turnkeep_tokio::TranscriptBox>, BoxId), Failure> {
        let read = self.conversation.read(from, limit).await;
        Ok(read.map_err(|e| Problem::request(&e))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_no_command() {
        for text in ["/help", "/boxes 20", "/nonsense"] {
            assert!(is_command(text), "{text}");
        }
        for text in ["/usr/bin is full", "/etc/hosts", "/", "a /help", "/Help"] {
            assert!(!is_command(text), "{text}");
        }
    }
}
