//! WebSocket frames of a server.

use turnkeep_core::codec::socket::{
    Control, SocketError, SocketReader, control_message, text_message,
};

use super::Cuts;

type Read = (Vec<u8>, Vec<Control>, Result<(), SocketError>);

/// Reads bytes as what a server sends, whole and in pieces, and compares both with a plain reader; then says the same bytes itself.
///
/// A case is the places of the cuts, a byte for the limit of a message, and the bytes.
pub fn socket_decode(case: &[u8]) {
    let (cuts, rest) = Cuts::read(case);
    let (limit, bytes) = rest
        .split_first()
        .map_or((255, rest), |(n, rest)| (*n, rest));
    let limit = match limit {
        255 => 1 << 20,
        limit => usize::from(limit),
    };
    let want = plainly(limit, bytes);
    assert_eq!(read(limit, &[bytes]), want);
    assert_eq!(read(limit, &cuts.of(bytes)), want);

    let mask = [bytes.first().copied().unwrap_or(7), 1, 0, 255];
    let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    assert_eq!(
        unmasked(&text_message(bytes.to_vec(), mask)),
        (0x81, line.to_vec())
    );
    let (kind, payload) = unmasked(&control_message(&Control::Ping(bytes.to_vec()), mask));
    assert_eq!((kind, &*payload), (0x89, &bytes[..bytes.len().min(125)]));
    let reason = String::from_utf8_lossy(bytes).into_owned();
    let code = Some(1000);
    let (kind, payload) = unmasked(&control_message(
        &Control::Close {
            code,
            reason: reason.clone(),
        },
        mask,
    ));
    assert_eq!((kind, &payload[..2]), (0x88, &1000_u16.to_be_bytes()[..]));
    let told = std::str::from_utf8(&payload[2..]).expect("a reason is text");
    assert!(payload.len() <= 125 && reason.starts_with(told));
}

fn read(limit: usize, reads: &[&[u8]]) -> Read {
    let mut reader = SocketReader::new(limit);
    let (mut lines, mut controls) = (Vec::new(), Vec::new());
    for read in reads {
        let mut at = 0;
        loop {
            match reader.next(read, &mut at, &mut lines) {
                Ok(Some(control)) => controls.push(control),
                Ok(None) => break,
                Err(error) => return (lines, controls, Err(error)),
            }
        }
        assert_eq!(at, read.len(), "a read is taken whole");
    }
    (lines, controls, Ok(()))
}

/// The same by the words of RFC 6455, section 5.2, and without a thought for speed.
fn plainly(limit: usize, mut bytes: &[u8]) -> Read {
    let (mut lines, mut controls) = (Vec::new(), Vec::new());
    // The kind of the message that is open, and its payload so far.
    let mut open: Option<(u8, Vec<u8>)> = None;
    while let [first, second, rest @ ..] = bytes {
        let (last, kind) = (first >> 7 == 1, first & 15);
        let broken = match (first >> 4 & 7, second >> 7, kind) {
            (1.., _, _) => Some(SocketError::Reserved),
            (_, 1.., _) => Some(SocketError::Masked),
            (_, _, 3..=7 | 11..) => Some(SocketError::Kind(kind)),
            (_, _, 8..) if !last || *second > 125 => Some(SocketError::Control),
            _ => None,
        };
        if let Some(error) = broken {
            return (lines, controls, Err(error));
        }
        let width = [0, 2, 8][usize::from(*second > 125) + usize::from(*second > 126)];
        let Some((long, rest)) = rest.split_at_checked(width) else {
            break;
        };
        let long = long
            .iter()
            .fold(0_u64, |n, byte| n * 256 + u64::from(*byte));
        let length = if width == 0 { u64::from(*second) } else { long };
        if kind < 8 {
            if (kind == 0) != open.is_some() {
                return (lines, controls, Err(SocketError::Pieces));
            }
            let (_, so_far) = open.get_or_insert((kind, Vec::new()));
            if length.saturating_add(so_far.len() as u64) > limit as u64 {
                return (lines, controls, Err(SocketError::TooLong { limit }));
            }
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((payload, rest)) = rest.split_at_checked(length) else {
            break;
        };
        bytes = rest;
        match kind {
            8 => controls.push(Control::Close {
                code: payload.first_chunk().map(|code| u16::from_be_bytes(*code)),
                reason: String::from_utf8_lossy(payload.get(2..).unwrap_or_default()).into_owned(),
            }),
            9 => controls.push(Control::Ping(payload.to_vec())),
            10 => controls.push(Control::Pong(payload.to_vec())),
            _ => {
                if let Some((_, so_far)) = &mut open {
                    so_far.extend(payload);
                }
                match open.take_if(|_| last) {
                    Some((1, text)) => {
                        lines.extend(text.iter().map(|b| if *b == b'\n' { b' ' } else { *b }));
                        lines.push(b'\n');
                    }
                    Some((_, binary)) => {
                        lines.extend(
                            format!("[binary message of {} bytes]\n", binary.len()).bytes(),
                        );
                    }
                    None => {}
                }
            }
        }
    }
    (lines, controls, Ok(()))
}

/// The first byte and the payload of a frame of ours.
fn unmasked(frame: &[u8]) -> (u8, Vec<u8>) {
    assert_eq!(frame[1] >> 7, 1, "a client masks what it sends");
    let (length, head) = match frame[1] & 127 {
        126 => (usize::from(u16::from_be_bytes([frame[2], frame[3]])), 4),
        127 => panic!("no case is as long"),
        short => (usize::from(short), 2),
    };
    let (mask, payload) = frame[head..].split_at(4);
    assert_eq!(payload.len(), length);
    let bytes = payload.iter().zip(mask.iter().cycle());
    (frame[0], bytes.map(|(byte, mask)| byte ^ mask).collect())
}
