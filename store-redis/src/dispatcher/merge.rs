//! Merges the calls of one round trip: calls of one script on cells of one slot are sent as one script, and on cells of any
//! slot, once the server is known not to be in Cluster mode.
//!
//! Calls are sent in the order of [`phalanx_lua::ALL`], in which every cell sends its scripts (a bucket its retune before
//! its acquire, a breaker its settled probes before its admits). So the calls of each cell stay in order.
//!
//! In a Cluster nothing is merged: while a slot moves key by key, a script on several of its keys finds them with neither
//! master and gets no reply, where a script on one key is redirected.

use redis::Value;

use super::ScriptResult;
use crate::failure::Failure;
use crate::invocation::{Invocation, choose_forms};
use crate::transport::Response;

/// Cells in one script. More would make a script long, and every other request to the server waits for it.
const MAX_CELLS_PER_SCRIPT: usize = 32;

/// Calls to send, and for each of them the indices of the calls that it was merged from.
pub(super) struct Merged {
    calls: Vec<Invocation>,
    groups: Vec<Vec<usize>>,
}

impl Merged {
    /// Leaves every call alone.
    pub(super) fn none(calls: Vec<Invocation>) -> Self {
        let groups = (0..calls.len()).map(|index| vec![index]).collect();
        Self { calls, groups }
    }

