//! Reading the ledger from what the helper says: which volumes and snapshots there are, what each takes, and whose it is by
//! the note on it.

use std::collections::HashSet;
use std::time::Duration;

use bulkhead_model::objects::content::Reference;
use bulkhead_model::objects::names::is_object_name;
use bulkhead_model::owner::{self, CLAIM, CLUSTER, GROUP, GROUP_UID, Keys, SNAPSHOT, SNAPSHOT_UID};
use bulkhead_protocol::{PoolName, Snapshot, VolumeId};
use tokio::time::{Instant, timeout};
use tracing::debug;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::persistent_volumes::owners::{Noted, noted};
use crate::volumes::{Cost, Told};

/// How often the ledger is read at most because a pool has more volumes than are entered.
const AGAIN: Duration = Duration::from_secs(5);

/// How long an answer about one volume is waited for. What is in the same pool is found out the next time.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// Returns what is told of `pool`, once the ledger says what is in it.
///
/// # Errors
/// When the helper does not say.
pub async fn told(context: &Context, pool: &PoolName) -> Result<Told, Failure> {
    once(context).await?;
    let told = context.volumes.told(pool).await?;
    // Others have made some, or the pool was not served until now.
    if (context.ledger.number_in(pool) as u64) < u64::from(told.volumes) {
        since(context, Some(AGAIN)).await?;
    }
    Ok(told)
}

/// Reads the ledger, unless that has been done.
///
/// # Errors
/// When the helper or the API server does not answer.
pub async fn once(context: &Context) -> Result<(), Failure> {
    since(context, None).await
}

/// Reads the ledger, unless that was done within `age`, or ever.
///
/// # Errors
/// When the helper or the API server does not answer.
pub async fn since(context: &Context, age: Option<Duration>) -> Result<(), Failure> {
    if age.is_none() && context.ledger.is_read() {
        return Ok(());
    }
    let Some(mut last) = context.ledger.reading().await else { return Ok(()) };
    let is_recent = last.is_some_and(|last| age.is_none_or(|age| last.elapsed() < age));
    if !is_recent {
        let now = Instant::now();
        all(context, now).await?;
        *last = Some(now);
        context.ledger.was_read();
    }
    Ok(())
}

async fn all(context: &Context, now: Instant) -> Result<(), Failure> {
    let (volumes, ledger, cluster) = (&context.volumes, &context.ledger, context.cluster().await?);
    // It may take for ever to ask about what is in others, in which nothing is made either. What is known of that stays.
    let mut working = volumes.working_pools().await?;
    let mut existing = HashSet::new();
    for listed in volumes.list_all().await? {
        let size = Some(listed.size.get());
        if working.contains(&listed.pool) && !ledger.has(&listed.volume, size) {
            let asked = async {
                match volumes.cost_of(&listed.volume).await {
                    Err(fault) if fault.is_of_helper() => Err(fault.into()),
                    // It may have been deleted in the meantime.
                    Err(fault) => {
                        debug!(volume = %listed.volume, "what the volume takes is not known: {fault}");
                        Ok(())
                    }
                    Ok(cost) => enter(context, cluster, &listed.volume, cost, size, None).await,
                }
            };
            in_time(&mut working, &listed.pool, asked).await?;
        }
        existing.insert(listed.volume);
    }
    for snapshot in volumes.list_all_snapshots().await? {
        if working.contains(&snapshot.pool) && !ledger.has(&snapshot.snapshot, None) {
            let source = Some(&snapshot.origin.source);
            let asked = enter(context, cluster, &snapshot.snapshot, Cost::from(&snapshot), None, source);
            in_time(&mut working, &snapshot.pool, asked).await?;
        }
        existing.insert(snapshot.snapshot);
    }
    ledger.keep_only(&existing, &working, now);
    Ok(())
}

/// Waits for an answer about something in `pool`, which is not one of those that are `working` if none comes.
async fn in_time(
    working: &mut HashSet<PoolName>,
    pool: &PoolName,
    asked: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
        working.remove(pool);
        Ok(())
    })
}

