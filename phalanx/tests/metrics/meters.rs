//! A meter provider that keeps what it exports, and helpers to read it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use phalanx::telemetry::Metrics;
use phalanx::telemetry::metrics::names::Named;

/// The attributes of a series, as text.
pub type Attributes = BTreeMap<String, String>;

/// The attributes that a test expects.
pub fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs
        .iter()
        .map(|(name, value)| (format!("phalanx.{name}").replace("phalanx.error", "error"), (*value).to_owned()))
        .collect()
}

/// The meter provider of a test.
pub struct Meters {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

/// The value of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Histogram { count: u64, sum: f64 },
}

impl Meters {
    pub fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let provider =
            SdkMeterProvider::builder().with_reader(PeriodicReader::builder(exporter.clone()).build()).build();
        Self { provider, exporter }
    }

    pub fn metrics(&self) -> Metrics {
        Metrics::of(self.provider.meter("phalanx"))
    }

    /// Collects and returns all series.
    pub fn collect(&self) -> Collected {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let finished = self.exporter.get_finished_metrics().unwrap();
        Collected(finished.last().map(read).unwrap_or_default())
    }
}

/// All series by the name of their instrument, and its unit.
#[derive(Debug, Default)]
pub struct Collected(pub BTreeMap<String, (String, Vec<(Attributes, Value)>)>);

impl Collected {
    /// The series of an instrument. Checks its unit and attributes against the table of names.
    pub fn series(&self, named: &Named) -> Vec<(Attributes, Value)> {
        let Some((unit, series)) = self.0.get(named.name) else { return Vec::new() };
        assert_eq!(unit, named.unit, "{}", named.name);
        for (attributes, _) in series {
            let expected: Vec<_> = named.attributes.iter().map(|name| (*name).to_owned()).collect();
            let mut expected_sorted = expected.clone();
            expected_sorted.sort();
            assert_eq!(attributes.keys().cloned().collect::<Vec<_>>(), expected_sorted, "{}", named.name);
        }
        series.clone()
    }

    /// The value of one series; `None` if it does not exist.
    pub fn value(&self, named: &Named, pairs: &[(&str, &str)]) -> Option<f64> {
        self.find(named, pairs).map(|value| match value {
            Value::Number(value) => value,
            Value::Histogram { .. } => panic!("{} is a histogram", named.name),
        })
    }

    /// Count and sum of one series of a histogram.
    pub fn histogram(&self, named: &Named, pairs: &[(&str, &str)]) -> Option<(u64, f64)> {
        self.find(named, pairs).map(|value| match value {
            Value::Histogram { count, sum } => (count, (sum * 1e6).round() / 1e6),
            Value::Number(_) => panic!("{} is no histogram", named.name),
        })
    }

    fn find(&self, named: &Named, pairs: &[(&str, &str)]) -> Option<Value> {
        let wanted = attributes(pairs);
        self.series(named).into_iter().find(|(attributes, _)| *attributes == wanted).map(|(_, value)| value)
    }
}

fn read(metrics: &ResourceMetrics) -> BTreeMap<String, (String, Vec<(Attributes, Value)>)> {
    let all = metrics.scope_metrics().flat_map(|scope| scope.metrics());
    all.map(|metric| (metric.name().to_owned(), (metric.unit().to_owned(), points(metric)))).collect()
}

fn points(metric: &Metric) -> Vec<(Attributes, Value)> {
    match metric.data() {
        AggregatedMetrics::F64(data) => of_data(data, |value| value),
        AggregatedMetrics::U64(data) => of_data(data, |value| value as f64),
        AggregatedMetrics::I64(data) => of_data(data, |value| value as f64),
    }
}

fn of_data<T: Copy + Debug>(data: &MetricData<T>, number: fn(T) -> f64) -> Vec<(Attributes, Value)> {
    fn text<'a>(attributes: impl Iterator<Item = &'a opentelemetry::KeyValue>) -> Attributes {
        attributes.map(|pair| (pair.key.to_string(), pair.value.to_string())).collect()
    }
    match data {
        MetricData::Gauge(gauge) => {
            gauge.data_points().map(|point| (text(point.attributes()), Value::Number(number(point.value())))).collect()
        }
        MetricData::Sum(sum) => {
            assert!(sum.is_monotonic());
            sum.data_points().map(|point| (text(point.attributes()), Value::Number(number(point.value())))).collect()
        }
        MetricData::Histogram(histogram) => histogram
            .data_points()
            .map(|point| {
                let value = Value::Histogram { count: point.count(), sum: number(point.sum()) };
                (text(point.attributes()), value)
            })
            .collect(),
        MetricData::ExponentialHistogram(_) => panic!("phalanx exports none"),
    }
}