    pub(super) fn of(calls: Vec<Invocation>, across_slots: bool) -> Self {
        let count = calls.len();
        if count == 1 {
            return Self::none(calls);
        }
        let mut groups: Vec<Vec<usize>> = Vec::with_capacity(count);
        for (index, call) in calls.iter().enumerate() {
            let fits = |group: &Vec<usize>| {
                group.len() < MAX_CELLS_PER_SCRIPT && calls[group[0]].merges_with(call, across_slots)
            };
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
        Self { calls: groups.iter().filter_map(merge).collect(), groups }
    }

    pub(super) fn calls(&self) -> &[Invocation] {
        &self.calls
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Returns the indices of the calls that were merged.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().flatten().copied()
    }

    /// Takes out what has a reply, and returns one reply for each of the calls that it was merged from, with its index. What
    /// remains did not run, because the server does not have the script.
    pub(super) fn take_replies(&mut self, responses: Vec<Response>) -> Vec<(usize, ScriptResult)> {
        let (mut replies, mut unknown) = (Vec::with_capacity(self.groups.len()), Self::none(Vec::new()));
        let missing = || Response::Reply(Err(Failure::Call("no reply".to_owned())));
        let responses = responses.into_iter().chain(std::iter::repeat_with(missing));
        let Self { calls, groups } = std::mem::replace(self, Self::none(Vec::new()));
        for ((call, group), response) in calls.into_iter().zip(groups).zip(responses) {
            match response {
                Response::Reply(reply) => split(&group, reply, &mut replies),
                Response::UnknownScript => {
                    unknown.calls.push(call);
                    unknown.groups.push(group);
                }
            }
        }
        *self = unknown;
        replies
    }

    /// Prepares what remains for the next attempt.
    pub(super) fn send_again(&mut self, attempt: u32) {
        choose_forms(&mut self.calls, attempt);
    }
}

/// Splits the reply to a call into one for each of the calls that it was merged from, and adds them with their indices.
fn split(group: &[usize], reply: ScriptResult, replies: &mut Vec<(usize, ScriptResult)>) {
    let no_reply = || Err(Failure::Call("no reply".to_owned()));
    let group = group.iter().copied();
    match reply {
        reply if group.len() == 1 => replies.extend(group.zip([reply])),
        Ok(Value::Array(cells)) => {
            let cells = cells.into_iter().map(reply_of_cell);
            replies.extend(group.zip(cells.chain(std::iter::repeat_with(no_reply))));
        }
        Ok(_) => replies.extend(group.map(|index| (index, no_reply()))), // a foreign reply
        Err(failure) => replies.extend(group.map(|index| (index, Err(failure.clone())))),
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
    use crate::transport::ScriptForm;

    fn call(script: &'static phalanx_lua::Script, slot: u16, key: &str) -> Invocation {
        let mut call = Invocation::new(script, TimeSource::Server, slot, [key].into_iter());
        call.arg(key);
        call
    }

    #[test]
    fn calls_of_one_script_and_slot_are_one_call_and_the_calls_of_a_cell_stay_in_order() {
        let acquire = |slot, key| call(&phalanx_lua::RATE_LIMIT_ACQUIRE, slot, key);
        let refund = |slot, key| call(&phalanx_lua::RATE_LIMIT_REFUND, slot, key);
        let calls = vec![acquire(1, "a"), refund(1, "b"), acquire(1, "b"), acquire(2, "c"), refund(1, "d")];
        let mut merged = Merged::of(calls, false);
        let scripts: Vec<_> = merged.calls().iter().map(|call| (call.script().name, call.cells())).collect();
        assert_eq!(scripts, [("rate_limit_refund", 2), ("rate_limit_acquire", 2), ("rate_limit_acquire", 1)]);
        let (keys, args) = merged.calls()[1].keys_and_args();
        assert_eq!((keys, args), (vec![&b"a"[..], b"b"], vec![&b"1"[..], b"1", b"a", b"b"]));
        let cells = Value::Array(vec![Value::Array(vec![Value::Int(7)]), Value::BulkString(b"OOM full".to_vec())]);
        let refunds = Value::Array(vec![Value::Array(vec![]), Value::Array(vec![Value::Int(3)])]);
        let responses = [Ok(refunds), Ok(cells), Err(Failure::Timeout)].map(Response::Reply);
        let mut replies = merged.take_replies(responses.into());
        replies.sort_by_key(|(index, _)| *index);
        assert!(merged.is_empty());
        assert_eq!(
            replies.into_iter().map(|(_, reply)| reply).collect::<Vec<_>>(),
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
    fn calls_on_cells_of_any_slot_are_one_call_where_the_server_takes_it() {
        let calls = [1, 2, 3].map(|slot| call(&phalanx_lua::DIGEST_FLUSH, slot, "a"));
        assert_eq!(Merged::of(calls.to_vec(), false).calls().len(), 3);
        assert_eq!(Merged::of(calls.to_vec(), true).calls().len(), 1);
    }

    #[test]
    fn any_number_of_replies_completes_every_call() {
        let good = |replies: Vec<ScriptResult>| {
            let calls = [1, 1, 2].map(|slot| call(&phalanx_lua::RATE_LIMIT_REFUND, slot, "a"));
            let replies =
                Merged::of(calls.into(), false).take_replies(replies.into_iter().map(Response::Reply).collect());
            assert_eq!(replies.len(), 3);
            replies.iter().filter(|(_, reply)| reply.is_ok()).count()
        };
        assert_eq!(good(vec![]), 0);
        assert_eq!(good(vec![Ok(Value::Int(1)), Ok(Value::Int(1)), Ok(Value::Nil)]), 1);
        assert_eq!(good(vec![Ok(Value::Array(vec![Value::Array(vec![]); 9]))]), 2);
    }

    #[test]
    fn calls_of_unknown_scripts_remain() {
        let acquire = |slot, key| call(&phalanx_lua::RATE_LIMIT_ACQUIRE, slot, key);
        let refund = call(&phalanx_lua::RATE_LIMIT_REFUND, 1, "r");
        let mut merged =
            Merged::of(vec![acquire(1, "a"), refund, acquire(1, "b"), acquire(2, "c"), acquire(3, "d")], false);
        let known = Response::Reply(Ok(Value::Nil));
        let unknown = || Response::UnknownScript;
        assert_eq!(
            merged.take_replies(vec![known, unknown(), Response::Reply(Err(Failure::Timeout)), unknown()]),
            [(1, Ok(Value::Nil)), (3, Err(Failure::Timeout))]
        );
        merged.send_again(1);
        assert_eq!(merged.indices().collect::<Vec<_>>(), [0, 2, 4], "the first two are one call");
        let forms: Vec<_> = merged.calls().iter().map(Invocation::form).collect();
        assert_eq!(forms, [ScriptForm::Source, ScriptForm::Digest]);
    }
}
