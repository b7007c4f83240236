//! The terminal: drawn over in place, and left as it was found.

use std::io::{self, IsTerminal, Write};

use crate::paint::Line;

/// Whether somebody is looking who can be shown a moving picture.
pub(crate) fn is_live() -> bool {
    io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| term != "dumb")
}

/// Whether colour is welcome (<https://no-color.org>).
pub(crate) fn has_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A place on the terminal. Dropping it gives the cursor back, whatever the reason.
pub(crate) struct Screen {
    size: (usize, usize),
    /// Lines of the picture that stands there now.
    drawn: usize,
    colour: bool,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        let mut screen = Self { size: (0, 0), drawn: 0, colour: has_colour() };
        screen.size = measure();
        // Hide the cursor, and do not wrap what a narrower window no longer holds.
        write(b"\x1b[?25l\x1b[?7l")?;
        Ok(screen)
    }

    /// Columns and rows to draw on. A changed size starts a clean page: what was there has been wrapped by now.
    pub(crate) fn size(&mut self) -> io::Result<(usize, usize)> {
        let size = measure();
        if size != self.size {
            self.size = size;
            self.drawn = 0;
            write(b"\x1b[2J\x1b[H")?;
        }
        Ok(size)
    }

    /// Replaces the picture, in one write so that it does not flicker.
    pub(crate) fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let (width, height) = self.size;
        let lines = &lines[..lines.len().min(height.saturating_sub(1))];
        let mut page = String::from("\r");
        if self.drawn > 0 {
            page.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in lines {
            page.push_str(&line.render(width, self.colour));
            page.push_str("\x1b[K\r\n");
        }
        page.push_str("\x1b[J");
        self.drawn = lines.len();
        write(page.as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = write(b"\x1b[?7h\x1b[?25h");
    }
}

fn measure() -> (usize, usize) {
    let (columns, rows) = crossterm::terminal::size().unwrap_or((80, 24));
    (columns.into(), rows.into())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
