//! The key of all state: the pair (policy, route).
//!
//! The two parts are stored and compared separately, so different names never give the same key: `("a:b", "c")` is not
//! `("a", "b:c")`, and no route is different from every route, including an empty one.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use parking_lot::{Mutex, RwLock};

/// The longest route, in bytes. Routes come from callers, and every distinct one takes memory.
pub const MAX_ROUTE_BYTES: usize = 1024;

/// The longest name of a policy, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// What a policy is applied to: usually one dependency, shard or region. `()` or `None` is the policy as a whole.
///
/// # Examples
/// ```
/// use phalanx::Route;
///
/// assert_eq!(Route::from("eu").name(), Some("eu"));
/// assert_eq!(Route::from(()), Route::NONE);
/// assert_ne!(Route::from(""), Route::NONE, "an empty name is a route of its own");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route<'a>(Option<&'a str>);

impl<'a> Route<'a> {
    /// The policy as a whole.
    pub const NONE: Self = Self(None);

    /// Returns the name of the route, if it has one.
    pub const fn name(self) -> Option<&'a str> {
        self.0
    }
}

impl<'a> From<&'a str> for Route<'a> {
    fn from(name: &'a str) -> Self {
        Self(Some(name))
    }
}

impl<'a> From<&'a String> for Route<'a> {
    fn from(name: &'a String) -> Self {
        Self(Some(name))
    }
}

impl<'a> From<Option<&'a str>> for Route<'a> {
    fn from(name: Option<&'a str>) -> Self {
        Self(name)
    }
}

impl From<()> for Route<'_> {
    fn from((): ()) -> Self {
        Self::NONE
    }
}

/// The key of the state of one policy on one route.
///
/// # Examples
/// ```
/// use phalanx::store::StateKey;
///
/// let key = StateKey::new("vendor", "eu");
/// assert_eq!((key.policy(), key.route()), ("vendor", Some("eu")));
/// assert_eq!(key.to_string(), "vendor/eu");
/// assert_ne!(StateKey::new("a:b", "c"), StateKey::new("a", "b:c"));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StateKey {
    policy: Arc<str>,
    route: Option<Arc<str>>,
    /// Shared by all routes for which the table has no room.
    overflow: bool,
    /// Of one of several limits, or of a set of them.
    #[cfg_attr(feature = "serde", serde(skip))]
    detail: Option<Arc<Detail>>,
}

/// What distinguishes the keys of several limits of one policy and route: texts, some of which may be absent, and a number.
/// Kept out of everything that is shown, because the value of a tag may be personal.
#[derive(PartialEq, Eq)]
struct Detail {
    number: u64,
    texts: Box<[Option<Box<str>>]>,
}

impl StateKey {
    /// Creates the key of a policy on a route.
    pub fn new<'a>(policy: &str, route: impl Into<Route<'a>>) -> Self {
        Self { policy: policy.into(), route: route.into().name().map(Arc::from), overflow: false, detail: None }
    }

    /// Creates the key of the bucket of a named limit that the calls of this route share.
    #[must_use]
    pub fn of_limit(&self, limit: &str) -> Self {
        self.with_detail(0, &[Some(limit)])
    }

    /// Creates the key of the bucket of a named limit that all calls of the policy share.
    #[must_use]
    pub fn of_policy_limit(&self, limit: &str) -> Self {
        self.with_detail(0, &[Some(limit), None])
    }

    /// Creates the key of the bucket of a limit by a tag: of one value of the tag, or of all calls that do not have it.
    #[must_use]
    pub fn of_tag(policy: &str, limit: &str, tag: &str, value: Option<&str>) -> Self {
        Self::new(policy, ()).with_detail(0, &[Some(limit), Some(tag), value])
    }

    /// Creates the key of the bucket that all values of a tag share for which the table has no room.
    pub(crate) fn of_other_tags(policy: &str, limit: &str, tag: &str) -> Self {
        Self::overflow(policy).with_detail(0, &[Some(limit), Some(tag), None])
    }

    fn with_detail(&self, number: u64, texts: &[Option<&str>]) -> Self {
        let texts = texts.iter().map(|text| text.map(Box::from)).collect();
        Self { detail: Some(Arc::new(Detail { number, texts })), ..self.clone() }
    }

    /// Returns the name of the limit, if it is the key of one of several.
    pub fn limit(&self) -> Option<&str> {
        self.detail.as_ref().filter(|detail| detail.number == 0)?.texts.first()?.as_deref()
    }

    /// Returns what distinguishes it from other keys of the same policy and route: texts, each of which may be absent. Empty
    /// unless it is the key of one of several limits.
    pub fn detail(&self) -> impl Iterator<Item = Option<&str>> {
        self.detail.iter().flat_map(|detail| detail.texts.iter().map(Option::as_deref))
    }

    /// Creates the key shared by all routes of a policy for which the table has no room. No route can name it.
    pub(crate) fn overflow(policy: &str) -> Self {
        Self { overflow: true, ..Self::new(policy, ()) }
    }

    /// Returns the name of the policy.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the name of the route, if it has one.
    pub fn route(&self) -> Option<&str> {
        self.route.as_deref()
    }

    /// Returns whether it is the key shared by all routes of a policy for which the table has no room.
    pub const fn is_overflow(&self) -> bool {
        self.overflow
    }

    /// Borrows the key, for a lookup by two names.
    pub(crate) fn borrowed(&self) -> BorrowedKey<'_> {
        let detail = match &self.detail {
            None => BorrowedDetail::None,
            Some(detail) => BorrowedDetail::Of(detail),
        };
        BorrowedKey { policy: &self.policy, route: self.route.as_deref(), overflow: self.overflow, detail }
    }
}

