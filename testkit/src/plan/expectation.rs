//! The closed vocabulary of what a plan may expect, and the prose of the playbook that is mapped to it.

use std::fmt;

use phalanx::internal::files::{Escaped, nearest};

use super::fault::Fault;

/// What has to hold for a policy while and after a fault is injected.
///
/// # Examples
///
/// ```
/// use phalanx_testkit::plan::{BreakerState, Expectation};
///
/// assert_eq!("retry<=1".parse(), Ok(Expectation::Retries { most: 1 }));
/// assert_eq!("breaker maybe open".parse(), Ok(Expectation::Breaker(BreakerState::Maybe))); // the playbook's words
/// assert_eq!(Expectation::Breaker(BreakerState::Maybe).to_string(), "breaker=maybe");
/// let error = "retrys<=1".parse::<Expectation>().unwrap_err();
/// assert_eq!(error, "there is no expectation retrys<=1; did you mean retry<=n?");
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expectation {
    /// `retry<=n`: no call makes more than this many retries.
    Retries {
        /// The most retries of a call.
        most: u32,
    },
    /// `breaker=open`, `breaker=maybe` or `breaker=closed`.
    Breaker(BreakerState),
    /// `fast_503`: from the first trip to the end of the fault, at least 90 % of the calls are answered with 503 within
    /// 10 ms and without an attempt.
    Fast503,
    /// `recovers`: at the end of the recovery the breaker is closed, at least 99 % of the calls are served, and the p95 of
    /// their latency is at most 1.5 times that of the warm-up.
    Recovers,
    /// `shed_503<=x%`: of the calls within the dependency's capacity, at most this share is not served.
    Shed503 {
        /// The share, 0.0 to 1.0.
        most: f64,
    },
    /// `no_oom`: calls in flight, waiting ones included, never exceed the workload's `max_in_flight` for each replica.
    NoOom,
    /// `hop<=remaining`: no attempt runs past the deadline of its request.
    HopWithinRemaining,
    /// `504_on_exceed`: requests whose deadline passes are answered with 504, at most 10 ms after it.
    Status504OnExceed,
    /// `exactly_once`: writes answered with success took effect once, other ones did not, and some were repeated.
    ExactlyOnce,
}

/// The state that is expected of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// It opens while the fault is injected.
    Open,
    /// It may open, and is closed at the end.
    Maybe,
    /// It never opens.
    Closed,
}

/// The forms without a number, and the playbook's words for them.
const FIXED: [(&str, &str, Expectation); 9] = [
    ("breaker=open", "open breaker", Expectation::Breaker(BreakerState::Open)),
    ("breaker=maybe", "breaker maybe open", Expectation::Breaker(BreakerState::Maybe)),
    ("breaker=closed", "breaker closed", Expectation::Breaker(BreakerState::Closed)),
    ("fast_503", "fast 503", Expectation::Fast503),
    ("recovers", "recovery to closed", Expectation::Recovers),
    ("no_oom", "no oom", Expectation::NoOom),
    ("hop<=remaining", "hop timeouts<=remaining", Expectation::HopWithinRemaining),
    ("504_on_exceed", "504 on exceed", Expectation::Status504OnExceed),
    ("exactly_once", "exactly once", Expectation::ExactlyOnce),
];

/// Every form, for messages.
const VOCABULARY: [&str; 11] = [
    "retry<=n",
    "breaker=open",
    "breaker=maybe",
    "breaker=closed",
    "fast_503",
    "recovers",
    "shed_503<=x%",
    "no_oom",
    "hop<=remaining",
    "504_on_exceed",
    "exactly_once",
];

const MAX_RETRIES: u32 = 1_000;

impl Expectation {
    /// Returns why it cannot be judged under this fault, if it cannot.
    pub(super) fn mismatch(&self, fault: &Fault) -> Option<String> {
        let needed = match (self, fault) {
            (Self::HopWithinRemaining | Self::Status504OnExceed, fault) if !matches!(fault, Fault::Deadline { .. }) => {
                "deadline=2s"
            }
            (Self::ExactlyOnce, fault) if !matches!(fault, Fault::LostAnswer { .. }) => "lost answer@10%",
            _ => return None,
        };
        Some(format!("{self} needs a fault such as {needed}"))
    }
}

