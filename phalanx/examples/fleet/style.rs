//! Text with colours, cut to the width of the terminal.

use phalanx::describe::Phase;

/// The style of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Bold,
    Dim,
    Green,
    Yellow,
    Red,
}

impl Style {
    /// The colour of a breaker phase.
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

/// A line of styled pieces. Every character used here is one column wide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(Vec<(Style, String)>);

impl Line {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    #[must_use]
    pub(crate) fn with(mut self, style: Style, text: impl Into<String>) -> Self {
        self.push(style, text);
        self
    }

    pub(crate) fn push(&mut self, style: Style, text: impl Into<String>) {
        let text = text.into();
        match self.0.last_mut() {
            Some((last, before)) if *last == style => before.push_str(&text),
            _ => self.0.push((style, text)),
        }
    }

    /// Renders the line for this width. What does not fit is cut off, never wrapped.
    pub(crate) fn render(&self, width: usize, colour: bool) -> String {
        let mut room = width;
        let mut out = String::new();
        for (style, text) in &self.0 {
            let piece: String = text.chars().take(room).collect();
            room -= piece.chars().count();
            match style.escape() {
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
