//! What is under way, in the order of its arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{Replies, Request};

/// Something that arrives later.
#[derive(Debug)]
pub(super) enum Event {
    Arrive(Request),
    Reply { node: usize, reply: oneshot::Sender<Replies>, replies: Replies },
    Push { subscriber: mpsc::UnboundedSender<String>, message: String },
}

/// Events by time; those of one time in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    heap: BinaryHeap<Reverse<Entry>>,
    added: u64,
}

#[derive(Debug)]
struct Entry {
    at: Instant,
    number: u64,
    event: Event,
}

impl Schedule {
    pub(super) fn add(&mut self, at: Instant, event: Event) {
        self.added += 1;
        self.heap.push(Reverse(Entry { at, number: self.added, event }));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns when the next event is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event if it is due.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Event> {
        self.next().filter(|at| *at <= now)?;
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }

    /// Takes the senders of all replies under way from a node.
    pub(super) fn take_replies(&mut self, of: usize) -> Vec<oneshot::Sender<Replies>> {
        let (mut replies, mut kept) = (Vec::new(), BinaryHeap::new());
        for Reverse(entry) in std::mem::take(&mut self.heap).into_sorted_vec().into_iter().rev() {
            match entry.event {
                Event::Reply { node, reply, .. } if node == of => replies.push(reply),
                event => kept.push(Reverse(Entry { event, ..entry })),
            }
        }
        self.heap = kept;
        replies
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}
