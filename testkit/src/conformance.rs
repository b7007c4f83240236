//! The conformance suite: checks every line of the `# Behaviour` lists of [`RateLimitStore`], [`BreakerStore`],
//! [`LatencyDigestStore`], [`TallyStore`], [`SlotStore`] and [`LockStore`] against any [`Bed`].
//!
//! Each line of a list is one case of the same name. A case uses the trait methods only, two replicas wherever state is
//! shared, and asserts exact values.
//!
//! [`RateLimitStore`]: phalanx::store::RateLimitStore
//! [`BreakerStore`]: phalanx::store::BreakerStore
//! [`LatencyDigestStore`]: phalanx::store::LatencyDigestStore
//! [`TallyStore`]: phalanx::store::TallyStore
//! [`SlotStore`]: phalanx::store::SlotStore
//! [`LockStore`]: phalanx::store::LockStore
//!
//! # Testing a store
//!
//! Implement [`Bed`] for it, and [`LockBed`](crate::bed::LockBed) if it has locks, in a test file:
//!
//! ```
//! use std::time::Duration;
//!
//! use phalanx::store::{MemoryStore, Time};
//! use phalanx::{Clock, Source};
//! use phalanx_testkit::bed::{Bed, ORIGIN};
//! use phalanx_testkit::conformance_suite;
//!
//! struct MyBed {
//!     clock: Clock,
//!     store: MemoryStore, // yours
//! }
//!
//! impl Bed for MyBed {
//!     type Store = MemoryStore;
//!
//!     const SOURCE: Source = Source::Local;
//!
//!     async fn new() -> Self {
//!         let clock = Clock::manual();
//!         clock.set(ORIGIN);
//!         Self { store: MemoryStore::new(clock.clone()), clock }
//!     }
//!
//!     fn store(&self) -> MemoryStore {
//!         self.store.clone()
//!     }
//!
//!     fn now(&self) -> Time {
//!         self.clock.now()
//!     }
//!
//!     async fn advance(&self, by: Duration) {
//!         self.clock.advance(by);
//!     }
//! }
//!
//! conformance_suite!(MyBed); // one `#[test]` for every line of the lists
//! # fn main() {}
//! ```
//!
//! The example `own_store` of this crate is a store written from scratch, and `tests/own_store.rs` its bed.

pub mod breaker;
pub mod digest;
pub mod lock;
pub mod rate_limit;
pub mod slots;
pub mod tally;

use std::future::Future;
use std::time::Duration;

use phalanx_core::key::StateKey;

use crate::bed::Bed;

const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);

/// One line of a behaviour list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// The submodule that contains the case.
    pub area: &'static str,
    /// The trait whose documentation contains the line.
    pub store: &'static str,
    /// The method whose list contains the line.
    pub method: &'static str,
    /// The line as a function name.
    pub name: &'static str,
}

/// All cases, in the order of the lists.
pub fn cases() -> impl Iterator<Item = Case> {
    const AREAS: [&[Case]; 6] = [
        crate::conformance_cases!(rate_limit => @table),
        crate::conformance_cases!(breaker => @table),
        crate::conformance_cases!(digest => @table),
        crate::conformance_cases!(tally => @table),
        crate::conformance_cases!(slots => @table),
        crate::conformance_cases!(lock => @table),
    ];
    AREAS.into_iter().flatten().copied()
}

/// Generates a `#[test]` for every case, run on the given bed.
///
/// `conformance_suite!(MyBed)` tests the five traits of a store. Areas can be chosen:
/// `conformance_suite!(MyBed: rate_limit, breaker, digest, tally, slots, lock)` also tests locks, which needs a
/// [`LockBed`](crate::bed::LockBed). Each area is a module of its name.
#[macro_export]
macro_rules! conformance_suite {
    ($bed:ty) => {
        $crate::conformance_suite!($bed: rate_limit, breaker, digest, tally, slots);
    };
    ($bed:ty: $($area:ident),+ $(,)?) => {
        $($crate::conformance_cases!($area => @tests $bed);)+
    };
}

/// Generates the tests, or the table, of one area.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_area {
    (@tests $bed:ty; $area:ident of $store:ident { $($method:ident: $($case:ident),+;)+ }) => {
        mod $area {
            use super::*;
            $($(
                #[test]
                fn $case() {
                    $crate::conformance::run($crate::conformance::$area::$case::<$bed>());
                }
            )+)+
        }
    };
    (@table; $area:ident of $store:ident { $($method:ident: $($case:ident),+;)+ }) => {
        &[$($($crate::conformance::Case {
            area: stringify!($area),
            store: stringify!($store),
            method: stringify!($method),
            name: stringify!($case),
        },)+)+]
    };
}

