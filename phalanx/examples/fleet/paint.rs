//! Text with colours, cut to the width there is.

use phalanx::describe::Phase;

/// A way to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

impl Ink {
    /// The circuit's colours.
    pub(crate) const fn of_phase(phase: Phase) -> Self {
        match phase {
            Phase::Closed => Self::Green,
            Phase::HalfOpen => Self::Yellow,
            Phase::Open => Self::Red,
        }
    }

    const fn escape(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\x1b[1m",
            Self::Dim => "\x1b[2m",
            Self::Green => "\x1b[32m",
            Self::Yellow => "\x1b[33m",
            Self::Red => "\x1b[1;31m",
        }
    }
}

/// One line of pieces. Every character used here is one column wide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(Vec<(Ink, String)>);

impl Line {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    #[must_use]
    pub(crate) fn with(mut self, ink: Ink, text: impl Into<String>) -> Self {
        self.push(ink, text);
        self
    }

    pub(crate) fn push(&mut self, ink: Ink, text: impl Into<String>) {
        let text = text.into();
        match self.0.last_mut() {
            Some((last, before)) if *last == ink => before.push_str(&text),
            _ => self.0.push((ink, text)),
        }
    }

    /// The line as bytes for a terminal of this width: what does not fit is left out, never wrapped.
    pub(crate) fn render(&self, width: usize, colour: bool) -> String {
        let mut room = width;
        let mut out = String::new();
        for (ink, text) in &self.0 {
            let piece: String = text.chars().take(room).collect();
            room -= piece.chars().count();
            match ink.escape() {
                escape if colour && !escape.is_empty() && !piece.is_empty() => {
                    out.push_str(escape);
                    out.push_str(&piece);
                    out.push_str("\x1b[0m");
                }
                _ => out.push_str(&piece),
            }
        }
        out
    }
}
