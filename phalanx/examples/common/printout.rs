//! The printout of a simulated demo: text, tables and expectations, written at once at the end.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The lines to print, and whether every expectation was met.
#[derive(Debug)]
pub(crate) struct Printout {
    lines: Vec<String>,
    met: bool,
}

impl Printout {
    /// A printout whose first line names the demo.
    pub(crate) fn new(title: &str) -> Self {
        Self { lines: vec![format!("demo: {title}"), String::new()], met: true }
    }

    /// Adds text, one or more lines.
    pub(crate) fn text(&mut self, text: impl Display) {
        self.lines.extend(text.to_string().lines().map(|line| format!("  {line}").trim_end().to_owned()));
    }

    pub(crate) fn blank(&mut self) {
        self.lines.push(String::new());
    }

    /// Adds a table. The first column is aligned to the left, the others to the right.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |text: &String| text.chars().count();
        let width = |column| rows.iter().filter_map(|row| row.get(column)).map(wide).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            self.text(cells.collect::<Vec<_>>().join("   "));
        }
        self.blank();
    }

    /// Adds an expectation, and whether it was met.
    pub(crate) fn expect(&mut self, met: bool, what: impl Display) {
        self.met &= met;
        self.text(format_args!("{:>7}   {what}", if met { "met" } else { "NOT MET" }));
    }

    /// Prints everything. With `check`, an expectation that is not met is a failure.
    pub(crate) fn write(mut self, check: bool) -> io::Result<ExitCode> {
        self.blank(); // ends the last line
        match io::stdout().write_all(self.lines.join("\n").as_bytes()) {
            // `| head` closes the pipe early; that is no failure.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ if check && !self.met => Ok(ExitCode::FAILURE),
            _ => Ok(ExitCode::SUCCESS),
        }
    }
}

/// A row of a table.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1_000.0)
}

/// Formats a part of a whole in per cent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole.max(1) as f64 {
        0.0 => "0 %".to_owned(),
        // "100 %" is printed only for all of it.
        percent if percent < 10.0 || percent > 99.0 && part < whole => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}
