//! Labels: maps a policy and route to its series. Names may come from untrusted callers, so the number of series is bounded,
//! and names are escaped and shortened.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use phalanx_core::key::{StateKey, printable};

use super::instruments::Instruments;
use super::series::Series;

/// The route, or the policy, of everything beyond [`Metrics::max_routes`](super::Metrics::max_routes).
pub const OTHER: &str = "__other__";

/// The longest label, in characters.
const MAX_LABEL_CHARS: usize = 120;

/// All series of one [`Metrics`](super::Metrics).
#[derive(Debug)]
pub(super) struct Labels {
    max_routes: usize,
    instruments: Arc<Instruments>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    policies: HashMap<String, HashMap<String, Arc<Series>>>,
    /// How many series have their own route.
    named: usize,
    all: Vec<Arc<Series>>,
}

impl Labels {
    pub(super) fn new(max_routes: usize, instruments: Arc<Instruments>) -> Self {
        Self { max_routes, instruments, known: Mutex::default() }
    }

    /// Returns the series of a key. Creates it below the bound, and shares one beyond it.
    pub(super) fn series(&self, key: &StateKey) -> Arc<Series> {
        let (policy, route) = (label(key.policy()), label(key.route().unwrap_or_default()));
        let route = if key.is_overflow() { Cow::Borrowed(OTHER) } else { route };
        let mut known = self.known.lock();
        let known = &mut *known;
        let full = known.policies.len() >= self.max_routes;
        let policy = if full && !known.policies.contains_key(&*policy) { Cow::Borrowed(OTHER) } else { policy };
        let routes = match known.policies.get_mut(&*policy) {
            Some(routes) => routes,
            None => known.policies.entry(policy.clone().into_owned()).or_default(),
        };
        if let Some(series) = routes.get(&*route) {
            return series.clone();
        }
        let full = known.named >= self.max_routes || policy == OTHER;
        let route = if full { Cow::Borrowed(OTHER) } else { route };
        if let Some(series) = routes.get(&*route) {
            return series.clone();
        }
        known.named += usize::from(route != OTHER);
        let series = Arc::new(Series::new(known.all.len(), &policy, &route, self.instruments.clone()));
        routes.insert(route.into_owned(), series.clone());
        known.all.push(series.clone());
        series
    }

    pub(super) fn all(&self) -> Vec<Arc<Series>> {
        self.known.lock().all.clone()
    }
}

/// Formats a name as a label: control characters escaped, then shortened.
pub(super) fn label(name: &str) -> Cow<'_, str> {
    let name = printable(name);
    match name.char_indices().nth(MAX_LABEL_CHARS) {
        None => name,
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_name_is_escaped_and_shortened_and_a_plain_one_stays() {
        assert_eq!(label("vendor/zürich \"a\""), "vendor/zürich \"a\"");
        assert_eq!(label("a\r\n\u{1b}[2J"), "a\\r\\n\\u{1b}[2J");
        assert_eq!(label("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
        assert_eq!(label(&"\n".repeat(1_000)).chars().count(), MAX_LABEL_CHARS + 1, "shortened after escaping");
        let long = label(&"ü".repeat(1_000)).into_owned();
        assert_eq!(long.chars().count(), MAX_LABEL_CHARS + 1);
    }
}
