//! The faults that a step can inject, in the notation of the playbook's `inject` column.

use std::fmt;
use std::time::Duration;

use phalanx::internal::files::{Escaped, nearest};

use super::reader::{duration, span};

/// A fault.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use phalanx_testkit::plan::Fault;
///
/// let slow: Fault = "+200ms@p95".parse().unwrap();
/// assert_eq!(slow, Fault::Latency { add: Duration::from_millis(200), quantile: 0.95 });
/// assert_eq!(slow.to_string(), "+200ms@p95");
/// assert_eq!("rps x4".parse(), Ok(Fault::Overload { factor: 4.0 }));
/// assert!("5xy".parse::<Fault>().unwrap_err().ends_with("did you mean 5xx?"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Answers slower than this quantile of the latency come later by `add`: `+200ms@p95`; `+200ms` for all of them.
    Latency {
        /// The added latency.
        add: Duration,
        /// The quantile from which it is added, 0.0 for every answer.
        quantile: f64,
    },
    /// This share of the attempts fails with a 5xx: `5xx`, or `5xx@30%`.
    Errors {
        /// The share, above 0.0 and at most 1.0.
        share: f64,
    },
    /// Callers call more often by this factor: `rps x4`.
    Overload {
        /// The factor, at least 1.0.
        factor: f64,
    },
    /// Requests have a deadline of at most this long: `deadline=2s`. A request calls every targeted policy, one after the
    /// other; upstream has spent a share of the deadline drawn evenly, and one attempt in ten takes the whole of it.
    Deadline {
        /// The deadline of a request from which nothing is spent yet.
        total: Duration,
    },
    /// Writes take effect, but the answer of the first attempt is lost for this share of them: `lost answer@10%`.
    LostAnswer {
        /// The share, above 0.0 and at most 1.0.
        share: f64,
    },
}

/// One example of each fault, for messages.
const EXAMPLES: [&str; 5] = ["+200ms@p95", "5xx", "rps x4", "deadline=2s", "lost answer@10%"];
/// The kinds of a fault that is written as a table.
pub(super) const KINDS: [&str; 5] = ["latency", "errors", "overload", "deadline", "lost_answer"];

const MAX_FACTOR: f64 = 1_000.0;
const MAX_TIME: Duration = Duration::from_secs(3_600);

impl Fault {
    /// Returns why the parameters are out of range, if they are.
    pub(super) fn mistake(&self) -> Option<String> {
        let share = |share: f64| {
            (!(share > 0.0 && share <= 1.0)).then(|| "a share must be above 0 % and at most 100 %".to_owned())
        };
        let time = |time: Duration| {
            (time.is_zero() || time > MAX_TIME).then(|| "a time must be above zero and at most 1 hour".to_owned())
        };
        match *self {
            Self::Latency { add, quantile } => time(add).or_else(|| {
                (!(0.0..1.0).contains(&quantile)).then(|| "a quantile must be from p0 to below p100".to_owned())
            }),
            Self::Errors { share: it } | Self::LostAnswer { share: it } => share(it),
            Self::Overload { factor } => {
                (!(1.0..=MAX_FACTOR).contains(&factor)).then(|| format!("a factor must be from 1 to {MAX_FACTOR}"))
            }
            Self::Deadline { total } => time(total),
        }
    }

    /// Returns the name of the kind.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Latency { .. } => KINDS[0],
            Self::Errors { .. } => KINDS[1],
            Self::Overload { .. } => KINDS[2],
            Self::Deadline { .. } => KINDS[3],
            Self::LostAnswer { .. } => KINDS[4],
        }
    }
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let folded = text.trim().to_ascii_lowercase();
        let parsed = parse(&folded).unwrap_or_else(|| Err(unknown(&folded)))?;
        parsed.mistake().map_or(Ok(parsed), Err)
    }
}

