//! Snapshots take what was written to their volume, which nobody knows before one is taken: more is reserved where there is
//! room for more, and one that turns out to be too large goes again.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Snapshot, VolumeId};
use tracing::info;

use super::charge::{refused, settled};
use super::read;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::ledger::{OverShare, Reservation};
use crate::volumes::{Cost, Told};

/// What is reserved for a snapshot while it is taken.
pub struct Charge {
    reservation: Reservation,
    namespace: String,
    source: VolumeId,
    bytes: u64,
    /// What was told of its pool.
    told: Told,
    /// Whether it was there before, or may have been.
    may_exist: bool,
}

impl Charge {
    /// Why `taken`, for which it is, may not stay, if that is so.
    fn over(&self, context: &Context, taken: &Snapshot) -> Option<OverShare> {
        let cost = Cost::from(taken);
        let is_fresh = !self.may_exist && cost.bytes > self.bytes;
        is_fresh.then(|| context.ledger.check(&self.namespace, &taken.snapshot, &cost, self.told).err()).flatten()
    }
}

/// Reserves room for a snapshot of `volume`, which is to have the id `snapshot`. It is charged to whoever has the volume, and
/// to `namespace` if that is not known. Nothing is reserved where there are no limits.
///
/// # Errors
/// [`Failure::OverShare`] when the namespace would have more than its share.
pub async fn charge_snapshot(
    context: &Context,
    namespace: &str,
    volume: &VolumeId,
    snapshot: &VolumeId,
) -> Result<Option<Charge>, Failure> {
    if context.ledger.limits().is_none() {
        return Ok(None);
    }
    // One that is there is never undone, and takes what it takes.
    let (may_exist, cost) = match context.volumes.cost_of(snapshot).await {
        Ok(cost) => (true, cost),
        Err(fault) if fault.is(ErrorKind::NotFound) => (false, context.volumes.cost_of_snapshot(volume).await?),
        // It may be in a pool that is not served.
        Err(fault) if fault.is(ErrorKind::PoolBroken) => (true, context.volumes.cost_of_snapshot(volume).await?),
        Err(fault) => return Err(fault.into()),
    };
    let told = read::told(context, &cost.pool).await?;
    let owner = context.ledger.namespace_of(volume);
    let namespace = owner.as_deref().unwrap_or(namespace).to_owned();
    let reserved = context.ledger.reserve_snapshot(&namespace, (volume, snapshot), cost, told);
    let (reservation, bytes) = reserved.map_err(|over| refused("snapshot", over))?;
    Ok(Some(Charge { reservation, namespace, source: volume.clone(), bytes, told, may_exist }))
}

/// Enters what snapshots that were taken together take, or deletes them all if one is more than its namespace may have.
///
/// # Errors
/// When they could not be taken, and [`Failure::OverShare`] when one was too large.
pub async fn settle_snapshots(
    context: &Context,
    charges: Vec<Charge>,
    taken: Result<Vec<Snapshot>, Fault>,
) -> Result<Vec<Snapshot>, Failure> {
    let taken = match taken {
        Ok(taken) => taken,
        Err(fault) => {
            for charge in charges {
                let _ = settled(Some(charge.reservation), Err::<(), _>(fault.clone()));
            }
            return Err(fault.into());
        }
    };
    let of = |charge: &Charge| taken.iter().find(|taken| taken.origin.source == charge.source);
    let keep_all = |charges: Vec<Charge>| {
        for charge in charges {
            let cost = of(&charge).map(Cost::from);
            charge.reservation.keep(cost);
        }
    };
    // Until that is decided, what is reserved counts, and not what a reading of the ledger may have found meanwhile.
    let over = charges.iter().find_map(|charge| Some((charge, of(charge)?, charge.over(context, of(charge)?)?)));
    let Some((charge, too_large, over)) = over else {
        keep_all(charges);
        return Ok(taken);
    };
    context.ledger.was_too_large(&charge.source, Cost::from(too_large).bytes);
    info!(snapshot = %too_large.snapshot, volume = %charge.source, "the snapshot was too large, and is deleted: {over}");
    for taken in &taken {
        if let Err(fault) = context.volumes.delete_snapshot(taken.snapshot.clone()).await {
            keep_all(charges);
            return Err(fault.into());
        }
    }
    drop(charges);
    taken.iter().for_each(|taken| context.ledger.forget(&taken.snapshot));
    Err(refused("snapshot", over))
}
