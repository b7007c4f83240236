//! Where one value of the Redis protocol ends, so that a relay can hold, drop or double whole messages.

use redis::Value;

/// Returns the length of the first complete value; `None` if more bytes are needed.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let mut end = line + 2;
    let count = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'$' | b'=' | b'!' => {
            if let Some(length @ 0..) = count() {
                end += usize::try_from(length).ok()? + 2;
            }
        }
        kind @ (b'*' | b'>' | b'~' | b'%' | b'|') => {
            let pairs = if matches!(kind, b'%' | b'|') { 2 } else { 1 };
            for _ in 0..count().unwrap_or(0).max(0) * pairs {
                end += frame_length(bytes.get(end..)?)?;
            }
        }
        _ => {}
    }
    (end <= bytes.len()).then_some(end)
}

/// Takes the complete values out of a buffer.
pub(super) fn take_frames(buffer: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(length) = frame_length(buffer) {
        let rest = buffer.split_off(length);
        frames.push(std::mem::replace(buffer, rest));
    }
    frames
}

/// The words of a command.
pub(super) fn words(frame: &[u8]) -> Vec<Vec<u8>> {
    match redis::parse_redis_value(frame) {
        Ok(Value::Array(parts)) => {
            parts.into_iter().map(|part| if let Value::BulkString(bytes) = part { bytes } else { Vec::new() }).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether this is a published message, by either version of the protocol.
pub(super) fn is_push(frame: &[u8]) -> bool {
    matches!(frame.first(), Some(b'>')) || words(frame).first().is_some_and(|word| word == b"message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_complete_with_its_last_byte_and_not_before() {
        let frames: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\nx\r\n*1\r\n:1\r\n",
            b"%1\r\n+a\r\n$1\r\nb\r\n",
            b">3\r\n+message\r\n+c\r\n$2\r\nhi\r\n",
        ];
        for frame in frames {
            for end in 0..frame.len() {
                assert_eq!(frame_length(&frame[..end]), None, "{:?}", String::from_utf8_lossy(&frame[..end]));
            }
            assert_eq!(frame_length(frame), Some(frame.len()));
        }
        let mut all = frames.concat();
        all.extend(b"$3\r\nab");
        assert_eq!(take_frames(&mut all).len(), frames.len());
        assert_eq!(all, b"$3\r\nab", "the rest waits for more");
    }

    #[test]
    fn published_messages_are_told_from_replies() {
        assert!(is_push(b">3\r\n+message\r\n+c\r\n$2\r\nhi\r\n"));
        assert!(is_push(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"));
        assert!(!is_push(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
        assert!(!is_push(b"*1\r\n:1\r\n"));
    }
}
