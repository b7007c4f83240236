//! The terminal: redrawn in place, and restored at the end.

use std::io::{self, IsTerminal, Write};

use crate::style::Line;

/// Whether the standard output is a terminal that can be redrawn.
pub(crate) fn is_live() -> bool {
    io::stdout().is_terminal() && std::env::var("TERM").is_ok_and(|term| term != "dumb")
}

/// Whether colours are enabled (<https://no-color.org>).
pub(crate) fn has_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The redrawn part of the terminal. Dropping it restores the cursor.
pub(crate) struct Screen {
    size: (usize, usize),
    /// Lines on the terminal now.
    drawn: usize,
    colour: bool,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Self> {
        let mut screen = Self { size: (0, 0), drawn: 0, colour: has_colour() };
        screen.size = measure();
        // Hides the cursor and turns off line wrapping, for a window that becomes narrower.
        write(b"\x1b[?25l\x1b[?7l")?;
        Ok(screen)
    }

    /// The columns and rows. A changed size clears the screen, because the old lines have been wrapped.
    pub(crate) fn size(&mut self) -> io::Result<(usize, usize)> {
        let size = measure();
        if size != self.size {
            self.size = size;
            self.drawn = 0;
            write(b"\x1b[2J\x1b[H")?;
        }
        Ok(size)
    }

    /// Replaces the lines, in one write so that it does not flicker.
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
        // A closed terminal needs no restoring.
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
