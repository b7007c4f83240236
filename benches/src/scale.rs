//! The `scale` command: what a large fleet costs its Redis, measured with many stores in a few processes.
//!
//! The processes are this program again; each runs some of the replicas, with a store and connections of their own. On a
//! small machine they compete with the server for the cores, so nothing here is a share of wall time: the server's CPU time,
//! its scripts and its bytes are read from `INFO`, and every row shows how many of the planned calls were made.
//!
//! ```text
//!   load.rs          what the processes are asked to do and what they report: the lines between them
//!     ├─ processes.rs   starts the processes and writes to them
//!     └─ replicas.rs    one process: its replicas and their callers
//!   counters.rs      CPU time, scripts and bytes of the server
//!   document.rs      the table in the docs, with the figures of the first edition
//!   idle.rs          healthy circuits in use
//!   failing.rs       a dependency that fails wholly
//!   half_open.rs     half-open circuits whose probes take long
//!   resubscribe.rs   all subscriptions cut at once
//!   routes.rs        memory and first call of a route
//!   overload.rs      an exact limit far exceeded
//! ```

mod counters;
mod document;
mod failing;
mod half_open;
mod idle;
mod load;
mod overload;
mod processes;
mod replicas;
mod resubscribe;
mod routes;

use std::error::Error;
use std::io;
use std::path::PathBuf;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::figures::{self, Bar, Row};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Print one JSON object a line instead of a table.
    #[arg(long)]
    json: bool,

    /// Measure only this case. Default: all, which takes less than four minutes.
    #[arg(long, value_name = "NAME")]
    case: Option<String>,

    /// Replicas instead of those of the case; its rows are named after the number.
    #[arg(long, value_name = "N", requires = "case", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    replicas: Option<u32>,

    /// Routes of each replica instead of those of the case; its rows are named after the number.
    #[arg(long, value_name = "N", requires = "case", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    routes: Option<u32>,

    /// Also rewrite the table in this page, which shows the day given by `--date`.
    #[arg(long, value_name = "FILE", requires = "date", conflicts_with_all = ["case"])]
    document: Option<PathBuf>,

    /// The day of the measurement.
    #[arg(long, value_name = "DAY")]
    date: Option<String>,

    /// Processes over which the replicas are spread.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    processes: u32,
}

/// One case, of this size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    name: &'static str,
    shape: Shape,
    pub(crate) replicas: u32,
    pub(crate) routes: u32,
    pub(crate) processes: u32,
    measure: Measure,
}

type Measure = fn(&Case) -> Result<Vec<Row>, Box<dyn Error>>;

/// Which of the numbers of a case are part of its name.
#[derive(Clone, Copy, Debug)]
enum Shape {
    ReplicasAndRoutes,
    Routes,
    Neither,
}

const CASES: &[Case] = {
    const fn case(name: &'static str, shape: Shape, (replicas, routes): (u32, u32), measure: Measure) -> Case {
        Case { name, shape, replicas, routes, processes: 0, measure }
    }
    &[
        case("idle_100x1000", Shape::ReplicasAndRoutes, (100, 1_000), idle::measure),
        case("idle_20x10000", Shape::ReplicasAndRoutes, (20, 10_000), idle::measure),
        case("failing_100x10", Shape::ReplicasAndRoutes, (100, 10), failing::measure),
        case("halfopen_100x50", Shape::ReplicasAndRoutes, (100, 50), half_open::measure),
        case("resubscribe_100x100", Shape::ReplicasAndRoutes, (100, 100), resubscribe::measure),
        case("routes_10000", Shape::Routes, (1, 10_000), routes::measure),
        case("overload_rejections", Shape::Neither, (3, 1), overload::measure),
    ]
};

/// Files that a replica opens in its process and that the server opens for it: three connections at most, of which one is
/// made again before the former is closed.
const FILES_PER_REPLICA: u64 = 4;
/// Files that a process opens beside its replicas'.
const OTHER_FILES: u64 = 128;

pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let cases = chosen(arguments)?;
    let replicas = cases.iter().map(|case| case.replicas).max().unwrap_or_default();
    allow_open_files(u64::from(replicas) * FILES_PER_REPLICA + OTHER_FILES)?;
    let mut out = io::stdout().lock();
    let mut rows = Vec::new();
    for case in &cases {
        let measured = (case.measure)(case).map_err(|error| format!("{}: {error}", case.name()))?;
        if arguments.json {
            figures::json(&measured, &mut out)?; // at once, so that a later case that fails loses nothing
        }
        rows.extend(measured);
    }
    if !arguments.json {
        figures::table(&rows, &mut out)?;
    }
    if let (Some(page), Some(date)) = (&arguments.document, &arguments.date) {
        document::rewrite(page, date, &rows)?;
    }
    Ok(())
}

pub(crate) fn run_child(assignment: &str) -> Result<(), Box<dyn Error>> {
    replicas::run(assignment)
}

impl Case {
    /// Returns the name, with the numbers in force.
    pub(crate) fn name(&self) -> String {
        let kind = self.name.split('_').next().unwrap_or_default();
        match self.shape {
            Shape::ReplicasAndRoutes => format!("{kind}_{}x{}", self.replicas, self.routes),
            Shape::Routes => format!("{kind}_{}", self.routes),
            Shape::Neither => self.name.to_owned(),
        }
    }

    /// Shows the bar, if the case has the size that the bar is meant for.
    pub(crate) fn with_bar(&self, row: Row, bar: Bar, valid: bool) -> Row {
        if self.name() == self.name { row.shown_bar(bar, valid) } else { row }
    }

    /// Returns the number of circuits: one per replica and route.
    pub(crate) fn circuits(&self) -> u32 {
        self.replicas * self.routes
    }
}

fn chosen(arguments: &Arguments) -> Result<Vec<Case>, Box<dyn Error>> {
    let is_chosen = |case: &&Case| arguments.case.as_deref().is_none_or(|name| name == case.name);
    let resized = |case: &Case| {
        let (replicas, routes) = (arguments.replicas.unwrap_or(case.replicas), arguments.routes.unwrap_or(case.routes));
        Case { replicas, routes, processes: arguments.processes, ..*case }
    };
    let cases: Vec<_> = CASES.iter().filter(is_chosen).map(resized).collect();
    if cases.is_empty() {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        return Err(format!("there is no such case; the cases are {}", names.join(", ")).into());
    }
    Ok(cases)
}

/// Raises the limit of open files of this process, which its children inherit, the server among them.
fn allow_open_files(needed: u64) -> Result<(), Box<dyn Error>> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < needed) {
        let enough = Rlimit { current: Some(needed), maximum };
        setrlimit(Resource::Nofile, enough)
            .map_err(|error| format!("needs {needed} open files (ulimit -n): {error}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Arguments, CASES, chosen};

    fn arguments(case: Option<&str>, routes: Option<u32>) -> Arguments {
        Arguments {
            json: false,
            case: case.map(str::to_owned),
            replicas: None,
            routes,
            document: None,
            date: None,
            processes: 2,
        }
    }

    #[test]
    fn a_case_of_its_own_size_has_the_name_it_is_chosen_by() {
        let cases = chosen(&arguments(None, None)).unwrap();
        assert!(cases.iter().map(|case| case.name()).eq(CASES.iter().map(|case| case.name)));
    }

    #[test]
    fn a_resized_case_is_named_after_its_size() {
        let names = |case, routes| chosen(&arguments(Some(case), routes)).unwrap()[0].name();
        assert_eq!(names("idle_100x1000", Some(10)), "idle_100x10");
        assert_eq!(names("routes_10000", Some(10)), "routes_10");
        assert!(chosen(&arguments(Some("idle"), None)).is_err(), "a part of a name is no name");
    }
}
