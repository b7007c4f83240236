//! Where a key's state lies in Redis.
//!
//! `ph1:{<environment>:<kind>:<hash>}`: versioned, and in one hash tag of ours, so that everything one operation touches
//! lies in one slot of a Cluster. What users call their policies and routes never enters a key: it is hashed, each part
//! with its length before it, so that no choice of names makes two keys one, steers a slot or breaks a pattern.

use std::sync::Arc;

use phalanx_core::key::StateKey;
use sha2::{Digest, Sha256};

/// What is kept under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bucket,
    Circuit,
    Digest,
    Lock,
    Request,
}

impl Kind {
    const fn letter(self) -> char {
        match self {
            Self::Bucket => 'r',
            Self::Circuit => 'b',
            Self::Digest => 'd',
            Self::Lock => 'l',
            Self::Request => 'i',
        }
    }
}

/// Makes the keys of one fleet.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// `ph1` or `<prefix>:ph1`.
    prefix: String,
    environment: String,
    /// Hashed in front of all names, so that whoever does not know it cannot make two names collide.
    secret: Option<Arc<[u8]>>,
}

/// One key: its text, its hash alone (what pushed messages name it by), and its slot in a Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) id: String,
    pub(crate) slot: u16,
}

impl Keys {
    pub(crate) fn new(prefix: Option<&str>, environment: &str, secret: Option<Arc<[u8]>>) -> Self {
        let prefix = prefix.map_or_else(|| "ph1".to_owned(), |prefix| format!("{prefix}:ph1"));
        Self { prefix, environment: environment.to_owned(), secret }
    }

    /// The key of some state.
    pub(crate) fn of(&self, kind: Kind, key: &StateKey) -> Key {
        let id = self.hash(key);
        self.tagged(&format!("{}:{}:{id}", self.environment, kind.letter()), id)
    }

    /// The replicas that are alive, and the name of what the server holds. Both in one slot.
    pub(crate) fn fleet(&self) -> (Key, Key) {
        let tag = format!("{}:m", self.environment);
        let member = self.tagged(&tag, String::new());
        let generation = Key { text: format!("{}:g", member.text), ..member.clone() };
        (member, generation)
    }

    /// A lock, and the last fence it was held under. Both in one slot.
    pub(crate) fn lock(&self, name: &str) -> (Key, Key) {
        let lock = self.of(Kind::Lock, &StateKey::new(name, ()));
        let fence = Key { text: format!("{}:f", lock.text), ..lock.clone() };
        (lock, fence)
    }

    /// That the work of a version was done under a lock; in the lock's slot.
    pub(crate) fn mark(&self, name: &str, version: &str) -> Key {
        let (lock, _) = self.lock(name);
        Key { text: format!("{}:d:{}", lock.text, self.hash(&StateKey::new(version, ()))), ..lock }
    }

    /// A request that must not happen twice, by the hash that its layer knows it by.
    pub(crate) fn request(&self, hash: &str) -> Key {
        self.of(Kind::Request, &StateKey::new(hash, ()))
    }

    /// A key that probes write: the `n`-th, because in a Cluster each lies on another master.
    pub(crate) fn probe(&self, n: u32) -> Key {
        self.tagged(&format!("{}:p:{n}", self.environment), String::new())
    }

    /// The channel on which changes of phase are told.
    pub(crate) fn channel(&self) -> String {
        format!("{}:{}:c", self.prefix, self.environment)
    }

    fn tagged(&self, tag: &str, id: String) -> Key {
        Key { text: format!("{}:{{{tag}}}", self.prefix), id, slot: slot_of(tag.as_bytes()) }
    }

    fn hash(&self, key: &StateKey) -> String {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(self.secret.as_deref().unwrap_or_default());
        part(key.policy().as_bytes());
        part(key.route().map_or(&[][..], str::as_bytes));
        // No route is not a route called nothing, and the place that crowded routes share is neither.
        part(&[u8::from(key.route().is_some()), u8::from(key.is_overflow())]);
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The slot of a hash tag: CRC16 (XMODEM) of what stands between the braces, modulo 16,384.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> Keys {
        Keys::new(None, "prod", None)
    }

    #[test]
    fn a_slot_is_what_redis_says_it_is() {
        // CLUSTER KEYSLOT foo, bar and 123456789, asked of a server.
        assert_eq!((slot_of(b"foo"), slot_of(b"bar"), slot_of(b"123456789")), (12_182, 5_061, 12_739));
    }

    #[test]
    fn everything_of_the_fleet_itself_lies_in_one_slot() {
        let (members, generation) = keys().fleet();
        assert_eq!(members.slot, generation.slot);
        assert_ne!(members.text, generation.text);
    }

    #[test]
    fn a_lock_its_fence_and_its_marks_lie_in_one_slot() {
        let (lock, fence) = keys().lock("migrate");
        let marks = [keys().mark("migrate", "1"), keys().mark("migrate", "2"), keys().mark("other", "1")];
        assert!(fence.slot == lock.slot && marks[0].slot == lock.slot);
        let all = [&lock, &fence, &marks[0], &marks[1], &marks[2]].map(|key| &key.text);
        assert_eq!(all.into_iter().collect::<std::collections::HashSet<_>>().len(), 5);
        assert!(marks[0].text.len() <= 160);
    }

    #[test]
    fn another_environment_prefix_or_secret_is_another_key() {
        let key = StateKey::new("payments", "eu");
        let of = |keys: Keys| keys.of(Kind::Circuit, &key).text;
        let all = [
            of(keys()),
            of(Keys::new(None, "stage", None)),
            of(Keys::new(Some("acme"), "prod", None)),
            of(Keys::new(None, "prod", Some(Arc::from(*b"secret")))),
            keys().of(Kind::Bucket, &key).text,
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    proptest! {
        /// FAULTS I-26.
        #[test]
        fn whatever_a_route_is_called_its_key_is_short_plain_and_its_own(
            policy in ".{0,20}", route in proptest::option::of(".{0,2000}"),
            other_policy in "[:{}a]{0,3}", other_route in proptest::option::of("[:{}a]{0,3}"),
        ) {
            let one = StateKey::new(&policy, route.as_deref());
            let two = StateKey::new(&other_policy, other_route.as_deref());
            let (a, b) = (keys().of(Kind::Digest, &one), keys().of(Kind::Digest, &two));
            prop_assert_eq!(a.text == b.text, one == two);
            prop_assert!(a.text.len() <= 160);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || [':', '{', '}'].contains(&c);
            prop_assert!(a.text.chars().all(plain));
            prop_assert_eq!(a.text.matches('{').count(), 1);
        }

        #[test]
        fn names_cut_elsewhere_are_other_keys(whole in "[:{}ab]{2,8}", cut in 0_usize..8, other in 0_usize..8) {
            let split = |at: usize| whole.split_at(at.min(whole.len()));
            let key = |(policy, route): (&str, &str)| keys().of(Kind::Circuit, &StateKey::new(policy, route)).text;
            let same = cut.min(whole.len()) == other.min(whole.len());
            prop_assert_eq!(key(split(cut)) == key(split(other)), same);
        }
    }
}
