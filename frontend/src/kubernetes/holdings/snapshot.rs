//! Snapshots take what was written to their volume, which nobody knows before one is taken: more is reserved where there is
//! room for more, and one that turns out to be too large goes again.

use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::{Fault, identify};
use bulkhead_protocol::{ErrorKind, Snapshot, VolumeId};
use tracing::info;

use super::charge::{refused, settled};
use super::read;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::ledger::Reservation;
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

/// Reserves room for a snapshot of `volume`, which is to be called `name`. It is charged to whoever has the volume. Nothing
/// is reserved where there are no limits.
///
/// # Errors
/// [`Failure::OverShare`] when the namespace would have more than its share.
pub async fn charge_snapshot(
    context: &Context,
    content: &VolumeSnapshotContent,
    volume: &VolumeId,
    name: &str,
) -> Result<Option<Charge>, Failure> {
    if context.ledger.limits().is_none() {
        return Ok(None);
    }
    let snapshot = identify(name)?.0;
    // One that is there is never undone, and takes what it takes.
    let (may_exist, cost) = match context.volumes.cost_of(&snapshot).await {
        Ok(cost) => (true, cost),
        Err(fault) if fault.is(ErrorKind::NotFound) => (false, context.volumes.cost_of_snapshot(volume).await?),
        // It may be in a pool that is not served.
        Err(fault) if fault.is(ErrorKind::PoolBroken) => (true, context.volumes.cost_of_snapshot(volume).await?),
        Err(fault) => return Err(fault.into()),
    };
    let told = read::told(context, &cost.pool).await?;
    let owner = context.ledger.namespace_of(volume);
    let namespace = owner.as_deref().unwrap_or(&content.spec.volume_snapshot_ref.namespace).to_owned();
    let reserved = context.ledger.reserve_snapshot(&namespace, (volume, &snapshot), cost, told);
    let (reservation, bytes) = reserved.map_err(|over| refused("snapshot", over))?;
    Ok(Some(Charge { reservation, namespace, source: volume.clone(), bytes, told, may_exist }))
}

/// Enters what a snapshot takes once it has been taken, or deletes it if that is more than its namespace may have.
///
/// # Errors
/// When it could not be taken, and [`Failure::OverShare`] when it was too large.
pub async fn settle_snapshot(
    context: &Context,
    charge: Option<Charge>,
    taken: Result<Snapshot, Fault>,
) -> Result<Snapshot, Failure> {
    let Some(Charge { reservation, namespace, source, bytes, told, may_exist }) = charge else { return Ok(taken?) };
    let taken = match taken {
        Ok(taken) => taken,
        Err(fault) => return Ok(settled(Some(reservation), Err(fault))?),
    };
    let cost = Cost::from(&taken);
    // Until that is decided, what is reserved counts, and not what a reading of the ledger may have found meanwhile.
    let is_fresh = !may_exist && cost.bytes > bytes;
    let over = is_fresh.then(|| context.ledger.check(&namespace, &taken.snapshot, &cost, told).err()).flatten();
    let Some(over) = over else {
        reservation.keep(Some(cost));
        return Ok(taken);
    };
    context.ledger.was_too_large(&source, cost.bytes);
    if let Err(fault) = context.volumes.delete_snapshot(taken.snapshot.clone()).await {
        reservation.keep(Some(cost));
        return Err(fault.into());
    }
    drop(reservation);
    context.ledger.forget(&taken.snapshot);
    info!(snapshot = %taken.snapshot, volume = %source, "the snapshot was too large, and is deleted: {over}");
    Err(refused("snapshot", over))
}