/// Interns the name of a policy for the life of the process, so that a rejection can hold it without a reference count.
/// Names may come from callers (a default policy serves any), so their number and length are bounded.
pub(crate) fn intern(name: &str) -> Option<&'static str> {
    const MAX_NAMES: usize = 4_096;
    static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut names = NAMES.lock();
    if let Some(known) = names.get(name) {
        return Some(known);
    }
    if names.len() >= MAX_NAMES || name.len() > MAX_NAME_BYTES {
        return None;
    }
    let kept: &'static str = Box::leak(name.into());
    names.insert(kept);
    Some(kept)
}

/// The name of one of several limits, interned: two bytes, so that a rejection stays small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitName(u16);

/// The names of limits, by their number less one.
static LIMIT_NAMES: RwLock<Vec<&'static str>> = RwLock::new(Vec::new());

impl LimitName {
    pub(crate) const NONE: Self = Self(0);

    /// Interns a name. Beyond the room for names, the limit has none.
    pub(crate) fn of(name: &str) -> Self {
        let mut names = LIMIT_NAMES.write();
        let known = names.iter().position(|known| *known == name).or_else(|| {
            let kept = (names.len() < usize::from(u16::MAX)).then(|| intern(name))??;
            names.push(kept);
            Some(names.len() - 1)
        });
        Self(known.and_then(|index| u16::try_from(index + 1).ok()).unwrap_or_default())
    }

    /// Returns the name.
    pub(crate) fn get(self) -> Option<&'static str> {
        let index = usize::from(self.0).checked_sub(1)?;
        LIMIT_NAMES.read().get(index).copied()
    }
}

/// A key of borrowed names, so that a lookup does not allocate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BorrowedKey<'a> {
    pub(crate) policy: &'a str,
    pub(crate) route: Option<&'a str>,
    overflow: bool,
    detail: BorrowedDetail<'a>,
}

/// The detail of a key, or the texts and the number that one would have.
#[derive(Clone, Copy)]
enum BorrowedDetail<'a> {
    None,
    Of(&'a Detail),
    Parts(u64, &'a [Option<&'a str>]),
}

impl<'a> BorrowedDetail<'a> {
    const fn number(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Of(detail) => detail.number,
            Self::Parts(number, _) => number,
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::None => 0,
            Self::Of(detail) => detail.texts.len(),
            Self::Parts(_, texts) => texts.len(),
        }
    }

    fn text(self, index: usize) -> Option<&'a str> {
        match self {
            Self::None => None,
            Self::Of(detail) => detail.texts[index].as_deref(),
            Self::Parts(_, texts) => texts[index],
        }
    }
}

impl PartialEq for BorrowedDetail<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let (len, is_none) = (self.len(), matches!(self, Self::None));
        is_none == matches!(other, Self::None)
            && len == other.len()
            && self.number() == other.number()
            && (0..len).all(|index| self.text(index) == other.text(index))
    }
}

impl Eq for BorrowedDetail<'_> {}

impl Hash for BorrowedDetail<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        if !matches!(self, Self::None) {
            self.number().hash(state);
            (0..self.len()).for_each(|index| self.text(index).hash(state));
        }
    }
}

impl<'a> BorrowedKey<'a> {
    pub(crate) const fn new(policy: &'a str, route: Route<'a>) -> Self {
        Self { policy, route: route.0, overflow: false, detail: BorrowedDetail::None }
    }

    pub(crate) fn to_owned(self) -> StateKey {
        StateKey::new(self.policy, self.route)
    }

    /// Returns the key of the set of limits of calls with these values of the tags. The number, which is not zero, tells the
    /// versions of a policy apart.
    pub(crate) const fn of_set(self, number: u64, values: &'a [Option<&'a str>]) -> Self {
        Self { detail: BorrowedDetail::Parts(number, values), ..self }
    }

    /// Returns this key of a set, to be kept.
    pub(crate) fn to_owned_set(self, base: &StateKey) -> StateKey {
        let texts: Vec<_> = (0..self.detail.len()).map(|index| self.detail.text(index)).collect();
        base.with_detail(self.detail.number(), &texts)
    }
}

impl Hash for StateKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.borrowed().hash(state);
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateKey({self})")
    }
}

