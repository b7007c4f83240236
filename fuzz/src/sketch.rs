//! The latency sketch (`I-21` of `docs/guarantees.md`): foreign counts are decoded, merged and asked for quantiles. Merging
//! is commutative, associative and neutral on empty; a quantile is inside the range, and grows with `q`.

use std::time::Duration;

use phalanx_core::clock::Time;
use phalanx_core::estimate::bins::{BINS, Bins, RELATIVE_ERROR};
use phalanx_core::estimate::digest::Digest;
use phalanx_store_redis::internal::digest_counts;
use redis::Value;

use crate::input::{Input, Recipe, SERVER_NOW, random};

const QUANTILES: [f64; 6] = [0.0, 0.25, 0.5, 0.9, 0.99, 0.999];

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(3) {
        0 => merge(&mut input),
        1 => decode(&mut input),
        _ => observe(&mut input),
    }
}

fn bins(input: &mut Input<'_>) -> Bins {
    let mut bins = Bins::EMPTY;
    for _ in 0..input.below(32) {
        let (bin, count, times) = (input.number() as usize, input.number() as u32, input.below(4));
        // More than 2^32 in one bin, as a window of several full slices has.
        (0..=times).for_each(|_| bins.count_in(bin, count));
    }
    bins
}

fn merged(one: &Bins, other: &Bins) -> Bins {
    let mut sum = one.clone();
    sum.merge(other);
    sum
}

fn merge(input: &mut Input<'_>) {
    let (a, b, c) = (bins(input), bins(input), bins(input));
    assert_eq!(merged(&a, &b), merged(&b, &a));
    assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
    assert_eq!(merged(&a, &Bins::EMPTY), a);
    // Doubled counts (merged with themselves, sixty-four times) saturate instead of wrapping around.
    let most = (0..64).fold(merged(&a, &b), |sum, _| merged(&sum, &sum));
    for bins in [a, b, c, most] {
        check_quantiles(&bins, f64::from_bits(input.raw()));
    }
}

fn check_quantiles(bins: &Bins, any: f64) {
    let range = Duration::from_micros(1)..Duration::from_secs(4_000);
    let quantiles: Vec<_> = QUANTILES.iter().map_while(|quantile| bins.quantile(*quantile)).collect();
    assert!(quantiles.is_sorted(), "{quantiles:?}");
    assert!(quantiles.iter().chain(&bins.quantile(any)).all(|quantile| range.contains(quantile)));
    assert!(bins.count() == 0 || !quantiles.is_empty(), "one latency is enough for the least");
}

/// The reply of `digest_read.lua`, from a server that is not trusted.
fn decode(input: &mut Input<'_>) {
    let moments = [input.number(), input.number(), input.number(), input.number()];
    let slice_micros = input.number() as u64;
    let mut parts = Vec::new();
    while !input.is_empty() && parts.len() < 16 {
        parts.push(match input.below(4) {
            0 => Value::Nil,
            1 => Value::BulkString(input.bytes(6_700).to_vec()),
            _ => Value::Int(input.number()),
        });
    }
    let slices: u64 = parts.iter().map(sum_of).fold(0, u64::saturating_add);
    let moments = moments.map(|moment| Time::from_micros(moment as u64));
    if let Some(bins) = digest_counts(&Value::Array(parts), slice_micros, moments) {
        assert!(bins.count() <= slices, "more latencies than the reply has");
        check_quantiles(&bins, 0.95);
    }
}

/// Returns the sum of the counts in a slice.
fn sum_of(value: &Value) -> u64 {
    let Value::BulkString(bytes) = value else { return 0 };
    let bins = bytes.chunks_exact(6).take(BINS);
    bins.map(|bin| bin[2..].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))).sum()
}

/// The digest of one process: any times, in any order.
fn observe(input: &mut Input<'_>) {
    let digest = Digest::new(Duration::from_micros(input.number() as u64));
    let mut latest = Time::ZERO;
    for _ in 0..input.below(64) {
        let now = Time::from_micros(input.number() as u64);
        let latency = Duration::from_micros(input.number() as u64);
        latest = latest.max(now);
        digest.observe(now, latency);
        if input.byte() == 255 {
            digest.retune(Duration::from_micros(input.number() as u64));
        }
        let since = Time::from_micros(input.number() as u64);
        assert!(digest.quantile_since(now, since, 0.5).is_none_or(|quantile| quantile <= Duration::from_secs(4_000)));
    }
    digest.observe(latest, Duration::from_millis(5));
    let least = digest.quantile(latest, 0.0).expect("the latency just observed is in the window").as_secs_f64();
    assert!(least <= 0.005 * (1.0 + 2.0 * RELATIVE_ERROR), "{least}");
}

/// Returns the inputs that the corpus starts with.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let full: Vec<u8> = (0..1_104_u16).flat_map(|bin| [bin.to_be_bytes(), [0xff; 2], [0xff; 2]].concat()).collect();
    let now = SERVER_NOW;
    let reply = Recipe::of(&[1]).numbers(&[500, 700, 700, 0, 1_000]);
    let reply = reply.bytes(&[2]).number(now).bytes(&[2]).number(0);
    let text = |recipe: Recipe, bytes: &[u8]| recipe.bytes(&[1]).number(bytes.len() as i64).bytes(bytes);
    let slice = |recipe: Recipe, slice: i64, bytes: &[u8]| {
        text(text(recipe.bytes(&[2]).number(slice), b"0123456789abcdef"), bytes)
    };
    let mut seeds = vec![
        ("full-slice".to_owned(), slice(reply.clone(), now / 1_000, &full).done()),
        ("short-slice".to_owned(), slice(reply.clone(), now / 1_000, &[0, 5, 0, 0, 0, 1, 2]).done()),
        ("no-bins".to_owned(), slice(reply.clone(), now / 1_000, &[]).done()),
        ("negative-slice".to_owned(), slice(reply, -1, &[0, 5, 0, 0, 0, 1]).done()),
        ("zero-length-slices".to_owned(), Recipe::of(&[1]).numbers(&[0, 0, 0, 0, 0]).bytes(&[2, 0, 2, 0, 2, 0]).done()),
        ("far-times".to_owned(), Recipe::of(&[2]).number(i64::MAX).bytes(&[3]).numbers(&[-1, 1, 0, 0]).done()),
    ];
    for kind in 0..3 {
        seeds.extend(random(&[kind], 6, 160));
    }
    seeds
}
