//! Contents of a key that no script has written.

use std::time::Duration;

use phalanx_testkit::lua_server::{LuaServer, Stored};

use crate::input::Input;

/// The byte that selects a whole text.
pub(super) const WHOLE: u8 = 2;

/// The longest step of the clock, in microseconds: 31 years, so that all times stay exact in a double.
const MAX_STEP: i64 = 1_000_000_000_000_000;

/// What happens to the clock and to a key before the scripts under test run.
#[derive(Debug)]
pub(super) struct Start {
    clock_step: i64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// As it is.
    Valid,
    /// Another value, of any type.
    Foreign(Stored),
    /// Some words of the text are replaced, and as many bytes are cut off its end.
    Damaged { words: Vec<(usize, Vec<u8>)>, cut: usize },
}

impl Start {
    pub(super) fn read(input: &mut Input<'_>) -> Self {
        let kind = input.byte() % 8;
        let clock_step = input.number().clamp(-MAX_STEP, MAX_STEP);
        let content = match kind {
            0 => Content::Foreign(Stored::Foreign),
            1 => {
                let members = (0..=input.below(5)).map(|_| (input.bytes(12).to_vec(), input.number() as f64));
                Content::Foreign(Stored::Sorted(members.collect()))
            }
            WHOLE => Content::Foreign(Stored::Text(input.bytes(2_000).to_vec())),
            3 => Content::Valid,
            _ => {
                let words = (0..=input.below(4)).map(|_| (input.below(64), word(input))).collect();
                let cut = if input.byte() >= 224 { input.below(256) } else { 0 };
                Content::Damaged { words, cut }
            }
        };
        Self { clock_step, content }
    }

    pub(super) fn apply(self, server: &LuaServer, key: &[u8]) {
        let step = Duration::from_micros(self.clock_step.unsigned_abs());
        if self.clock_step < 0 {
            server.clock().step_back(step)
        } else {
            server.clock().advance(step)
        }
        match (self.content, server.get(key)) {
            (Content::Foreign(value), _) => server.put(key, value),
            (Content::Damaged { words, cut }, Some(text)) => {
                let mut parts: Vec<&[u8]> = text.split(|byte| *byte == b' ').collect();
                let count = parts.len();
                words.iter().for_each(|(index, word)| parts[index % count] = word);
                let mut damaged = parts.join(&b' ');
                damaged.truncate(damaged.len().saturating_sub(cut));
                server.put(key, Stored::Text(damaged));
            }
            (Content::Valid, _) | (Content::Damaged { .. }, None) => {}
        }
    }
}

/// A word of a text: a number in most cases.
fn word(input: &mut Input<'_>) -> Vec<u8> {
    match input.below(8) {
        0 => input.bytes(24).to_vec(),
        1 => input.pick(&["", "-", "nan", "inf", "1e308", "0x10", "1.5", "9223372036854775808", "-0"]).into(),
        2 => [b"000".as_slice(), input.number().to_string().as_bytes()].concat(),
        _ => input.number().to_string().into_bytes(),
    }
}
