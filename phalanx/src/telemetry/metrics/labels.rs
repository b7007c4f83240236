//! Which series a policy and route belong to. Names may come from callers, so there are only so many series, and what
//! is written into them is cut and escaped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use phalanx_core::key::{StateKey, printable};

use super::instruments::Instruments;
use super::series::Series;

/// The route, or the policy, of all that found no place of their own.
pub const OTHER: &str = "__other__";

/// Characters of a name that are shown.
const SHOWN: usize = 120;

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
    /// How many have names of their own.
    named: usize,
    all: Vec<Arc<Series>>,
}

impl Labels {
    pub(super) fn new(max_routes: usize, instruments: Arc<Instruments>) -> Self {
        Self { max_routes, instruments, known: Mutex::default() }
    }

    /// The series of a key, which is made if there is room for it.
    pub(super) fn series(&self, key: &StateKey) -> Arc<Series> {
        let (policy, route) = (shown(key.policy()), shown(key.route().unwrap_or_default()));
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

/// A name as it is written into a series: what would move a cursor or start a line escaped, cut where it is long.
pub(super) fn shown(name: &str) -> Cow<'_, str> {
    let name = printable(name);
    match name.char_indices().nth(SHOWN) {
        None => name,
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_escaped_and_cut_and_a_plain_one_is_not_touched() {
        assert_eq!(shown("vendor/zürich \"a\""), "vendor/zürich \"a\"");
        assert_eq!(shown("a\r\n\u{1b}[2J"), "a\\r\\n\\u{1b}[2J");
        assert_eq!(shown("a\u{202e}b\u{2028}c"), "a\\u{202e}b\\u{2028}c");
        assert_eq!(shown(&"\n".repeat(1_000)).chars().count(), SHOWN + 1, "what is escaped is cut too");
        let long = shown(&"ü".repeat(1_000)).into_owned();
        assert_eq!(long.chars().count(), SHOWN + 1);
    }
}
