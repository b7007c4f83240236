//! A subscriber that records spans with their parents and fields, and events with their span.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses a part of it; tests may unwrap

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

pub type Fields = BTreeMap<String, String>;

/// A recorded span or event.
#[derive(Clone, Debug)]
pub struct Seen {
    pub name: &'static str,
    pub level: Level,
    pub target: String,
    pub fields: Fields,
    /// The index of the parent span; for an event, of the span it is in.
    pub parent: Option<usize>,
    pub closed: bool,
}

impl Seen {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

#[derive(Default)]
struct Collected {
    spans: Vec<Seen>,
    events: Vec<Seen>,
    /// The starts and ends of spans, in order.
    lifecycle: Vec<String>,
}

#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Collected>>);

impl Collector {
    pub fn spans(&self) -> Vec<Seen> {
        self.0.lock().unwrap().spans.clone()
    }

    pub fn named(&self, name: &str) -> Vec<Seen> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }

    /// The only span of this name.
    pub fn only(&self, name: &str) -> Seen {
        let all = self.named(name);
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    /// Events of phalanx.
    pub fn lines(&self) -> Vec<Seen> {
        self.0.lock().unwrap().events.iter().filter(|event| event.target == "phalanx").cloned().collect()
    }

    /// The number of events of a target.
    pub fn count(&self, target: &str) -> usize {
        self.0.lock().unwrap().events.iter().filter(|event| event.target == target).count()
    }

    /// Lines of one kind.
    pub fn lines_of(&self, event: &str) -> Vec<Seen> {
        self.lines().into_iter().filter(|line| line.field("event") == Some(event)).collect()
    }

    pub fn lifecycle(&self) -> Vec<String> {
        self.0.lock().unwrap().lifecycle.clone()
    }
}

/// Records everything on this thread until it is dropped; one test at a time, because `tracing` caches the interests of
/// subscribers per process and two at the same time can disturb each other.
pub struct CollectGuard {
    _default: DefaultGuard,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// Collects everything.
pub fn collect() -> (Collector, CollectGuard) {
    collect_at(Targets::new().with_default(LevelFilter::TRACE))
}

/// Collects what passes these targets.
pub fn collect_at(targets: Targets) -> (Collector, CollectGuard) {
    let one_at_a_time = one_at_a_time();
    let collector = Collector::default();
    let default = set_default(Registry::default().with(collector.clone().with_filter(targets)));
    (collector, CollectGuard { _default: default, _one_at_a_time: one_at_a_time })
}

/// Collects events in two layers of one subscriber with different levels. Not for spans.
pub fn collect_twice(levels: [LevelFilter; 2]) -> ([Collector; 2], CollectGuard) {
    let one_at_a_time = one_at_a_time();
    let [one, other] = [Collector::default(), Collector::default()];
    let layers =
        Registry::default().with(one.clone().with_filter(levels[0])).with(other.clone().with_filter(levels[1]));
    let default = set_default(layers);
    ([one, other], CollectGuard { _default: default, _one_at_a_time: one_at_a_time })
}

fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SpanIndex(usize);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get::<SpanIndex>().map(|index| index.0));
        let collected = collected(attributes.metadata(), parent, |reader| attributes.record(reader));
        let mut all = self.0.lock().unwrap();
        span.extensions_mut().insert(SpanIndex(all.spans.len()));
        all.lifecycle.push(format!("new {}", collected.name));
        all.spans.push(collected);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let index = index(id, &context);
        values.record(&mut FieldVisitor(&mut self.0.lock().unwrap().spans[index].fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let parent = context.event_span(event).map(|span| span.extensions().get::<SpanIndex>().unwrap().0);
        let collected = collected(event.metadata(), parent, |reader| event.record(reader));
        self.0.lock().unwrap().events.push(collected);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let index = index(&id, &context);
        let mut all = self.0.lock().unwrap();
        all.spans[index].closed = true;
        let name = all.spans[index].name;
        all.lifecycle.push(format!("end {name}"));
    }
}

fn index<S: Subscriber + for<'a> LookupSpan<'a>>(id: &Id, context: &Context<'_, S>) -> usize {
    context.span(id).unwrap().extensions().get::<SpanIndex>().unwrap().0
}

fn collected(
    metadata: &tracing::Metadata<'static>,
    parent: Option<usize>,
    read: impl FnOnce(&mut FieldVisitor<'_>),
) -> Seen {
    let mut fields = Fields::new();
    read(&mut FieldVisitor(&mut fields));
    let (name, level) = (metadata.name(), *metadata.level());
    Seen { name, level, target: metadata.target().to_owned(), fields, parent, closed: false }
}

struct FieldVisitor<'a>(&'a mut Fields);

impl Visit for FieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
