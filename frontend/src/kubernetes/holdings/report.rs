//! Shows what the namespaces have, as metrics: the few that are nearest to their share by name, and the rest together.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::sleep;
use tracing::debug;

use super::read;
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::context::Context;
use crate::kubernetes::ledger::Amount;
use crate::metrics::METRICS;

/// How many namespaces of a pool are named. Their number is unbounded.
const NAMED: usize = 20;

/// What the others are called, and what has no note. No namespace has such a name.
const OTHERS: &str = "(others)";
/// See [`OTHERS`].
const NOBODY: &str = "(nobody)";

/// Reads the ledger and shows it for as long as it is polled.
pub async fn run(context: &Context) {
    // Nothing is to be done where nothing is limited, and the task ends with the others.
    while context.ledger.limits().is_some() {
        let pause = context.intervals.census;
        match read::since(context, Some(pause / 2)).await {
            Ok(()) => show(context).await,
            Err(failure) => debug!("finding out what namespaces have failed: {failure}"),
        }
        sleep(pause + jitter(pause / 4)).await;
    }
    std::future::pending().await
}

async fn show(context: &Context) {
    let Some(limits) = context.ledger.limits() else { return };
    let mut shown = Vec::new();
    let holdings = context.ledger.holdings();
    // Their number is limited over all pools.
    let mut on_node = HashMap::<_, u64>::new();
    for (namespace, amount) in holdings.values().flatten() {
        *on_node.entry(namespace.clone()).or_default() += amount.volumes;
    }
    for (pool, namespaces) in holdings {
        let Ok(told) = context.volumes.told(&pool).await else { continue };
        let most = limits.most(told);
        let ratio = |namespace: &Option<Arc<str>>, amount: Amount| {
            Amount { volumes: on_node.get(namespace).copied().unwrap_or_default(), ..amount }.ratio(&most)
        };
        shown.extend(rows(namespaces, ratio).into_iter().map(|row| (pool.clone(), row)));
    }
    // Not earlier: in between, somebody might ask for the metrics.
    METRICS.namespace_promised.clear();
    METRICS.namespace_volumes.clear();
    METRICS.namespace_ratio.clear();
    for (pool, Row { namespace, amount, ratio }) in shown {
        let labels = [pool.as_str(), &namespace];
        METRICS.namespace_promised.with(labels).set(amount.bytes as f64);
        METRICS.namespace_volumes.with(labels).set(amount.volumes as f64);
        if let Some(ratio) = ratio {
            METRICS.namespace_ratio.with(labels).set(ratio);
        }
    }
}

struct Row {
    namespace: String,
    amount: Amount,
    /// How much of its share a namespace has.
    ratio: Option<f64>,
}

fn rows(
    namespaces: impl IntoIterator<Item = (Option<Arc<str>>, Amount)>,
    ratio: impl Fn(&Option<Arc<str>>, Amount) -> f64,
) -> Vec<Row> {
    let (mut named, mut rows) = (Vec::new(), Vec::new());
    for (namespace, amount) in namespaces {
        let ratio = ratio(&namespace, amount);
        match namespace {
            Some(namespace) => named.push(Row { namespace: namespace.to_string(), ratio: Some(ratio), amount }),
            None => rows.push(Row { namespace: NOBODY.to_owned(), amount, ratio: None }),
        }
    }
    named.sort_by(|one, other| other.ratio.unwrap_or_default().total_cmp(&one.ratio.unwrap_or_default()));
    let others = named.split_off(NAMED.min(named.len()));
    if !others.is_empty() {
        let mut amount = Amount::default();
        others.iter().for_each(|row| amount.join(&row.amount));
        rows.push(Row { namespace: OTHERS.to_owned(), amount, ratio: None });
    }
    named.extend(rows);
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_namespaces_there_are_few_are_named() {
        let most = Amount { bytes: 1000, filesystems: 10, volumes: 100 };
        let namespaces = (0..500_u64).map(|number| {
            let amount = Amount { bytes: number, filesystems: 0, volumes: 1 };
            (Some(Arc::from(format!("n{number}"))), amount)
        });
        let unknown = (None, Amount { bytes: 7, filesystems: 0, volumes: 7 });
        let rows = rows(namespaces.chain([unknown]), |_, amount| amount.ratio(&most));
        assert_eq!(rows.len(), NAMED + 2);
        assert_eq!((rows[0].namespace.as_str(), rows[0].ratio), ("n499", Some(0.499)));
        assert_eq!((rows[NAMED].namespace.as_str(), rows[NAMED].ratio), (NOBODY, None));
        let others = &rows[NAMED + 1];
        assert_eq!((others.namespace.as_str(), others.amount.volumes), (OTHERS, 480));
        assert_eq!(others.amount.bytes, (0..480).sum::<u64>());
    }
}
