//! The opening of WebSocket: an HTTP request that asks for it, and the answer.
//!
//! No origin is named, since a server denies what looks like a web page; no extension is offered,
//! since some hang up on one.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    io,
};

use data_encoding::BASE64;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use sha1::{Digest as _, Sha1};
use turnkeep_core::CloseReason;

use crate::runtime::BoxStream;

/// How long a server's answer may be, and how many header lines it may have.
const ANSWER: usize = 16 << 10;
const HEADERS: usize = 100;

/// What the server adds to our key to show that it means us.
const MAGIC: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What is asked for. It holds a secret and has no `Debug`.
pub(super) struct Request<'a> {
    pub(super) host: &'a str,
    pub(super) path: &'a str,
    pub(super) token: Option<&'a str>,
}

impl Request<'_> {
    fn text(&self, key: &str) -> String {
        let Self { host, path, token } = self;
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        format!(
            "GET {path} HTTP/1.1\r\n\
             Host: {host}\r\n\
             Connection: Upgrade\r\n\
             Upgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {key}\r\n\
             {}\r\n",
            token.unwrap_or_default(),
        )
    }

    /// Nothing of it may end its line.
    fn is_clean(&self) -> bool {
        let clean = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        clean(self.host) && self.path.starts_with('/') && clean(self.path)
    }
}

/// Asks for WebSocket, and tells what came behind the answer.
pub(super) async fn upgrade(
    mut stream: BoxStream,
    request: &Request<'_>,
    name: &str,
) -> Result<(BoxStream, Vec<u8>), CloseReason> {
    let failed = |why: String| CloseReason::OpenFailed(format!("{name} {why}"));
    if !request.is_clean() {
        return Err(failed("has a host or a path that HTTP cannot name".into()));
    }
    let key = new_key();
    // Who does not read it may have said why.
    let sent = async {
        stream.write_all(request.text(&key).as_bytes()).await?;
        stream.flush().await
    };
    let sent: io::Result<()> = sent.await;
    let mut came = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match parse(&came, &key) {
            Ok(Some(length)) => return Ok((stream, came.split_off(length))),
            Ok(None) if came.len() < ANSWER => {}
            Ok(None) => return Err(failed("gives an answer that does not end".into())),
            Err(Refused::Status(status @ (401 | 403))) => {
                return Err(CloseReason::Denied { status });
            }
            Err(refused) => return Err(failed(refused.in_words())),
        }
        let read = stream.read(&mut buffer).await;
        let why = match (&read, &sent) {
            (Ok(n @ 1..), _) => {
                came.extend_from_slice(buffer.get(..*n).unwrap_or_default());
                continue;
            }
            (_, _) if !came.is_empty() => "ends the connection within its answer".into(),
            (Err(error), _) | (Ok(0), Err(error)) if !is_hang_up(error.kind()) => error.to_string(),
            _ => "closes the connection without an answer: perhaps it is too old to speak \
                  WebSocket there, or no app-server"
                .to_owned(),
        };
        return Err(failed(why));
    }
}

fn is_hang_up(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof
    )
}

/// Why an answer opens nothing.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    NoHttp,
    Status(u16),
    /// It is no answer to us.
    Accept,
    NoUpgrade,
    Extension,
}

impl Refused {
    fn in_words(&self) -> String {
        let hint = match self {
            Self::NoHttp => return "gives an answer that is no HTTP".into(),
            Self::Accept => {
                return "gives an answer that is not to our request (wrong Sec-WebSocket-Accept)"
                    .into();
            }
            Self::NoUpgrade => return "agrees to something else than WebSocket".into(),
            Self::Extension => return "uses an extension or protocol nobody asked for".into(),
            Self::Status(404) => ": nothing is served under this path",
            Self::Status(426) => ": it wants another version of WebSocket",
            Self::Status(301..=308) => ": it has moved, and nobody is followed",
            Self::Status(200..=299) => ": a web server, perhaps, but no app-server",
            Self::Status(500..=599) => ": something is wrong with the server",
            Self::Status(_) => "",
        };
        match self {
            Self::Status(status) => format!("answers with HTTP status {status}{hint}"),
            _ => hint.into(),
        }
    }
}

