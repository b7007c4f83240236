//! Promises that are or were known to be broken, each as a scripted run in virtual time over the shipped store and scripts.
//!
//! A scenario returns what it saw if its promise is broken, and panics if it was not played as intended, so that a broken
//! scenario does not count as a known failure. [`KNOWN`] lists those that fail today; there are none. One that no longer fails
//! is an error, until it is moved to [`KEPT`], where it is a test like any other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed expectation panics, in helpers too

#[path = "known_failures/answers.rs"]
mod answers;
#[path = "known_failures/breakers.rs"]
mod breakers;
#[path = "known_failures/buckets.rs"]
mod buckets;
#[path = "known_failures/digests.rs"]
mod digests;
#[path = "known_failures/dispatching.rs"]
mod dispatching;
#[path = "known_failures/evidence.rs"]
mod evidence;
#[path = "known_failures/harness.rs"]
mod harness;
#[path = "known_failures/locks.rs"]
mod locks;
#[path = "known_failures/overrides.rs"]
mod overrides;
#[path = "known_failures/pushes.rs"]
mod pushes;
#[path = "known_failures/texts.rs"]
mod texts;

use std::panic::catch_unwind;

use harness::{Seen, play};
use tokio::time::Instant;

/// The name of a scenario, which is its promise, and the function that plays it.
type Scenario = (&'static str, fn() -> Seen);

/// Names scenarios after their functions.
macro_rules! scenarios {
    ($($module:ident :: $name:ident),* $(,)?) => { &[$((stringify!($name), || play($module::$name()))),*] };
}

/// Scenarios whose promise is broken: none.
const KNOWN: &[&[Scenario]] = &[];

/// Scenarios whose promise is kept.
const KEPT: &[&[Scenario]] = &[
    scenarios![
        evidence::a_healthy_fleet_costs_redis_its_heartbeats_however_many_routes_it_uses,
        evidence::one_replica_of_five_with_broken_egress_opens_its_own_circuit_only,
        evidence::what_the_twin_of_an_odd_replica_has_opened_stays_open_after_the_outage,
        evidence::the_circuit_of_an_odd_replica_stays_open_in_an_outage,
        evidence::an_outcome_that_comes_after_the_circuit_of_an_odd_replica_is_gone_does_not_count,
        evidence::with_a_quorum_a_dependency_that_fails_for_most_replicas_opens_for_all,
        evidence::a_dependency_that_fails_wholly_trips_at_once_although_some_replicas_do_not_use_it,
        evidence::outcomes_whose_reply_was_lost_count_once,
        evidence::an_override_whose_push_is_lost_is_known_with_the_next_heartbeat,
        texts::review_1_13_debug_output_does_not_contain_the_key_secret,
        breakers::a_probe_whose_lease_a_trip_has_overtaken_is_rejected,
        breakers::review_1_15_any_valid_number_of_probes_keeps_the_breaker_half_open,
        pushes::review_1_16_a_forged_push_does_not_cause_writes_for_ever,
        breakers::review_1_6_outcomes_that_were_never_sent_are_sent_later,
        dispatching::review_1_7_background_rounds_degrade_no_caller,
        dispatching::review_1_7_a_change_during_a_broken_subscription_is_found_among_a_thousand_breakers,
        breakers::review_2_4_a_replica_that_fails_a_tenth_of_the_calls_does_not_reach_a_ratio_of_a_half,
        breakers::review_2_4_failures_between_the_successes_of_others_are_not_in_a_row,
        texts::review_1_16_the_cost_on_the_tuning_page_is_what_redis_executes,
        dispatching::review_1_16_an_unknown_script_is_sent_by_source_once,
        dispatching::review_7_1_a_permission_revoked_at_run_time_is_an_outage,
        dispatching::review_7_3_a_round_trip_of_more_than_half_the_budget_is_enough,
        dispatching::a_redis_that_serves_only_health_checks_is_an_outage,
        dispatching::review_1_8_a_lost_push_is_made_up_for_in_a_heartbeat_whatever_the_number_of_routes,
        pushes::review_1_16_a_subscription_that_is_cut_at_once_is_retried_with_backoff,
        dispatching::review_2_2_replies_of_an_overloaded_redis_are_not_thrown_away,
        dispatching::review_2_3_a_new_subscription_of_all_replicas_causes_no_herd,
        dispatching::review_2_3_the_end_of_an_outage_causes_no_herd,
        pushes::review_1_14_a_trip_is_known_to_its_replica_although_the_channel_is_denied,
        pushes::review_1_14_a_subscription_that_is_denied_is_emitted,
        pushes::review_1_16_pushes_arrive_after_a_failover_that_leaves_the_old_master_running,
        answers::review_1_4_an_answer_is_stored_after_an_outage_of_four_seconds,
        answers::review_1_4_a_handler_that_has_lost_its_claim_does_not_finish_beside_the_next_one,
        answers::review_1_4_an_outage_of_two_minutes_when_the_handler_ends_leaves_one_effect,
        answers::review_1_4_a_claim_that_was_lost_and_is_free_is_taken_again,
        answers::review_1_4_a_reply_within_half_a_second_is_in_time,
        answers::review_4_7_duplicates_are_notified_and_poll_only_in_case_a_push_was_lost,
        locks::review_1_11_fences_grow_over_a_failover_to_a_server_whose_clock_is_behind,
        locks::review_1_12_a_cancelled_acquire_does_not_hold_the_lock,
        locks::review_1_12_an_acquire_that_gave_up_after_a_lost_reply_does_not_hold_the_lock,
        locks::review_1_12_a_late_release_does_not_free_a_lock_that_was_taken_again,
        locks::review_1_12_a_release_is_repeated_until_redis_has_it,
        locks::review_1_14_a_denied_channel_does_not_keep_a_lock_held,
        locks::review_4_4_a_mark_that_is_read_outlives_thirty_days,
        buckets::review_1_1_replicas_that_start_before_their_first_connection_share_one_burst,
        buckets::review_1_1_a_stall_grants_only_the_share_of_the_fleet_that_is_known_now,
        buckets::review_1_1_a_stall_after_a_scale_out_grants_the_new_share,
        buckets::review_1_2_late_replies_of_a_redis_that_serves_do_not_raise_the_limit,
        buckets::review_1_9_a_retune_during_an_outage_mints_nothing,
        buckets::review_1_9_a_level_of_the_old_rate_is_converted_in_an_outage,
        buckets::review_1_10_a_weighted_call_is_admitted_sometimes_while_degraded,
        buckets::review_7_2_shares_are_not_those_of_a_half_registered_fleet,
        dispatching::review_2_1_rejections_of_an_exhausted_bucket_are_not_a_round_trip_each,
        buckets::replicas_that_never_saw_redis_share_the_limit_by_what_they_expect,
        buckets::a_rate_that_changes_five_times_in_an_outage_mints_nothing,
        buckets::a_crowd_of_waiters_that_leaves_leaves_no_queue,
        buckets::a_redis_with_many_late_replies_starves_no_caller,
        buckets::outages_that_follow_closely_add_no_burst_each,
        buckets::an_exhausted_bucket_costs_few_scripts_and_is_shared_fairly,
        dispatching::review_7_7_degraded_decisions_of_an_overloaded_replica_are_visible,
        breakers::review_1_6_a_probe_whose_outcome_was_not_sent_is_sent_again,
        dispatching::review_2_6_failures_below_the_threshold_are_paced,
        breakers::review_7_5_an_open_breaker_is_not_evicted_for_new_routes,
        breakers::review_7_6_the_successes_of_routes_beyond_max_routes_are_sent,
        overrides::review_1_3_an_override_survives_a_failover_that_lost_its_write,
        overrides::review_1_3_an_override_survives_a_flush_whatever_replica_restores_the_breaker,
        overrides::review_1_3_a_released_override_does_not_come_back_when_the_key_is_lost,
        overrides::review_1_3_an_override_set_in_an_outage_is_sent_until_redis_has_it,
        breakers::review_1_5_two_sampling_windows_in_one_fleet_still_trip,
        breakers::review_1_6_a_lease_whose_reply_was_lost_is_given_to_its_owner_again,
        breakers::review_1_16_a_reply_that_is_late_during_a_ramp_admits_only_the_ramp,
        dispatching::review_2_1_rejections_of_a_half_open_breaker_are_not_a_round_trip_each,
        breakers::review_2_5_replicas_that_start_do_not_reset_a_latency_trip,
        overrides::an_override_with_an_end_ends_on_every_replica_and_stays_ended,
        overrides::an_override_set_in_an_outage_yields_to_one_that_was_set_later,
        breakers::a_call_right_after_the_latch_has_tripped_is_decided_by_the_twin,
        digests::digests_of_many_partitions_are_flushed_with_one_script,
        digests::a_policy_costs_a_digest_only_as_long_as_it_reads_a_quantile,
        digests::a_digest_in_use_costs_a_script_per_interval_and_an_idle_one_none,
        digests::a_replica_that_is_sent_only_changes_has_the_quantiles_of_a_new_one,
        dispatching::in_a_cluster_a_script_whose_connection_breaks_runs_once,
        pushes::a_degraded_replica_stays_subscribed_while_it_connects_again,
        dispatching::review_1_16_a_script_that_has_to_be_loaded_fails_no_other_call,
    ],
    &[(
        "review_1_16_callers_wait_at_most_the_budget_after_a_runtime_has_ended",
        dispatching::review_1_16_callers_wait_at_most_the_budget_after_a_runtime_has_ended,
    )],
];

#[test]
fn every_known_failure_still_fails() {
    let mut unexpected = Vec::new();
    for (name, scenario) in KNOWN.iter().copied().flatten() {
        let start = Instant::now();
        match catch_unwind(scenario) {
            Ok(Err(seen)) => println!("{name}: {seen} ({:.1?})", start.elapsed()),
            Ok(Ok(())) => {
                unexpected.push(format!("{name} no longer fails: take it off the list and keep it as a test"))
            }
            Err(_) => unexpected.push(format!("{name} was not played as intended: its panic is printed above")),
        }
    }
    assert!(unexpected.is_empty(), "{unexpected:#?}");
}

#[test]
fn every_promise_that_was_mended_is_kept() {
    for (name, scenario) in KEPT.iter().copied().flatten() {
        assert_eq!(scenario(), Ok(()), "{name}");
    }
}