impl std::str::FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let folded = words.join(" ").to_ascii_lowercase();
        let compact = folded.replace("<= ", "<=").replace(" <=", "<=").replace(" = ", "=");
        if let Some((.., found)) = FIXED.iter().find(|(name, prose, _)| *name == compact || *prose == compact) {
            return Ok(*found);
        }
        if let Some(most) = compact.strip_prefix("retry<=") {
            let most = most.parse().ok().filter(|most| *most <= MAX_RETRIES);
            return most
                .map(|most| Self::Retries { most })
                .ok_or_else(|| format!("retry<=n needs a whole number from 0 to {MAX_RETRIES}"));
        }
        if let Some(most) = compact.strip_prefix("shed_503<=").or_else(|| compact.strip_prefix("shed 503<=")) {
            let percent = most.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
            let share = percent.map(|percent| percent / 100.0).filter(|share| (0.0..=1.0).contains(share));
            return share
                .map(|most| Self::Shed503 { most })
                .ok_or_else(|| "shed_503<=x% needs a share from 0% to 100%".to_owned());
        }
        Err(unknown(&compact))
    }
}

fn unknown(text: &str) -> String {
    // `retrys<=1` is compared with `retry<=n`: the number is the user's own.
    let folded: String = text.replace(' ', "_");
    let named = folded.split_once("<=").map_or(folded.clone(), |(name, _)| match name {
        "hop" | "hop_timeouts" => folded.clone(),
        name if name.starts_with("retr") => "retry<=n".to_owned(), // retries, retrys
        name if name.starts_with("sh") => format!("{name}<=x%"),
        name => format!("{name}<=n"),
    });
    // The playbook's words are compared too, and answered with the form of the vocabulary.
    let prose: Vec<(String, &str)> = FIXED.iter().map(|(name, prose, _)| (prose.replace(' ', "_"), *name)).collect();
    let by_prose = || {
        let meant = nearest(&folded, prose.iter().map(|(prose, _)| prose.as_str()))?;
        prose.iter().find(|(prose, _)| prose == meant).map(|(_, name)| *name)
    };
    match nearest(&named, VOCABULARY).or_else(by_prose) {
        Some(meant) => format!("there is no expectation {}; did you mean {meant}?", Escaped(text)),
        None => format!("there is no expectation {}; there are {}", Escaped(text), VOCABULARY.join(", ")),
    }
}

/// In the notation of the vocabulary.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retries { most } => write!(f, "retry<={most}"),
            Self::Shed503 { most } => write!(f, "shed_503<={}%", (most * 1e6).round() / 1e4),
            fixed => f.write_str(FIXED.iter().find(|(.., it)| it == fixed).map_or("", |(name, ..)| name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vocabulary_and_the_prose_of_the_playbook_are_read_and_displayed() {
        let cases = [
            ("retry<=1", "retry<=1"),
            ("breaker maybe open", "breaker=maybe"),
            ("open breaker", "breaker=open"),
            ("fast 503", "fast_503"),
            ("recovery to closed", "recovers"),
            ("shed 503<=2%", "shed_503<=2%"),
            ("no OOM", "no_oom"),
            ("hop timeouts<=remaining", "hop<=remaining"),
            ("504 on exceed", "504_on_exceed"),
            (" retry <= 3 ", "retry<=3"),
            ("shed_503 <= 0.5 %", "shed_503<=0.5%"),
        ];
        for (text, canonical) in cases {
            let read: Expectation = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(read.to_string(), canonical, "{text}");
        }
        for (name, prose, expectation) in FIXED {
            assert_eq!((name.parse(), prose.parse()), (Ok(expectation), Ok(expectation)));
            assert_eq!(expectation.to_string(), name);
            assert!(VOCABULARY.contains(&name));
        }
    }

    #[test]
    fn a_misspelt_expectation_gets_the_nearest_one_and_a_different_one_the_list() {
        let cases = [
            ("breaker=opne", "breaker=open"),
            ("recover", "recovers"),
            ("fast503", "fast_503"),
            ("retries<=1", "retry<=n"),
            ("shed_504<=2%", "shed_503<=x%"),
            ("hop<=remainin", "hop<=remaining"),
            ("504_on_exced", "504_on_exceed"),
            ("breaker may be open", "breaker=maybe"),
            ("recovry to closed", "recovers"),
        ];
        for (text, meant) in cases {
            let error = text.parse::<Expectation>().unwrap_err();
            assert!(error.ends_with(&format!("did you mean {meant}?")), "{error}");
        }
        assert!("all is well".parse::<Expectation>().unwrap_err().ends_with(&VOCABULARY.join(", ")));
        for text in ["retry<=-1", "retry<=1001", "shed_503<=101%", "shed_503<=2", "shed_503<=NaN%"] {
            assert!(text.parse::<Expectation>().unwrap_err().contains("needs a"), "{text}");
        }
    }
}
