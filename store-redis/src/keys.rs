//! The layout of keys in Redis.
//!
//! `ph2:{<service>.<environment>:<partition>}:<kind>:<hash>`. The text between the braces is the hash tag, so a partition
//! is one slot of a Cluster, and one script can work on many keys of it. Breakers and digests are assigned to a
//! partition by policy and route; buckets by the policy alone, so that all limits of a policy can be decided in one
//! script. [`PARTITIONS`] is part of the format.
//!
//! Names of policies and routes never appear in a key. They are hashed, each part prefixed by its length, so that no
//! choice of names can collide, select a slot or break a pattern.

use std::fmt;
use std::sync::Arc;

use phalanx_core::key::StateKey;
use phalanx_core::tally::TallyUse;
use sha2::{Digest, Sha256};

use crate::options::{HIDDEN, RedisOptions};

/// Partitions of a fleet's keys. A different number would assign other partitions to the same names.
pub(crate) const PARTITIONS: u8 = 64;

/// The kind of state under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bucket,
    Breaker,
    Digest,
    /// Of one length of a slice; see [`Keys::tally`].
    Tally(TallyUse),
    Slots,
    Lock,
    Idempotency,
}

impl Kind {
    const fn letter(self) -> char {
        match self {
            Self::Bucket => 'r',
            Self::Breaker => 'b',
            Self::Digest => 'd',
            Self::Tally(TallyUse::Throttle) => 't',
            Self::Tally(TallyUse::Retries) => 'q',
            Self::Tally(TallyUse::Hedges) => 'h',
            Self::Slots => 'c',
            Self::Lock => 'l',
            Self::Idempotency => 'i',
        }
    }
}

/// Builds the keys of one fleet.
#[derive(Clone)]
pub(crate) struct Keys {
    /// `ph2` or `<prefix>:ph2`.
    prefix: String,
    /// `<service>.<environment>`.
    fleet: String,
    /// Hashed before all names, so that names cannot be chosen to collide without knowing it.
    secret: Option<Arc<[u8]>>,
}

/// Does not print the secret.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("prefix", &self.prefix)
            .field("fleet", &self.fleet)
            .field("secret", &self.secret.as_ref().map(|_| HIDDEN))
            .finish()
    }
}

/// One key: its text, its hash (the id in pushed messages), its partition, and the Cluster slot of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) id: String,
    pub(crate) partition: u8,
    pub(crate) slot: u16,
}

impl Keys {
    fn new(prefix: Option<&str>, service: &str, environment: &str, secret: Option<Arc<[u8]>>) -> Self {
        let prefix = prefix.map_or_else(|| "ph2".to_owned(), |prefix| format!("{prefix}:ph2"));
        Self { prefix, fleet: format!("{service}.{environment}"), secret }
    }

    /// The keys of a store with these options.
    pub(crate) fn of_options(options: &RedisOptions) -> Self {
        let RedisOptions { prefix, service, environment, key_secret, .. } = options;
        Self::new(prefix.as_deref(), service, environment, key_secret.clone())
    }

    /// The key of a piece of state.
    pub(crate) fn of(&self, kind: Kind, key: &StateKey) -> Key {
        let hash = self.hash(key);
        let partition = match kind {
            Kind::Bucket => partition_of(&self.hash(&StateKey::new(key.policy(), ()))),
            Kind::Breaker | Kind::Digest | Kind::Tally(_) | Kind::Slots | Kind::Lock | Kind::Idempotency => {
                partition_of(&hash)
            }
        };
        let id = hex(&hash);
        let suffix = format!("{}:{id}", kind.letter());
        Key { id, ..self.in_partition(partition, &suffix) }
    }

    /// The evidence of the replicas of a breaker, in the slot of the breaker.
    pub(crate) fn evidence(breaker: &Key) -> Key {
        Key { text: format!("{}:e", breaker.text), ..breaker.clone() }
    }

    /// What a replica has charged to a bucket, by a number of its own, in the slot of the bucket.
    pub(crate) fn charges(bucket: &Key, number: u64) -> Key {
        Key { text: format!("{}:c:{number:016x}", bucket.text), ..bucket.clone() }
    }

    /// The breaker with this id; `None` if no breaker can have it.
    pub(crate) fn breaker_of_id(&self, id: &str) -> Option<Key> {
        let is_id = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let last = id.get(30..).and_then(|last| u8::from_str_radix(last, 16).ok()).filter(|_| is_id)?;
        let key = self.in_partition(last % PARTITIONS, &format!("{}:{id}", Kind::Breaker.letter()));
        Some(Key { id: id.to_owned(), ..key })
    }

