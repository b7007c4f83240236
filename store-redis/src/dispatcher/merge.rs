//! Merges the calls of one round trip: calls of one script on cells of one slot are sent as one script.
//!
//! Calls are sent in the order of [`phalanx_lua::ALL`], in which every cell sends its scripts (a bucket its retune before
//! its acquire, a breaker its settled probes before its admits). So the calls of each cell stay in order.
//!
//! In a Cluster nothing is merged: while a slot moves key by key, a script on several of its keys finds them with neither
//! master and gets no reply, where a script on one key is redirected.

use redis::Value;

use super::ScriptResult;
use crate::failure::Failure;
use crate::invocation::Invocation;

/// Cells in one script. More would make a script long, and every other request to the server waits for it.
const MAX_CELLS_PER_SCRIPT: usize = 32;

/// Calls to send, and what is needed to split their replies.
pub(super) struct Merged {
    calls: Vec<Invocation>,
    parts: Parts,
}

/// For each call that is sent, the indices of the calls that it was merged from.
pub(super) struct Parts {
    groups: Vec<Vec<usize>>,
    count: usize,
}

impl Merged {
    /// Leaves every call alone.
    pub(super) fn none(calls: Vec<Invocation>) -> Self {
        let count = calls.len();
        Self { calls, parts: Parts { groups: (0..count).map(|index| vec![index]).collect(), count } }
    }

    pub(super) fn of(calls: Vec<Invocation>) -> Self {
        let count = calls.len();
        if count == 1 {
            return Self::none(calls);
        }
        let mut groups: Vec<Vec<usize>> = Vec::with_capacity(count);
        for (index, call) in calls.iter().enumerate() {
            let fits = |group: &Vec<usize>| group.len() < MAX_CELLS_PER_SCRIPT && calls[group[0]].merges_with(call);
            match groups.iter().rposition(fits) {
                Some(found) => groups[found].push(index),
                None => groups.push(vec![index]),
            }
        }
        groups.sort_by_key(|group| calls[group[0]].order());
        let mut calls: Vec<Option<Invocation>> = calls.into_iter().map(Some).collect();
        let merge = |group: &Vec<usize>| match group[..] {
            [only] => calls[only].take(),
            _ => Invocation::merged(&group.iter().filter_map(|index| calls[*index].as_ref()).collect::<Vec<_>>()),
        };
        Self { calls: groups.iter().filter_map(merge).collect(), parts: Parts { groups, count } }
    }

    pub(super) fn into_parts(self) -> (Vec<Invocation>, Parts) {
        (self.calls, self.parts)
    }
}

impl Parts {
    /// Returns one reply for each of the calls that were merged, in their order.
    pub(super) fn split(&self, replies: Vec<ScriptResult>) -> Vec<ScriptResult> {
        let missing = || Err(Failure::Call("no reply".to_owned()));
        let mut split: Vec<ScriptResult> = (0..self.count).map(|_| missing()).collect();
        for (group, reply) in self.groups.iter().zip(replies) {
            match (&group[..], reply) {
                ([only], reply) => split[*only] = reply,
                (group, Ok(Value::Array(cells))) => {
                    group.iter().zip(cells).for_each(|(index, cell)| split[*index] = reply_of_cell(cell));
                }
                (group, Err(failure)) => group.iter().for_each(|index| split[*index] = Err(failure.clone())),
                (_, Ok(_)) => {} // a foreign reply
            }
        }
        split
    }
}

/// The reply of one cell: an array, or the text of its error.
fn reply_of_cell(cell: Value) -> ScriptResult {
    match cell {
        Value::BulkString(text) => Err(Failure::of_error_text(&String::from_utf8_lossy(&text))),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::TimeSource;

    fn call(script: &'static phalanx_lua::Script, slot: u16, key: &str) -> Invocation {
        let mut call = Invocation::new(script, TimeSource::Server, slot, &[key]);
        call.arg(key);
        call
    }

    #[test]
    fn calls_of_one_script_and_slot_are_one_call_and_the_calls_of_a_cell_stay_in_order() {
        let acquire = |slot, key| call(&phalanx_lua::RATE_LIMIT_ACQUIRE, slot, key);
        let refund = |slot, key| call(&phalanx_lua::RATE_LIMIT_REFUND, slot, key);
        let calls = vec![acquire(1, "a"), refund(1, "b"), acquire(1, "b"), acquire(2, "c"), refund(1, "d")];
        let (merged, parts) = Merged::of(calls).into_parts();
        let scripts: Vec<_> = merged.iter().map(|call| (call.script().name, call.cells())).collect();
        assert_eq!(scripts, [("rate_limit_refund", 2), ("rate_limit_acquire", 2), ("rate_limit_acquire", 1)]);
        let (keys, args) = merged[1].keys_and_args();
        assert_eq!((keys, args), (vec![&b"a"[..], b"b"], vec![&b"1"[..], b"1", b"a", b"b"]));
        let cells = Value::Array(vec![Value::Array(vec![Value::Int(7)]), Value::BulkString(b"OOM full".to_vec())]);
        let refunds = Value::Array(vec![Value::Array(vec![]), Value::Array(vec![Value::Int(3)])]);
        let replies = parts.split(vec![Ok(refunds), Ok(cells), Err(Failure::Timeout)]);
        assert_eq!(
            replies,
            [
                Ok(Value::Array(vec![Value::Int(7)])),
                Ok(Value::Array(vec![])),
                Err(Failure::Rejecting("OOM")),
                Err(Failure::Timeout),
                Ok(Value::Array(vec![Value::Int(3)])),
            ]
        );
    }

    #[test]
    fn any_number_of_replies_completes_every_call() {
        let parts = Parts { groups: vec![vec![0, 1], vec![2]], count: 3 };
        let of = |replies| parts.split(replies).iter().filter(|reply| reply.is_ok()).count();
        assert_eq!(of(vec![]), 0);
        assert_eq!(of(vec![Ok(Value::Int(1)), Ok(Value::Int(1)), Ok(Value::Nil)]), 1);
        assert_eq!(of(vec![Ok(Value::Array(vec![Value::Array(vec![]); 9]))]), 2);
    }
}
