//! Keys in Redis (`I-26` of `docs/guarantees.md`): injective, of plain characters, at most 160 bytes, with one hash tag
//! that no name chooses.

use std::collections::HashMap;
use std::sync::Arc;

use phalanx_core::key::StateKey;
use phalanx_store_redis::RedisOptions;
use phalanx_store_redis::internal::{FleetKeys, KeyText};

use crate::input::{Input, Recipe, random};

/// What a key is made of.
#[derive(Clone, Debug)]
struct Names {
    prefix: Option<String>,
    service: String,
    environment: String,
    secret: Vec<u8>,
    policy: String,
    route: Option<String>,
}

impl Names {
    fn read(input: &mut Input<'_>) -> Self {
        let prefix = input.flag().then(|| input.text(40));
        let service = if input.flag() { input.text(40) } else { "shop".to_owned() };
        let environment = if input.flag() { input.text(40) } else { "prod".to_owned() };
        let secret = input.bytes(40).to_vec();
        let (policy, route) = (input.text(200), input.flag().then(|| input.text(1_200)));
        Self { prefix, service, environment, secret, policy, route }
    }

    /// The same with the names of policy and route split at another place.
    fn split_elsewhere(&self, at: usize) -> Option<Self> {
        let whole = self.policy.clone() + self.route.as_ref()?;
        let (policy, route) = whole.split_at_checked(at % (whole.len() + 1))?;
        Some(Self { policy: policy.to_owned(), route: Some(route.to_owned()), ..self.clone() })
    }

    /// Returns all keys of these names, by purpose; none if the store would not be built with these options.
    fn keys(&self) -> Option<Vec<(&'static str, KeyText)>> {
        let key_secret = Some(self.secret.clone()).filter(|secret| !secret.is_empty()).map(Arc::from);
        let Self { prefix, service, environment, .. } = self.clone();
        let options = RedisOptions { prefix, service, environment, key_secret, ..RedisOptions::default() };
        let key = StateKey::new(&self.policy, self.route.as_deref());
        options.mistakes().is_empty().then(|| FleetKeys::new(&options).all(&key, &self.policy))
    }
}

/// What tells one piece of state from another: options, purpose and names.
type Identity = (&'static str, Option<String>, [String; 2], Vec<u8>, String);

impl Names {
    /// Returns the identity of the state behind a key. Locks, marks and requests are named by the policy alone; members
    /// and health checks have no name, and no secret.
    fn identity(&self, purpose: &'static str) -> Identity {
        let name = match purpose {
            "bucket" | "breaker" | "digest" => format!("{:?} {:?}", self.policy, self.route),
            "lock" | "fence" | "mark" | "request" => format!("{:?}", self.policy),
            "health" => self.policy.len().to_string(),
            _ => String::new(),
        };
        let unnamed = ["members", "generation", "health"].contains(&purpose);
        let secret = if unnamed { Vec::new() } else { self.secret.clone() };
        (purpose, self.prefix.clone(), [self.service.clone(), self.environment.clone()], secret, name)
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (one, other) = (Names::read(&mut input), Names::read(&mut input));
    let split = one.split_elsewhere(usize::from(input.byte()));
    let mut owners: HashMap<String, Identity> = HashMap::new();
    for names in [Some(one), Some(other), split].into_iter().flatten() {
        for (purpose, key) in names.keys().unwrap_or_default() {
            check(&names, &key);
            let identity = names.identity(purpose);
            let before = owners.insert(key.text.clone(), identity.clone());
            assert!(before.is_none_or(|before| before == identity), "{key:?} belongs to two: {identity:?}");
        }
    }
}

fn check(names: &Names, key: &KeyText) {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".:{}-".contains(&byte);
    assert!(key.text.bytes().all(plain), "{key:?}");
    assert!(key.text.len() <= 160, "{key:?}");
    assert_eq!((key.text.matches('{').count(), key.text.matches('}').count()), (1, 1), "{key:?}");
    let tag = key.text.split(['{', '}']).nth(1).expect("a tag");
    let rest = tag.strip_prefix(&format!("{}.{}:", names.service, names.environment));
    let ours = rest.is_some_and(|rest| match rest.strip_prefix('p') {
        Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => rest == "m" || rest.len() == 2 && u8::from_str_radix(rest, 16).is_ok_and(|partition| partition < 64),
    });
    assert!(ours, "the tag of {key:?} is not made of service, environment and partition");
    assert_eq!(key.slot, slot_of(tag.as_bytes()), "{key:?}");
}

/// The slot of a tag: CRC16 (XMODEM) by shifting the whole message, independent of the store's.
fn slot_of(tag: &[u8]) -> u16 {
    let bits = tag.iter().flat_map(|byte| (0..8).rev().map(move |place| byte >> place & 1));
    let padded = bits.chain(std::iter::repeat_n(0, 16));
    let crc = padded.fold(0_u32, |crc, bit| {
        let shifted = crc << 1 | u32::from(bit);
        if shifted & 0x1_0000 == 0 { shifted } else { shifted ^ 0x1_1021 }
    });
    (crc % 16_384) as u16
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let pair = |one: [&str; 2], other: [&str; 2]| {
        let names = |recipe: Recipe, [policy, route]: [&str; 2]| {
            recipe.bytes(&[0, 0, 0]).number(0).text(policy).bytes(&[1]).text(route)
        };
        names(names(Recipe::default(), one), other).bytes(&[1]).done()
    };
    let mut seeds = vec![
        ("split".to_owned(), pair(["a:b", "c"], ["a", "b:c"])),
        ("tags".to_owned(), pair(["{x}", "}{"], ["{", "x}}{"])),
        ("control".to_owned(), pair(["\r\n", "\0"], ["", "\r\n\0"])),
        ("long".to_owned(), pair(["p", &"r".repeat(1_024)], [&"é".repeat(64), ""])),
    ];
    let options = Recipe::of(&[1])
        .text("acme")
        .bytes(&[1])
        .text("mail")
        .bytes(&[1])
        .text("stage-1")
        .text("secret")
        .text("p")
        .bytes(&[0]);
    seeds.push(("options".to_owned(), options.done()));
    let invalid =
        Recipe::of(&[1]).text("{x}").bytes(&[1]).text(".").bytes(&[1]).text("A").number(0).text("p").bytes(&[0]);
    seeds.push(("invalid-options".to_owned(), invalid.done()));
    seeds.extend(random(&[], 12, 96));
    seeds
}