/// The length of the answer, once it has come as a whole.
fn parse(came: &[u8], key: &str) -> Result<Option<usize>, Refused> {
    if came.is_empty() {
        return Ok(None);
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let parsed = match answer.parse(came) {
        Ok(parsed) => parsed,
        // The status is known before the headers are.
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refused::Status(answer.code.unwrap_or_default()));
        }
        Err(_) => return Err(Refused::NoHttp),
    };
    let httparse::Status::Complete(length) = parsed else {
        return Ok(None);
    };
    let status = answer.code.unwrap_or_default();
    if (100..200).contains(&status) && status != 101 {
        // Not yet the answer (RFC 9110, 15.2).
        let rest = came.get(length..).unwrap_or_default();
        return Ok(parse(rest, key)?.map(|more| length + more));
    }
    if status != 101 {
        return Err(Refused::Status(status));
    }
    // A header may stand there several times.
    let values = |name: &'static str| {
        let all = answer.headers.iter();
        let named = all.filter(move |header| header.name.eq_ignore_ascii_case(name));
        named.map(|header| std::str::from_utf8(header.value).unwrap_or("?").trim())
    };
    let mut upgrade = values("upgrade").flat_map(|value| value.split(','));
    let mut connection = values("connection").flat_map(|value| value.split(','));
    if !upgrade.any(|part| part.trim().eq_ignore_ascii_case("websocket"))
        || !connection.any(|part| part.trim().eq_ignore_ascii_case("upgrade"))
    {
        return Err(Refused::NoUpgrade);
    }
    let accept = accept(key);
    if !values("sec-websocket-accept").eq([&*accept]) {
        return Err(Refused::Accept);
    }
    let mut unasked = values("sec-websocket-extensions").chain(values("sec-websocket-protocol"));
    if unasked.any(|value| !value.is_empty()) {
        return Err(Refused::Extension);
    }
    Ok(Some(length))
}

fn accept(key: &str) -> String {
    let digest = Sha1::new().chain_update(key).chain_update(MAGIC);
    BASE64.encode(&digest.finalize())
}

/// A key that no other opening has.
fn new_key() -> String {
    let random = || RandomState::new().build_hasher().finish().to_ne_bytes();
    BASE64.encode(&[random(), random()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ANSWERED: &str = "HTTP/1.1 101 Switching Protocols\r\nUPGRADE: WebSocket\r\n\
        connection: keep-alive, upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
        \r\n";

    fn refused(from: &str, to: &str) -> Refused {
        assert!(ANSWERED.contains(from), "{from}");
        parse(ANSWERED.replace(from, to).as_bytes(), KEY).unwrap_err()
    }

    #[test]
    fn an_answer_counts_once_it_is_whole_and_what_follows_it_is_not_touched() {
        for length in 0..ANSWERED.len() {
            assert_eq!(parse(&ANSWERED.as_bytes()[..length], KEY), Ok(None));
        }
        let more = format!("{ANSWERED}\u{81}\u{2}");
        assert_eq!(parse(more.as_bytes(), KEY), Ok(Some(ANSWERED.len())));
    }

    #[test]
    fn an_answer_to_another_key_or_to_something_else_opens_nothing() {
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(
            refused(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOO="),
            Refused::Accept
        );
        assert_eq!(refused("Sec-WebSocket-Accept", "X-Accept"), Refused::Accept);
        assert_eq!(refused("WebSocket\r", "h2c\r"), Refused::NoUpgrade);
        assert_eq!(refused(", upgrade", ""), Refused::NoUpgrade);
        assert_eq!(refused("HTTP/1.1", "{\"id\":1}"), Refused::NoHttp);
        let deflate = "Sec-WebSocket-Extensions: permessage-deflate\r\nUPGRADE";
        assert_eq!(refused("UPGRADE", deflate), Refused::Extension);
        for status in [200, 302, 401, 403, 404, 426, 500] {
            let line = format!("HTTP/1.1 {status} x");
            let why = refused("HTTP/1.1 101 Switching Protocols", &line);
            assert_eq!(why, Refused::Status(status));
            assert!(why.in_words().contains(&status.to_string()));
        }
    }

    #[test]
    fn the_request_names_the_host_and_the_token_and_nothing_more() {
        let mut request = Request {
            host: "[::1]:4500",
            path: "/?a=1",
            token: Some("s3cret"),
        };
        let want = "GET /?a=1 HTTP/1.1\r\nHost: [::1]:4500\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: k\r\n\
            Authorization: Bearer s3cret\r\n\r\n";
        assert_eq!(request.text("k"), want);
        assert!(request.is_clean());
        request.path = "/\r\nOrigin: x";
        assert!(!request.is_clean());
        request.path = "";
        assert!(!request.is_clean());
    }

    #[test]
    fn keys_are_sixteen_bytes_and_differ() {
        let (one, other) = (new_key(), new_key());
        assert_ne!(one, other);
        assert_eq!(BASE64.decode(one.as_bytes()).unwrap().len(), 16);
    }
}
