//! Proof that pushes arrive: the changes of each partition are numbered, and every message names the number before its own.
//!
//! A replica that knows another number than the one before a message, or than the one that it reads with its heartbeat, waits
//! for a moment, because a reply may overtake a message. If nothing has filled the gap by then, it reads the log of the
//! partition and polls the breakers that it names; if the log no longer reaches back to the known number, all breakers
//! are polled at a pace (`catch_up.rs`). So a change whose push was lost is known one heartbeat later, and as long as
//! nothing changes, nothing is asked.
//!
//! Without a subscription the numbers are read in every sync interval, or more slowly in a large fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use phalanx_lua as lua;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::breaker::codec::ChangeNumber;
use crate::failure::{CROSS_SLOT, Failure};
use crate::invocation::integers;
use crate::keys::PARTITIONS;
use crate::store::inner::StoreInner;

/// How long a gap may stay before the log is read.
const GAP: Duration = Duration::from_millis(25);
/// Gaps in a row that no push has filled, after which the subscription is made again.
const GAPS_UNTIL_RESUBSCRIBE: u32 = 2;
/// Without a subscription, how long a round of all replicas takes for each of them.
const PACE_PER_REPLICA: Duration = Duration::from_micros(2_500);
/// A log of this many bytes may have lost lines (`breaker_answer.lua`).
const LOG_IS_FULL: usize = 4_000;
/// How long a push and a reply take at most.
const PUSHED_WITHIN: Duration = Duration::from_millis(40);
/// A new subscription reads the numbers within this time, at random.
const CHECK_WITHIN: Duration = Duration::from_millis(500);

/// What this replica knows of the changes of all partitions.
#[derive(Debug)]
pub(crate) struct Changes {
    partitions: Mutex<Vec<Partition>>,
    /// Partitions of breakers that this replica has, a bit for each.
    used: AtomicU64,
    /// When the numbers are read next, apart from heartbeats.
    check_at: Mutex<Option<Instant>>,
    /// Wakes the sync loop when a gap or a check is due earlier than it knew.
    pub(super) wake: Notify,
    /// The server takes no keys of several slots in one script, although the connection is not one to a Cluster.
    one_slot: AtomicBool,
    gaps_in_a_row: AtomicU32,
    /// Asks the listener to subscribe again.
    pub(super) resubscribe: Notify,
}

#[derive(Clone, Copy, Debug, Default)]
struct Partition {
    /// The number of the last change that this replica knows; `None` before the first.
    known: Option<u64>,
    /// A number that is known to exist and has not arrived, and when the log is read.
    gap: Option<(u64, Instant)>,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            partitions: Mutex::new(vec![Partition::default(); usize::from(PARTITIONS)]),
            used: AtomicU64::new(0),
            check_at: Mutex::new(None),
            wake: Notify::new(),
            one_slot: AtomicBool::new(false),
            gaps_in_a_row: AtomicU32::new(0),
            resubscribe: Notify::new(),
        }
    }
}

impl Changes {
    /// Notes that this replica has a breaker of the partition.
    pub(crate) fn use_partition(&self, partition: u8) {
        self.used.fetch_or(1 << (partition % PARTITIONS), Ordering::Relaxed);
    }

    /// Notes the number of a message.
    pub(super) fn on_push(&self, partition: u8, number: ChangeNumber) {
        let mut partitions = self.partitions.lock();
        let Some(partition) = partitions.get_mut(usize::from(partition)) else { return };
        let ChangeNumber { before, seq } = number;
        match partition.known {
            Some(known) if known == before => {
                partition.known = Some(seq);
                partition.gap = partition.gap.filter(|(missing, _)| *missing != seq);
                self.gaps_in_a_row.store(0, Ordering::Relaxed);
            }
            None => partition.known = Some(seq),
            Some(known) if seq > known => self.open_gap(partition, seq),
            Some(_) => {} // an old message
        }
    }

    /// Notes the number that the server names as the last; 0 if the partition has no log.
    fn on_head(&self, partition: &mut Partition, seq: u64) {
        match partition.known {
            // The log has expired, or there was no change yet.
            _ if seq == 0 => *partition = Partition { known: Some(0), gap: None },
            Some(known) if known == seq => partition.gap = None,
            // Of a partition that was not read before, the log tells what has changed.
            None => {
                partition.known = Some(0);
                self.open_gap(partition, seq);
            }
            Some(_) => self.open_gap(partition, seq),
        }
    }