/// Returns none if the text begins like no fault.
fn parse(text: &str) -> Option<Result<Fault, String>> {
    if let Some(added) = text.strip_prefix('+') {
        let (add, quantile) = added.split_once('@').map_or((added, None), |(add, at)| (add, Some(at)));
        let quantile = quantile.map_or(Some(0.0), |at| Some(at.trim().strip_prefix('p')?.parse::<f64>().ok()? / 100.0));
        return Some(match (duration(add), quantile) {
            (Some(add), Some(quantile)) => Ok(Fault::Latency { add, quantile }),
            (None, _) => Err("the added latency must be a duration, as in +200ms@p95".to_owned()),
            (_, None) => Err("the quantile must be written like p95, as in +200ms@p95".to_owned()),
        });
    }
    if let Some(rest) = text.strip_prefix("5xx") {
        return Some(share_of(rest, 1.0, "5xx@30%")?.map(|share| Fault::Errors { share }));
    }
    if let Some(rest) = text.strip_prefix("lost answer").or_else(|| text.strip_prefix("lost_answer")) {
        return Some(share_of(rest, 0.1, "lost answer@10%")?.map(|share| Fault::LostAnswer { share }));
    }
    if let Some(rest) = text.strip_prefix("rps") {
        let factor = rest.trim().strip_prefix('x').map(str::trim).and_then(|factor| factor.parse().ok());
        let wrong = || "the factor must be a number after x, as in rps x4".to_owned();
        return Some(factor.map(|factor| Fault::Overload { factor }).ok_or_else(wrong));
    }
    if let Some(rest) = text.strip_prefix("deadline").and_then(|rest| rest.trim_start().strip_prefix('=')) {
        let wrong = || "the deadline must be a duration, as in deadline=2s".to_owned();
        return Some(duration(rest).map(|total| Fault::Deadline { total }).ok_or_else(wrong));
    }
    None
}

/// Reads `@30%`, or nothing; none if the text continues otherwise.
fn share_of(rest: &str, default: f64, example: &str) -> Option<Result<f64, String>> {
    let rest = rest.trim();
    if rest.is_empty() {
        return Some(Ok(default));
    }
    let share = rest.strip_prefix('@')?.trim();
    let percent = share.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
    Some(percent.map(|percent| percent / 100.0).ok_or_else(|| format!("the share must be in percent, as in {example}")))
}

fn unknown(text: &str) -> String {
    // Compared by their beginning: the parameters are the user's own.
    let name = text.split(['@', '=']).next().unwrap_or_default().trim();
    let names = ["5xx", "rps x4", "deadline", "lost answer", "latency", "outage", "overload"];
    let meant = nearest(&name.replace('_', " "), names).map(|meant| match meant {
        "latency" => EXAMPLES[0],
        "outage" => EXAMPLES[1],
        "overload" => EXAMPLES[2],
        "deadline" => EXAMPLES[3],
        "lost answer" => EXAMPLES[4],
        other => other,
    });
    match meant {
        Some(meant) => format!("there is no fault {}; did you mean {meant}?", Escaped(text)),
        None => format!("there is no fault {}; there are {}", Escaped(text), EXAMPLES.join(", ")),
    }
}

/// In the notation in which it is read.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| (share * 1e6).round() / 1e4;
        match *self {
            Self::Latency { add, quantile: 0.0 } => write!(f, "+{}", span(add)),
            Self::Latency { add, quantile } => write!(f, "+{}@p{}", span(add), percent(quantile)),
            Self::Errors { share: 1.0 } => f.write_str("5xx"),
            Self::Errors { share } => write!(f, "5xx@{}%", percent(share)),
            Self::Overload { factor } => write!(f, "rps x{factor}"),
            Self::Deadline { total } => write!(f, "deadline={}", span(total)),
            Self::LostAnswer { share } => write!(f, "lost answer@{}%", percent(share)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_displayed_as_it_is_read() {
        for text in
            ["+200ms@p95", "+1s 500ms", "5xx", "5xx@30%", "rps x4", "rps x1.5", "deadline=2s", "lost answer@10%"]
        {
            let fault: Fault = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(fault.to_string(), text);
            assert_eq!(fault.to_string().parse(), Ok(fault));
        }
        for example in EXAMPLES {
            assert!(example.parse::<Fault>().is_ok(), "{example}");
        }
    }

    #[test]
    fn parameters_out_of_range_are_rejected() {
        let wrong = ["+0s", "+2h", "+200ms@p100", "+200ms@95", "+fast@p95", "5xx@0%", "5xx@101%", "5xx@NaN%", "5xx@3"];
        let more = [
            "rps x0.5",
            "rps xNaN",
            "rps 4",
            "rps x1e9",
            "deadline=0s",
            "deadline=soon",
            "lost answer@-1%",
            "5xxx",
            "",
        ];
        for text in wrong.into_iter().chain(more) {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_fault_gets_the_nearest_one() {
        for (text, meant) in [("5xy", "5xx"), ("dedline=2s", "deadline=2s"), ("lost anwser", "lost answer@10%")] {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(error.ends_with(&format!("did you mean {meant}?")), "{error}");
        }
        let far = "meteorite".parse::<Fault>().unwrap_err();
        assert!(far.ends_with("there are +200ms@p95, 5xx, rps x4, deadline=2s, lost answer@10%"), "{far}");
    }
}
