//! Charging: whoever makes, grows or changes something for a namespace reserves room for it first.

use bulkhead_model::volumes::{Attributes, Fault, Outlook, SizeRange, identify};
use bulkhead_protocol::VolumeId;

use super::read;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::ledger::{OverShare, Reservation};
use crate::metrics::METRICS;
use crate::volumes::{Cost, NewVolume};

/// Reserves what `volume` of `namespace` is going to take, for something of this `kind`, as it is called in metrics. Where
/// there are no limits, nothing is asked or reserved.
///
/// # Errors
/// [`Failure::OverShare`] when the namespace would have more than its share.
async fn charge(
    context: &Context,
    kind: &'static str,
    namespace: &str,
    volume: &VolumeId,
    cost: impl Future<Output = Result<Cost, Fault>>,
) -> Result<Option<Reservation>, Failure> {
    if context.ledger.limits().is_none() {
        return Ok(None);
    }
    let cost = cost.await?;
    let told = read::told(context, &cost.pool).await?;
    context.ledger.reserve(namespace, volume, cost, told).map(Some).map_err(|over| refused(kind, over))
}

/// Counts a refusal for something of this `kind`.
pub(super) fn refused(kind: &'static str, over: OverShare) -> Failure {
    METRICS.namespace_refusals.with([kind]).inc();
    Failure::OverShare(over.to_string())
}

/// Reserves room for the volume `new` of a claim in `namespace`.
///
/// # Errors
/// As [`charge`].
pub async fn charge_claim(context: &Context, namespace: &str, new: &NewVolume) -> Result<Option<Reservation>, Failure> {
    charge(context, "volume", namespace, &identify(&new.name)?.0, context.volumes.cost(new)).await
}

/// Returns why `namespace` may not have the volume `new` on this node, if it may not.
///
/// # Errors
/// When that cannot be found out.
pub async fn objection(context: &Context, namespace: &str, new: &NewVolume) -> Result<Option<OverShare>, Failure> {
    if context.ledger.limits().is_none() {
        return Ok(None);
    }
    let cost = context.volumes.cost(new).await?;
    let told = read::told(context, &cost.pool).await?;
    Ok(context.ledger.check(namespace, &identify(&new.name)?.0, &cost, told).err())
}

/// Reserves room for `volume` of a claim in `namespace` to grow to a size in `range`.
///
/// # Errors
/// As [`charge`].
pub async fn charge_growth(
    context: &Context,
    namespace: &str,
    volume: &VolumeId,
    range: SizeRange,
) -> Result<Option<Reservation>, Failure> {
    charge(context, "growth", namespace, volume, context.volumes.cost_of_growth(volume, range)).await
}

/// Reserves room for `volume` of a claim in `namespace` to have `attributes`.
///
/// # Errors
/// As [`charge`].
pub async fn charge_attributes(
    context: &Context,
    namespace: &str,
    volume: &VolumeId,
    attributes: &Attributes,
) -> Result<Option<Reservation>, Failure> {
    charge(context, "growth", namespace, volume, context.volumes.cost_of_attributes(volume, attributes)).await
}

/// Settles a reservation once it is known what has become of what it was for. What may have been made counts until it is
/// seen that it was not.
pub fn settled<T>(reservation: Option<Reservation>, outcome: Result<T, Fault>) -> Result<T, Fault> {
    let may_be_made = outcome.as_ref().err().is_none_or(|fault| fault.outlook() == Outlook::Open);
    if let Some(reservation) = reservation.filter(|_| may_be_made) {
        reservation.keep(None);
    }
    outcome
}
