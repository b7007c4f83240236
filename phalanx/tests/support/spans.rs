//! A subscriber that writes everything down: spans with their parents and fields, events with the span they are in.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test file uses its part; a test may unwrap

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

#[derive(Clone, Debug)]
pub struct Seen {
    pub name: &'static str,
    pub level: Level,
    pub target: String,
    pub fields: Fields,
    /// The place of the parent among all spans; of an event, of the span it is in.
    pub parent: Option<usize>,
    pub closed: bool,
}

impl Seen {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

#[derive(Default)]
struct Everything {
    spans: Vec<Seen>,
    events: Vec<Seen>,
    /// What began and ended, in order.
    story: Vec<String>,
}

#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Everything>>);

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

    /// How many events of a target came.
    pub fn count(&self, target: &str) -> usize {
        self.0.lock().unwrap().events.iter().filter(|event| event.target == target).count()
    }

    /// Lines of one kind.
    pub fn lines_of(&self, event: &str) -> Vec<Seen> {
        self.lines().into_iter().filter(|line| line.field("event") == Some(event)).collect()
    }

    pub fn story(&self) -> Vec<String> {
        self.0.lock().unwrap().story.clone()
    }
}

/// Collecting all that this thread does, until it is dropped; one test at a time. What a subscriber wants is remembered for
/// the whole process, and two that come at the same moment can miss each other's wishes.
pub struct Collecting {
    _default: DefaultGuard,
    _alone: MutexGuard<'static, ()>,
}

/// Collects everything.
pub fn collect() -> (Collector, Collecting) {
    collect_at(Targets::new().with_default(LevelFilter::TRACE))
}

/// Collects what these targets let pass.
pub fn collect_at(targets: Targets) -> (Collector, Collecting) {
    let alone = alone();
    let collector = Collector::default();
    let default = set_default(Registry::default().with(collector.clone().with_filter(targets)));
    (collector, Collecting { _default: default, _alone: alone })
}

/// Collects events in two layers of one subscriber, each with a level of its own. Not for spans.
pub fn collect_twice(levels: [LevelFilter; 2]) -> ([Collector; 2], Collecting) {
    let alone = alone();
    let [one, other] = [Collector::default(), Collector::default()];
    let layers =
        Registry::default().with(one.clone().with_filter(levels[0])).with(other.clone().with_filter(levels[1]));
    let default = set_default(layers);
    ([one, other], Collecting { _default: default, _alone: alone })
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Place(usize);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Place>().map(|place| place.0));
        let seen = seen(attributes.metadata(), parent, |reader| attributes.record(reader));
        let mut all = self.0.lock().unwrap();
        span.extensions_mut().insert(Place(all.spans.len()));
        all.story.push(format!("new {}", seen.name));
        all.spans.push(seen);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let place = place(id, &context);
        values.record(&mut Reader(&mut self.0.lock().unwrap().spans[place].fields));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let parent = context.event_span(event).map(|span| span.extensions().get::<Place>().unwrap().0);
        let seen = seen(event.metadata(), parent, |reader| event.record(reader));
        self.0.lock().unwrap().events.push(seen);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let place = place(&id, &context);
        let mut all = self.0.lock().unwrap();
        all.spans[place].closed = true;
        let name = all.spans[place].name;
        all.story.push(format!("end {name}"));
    }
}

fn place<S: Subscriber + for<'a> LookupSpan<'a>>(id: &Id, context: &Context<'_, S>) -> usize {
    context.span(id).unwrap().extensions().get::<Place>().unwrap().0
}

fn seen(metadata: &tracing::Metadata<'static>, parent: Option<usize>, read: impl FnOnce(&mut Reader<'_>)) -> Seen {
    let mut fields = Fields::new();
    read(&mut Reader(&mut fields));
    let (name, level) = (metadata.name(), *metadata.level());
    Seen { name, level, target: metadata.target().to_owned(), fields, parent, closed: false }
}

struct Reader<'a>(&'a mut Fields);

impl Visit for Reader<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