    fn open_gap(&self, partition: &mut Partition, seq: u64) {
        let at = partition.gap.map_or_else(|| Instant::now() + GAP, |(_, at)| at);
        partition.gap = Some((seq, at));
        self.wake.notify_one();
    }

    /// Forgets all numbers: the server has lost its data.
    pub(super) fn forget(&self) {
        self.partitions.lock().fill(Partition::default());
    }

    /// Reads the numbers soon: changes may have been missed.
    pub(super) fn check_soon(&self, store: &StoreInner) {
        let at = Instant::now() + store.rng.between(Duration::ZERO, CHECK_WITHIN);
        let mut check_at = self.check_at.lock();
        *check_at = Some(check_at.map_or(at, |known| known.min(at)));
        drop(check_at);
        self.wake.notify_one();
    }

    /// Returns when there is something to do, apart from heartbeats.
    pub(super) fn next(&self) -> Option<Instant> {
        let gaps = self.partitions.lock().iter().filter_map(|partition| partition.gap.map(|(_, at)| at)).min();
        gaps.into_iter().chain(*self.check_at.lock()).min()
    }

    /// Reads the numbers if they are due, and the logs of partitions with a gap.
    pub(super) async fn run(&self, store: &Arc<StoreInner>) {
        let due = self.check_at.lock().take_if(|at| *at <= Instant::now());
        if due.is_some() {
            self.check(store).await;
        }
        let now = Instant::now();
        let gaps: Vec<(usize, u64)> = {
            let mut partitions = self.partitions.lock();
            let due = partitions.iter_mut().enumerate().filter(|(_, one)| one.gap.is_some_and(|(_, at)| at <= now));
            due.filter_map(|(index, one)| one.gap.take().map(|_| (index, one.known.unwrap_or(0)))).collect()
        };
        for (index, known) in gaps {
            self.read_log(store, index, known).await;
        }
    }

    /// Returns how long it takes at most until the other replicas know of a change, and have replied.
    pub(crate) fn heard_within(&self, store: &StoreInner) -> Duration {
        if store.subscribed.load(Ordering::Relaxed) { PUSHED_WITHIN } else { Self::interval(store) + PUSHED_WITHIN }
    }

    /// How often the numbers are read without a subscription.
    fn interval(store: &StoreInner) -> Duration {
        store.options.sync_interval.max(PACE_PER_REPLICA.saturating_mul(store.shares.live().max(1)))
    }

    /// Reads the numbers of the partitions in use, with one script where the server takes it.
    pub(super) async fn check(&self, store: &Arc<StoreInner>) {
        if !store.subscribed.load(Ordering::Relaxed) {
            *self.check_at.lock() = Some(Instant::now() + Self::interval(store));
        }
        let used = self.used.load(Ordering::Relaxed);
        if used == 0 {
            return;
        }
        let used: Vec<usize> = (0..usize::from(PARTITIONS)).filter(|index| used & 1 << index != 0).collect();
        if store.is_cluster() || self.one_slot.load(Ordering::Relaxed) {
            for index in used {
                let known = self.partitions.lock()[index].known;
                self.read_head(store, index, known.unwrap_or(0)).await;
            }
            return;
        }
        let logs: Vec<_> = used.iter().map(|index| &store.logs[*index]).collect();
        let call = store.invocation(&lua::LOG_HEADS, &logs);
        let dispatcher = store.dispatcher(logs[0].slot);
        match dispatcher.call(call).await {
            Ok(reply) => {
                if logs.len() > 1 {
                    dispatcher.take_across_slots(true);
                }
                let heads = integers(&reply);
                let mut partitions = self.partitions.lock();
                for (index, head) in used.into_iter().zip(heads.iter().skip(1)) {
                    self.on_head(&mut partitions[index], u64::try_from(*head).unwrap_or(0));
                }
            }
            Err(Failure::Call(text)) if text == CROSS_SLOT => {
                self.one_slot.store(true, Ordering::Relaxed);
                *self.check_at.lock() = Some(Instant::now());
            }
            Err(_) => {} // the next heartbeat reads them
        }
    }

