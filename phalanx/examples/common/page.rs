//! What an example has to say: lines, tables and promises, written at once when all is known.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

/// The page, and whether every promise on it was kept.
#[derive(Debug)]
pub(crate) struct Page {
    lines: Vec<String>,
    kept: bool,
}

impl Page {
    pub(crate) fn new() -> Self {
        Self { lines: vec![String::new()], kept: true }
    }

    /// Text, in lines no longer than a terminal is wide.
    pub(crate) fn say(&mut self, text: impl Display) {
        self.lines.extend(text.to_string().lines().map(|line| format!("  {line}").trim_end().to_owned()));
    }

    pub(crate) fn blank(&mut self) {
        self.lines.push(String::new());
    }

    /// Columns as wide as their widest cell: the first reads from the left, figures end at the right.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |text: &String| text.chars().count();
        let width = |column| rows.iter().filter_map(|row| row.get(column)).map(wide).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            self.say(cells.collect::<Vec<_>>().join("   "));
        }
        self.blank();
    }

    /// What was promised, and whether it was seen.
    pub(crate) fn promise(&mut self, kept: bool, what: impl Display) {
        self.kept &= kept;
        self.say(format_args!("{:>6}   {what}", if kept { "kept" } else { "BROKEN" }));
    }

    /// Writes it. With `check`, a broken promise is a failure.
    pub(crate) fn write(mut self, check: bool) -> io::Result<ExitCode> {
        self.blank(); // so that the last line is ended
        match io::stdout().write_all(self.lines.join("\n").as_bytes()) {
            // `| head` has seen enough; that is no failure.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
            _ if check && !self.kept => Ok(ExitCode::FAILURE),
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

/// A share of a whole, in per cent.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match part as f64 * 100.0 / whole.max(1) as f64 {
        0.0 => "0 %".to_owned(),
        // "100 %" is all of it, and nothing less.
        share if share < 10.0 || share > 99.0 && part < whole => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}
