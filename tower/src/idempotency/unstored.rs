//! [`UnstoredAnswers`]: answers that the store has not confirmed yet, kept by the replica whose handler made them.
//!
//! While the store is away, this replica still answers retries. Other replicas cannot, but they cannot claim the key either.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::store::Claim;
use super::stored_answer::StoredAnswer;

/// The most answers that are kept; each is shared with the task that offers it to the store.
const MAX_ANSWERS: usize = 1_024;

/// Clones share the answers.
#[derive(Clone, Default)]
pub(crate) struct UnstoredAnswers(Arc<Mutex<HashMap<String, Unstored>>>);

struct Unstored {
    fingerprint: String,
    owner: String,
    answer: StoredAnswer,
}

/// What is known of a request.
pub(crate) enum Found {
    Answer(StoredAnswer),
    /// The key belongs to another request.
    Mismatch,
}

impl UnstoredAnswers {
    /// Keeps an answer until the returned guard is dropped.
    #[must_use]
    pub(crate) fn keep(&self, claim: &Claim, answer: &StoredAnswer) -> Kept {
        let Claim { key, fingerprint, owner } = claim.clone();
        let mut answers = self.0.lock();
        if answers.len() < MAX_ANSWERS {
            answers.insert(key.clone(), Unstored { fingerprint, owner: owner.clone(), answer: answer.clone() });
        }
        Kept { answers: self.clone(), key, owner }
    }

    pub(crate) fn find(&self, claim: &Claim) -> Option<Found> {
        self.0.lock().get(&claim.key).map(|unstored| {
            let same = unstored.fingerprint == claim.fingerprint;
            if same { Found::Answer(unstored.answer.clone()) } else { Found::Mismatch }
        })
    }
}

/// Forgets the answer when it is dropped.
pub(crate) struct Kept {
    answers: UnstoredAnswers,
    key: String,
    owner: String,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut answers = self.answers.0.lock();
        if answers.get(&self.key).is_some_and(|unstored| unstored.owner == self.owner) {
            answers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    #[test]
    fn answers_are_bounded_in_number_and_forgotten_with_their_guards() {
        let claim = |n: usize| Claim { key: n.to_string(), fingerprint: "f".into(), owner: n.to_string() };
        let answer = StoredAnswer { status: StatusCode::OK, headers: HeaderMap::new(), body: None };
        let answers = UnstoredAnswers::default();
        let kept: Vec<_> = (0..MAX_ANSWERS + 1).map(|n| answers.keep(&claim(n), &answer)).collect();
        assert!(matches!(answers.find(&claim(0)), Some(Found::Answer(_))));
        assert!(answers.find(&claim(MAX_ANSWERS)).is_none());
        let other = Claim { fingerprint: "g".into(), ..claim(0) };
        assert!(matches!(answers.find(&other), Some(Found::Mismatch)));
        drop(kept);
        assert!(answers.find(&claim(0)).is_none() && answers.0.lock().is_empty());
    }
}