    async fn read_head(&self, store: &Arc<StoreInner>, index: usize, known: u64) {
        let log = &store.logs[index];
        let mut call = store.invocation(&lua::LOG_READ, &[log]);
        call.arg(known);
        let Ok(reply) = store.dispatcher(log.slot).call(call).await else { return };
        if let [_, head, ..] = integers(&reply)[..]
            && let Some(partition) = self.partitions.lock().get_mut(index)
        {
            self.on_head(partition, u64::try_from(head).unwrap_or(0));
        }
    }

    /// Reads the log of a partition and polls the breakers that it names.
    async fn read_log(&self, store: &Arc<StoreInner>, index: usize, known: u64) {
        let log = &store.logs[index];
        let mut call = store.invocation(&lua::LOG_READ, &[log]);
        call.arg(known);
        let Ok(Value::Array(reply)) = store.dispatcher(log.slot).call(call).await else { return };
        let [_, Value::Int(last), more @ ..] = &reply[..] else { return };
        let last = u64::try_from(*last).unwrap_or(0);
        let [Value::BulkString(text), ..] = more else { return }; // a message has filled the gap meanwhile
        if known > 0
            && store.subscribed.load(Ordering::Relaxed)
            && self.gaps_in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= GAPS_UNTIL_RESUBSCRIBE
        {
            self.gaps_in_a_row.store(0, Ordering::Relaxed);
            self.resubscribe.notify_one();
        }
        self.partitions.lock()[index].known = Some(last);
        let Some(changed) = changes_since(&String::from_utf8_lossy(text), known) else {
            return store.background.catch_up.begin(store); // the log no longer reaches back
        };
        for id in changed {
            if let Some(breaker) = store.background.breakers.get(&id) {
                breaker.poll();
            }
        }
    }
}

/// The ids in a log after the change with this number, each once; `None` if the log does not reach back to it.
fn changes_since(log: &str, known: u64) -> Option<Vec<String>> {
    let mut changed: Vec<String> = Vec::new();
    for line in log.lines() {
        let mut words = line.split(' ');
        let seq: u64 = words.next()?.parse().ok()?;
        if seq == known {
            return Some(changed);
        }
        let id = words.next()?;
        if !changed.iter().any(|one| one == id) {
            changed.push(id.to_owned());
        }
    }
    // A log that is not full has forgotten nothing.
    (known == 0 && log.len() < LOG_IS_FULL).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "0000000000000009 b 0\n0000000000000007 a 7\n0000000000000005 b 0\n0000000000000002 c 0\n";

    #[test]
    fn a_log_names_each_breaker_that_has_changed_since_once() {
        assert_eq!(changes_since(LOG, 9), Some(vec![]));
        assert_eq!(changes_since(LOG, 2), Some(vec!["b".to_owned(), "a".to_owned()]));
        assert_eq!(changes_since(LOG, 1), None, "the log does not reach back");
        assert_eq!(changes_since(LOG, 0).map(|all| all.len()), Some(3), "there was none before");
        assert_eq!(changes_since(&LOG.repeat(50), 0), None, "it may have been cut");
        assert_eq!(changes_since(LOG, 8), None, "a number that the server has lost");
        assert_eq!(changes_since("x", 8), None);
    }

    #[test]
    fn every_partition_that_is_used_is_noted() {
        let changes = Changes::default();
        [0, 5, 63].into_iter().for_each(|partition| changes.use_partition(partition));
        assert_eq!(changes.used.load(Ordering::Relaxed), 1 | 1 << 5 | 1 << 63);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_change_of_a_partition_is_a_gap_if_its_message_is_lost() {
        let changes = Changes::default();
        let mut partition = Partition::default();
        changes.on_head(&mut partition, 0);
        assert!(partition.gap.is_none());
        changes.on_head(&mut partition, 7);
        assert!(partition.gap.is_some());
        let mut unread = Partition::default();
        changes.on_head(&mut unread, 7);
        assert!(unread.gap.is_some(), "what has changed before is in the log");
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_follows_the_known_one_leaves_no_gap() {
        let changes = Changes::default();
        let push = |before, seq| changes.on_push(3, ChangeNumber { before, seq });
        push(4, 5);
        push(5, 9);
        assert_eq!(changes.next(), None);
        push(9, 10);
        push(4, 5); // an old one
        assert_eq!(changes.next(), None);
        push(11, 12);
        assert_eq!(changes.next(), Some(Instant::now() + GAP));
        push(10, 11); // it was only late
        push(11, 12);
        assert_eq!(changes.next(), None);
    }
}