/// Control characters are escaped, and long names are cut.
impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &self.policy)?;
        if let Some(route) = &self.route {
            f.write_str("/")?;
            write_escaped(f, route)?;
        }
        if let Some(limit) = self.limit() {
            f.write_str(" limit ")?;
            write_escaped(f, limit)?;
        }
        if self.overflow {
            f.write_str(" (overflow)")?;
        }
        Ok(())
    }
}

/// Returns a name that is safe in logs and spans: characters that move the cursor or start a line are escaped.
pub fn printable(name: &str) -> Cow<'_, str> {
    let harmful = |c: char| {
        c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !name.contains(harmful) {
        return Cow::Borrowed(name);
    }
    let mut shown = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        match harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn write_escaped(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    const MAX_CHARS: usize = 64;
    for c in name.chars().take(MAX_CHARS).flat_map(char::escape_debug) {
        fmt::Write::write_char(f, c)?;
    }
    if name.chars().nth(MAX_CHARS).is_some() {
        f.write_str("…")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_whose_joined_names_are_equal_are_different() {
        assert_ne!(StateKey::new("a:b", "c"), StateKey::new("a", "b:c"));
        assert_ne!(StateKey::new("ab", "c"), StateKey::new("a", "bc"));
    }

    #[test]
    fn no_route_differs_from_an_empty_route() {
        assert_ne!(StateKey::new("a", ()), StateKey::new("a", ""));
        assert_ne!(StateKey::new("a", ()), StateKey::new("a", "None"));
    }

    #[test]
    fn the_key_of_routes_that_found_no_room_differs_from_that_of_every_route() {
        let key = StateKey::overflow("p");
        assert_ne!(key, StateKey::new("p", ()));
        assert!(key.is_overflow() && !StateKey::new("p", ()).is_overflow());
        assert_eq!((key.policy(), key.route(), key.to_string().as_str()), ("p", None, "p (overflow)"));
    }

    #[test]
    fn keys_of_limits_differ_by_limit_and_by_value_and_show_no_value() {
        let route = StateKey::new("p", "eu");
        let tag = |limit, value| StateKey::of_tag("p", limit, "tenant", value);
        let all = [
            route.clone(),
            route.of_limit("a"),
            route.of_limit("b"),
            StateKey::new("p", ()).of_limit("a"),
            StateKey::new("p", ()).of_policy_limit("a"),
            tag("a", Some("acme")),
            tag("a", Some("")),
            tag("a", None),
            tag("b", None),
            StateKey::of_other_tags("p", "a", "tenant"),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!((all[5].limit(), all[5].route(), all[5].to_string().as_str()), (Some("a"), None, "p limit a"));
        assert_eq!(all[0].limit(), None);
    }

    #[test]
    fn a_borrowed_key_of_a_set_is_the_one_that_is_kept() {
        use std::hash::BuildHasher;

        let (hasher, base) = (std::hash::RandomState::new(), StateKey::new("p", "eu"));
        let values = [Some("acme"), None];
        let of = |number| base.borrowed().of_set(number, &values);
        let kept = of(7).to_owned_set(&base);
        assert!(kept.borrowed() == of(7) && kept.borrowed() != of(8) && kept.borrowed() != base.borrowed());
        assert_eq!(hasher.hash_one(&kept), hasher.hash_one(of(7)));
        assert_eq!(kept.limit(), None, "no value of a tag is shown");
    }

    #[test]
    fn the_name_of_a_limit_is_interned_once() {
        let (a, b) = (LimitName::of("limit-a"), LimitName::of("limit-b"));
        assert!(a != b && a == LimitName::of("limit-a"));
        assert_eq!((a.get(), LimitName::NONE.get()), (Some("limit-a"), None));
    }

    #[test]
    fn a_hostile_name_is_displayed_escaped_and_cut() {
        let key = StateKey::new("p", format!("x\r\n\u{1b}[2J{}", "y".repeat(500)).as_str());
        let shown = key.to_string();
        assert!(!shown.contains(['\r', '\n', '\u{1b}']), "{shown}");
        assert!(shown.len() < 160, "{shown}");
    }

    #[test]
    fn a_printable_name_is_unchanged_and_a_hostile_one_starts_no_line() {
        assert!(matches!(printable("größe \"x\" \\ 9"), Cow::Borrowed("größe \"x\" \\ 9")));
        assert_eq!(printable("a\r\n\u{1b}[2J\u{2028}\u{202e}b"), "a\\r\\n\\u{1b}[2J\\u{2028}\\u{202e}b");
    }

    proptest! {
        #[test]
        fn keys_are_equal_exactly_when_both_names_are(
            a in "[:/{}a]{0,4}", b in proptest::option::of("[:/{}a]{0,4}"),
            c in "[:/{}a]{0,4}", d in proptest::option::of("[:/{}a]{0,4}"),
        ) {
            let same = a == c && b == d;
            let (one, two) = (StateKey::new(&a, b.as_deref()), StateKey::new(&c, d.as_deref()));
            prop_assert_eq!(one == two, same);
        }
    }
}