    /// The logs of all partitions, by their number.
    pub(crate) fn logs(&self) -> Vec<Key> {
        (0..PARTITIONS).map(|partition| self.in_partition(partition, "s")).collect()
    }

    /// The key of a tally. Each length of a slice has its own, so that replicas with different windows, as during a rollout,
    /// do not clear each other's counts.
    pub(crate) fn tally(&self, of: TallyUse, key: &StateKey, slice_micros: u64) -> Key {
        let mut key = self.of(Kind::Tally(of), key);
        key.text.push_str(&format!(":{slice_micros}"));
        key
    }

    /// The set of live replicas and the generation token, in one slot.
    pub(crate) fn membership(&self) -> (Key, Key) {
        let of = |suffix| self.tagged(&format!("{}:m", self.fleet), suffix);
        (of("m"), of("g"))
    }

    /// A lock and its last fence, in one slot.
    pub(crate) fn lock(&self, name: &str) -> (Key, Key) {
        let lock = self.of(Kind::Lock, &StateKey::new(name, ()));
        let fence = Key { text: format!("{}:f", lock.text), ..lock.clone() };
        (lock, fence)
    }

    /// The mark that the work of a version is completed, in the slot of its lock.
    pub(crate) fn completion_mark(&self, name: &str, version: &str) -> Key {
        let (lock, _) = self.lock(name);
        self.in_partition(lock.partition, &format!("v:{}", hex(&self.hash(&StateKey::new(name, version)))))
    }

    /// The key of an idempotent request, by the hash that the idempotency layer computes.
    pub(crate) fn request(&self, hash: &str) -> Key {
        self.of(Kind::Idempotency, &StateKey::new(hash, ()))
    }

    /// The `n`-th key written by health checks; different keys belong to different masters of a Cluster.
    pub(crate) fn health_check(&self, n: u32) -> Key {
        self.tagged(&format!("{}:p{n}", self.fleet), "p")
    }

    /// The channel for pushes.
    pub(crate) fn channel(&self) -> String {
        format!("{}:{}:c", self.prefix, self.fleet)
    }

    fn in_partition(&self, partition: u8, suffix: &str) -> Key {
        Key { partition, ..self.tagged(&format!("{}:{partition:02x}", self.fleet), suffix) }
    }

    fn tagged(&self, tag: &str, suffix: &str) -> Key {
        let text = format!("{}:{{{tag}}}:{suffix}", self.prefix);
        Key { text, id: String::new(), partition: 0, slot: slot_of(tag.as_bytes()) }
    }

    fn hash(&self, key: &StateKey) -> [u8; 16] {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(self.secret.as_deref().unwrap_or_default());
        part(key.policy().as_bytes());
        part(key.route().map_or(&[][..], str::as_bytes));
        // No route, an empty route and the shared overflow route are three different keys.
        part(&[u8::from(key.route().is_some()), u8::from(key.is_overflow())]);
        // Of one of several limits: its name, and the value of a tag. An absent one is not an empty one.
        for text in key.detail() {
            part(&[u8::from(text.is_some())]);
            part(text.unwrap_or_default().as_bytes());
        }
        let mut first = [0; 16];
        first.copy_from_slice(&hash.finalize()[..16]);
        first
    }
}

