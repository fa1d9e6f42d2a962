//! What namespaces take of this node, found by asking the helper and charged before anything is made.

mod charge;
mod read;
mod report;
mod snapshot;

pub use charge::{charge_attributes, charge_claim, charge_growth, objection, settled};
pub use read::{TakenFor, note_snapshot};
pub use report::run;
pub use snapshot::{charge_snapshot, settle_snapshots};
