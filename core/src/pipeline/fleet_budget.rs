//! Budgets that the fleet shares: asks the store for a mark while the backoff or the hedge delay passes, so that the extra
//! attempt is not later for it.
//!
//! Calls are counted by the budget of the route, as without a fleet, and handed over to the tally when an extra attempt is
//! wanted: a route without failures sends nothing. Only this path awaits or allocates.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use super::call_state::CallState;
use super::stages::Stages;
use crate::budget::{Budget, BudgetSpec};
use crate::clock::Time;
use crate::event::EventKind;
use crate::store::{Addition, Store, Withdrawal};
use crate::timeout::{Elapsed, Timer, poll_within};

/// A mark that was asked for: an extra attempt, if it is granted. Put back when it is dropped without being spent.
pub(super) struct BudgetMark<'a, S: Store> {
    stages: &'a Stages<S>,
    tally: &'a S::Tally,
    withdrawal: Withdrawal,
}

impl<'a, S: Store> BudgetMark<'a, S> {
    /// Hands over the calls of this replica and asks for a mark.
    async fn ask(stages: &'a Stages<S>, tally: &'a S::Tally, budget: &Budget, spec: BudgetSpec, now: Time) -> Self {
        budget.hand_over(now, |at, calls| {
            let calls = i64::try_from(calls).unwrap_or(i64::MAX);
            stages.store.add(tally, now, Addition { at, calls, marks: 0 });
        });
        let allowance = spec.allowance();
        let withdrawal = match stages.store.withdraw_now(tally, now, allowance) {
            Some(withdrawal) => withdrawal,
            None => stages.store.withdraw(tally, now, allowance).await,
        };
        Self { stages, tally, withdrawal }
    }

    /// Asks for a hedge; none if hedges do not draw from a budget of the fleet.
    pub(super) fn ask_for_hedge(stages: &'a Stages<S>, now: Time) -> Option<impl Future<Output = Self> + Send + 'a> {
        let (tally, spec) = (stages.hedge_tally.as_deref()?, stages.hedge?.budget);
        Some(Self::ask(stages, tally, &stages.state.hedge_budget, spec, now))
    }

    pub(super) const fn is_granted(&self) -> bool {
        self.withdrawal.granted
    }

    /// Keeps the mark in the tally: the extra attempt starts.
    pub(super) fn spend(mut self) {
        self.withdrawal.granted = false;
    }

    /// Makes the caller responsible for putting the mark back.
    fn into_withdrawal(mut self) -> Withdrawal {
        let withdrawal = self.withdrawal;
        self.withdrawal.granted = false;
        withdrawal
    }
}

impl<S: Store> Drop for BudgetMark<'_, S> {
    fn drop(&mut self) {
        if self.withdrawal.granted {
            self.stages.store.put_back(self.tally, self.withdrawal);
        }
    }
}

impl<S: Store> Stages<S> {
    /// Returns how long before a hedge is due its mark is asked for.
    pub(super) fn hedge_lead(&self) -> Duration {
        self.hedge_tally.as_deref().map_or(Duration::ZERO, |tally| self.store.lead(tally))
    }
}

impl<'a, S: Store> CallState<'a, S> {
    /// Waits for the backoff, and asks for the mark of the retry meanwhile. False if there is no retry: the budget rejects
    /// it, or its reply came too late for the deadline.
    pub(super) async fn back_off_with_mark(&mut self, timer: &mut Timer, tally: &'a S::Tally, delay: Duration) -> bool {
        let (stages, began) = (self.stages, Instant::now());
        let Some(budget) = stages.retry.and_then(|retry| retry.budget) else { return true };
        let mut mark = Err(Elapsed);
        {
            let mut asking =
                pin!(BudgetMark::ask(stages, tally, &stages.state.retry_budget, budget, self.attempt.ended));
            // Without a reply within the backoff, at most until the deadline: the store has a limit of its own.
            for within_backoff in [true, false] {
                let patience = if within_backoff { Some(delay) } else { self.time_left() };
                let poll = |cx: &mut std::task::Context<'_>| {
                    let polled = poll_within(timer, patience, cx, |cx| asking.as_mut().poll(cx));
                    self.unless_cancelled(polled, cx)
                };
                mark = poll_fn(poll).await;
                timer.disarm();
                if mark.is_ok() {
                    break;
                }
            }
        }
        match mark {
            Ok(mark) if mark.is_granted() => {
                self.hold_retry_mark(mark.into_withdrawal());
                self.note_retry(delay);
                let left = delay.saturating_sub(began.elapsed());
                if !left.is_zero() {
                    self.sleep(timer, left).await;
                }
                return true;
            }
            Ok(_) => self.emit(EventKind::RetryBudgetExhausted),
            Err(Elapsed) if self.time_left().is_some_and(|left| left.is_zero()) => {
                self.emit(EventKind::RetryAbandoned { delay });
            }
            Err(Elapsed) => return true, // cancelled by a drain, which rejects the next attempt
        }
        self.notes.gave_up = true;
        false
    }
}
