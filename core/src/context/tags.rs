//! Tags: what the caller of a call is, by name, such as its tenant. Limits can count by the value of a tag.
//!
//! A call has tags of its own ([`Call::tag`](crate::call::Call::tag)) and those of its task ([`Tags::scope`]); its own come first.
//! Tags are apart from the [`Context`](super::Context), which is copied with every call and has no room for text.

use std::future::Future;
use std::sync::Arc;

tokio::task_local! {
    static CURRENT: Tags;
}

/// The most tags that one call can have of its own. A task can have any number.
pub const MAX_CALL_TAGS: usize = 4;

/// The tags of a task. Cheap to clone.
///
/// # Examples
/// ```
/// use phalanx_core::context::Tags;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let tags = Tags::EMPTY.with("tenant", "acme");
/// tags.scope(async {
///     // Every guarded call in here has this tenant.
///     assert_eq!(Tags::current().get("tenant"), Some("acme"));
/// })
/// .await;
/// assert_eq!(Tags::current().get("tenant"), None);
/// # });
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tags(Option<Arc<[Tag]>>);

/// A name and a value.
type Tag = (Box<str>, Box<str>);

impl Tags {
    /// No tags.
    pub const EMPTY: Self = Self(None);

    /// Returns the tags of the running task; none outside any [`scope`](Self::scope).
    pub fn current() -> Self {
        CURRENT.try_with(Self::clone).unwrap_or(Self::EMPTY)
    }

    /// Sets a tag, in place of one of the same name.
    #[must_use]
    pub fn with(self, name: &str, value: &str) -> Self {
        let others = self.iter().filter(|(own, _)| *own != name).chain([(name, value)]);
        Self(Some(others.map(|(name, value)| (name.into(), value.into())).collect()))
    }

    /// Returns the value of a tag.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// Returns the tags, by name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|tags| tags.iter().map(|(name, value)| (&**name, &**value)))
    }

    /// Runs `work` with these tags, besides those that the task has already; of two with one name the inner one holds.
    pub async fn scope<F: Future>(self, work: F) -> F::Output {
        let both = self.iter().fold(Self::current(), |both, (name, value)| both.with(name, value));
        CURRENT.scope(both, work).await
    }

    /// Lends the tags of the running task.
    pub(crate) fn with_current<T>(use_them: impl FnOnce(&Self) -> T) -> T {
        let mut use_them = Some(use_them);
        let lent = CURRENT.try_with(|tags| use_them.take().map(|use_them| use_them(tags))).ok().flatten();
        match (lent, use_them) {
            (Some(used), _) => used,
            (None, Some(use_them)) => use_them(&Self::EMPTY),
            (None, None) => unreachable!("it is called once"),
        }
    }
}

/// The values may be personal.
impl std::fmt::Debug for Tags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// The tags of one call, borrowed from its caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTags<'a> {
    tags: [(&'a str, &'a str); MAX_CALL_TAGS],
    /// How many were set, of which the array holds the first.
    set: usize,
}

impl<'a> CallTags<'a> {
    pub(crate) const NONE: Self = Self { tags: [("", ""); MAX_CALL_TAGS], set: 0 };

    /// Sets a tag, in place of one of the same name.
    pub(crate) fn set(&mut self, name: &'a str, value: &'a str) {
        let held = self.set.min(MAX_CALL_TAGS);
        if let Some(same) = self.tags[..held].iter_mut().find(|(own, _)| *own == name) {
            same.1 = value;
            return;
        }
        if let Some(free) = self.tags.get_mut(self.set) {
            *free = (name, value);
        }
        self.set = self.set.saturating_add(1);
    }

    /// Whether more were set than a call can have.
    pub(crate) const fn are_too_many(&self) -> bool {
        self.set > MAX_CALL_TAGS
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let held = &self.tags[..self.set.min(MAX_CALL_TAGS)];
        held.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_inner_scope_adds_tags_and_replaces_those_of_the_same_name() {
        let outer = Tags::EMPTY.with("tenant", "acme").with("plan", "free");
        outer
            .scope(async {
                Tags::EMPTY
                    .with("plan", "paid")
                    .scope(async {
                        let tags = Tags::current();
                        assert_eq!(
                            (tags.get("tenant"), tags.get("plan"), tags.get("user")),
                            (Some("acme"), Some("paid"), None)
                        );
                        assert_eq!(format!("{tags:?}"), r#"{"tenant", "plan"}"#, "no values");
                    })
                    .await;
                assert_eq!(Tags::with_current(|tags| tags.get("plan").map(str::to_owned)), Some("free".to_owned()));
            })
            .await;
        assert_eq!(Tags::with_current(Clone::clone), Tags::EMPTY);
    }

    #[test]
    fn a_call_has_up_to_four_tags_and_knows_when_there_were_more() {
        let mut tags = CallTags::NONE;
        for (name, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("d", "5")] {
            tags.set(name, value);
        }
        assert_eq!((tags.get("a"), tags.get("d"), tags.get("e")), (Some("4"), Some("5"), None));
        assert!(!tags.are_too_many());
        tags.set("e", "6");
        assert!(tags.are_too_many() && tags.get("e").is_none());
    }
}