/// Passes the list of an area's cases to [`conformance_area!`]. Cases are enumerated only here.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    (rate_limit => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            rate_limit of RateLimitStore {
                bucket:
                    a_new_bucket_is_full,
                    the_same_key_is_the_same_bucket,
                    different_keys_never_share_a_bucket,
                    another_spec_keeps_the_permits_that_fit;
                acquire:
                    permits_come_back_at_the_declared_rate,
                    an_empty_bucket_rejects_and_names_the_time_to_retry,
                    a_rejection_takes_nothing,
                    a_cost_takes_that_many_permits,
                    a_cost_above_the_burst_is_rejected_for_good,
                    waiters_are_served_in_the_order_they_came,
                    a_wait_longer_than_allowed_is_rejected,
                    a_leased_limit_admits_no_more_than_its_burst_and_its_rate,
                    leased_permits_that_are_not_called_for_come_back;
                refund:
                    a_refund_is_there_for_the_next_call,
                    a_refund_never_overfills,
                    a_refund_returns_only_what_has_not_been_refilled_since,
                    a_place_with_others_behind_it_waits_for_them,
                    a_crowd_that_leaves_gives_all_its_places_back,
                    a_leased_permit_that_is_refunded_is_there_for_the_next_call;
                charge:
                    a_charge_takes_permits_that_are_there,
                    a_charge_beyond_the_level_is_a_debt_that_time_pays_off,
                    a_charge_may_exceed_the_burst,
                    a_refund_pays_off_debt,
                    a_charge_leaves_the_places_of_waiters_alone,
                    another_spec_keeps_the_debt,
                    a_leased_limit_in_debt_leases_nothing;
                discharge:
                    a_charge_that_is_given_back_is_there_for_the_next_call;
                acquire_all:
                    several_limits_are_charged_together,
                    a_limit_that_rejects_leaves_the_others_untouched,
                    of_several_limits_that_reject_the_last_to_recover_is_named,
                    a_call_waits_for_the_slowest_of_its_limits,
                    a_limit_takes_its_own_cost,
                    a_cost_above_the_burst_of_one_limit_is_rejected_for_good,
                    leased_limits_are_spent_together_or_not_at_all;
                refund_all:
                    a_refund_reaches_every_limit;
                peek:
                    a_peek_takes_nothing;
                cached_level:
                    the_cached_level_is_that_of_the_last_call;
            }
        }
    };
    (breaker => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            breaker of BreakerStore {
                breaker:
                    a_new_circuit_is_closed,
                    the_same_key_is_the_same_circuit,
                    different_keys_never_share_a_circuit,
                    another_threshold_reaches_a_living_circuit,
                    another_window_keeps_what_was_counted;
                admit:
                    an_open_circuit_rejects_and_names_the_end_of_the_break,
                    after_the_break_the_allowed_number_of_probes_passes,
                    a_lost_probe_is_replaced_when_its_lease_expires,
                    a_ramp_admits_a_growing_share;
                record:
                    failures_at_the_ratio_trip,
                    failures_in_a_row_trip,
                    slow_calls_trip,
                    a_burst_across_a_slice_edge_trips,
                    successes_never_trip,
                    neutral_and_cancelled_outcomes_count_for_nothing,
                    a_cancelled_probe_gives_its_lease_back,
                    a_probe_that_succeeds_closes_the_circuit,
                    a_probe_that_fails_opens_it_again,
                    a_late_outcome_of_an_earlier_epoch_changes_nothing,
                    a_failure_while_open_does_not_prolong_the_break,
                    breaks_grow_on_trips_in_a_row;
                observe_quantile:
                    a_quantile_over_its_threshold_for_long_enough_trips;
                force:
                    forced_open_rejects_everything,
                    forced_closed_admits_everything_and_never_trips,
                    disabled_counts_nothing,
                    metrics_only_admits_everything_and_still_changes_phase;
                reset:
                    a_reset_circuit_is_closed_and_old_tickets_are_void;
                inspect:
                    an_inspection_returns_the_counts;
                cached_phase:
                    the_cached_phase_comes_with_the_override;
            }
        }
    };
    (digest => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            digest of LatencyDigestStore {
                digest:
                    the_same_key_is_the_same_digest,
                    different_keys_never_share_a_digest,
                    another_window_starts_the_digest_over;
                observe:
                    a_latency_over_an_hour_is_ignored;
                quantile:
                    a_quantile_is_within_its_error,
                    too_few_samples_have_no_quantile,
                    the_window_forgets,
                    a_late_latency_reaches_every_reader;
                quantile_since:
                    an_epoch_holds_nothing_from_before_it,
                    an_epoch_begins_with_the_next_slice,
                    an_epoch_of_one_replica_is_not_the_others,
                    too_few_samples_since_have_no_quantile;
            }
        }
    };
    (tally => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            tally of TallyStore {
                tally:
                    a_new_tally_is_empty,
                    the_same_key_is_the_same_tally,
                    different_keys_never_share_a_tally,
                    different_uses_never_share_a_tally,
                    another_window_starts_the_tally_over;
                add:
                    what_was_added_counts_for_one_window,
                    what_is_taken_back_was_never_counted;
                sum:
                    a_watched_tally_is_the_sum_of_all_replicas;
                withdraw:
                    marks_never_exceed_their_share_of_the_calls_of_all_replicas,
                    a_minimum_is_always_allowed,
                    a_rejected_withdrawal_takes_nothing,
                    a_mark_counts_for_one_window;
                put_back:
                    a_mark_that_is_put_back_is_there_for_the_next_call,
                    a_mark_of_an_earlier_window_is_not_put_back;
            }
        }
    };
    (slots => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            slots of SlotStore {
                slots:
                    the_same_key_is_the_same_slots,
                    different_keys_never_share_slots,
                    another_cap_keeps_the_calls_in_flight;
                take_slot_now:
                    a_slot_that_was_used_is_taken_again_without_a_wait;
                take_slot:
                    calls_in_flight_never_exceed_the_cap,
                    a_full_fleet_rejects_and_takes_nothing,
                    slots_that_are_not_used_are_there_for_the_others,
                    a_slot_is_held_for_as_long_as_its_call_takes;
                return_slot:
                    a_slot_that_is_returned_is_there_for_the_next_call;
            }
        }
    };
    (lock => $($what:tt)+) => {
        $crate::conformance_area! { $($what)+;
            lock of LockStore {
                acquire:
                    a_free_lock_is_taken_for_its_ttl,
                    a_lock_that_is_held_is_rejected_with_the_time_left,
                    its_owner_may_take_it_again_under_a_higher_fence,
                    a_late_release_of_its_owner_does_not_free_a_lock_that_was_taken_again,
                    a_lock_that_ran_out_is_free,
                    every_new_holder_has_a_higher_fence,
                    different_names_never_share_a_lock;
                renew:
                    a_renewed_lock_is_held_for_another_ttl,
                    a_lock_that_ran_out_cannot_be_renewed,
                    a_lock_that_another_owner_took_cannot_be_renewed;
                release:
                    a_released_lock_is_free_at_once,
                    a_release_by_another_owner_changes_nothing;
                withdraw:
                    a_lock_that_is_withdrawn_from_is_free_at_once,
                    a_withdrawal_by_another_owner_changes_nothing;
                complete:
                    completed_work_is_marked_with_its_fence_and_its_lock_is_free,
                    work_whose_lock_was_lost_is_not_marked;
                completed:
                    a_mark_is_of_one_name_and_one_version,
                    a_mark_that_is_not_read_is_forgotten_after_its_time,
                    a_mark_that_is_read_is_kept_for_another_time;
            }
        }
    };
}

/// Runs a case on a runtime of its own, so that a test file needs no runtime.
#[doc(hidden)]
pub fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime for the test").block_on(case);
}

/// Keys that collide if policy and route are joined without escaping.
fn keys_that_look_alike() -> [StateKey; 9] {
    [
        StateKey::new("a:b", "c"),
        StateKey::new("a", "b:c"),
        StateKey::new("a/b", "c"),
        StateKey::new("a", "b/c"),
        StateKey::new("a", ()),
        StateKey::new("a", ""),
        StateKey::new("{a}", ""),
        StateKey::new("a", "None"),
        StateKey::new("A", ()),
    ]
}

/// Moves the clock to the next multiple of `length`, where a window of that length and its first slice begin.
async fn advance_to_edge<B: Bed>(bed: &B, length: Duration) {
    let length = length.as_micros() as u64;
    let past = bed.now().as_micros() % length;
    bed.advance(Duration::from_micros(length - past)).await;
}