/// Enters what `id` takes, for whom the note on it names; for whom its source belongs to if there is none.
async fn enter(
    context: &Context,
    cluster: Option<&str>,
    id: &VolumeId,
    cost: Cost,
    size: Option<u64>,
    source: Option<&VolumeId>,
) -> Result<(), Failure> {
    let known = context.ledger.namespace_of(id);
    let namespace = match known {
        Some(known) => Some(known.to_string()),
        None => match unless_broken(noted(context, id).await)? {
            Noted::Says(keys) => namespace_in(&keys, cluster).map(str::to_owned),
            Noted::Nothing => source.and_then(|source| context.ledger.namespace_of(source)).map(|of| of.to_string()),
            Noted::Unreadable(_) => None,
        },
    };
    context.ledger.enter(id.clone(), namespace.as_deref(), cost, size);
    Ok(())
}

/// A note that cannot be had says nothing; one volume's holds up no other's.
fn unless_broken(noted: Result<Noted, Failure>) -> Result<Noted, Failure> {
    match noted {
        Err(Failure::Volume(fault)) if !fault.is_of_helper() => Ok(Noted::Unreadable(fault.to_string())),
        noted => noted,
    }
}

/// The namespace that a note names. One of another cluster is not ours.
fn namespace_in<'k>(keys: &'k Keys, cluster: Option<&str>) -> Option<&'k str> {
    let is_ours = keys.get(CLUSTER).is_none_or(|noted| cluster.is_none_or(|own| own == noted));
    let (namespace, _) = [CLAIM, SNAPSHOT, GROUP].iter().find_map(|key| keys.get(*key))?.split_once('/')?;
    (is_ours && namespace.len() <= LONGEST_NAMESPACE && is_object_name(namespace)).then_some(namespace)
}

/// For what a snapshot was taken.
#[derive(Clone, Copy, Debug)]
pub enum TakenFor<'a> {
    /// A VolumeSnapshot.
    Snapshot(&'a Reference),
    /// A VolumeGroupSnapshot.
    Group(&'a Reference),
}

/// Notes on `taken` whose it is: it outlives its source. One that has a note keeps it.
pub async fn note_snapshot(context: &Context, owner: TakenFor<'_>, taken: &Snapshot) {
    if let Err(failure) = try_to_note(context, owner, taken).await {
        debug!(snapshot = %taken.snapshot, "whose the snapshot is has not been noted: {failure}");
    }
}

async fn try_to_note(context: &Context, owner: TakenFor<'_>, taken: &Snapshot) -> Result<(), Failure> {
    if !matches!(noted(context, &taken.snapshot).await?, Noted::Nothing) || !context.volumes.keep_owners().await? {
        return Ok(());
    }
    let cluster = context.cluster().await?.unwrap_or_default();
    let source = noted(context, &taken.origin.source).await?;
    let of_source = if let Noted::Says(keys) = &source { namespace_in(keys, Some(cluster)) } else { None };
    let (owner, name_key, uid_key) = match owner {
        TakenFor::Snapshot(owner) => (owner, SNAPSHOT, SNAPSHOT_UID),
        TakenFor::Group(owner) => (owner, GROUP, GROUP_UID),
    };
    let full_name = format!("{}/{}", of_source.unwrap_or(&owner.namespace), owner.name);
    let uid = owner.uid.as_deref().unwrap_or_default();
    let keys = [(name_key, full_name.as_str()), (uid_key, uid), (CLUSTER, cluster)];
    let Ok(record) = owner::write(keys) else { return Ok(()) };
    Ok(context.volumes.record_owner(taken.snapshot.clone(), record).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_believed_only_as_a_name_in_this_cluster() {
        let keys = |pairs: &[(&str, &str)]| -> Keys {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let of = |pairs: &[(&str, &str)]| namespace_in(&keys(pairs), Some("c")).map(str::to_owned);
        assert_eq!(of(&[(CLAIM, "shop/data"), (CLUSTER, "c")]).as_deref(), Some("shop"));
        assert_eq!(of(&[(SNAPSHOT, "shop/monday")]).as_deref(), Some("shop"));
        assert_eq!(of(&[(GROUP, "shop/evening")]).as_deref(), Some("shop"));
        let long = format!("{}/data", "n".repeat(64));
        for pairs in [
            &[(CLAIM, "shop/data"), (CLUSTER, "d")][..],
            &[(CLAIM, "shop")],
            &[(CLAIM, "(others)/data")],
            &[(CLAIM, "/data")],
            &[(CLAIM, &long)],
            &[],
        ] {
            assert_eq!(of(pairs), None, "{pairs:?}");
        }
    }
}
