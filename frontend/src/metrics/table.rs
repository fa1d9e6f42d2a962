//! Metrics as rows of a table: each has a name, labels and a sentence about it.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// A number of things that have happened. It is a float because one of the metrics counts seconds.
pub type Counter = prometheus_client::metrics::counter::Counter<f64, AtomicU64>;

/// A current value.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<f64, AtomicU64>;

/// The upper bounds of the histograms' buckets, in seconds: from a request to the helper to a claim waiting for a node.
const BUCKETS: [f64; 16] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What the documentation says about a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name under which it is exposed.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// A sentence about it.
    pub help: &'static str,
}

/// A kind of metric.
pub trait Kind: Clone + Debug {
    /// Its name in the exposition format.
    const NAME: &str;

    /// Whether one without labels exists from the start: "none so far" is a fact, an unknown value is not.
    const FROM_THE_START: bool;

    /// A new one.
    fn make() -> Self;
}

impl Kind for Counter {
    const NAME: &str = "counter";
    const FROM_THE_START: bool = true;

    fn make() -> Self {
        Self::default()
    }
}

impl Kind for Gauge {
    const NAME: &str = "gauge";
    const FROM_THE_START: bool = false;

    fn make() -> Self {
        Self::default()
    }
}

impl Kind for Histogram {
    const NAME: &str = "histogram";
    const FROM_THE_START: bool = false;

    fn make() -> Self {
        Self::new(BUCKETS)
    }
}

type Labels<const N: usize> = [(&'static str, String); N];

/// A metric with `N` labels: one value for each combination of label values.
#[derive(Clone, Debug)]
pub struct Labelled<M, const N: usize> {
    names: [&'static str; N],
    family: Family<Labels<N>, M, fn() -> M>,
}

impl<M: Kind, const N: usize> Labelled<M, N> {
    /// Registers the metric that `row` describes.
    pub(super) fn register(registry: &mut Registry, row: Row, names: [&'static str; N]) -> Self
    where
        Family<Labels<N>, M, fn() -> M>: Metric,
    {
        let family = Family::new_with_constructor(M::make as fn() -> M);
        // The library itself adds the suffix of a counter, and the full stop.
        let name = row.name.strip_suffix("_total").unwrap_or(row.name);
        registry.register(name, row.help.trim_end_matches('.'), family.clone());
        let labelled = Self { names, family };
        if N == 0 && M::FROM_THE_START {
            labelled.with([""; N]);
        }
        labelled
    }

    /// The metric whose labels have these values. Values come from a small set: never a name that a user chooses,
    /// except that of a pool, or of one of a few namespaces.
    pub fn with(&self, values: [&str; N]) -> M {
        let mut labels = self.names.map(|name| (name, String::new()));
        for ((_, value), given) in labels.iter_mut().zip(values) {
            given.clone_into(value);
        }
        self.family.get_or_create_owned(&labels)
    }

    /// Forgets all values.
    pub fn clear(&self) {
        self.family.clear();
    }
}

impl<const N: usize> Labelled<Gauge, N> {
    /// Counts one more for as long as the result exists.
    pub fn during(&self, values: [&str; N]) -> Raised {
        let gauge = self.with(values);
        gauge.inc();
        Raised(gauge)
    }
}

impl<const N: usize> Labelled<Counter, N> {
    /// Sets a value that is counted elsewhere.
    pub fn set(&self, values: [&str; N], value: f64) {
        self.with(values).inner().store(value.to_bits(), Ordering::Relaxed);
    }
}

/// One more, until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Raised(Gauge);

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Generates the type of all metrics from their table: `field: Kind "name" [labels] "help";`.
macro_rules! table {
    ($($field:ident: $kind:ident $name:literal [$($label:ident),*] $help:literal;)*) => {
        /// All metrics.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            $(#[doc = $help] pub $field: Labelled<$kind, { let labels: &[&str] = &[$(stringify!($label)),*]; labels.len() }>,)*
        }

        /// What the documentation says about each.
        pub const ROWS: &[Row] = &[
            $(Row { name: $name, kind: <$kind as Kind>::NAME, labels: &[$(stringify!($label)),*], help: $help },)*
        ];

        impl Metrics {
            fn new() -> Self {
                let mut registry = Registry::default();
                let mut rows = ROWS.iter();
                let mut row = || *rows.next().unwrap_or(&ROWS[0]);
                $(let $field = Labelled::register(&mut registry, row(), [$(stringify!($label)),*]);)*
                Self { registry, $($field),* }
            }
        }
    };
}

pub(super) use table;