fn hex(hash: &[u8; 16]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

const fn partition_of(hash: &[u8; 16]) -> u8 {
    hash[15] % PARTITIONS
}

/// The slot of a hash tag: CRC16 (XMODEM) of the text between the braces, modulo 16,384.
pub(crate) fn slot_of(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    });
    crc % 16_384
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::MAX_NAME;
    use proptest::prelude::*;

    fn keys() -> Keys {
        Keys::new(None, "shop", "prod", None)
    }

    #[test]
    fn a_slot_equals_cluster_keyslot() {
        // Values of CLUSTER KEYSLOT on a real server.
        assert_eq!((slot_of(b"foo"), slot_of(b"bar"), slot_of(b"123456789")), (12_182, 5_061, 12_739));
    }

    #[test]
    fn the_membership_keys_are_in_one_slot() {
        let (members, generation) = keys().membership();
        assert_eq!(members.slot, generation.slot);
        assert_ne!(members.text, generation.text);
    }

    #[test]
    fn a_lock_its_fence_and_its_marks_are_in_one_slot() {
        let (lock, fence) = keys().lock("migrate");
        let marks = [
            keys().completion_mark("migrate", "1"),
            keys().completion_mark("migrate", "2"),
            keys().completion_mark("other", "1"),
        ];
        assert!(fence.slot == lock.slot && marks[0].slot == lock.slot);
        let all = [&lock, &fence, &marks[0], &marks[1], &marks[2]].map(|key| &key.text);
        assert_eq!(all.into_iter().collect::<std::collections::HashSet<_>>().len(), 5);
    }

    #[test]
    fn every_key_of_the_longest_names_is_at_most_160_bytes() {
        let name = "n".repeat(MAX_NAME);
        let keys = Keys::new(Some(&name), &name, &name, None);
        let (lock, fence) = keys.lock("migrate");
        let (members, generation) = keys.membership();
        let of = |kind| keys.of(kind, &StateKey::new("payments", "eu"));
        let all = [
            of(Kind::Breaker),
            lock,
            fence,
            keys.completion_mark("migrate", "1"),
            keys.tally(TallyUse::Throttle, &StateKey::new("payments", "eu"), 24 * 3_600 * 100_000), // of the longest window
            keys.request("r"),
            members,
            generation,
        ];
        assert_eq!(all.into_iter().map(|key| key.text).find(|text| text.len() > 160), None);
    }

    #[test]
    fn another_service_environment_prefix_or_secret_gives_another_key() {
        let key = StateKey::new("payments", "eu");
        let of = |keys: Keys| keys.of(Kind::Breaker, &key).text;
        let all = [
            of(keys()),
            of(Keys::new(None, "shop", "stage", None)),
            of(Keys::new(Some("acme"), "shop", "prod", None)),
            of(Keys::new(None, "shop", "prod", Some(Arc::from(*b"secret")))),
            of(Keys::new(None, "mail", "prod", None)),
            keys().of(Kind::Bucket, &key).text,
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn each_use_and_each_length_of_a_slice_has_a_tally_of_its_own() {
        let key = StateKey::new("payments", "eu");
        let of = |of, slice| keys().tally(of, &key, slice);
        let all = [TallyUse::Throttle, TallyUse::Retries, TallyUse::Hedges].map(|each| of(each, 1_000_000));
        let mut texts: std::collections::HashSet<_> = all.iter().map(|key| key.text.clone()).collect();
        texts.insert(of(TallyUse::Throttle, 2_000_000).text);
        texts.extend([Kind::Bucket, Kind::Breaker, Kind::Digest].map(|kind| keys().of(kind, &key).text));
        assert_eq!(texts.len(), 7);
        assert!(
            all.iter().all(|tally| tally.slot == keys().of(Kind::Breaker, &key).slot),
            "no other slot than the route's"
        );
    }

    #[test]
    fn buckets_of_one_policy_share_a_partition_and_routes_of_a_breaker_are_spread() {
        let of = |kind, route: u32| keys().of(kind, &StateKey::new("payments", route.to_string().as_str()));
        let partitions =
            |kind| (0..200).map(|route| of(kind, route).partition).collect::<std::collections::HashSet<_>>();
        assert_eq!(partitions(Kind::Bucket).len(), 1);
        let tag = StateKey::of_tag("payments", "tenant", "tenant", Some("acme"));
        let (tag, route) = (keys().of(Kind::Bucket, &tag), of(Kind::Bucket, 1));
        assert!(tag.slot == route.slot && tag.text != route.text && !tag.text.contains("acme"));
        assert!(partitions(Kind::Breaker).len() > 50);
        assert!(partitions(Kind::Breaker).iter().all(|partition| *partition < PARTITIONS));
    }

    proptest! {
        /// `I-26` of docs/guarantees.md.
        #[test]
        fn every_route_name_gives_a_short_plain_and_unique_key(
            policy in ".{0,20}", route in proptest::option::of(".{0,2000}"),
            other_policy in "[:{}a]{0,3}", other_route in proptest::option::of("[:{}a]{0,3}"),
        ) {
            let one = StateKey::new(&policy, route.as_deref());
            let two = StateKey::new(&other_policy, other_route.as_deref());
            let (a, b) = (keys().of(Kind::Digest, &one), keys().of(Kind::Digest, &two));
            prop_assert_eq!(a.text == b.text, one == two);
            prop_assert!(a.text.len() <= 160);
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || [':', '.', '{', '}'].contains(&c);
            prop_assert!(a.text.chars().all(plain));
            prop_assert_eq!(a.text.matches('{').count(), 1);
        }

        #[test]
        fn names_split_differently_give_different_keys(whole in "[:{}ab]{2,8}", cut in 0_usize..8, other in 0_usize..8) {
            let split = |at: usize| whole.split_at(at.min(whole.len()));
            let key = |(policy, route): (&str, &str)| keys().of(Kind::Breaker, &StateKey::new(policy, route)).text;
            let same = cut.min(whole.len()) == other.min(whole.len());
            prop_assert_eq!(key(split(cut)) == key(split(other)), same);
        }
    }
}
