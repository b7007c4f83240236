//! The table: a row for each replica and one for the fleet, as many columns as the terminal is wide.

use std::time::Duration;

use phalanx::RejectionCode;

use crate::paint::{Ink, Line};
use crate::report::Standing;
use crate::story::Act;
use crate::tally::Tally;

type Cell = (Ink, String);

/// One column. Those with the lowest `worth` go first when there is no room.
struct Column {
    head: (&'static str, &'static str),
    cells: Vec<Cell>,
    worth: u8,
    /// Room for the longest word it may come to hold, so that the table does not jump.
    least: usize,
}

impl Column {
    fn new(worth: u8, upper: &'static str, lower: &'static str, cells: Vec<Cell>) -> Self {
        Self { head: (upper, lower), cells, worth, least: 0 }
    }

    fn at_least(mut self, width: usize) -> Self {
        self.least = width;
        self
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(_, text)| text.chars().count());
        cells.chain([self.head.0.len(), self.head.1.len(), self.least]).max().unwrap_or(0)
    }
}

/// The table of this moment. `standings` is how things stand as each replica sees them.
pub(crate) fn lines(
    tallies: &[Tally],
    standings: &[Option<Standing>],
    act: Act,
    now: Duration,
    width: usize,
) -> Vec<Line> {
    let mut rows: Vec<Tally> = tallies.to_vec();
    rows.push(Tally::sum(tallies));
    let mut columns = columns(&rows, standings, act, now);
    let gap = loop {
        let text: usize = columns.iter().map(Column::width).sum();
        let gaps = columns.len() + 1;
        if let Some(gap) = [3, 2, 1].into_iter().find(|gap| text + gap * gaps <= width) {
            break gap;
        }
        let least = (0..columns.len()).min_by_key(|place| columns[*place].worth);
        match least {
            Some(least) if columns.len() > 1 => drop(columns.remove(least)),
            _ => break 1,
        }
    };
    let space = " ".repeat(gap);
    let row = |cell: &dyn Fn(&Column) -> Cell| {
        columns.iter().fold(Line::new(), |line, column| {
            let (ink, text) = cell(column);
            line.with(Ink::Plain, space.as_str()).with(ink, format!("{text:>width$}", width = column.width()))
        })
    };
    let heads = [row(&|column| (Ink::Dim, column.head.0.into())), row(&|column| (Ink::Dim, column.head.1.into()))];
    let body = (0..rows.len()).map(|place| row(&|column| column.cells[place].clone()));
    heads.into_iter().chain(body).collect()
}

fn columns(rows: &[Tally], standings: &[Option<Standing>], act: Act, now: Duration) -> Vec<Column> {
    let fleet = rows.len() - 1;
    let ink = |place: usize, usual: Ink| if place == fleet && usual == Ink::Plain { Ink::Bold } else { usual };
    let each = |cell: &dyn Fn(usize, &Tally) -> Cell| -> Vec<Cell> {
        let cells = rows.iter().enumerate().map(|(place, tally)| (place, cell(place, tally)));
        cells.map(|(place, (usual, text))| (ink(place, usual), text)).collect()
    };
    let number = |count: u64| (if count == 0 { Ink::Dim } else { Ink::Plain }, count.to_string());

    let name = |place: usize, _: &Tally| {
        let name = if place == fleet { "fleet".to_owned() } else { (place + 1).to_string() };
        (Ink::Plain, name)
    };
    let mut phases = standings.iter().flatten().map(|standing| standing.circuit.phase);
    let agreed = phases.next().filter(|first| phases.all(|phase| phase == *first));
    let circuit = |place: usize, _: &Tally| {
        let phase = standings.get(place).map_or(agreed, |standing| standing.map(|standing| standing.circuit.phase));
        let nobody = if place == fleet { "split" } else { "gone" };
        phase.map_or((Ink::Plain, nobody.to_owned()), |phase| (Ink::of_phase(phase), phase.name().to_owned()))
    };
    let store = |place: usize, _: &Tally| match standings.get(place).copied().flatten().and_then(|one| one.fleet) {
        Some(fleet) if fleet.alone => (Ink::Red, "alone".to_owned()),
        Some(fleet) => (Ink::Green, format!("1 of {}", fleet.live)),
        None => (Ink::Dim, "-".to_owned()),
    };
    let p95 = |_: usize, tally: &Tally| match tally.p95(now) {
        Some(latency) if latency >= Duration::from_millis(100) => (Ink::Yellow, millis(latency)),
        Some(latency) => (Ink::Plain, millis(latency)),
        None => (Ink::Dim, "-".to_owned()),
    };

    let mut columns = vec![
        Column::new(255, "", "replica", each(&name)),
        Column::new(0, "", "phase", each(&|_, _| (Ink::Dim, act.name().into()))).at_least(9),
        Column::new(4, "calls", "per s", each(&|_, tally| (Ink::Plain, format!("{:.0}", tally.rate(now))))),
        Column::new(5, "", "admitted", each(&|_, tally| number(tally.admitted))),
        Column::new(2, "", "failed", each(&|_, tally| number(tally.failed))),
    ];
    for code in rows[fleet].by_code.keys().copied() {
        // "circuit_open" as two words one above the other: a column as narrow as its figures.
        let (upper, lower) = code.name().split_once('_').unwrap_or(("", code.name()));
        let worth = if code == RejectionCode::CircuitOpen { 6 } else { 3 };
        columns.push(Column::new(worth, upper, lower, each(&|_, tally| number(tally.count(code)))));
    }
    columns.push(Column::new(7, "", "circuit", each(&circuit)).at_least(9));
    if standings.iter().flatten().any(|standing| standing.fleet.is_some()) {
        columns.push(Column::new(8, "", "redis", each(&store)).at_least(6));
    }
    columns.push(Column::new(1, "", "p95", each(&p95)).at_least(6));
    columns
}

pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1_000.0)
}
