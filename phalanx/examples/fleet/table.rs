//! The table: a row for each replica and one for the fleet, with as many columns as fit on the terminal.

use std::time::Duration;

use phalanx::RejectionCode;

use crate::call_counts::CallCounts;
use crate::message::ReplicaStatus;
use crate::scenario::UpstreamState;
use crate::style::{Line, Style};

type Cell = (Style, String);

/// A column. Those with the lowest `priority` are dropped first when there is no room.
struct Column {
    head: (&'static str, &'static str),
    cells: Vec<Cell>,
    priority: u8,
    /// The width of the longest text it may hold, so that the table does not jump.
    min_width: usize,
}

impl Column {
    fn new(priority: u8, upper: &'static str, lower: &'static str, cells: Vec<Cell>) -> Self {
        Self { head: (upper, lower), cells, priority, min_width: 0 }
    }

    fn min_width(mut self, width: usize) -> Self {
        self.min_width = width;
        self
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|(_, text)| text.chars().count());
        cells.chain([self.head.0.len(), self.head.1.len(), self.min_width]).max().unwrap_or(0)
    }
}

/// Renders the table for this time.
pub(crate) fn lines(
    replica_counts: &[CallCounts],
    statuses: &[Option<ReplicaStatus>],
    state: UpstreamState,
    now: Duration,
    width: usize,
) -> Vec<Line> {
    let mut rows: Vec<CallCounts> = replica_counts.to_vec();
    rows.push(CallCounts::sum(replica_counts));
    let mut columns = columns(&rows, statuses, state, now);
    let gap = loop {
        let text: usize = columns.iter().map(Column::width).sum();
        let gaps = columns.len() + 1;
        if let Some(gap) = [3, 2, 1].into_iter().find(|gap| text + gap * gaps <= width) {
            break gap;
        }
        let lowest = (0..columns.len()).min_by_key(|index| columns[*index].priority);
        match lowest {
            Some(lowest) if columns.len() > 1 => drop(columns.remove(lowest)),
            _ => break 1,
        }
    };
    let space = " ".repeat(gap);
    let row = |cell: &dyn Fn(&Column) -> Cell| {
        columns.iter().fold(Line::new(), |line, column| {
            let (style, text) = cell(column);
            line.with(Style::Plain, space.as_str()).with(style, format!("{text:>width$}", width = column.width()))
        })
    };
    let heads = [row(&|column| (Style::Dim, column.head.0.into())), row(&|column| (Style::Dim, column.head.1.into()))];
    let body = (0..rows.len()).map(|index| row(&|column| column.cells[index].clone()));
    heads.into_iter().chain(body).collect()
}

fn columns(
    rows: &[CallCounts],
    statuses: &[Option<ReplicaStatus>],
    state: UpstreamState,
    now: Duration,
) -> Vec<Column> {
    let fleet = rows.len() - 1;
    let style = |index: usize, usual: Style| if index == fleet && usual == Style::Plain { Style::Bold } else { usual };
    let each = |cell: &dyn Fn(usize, &CallCounts) -> Cell| -> Vec<Cell> {
        let cells = rows.iter().enumerate().map(|(index, counts)| (index, cell(index, counts)));
        cells.map(|(index, (usual, text))| (style(index, usual), text)).collect()
    };
    let number = |count: u64| (if count == 0 { Style::Dim } else { Style::Plain }, count.to_string());

    let name = |index: usize, _: &CallCounts| {
        let name = if index == fleet { "fleet".to_owned() } else { (index + 1).to_string() };
        (Style::Plain, name)
    };
    let mut phases = statuses.iter().flatten().map(|status| status.circuit.phase);
    let agreed = phases.next().filter(|first| phases.all(|phase| phase == *first));
    let breaker = |index: usize, _: &CallCounts| {
        let phase = statuses.get(index).map_or(agreed, |status| status.map(|status| status.circuit.phase));
        let unknown = if index == fleet { "mixed" } else { "killed" };
        phase.map_or((Style::Plain, unknown.to_owned()), |phase| (Style::of_phase(phase), phase.name().to_owned()))
    };
    let store = |index: usize, _: &CallCounts| match statuses.get(index).copied().flatten().and_then(|one| one.fleet) {
        Some(fleet) if fleet.degraded => (Style::Red, "degraded".to_owned()),
        Some(fleet) => (Style::Green, format!("1 of {}", fleet.live)),
        None => (Style::Dim, "-".to_owned()),
    };
    let p95 = |_: usize, counts: &CallCounts| match counts.p95(now) {
        Some(latency) if latency >= Duration::from_millis(100) => (Style::Yellow, millis(latency)),
        Some(latency) => (Style::Plain, millis(latency)),
        None => (Style::Dim, "-".to_owned()),
    };

    let mut columns = vec![
        Column::new(255, "", "replica", each(&name)),
        Column::new(0, "", "upstream", each(&|_, _| (Style::Dim, state.name().into()))).min_width(9),
        Column::new(4, "calls", "per s", each(&|_, counts| (Style::Plain, format!("{:.0}", counts.rate(now))))),
        Column::new(5, "", "admitted", each(&|_, counts| number(counts.admitted))),
        Column::new(2, "", "failed", each(&|_, counts| number(counts.failed))),
    ];
    for code in rows[fleet].by_code.keys().copied() {
        // "circuit_open" is printed as two words one above the other, to keep the column narrow.
        let (upper, lower) = code.name().split_once('_').unwrap_or(("", code.name()));
        let priority = if code == RejectionCode::CircuitOpen { 6 } else { 3 };
        columns.push(Column::new(priority, upper, lower, each(&|_, counts| number(counts.count(code)))));
    }
    columns.push(Column::new(7, "", "breaker", each(&breaker)).min_width(9));
    if statuses.iter().flatten().any(|status| status.fleet.is_some()) {
        columns.push(Column::new(8, "", "redis", each(&store)).min_width(8));
    }
    columns.push(Column::new(1, "", "p95", each(&p95)).min_width(6));
    columns
}

pub(crate) fn millis(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1_000.0)
}
