//! Locks of volumes and targets: a second operation on one of them is answered `Busy`, all others never wait.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bulkhead_protocol::{Error, ErrorKind, TargetPath, VolumeId};

use super::lock;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Volume(VolumeId),
    Target(TargetPath),
}

/// What operations are under way.
#[derive(Debug, Default)]
pub struct Claims(Mutex<BTreeSet<Claim>>);

/// The sole right to work on a volume and perhaps a target, until it is dropped.
#[derive(Debug)]
pub struct Claimed<'a> {
    claims: &'a Claims,
    held: Vec<Claim>,
}

impl Claims {
    /// Claims a volume, and the target if there is one.
    ///
    /// # Errors
    /// `Busy` when another operation holds either.
    pub fn claim(&self, volume: &VolumeId, target: Option<&TargetPath>) -> Result<Claimed<'_>, Error> {
        let mut claimed = Claimed { claims: self, held: Vec::with_capacity(2) };
        claimed.take(Claim::Volume(volume.clone()), "volume", volume)?;
        if let Some(target) = target {
            claimed.take(Claim::Target(target.clone()), "target", target)?;
        }
        Ok(claimed)
    }
}

impl Claimed<'_> {
    fn take(&mut self, claim: Claim, what: &str, name: impl std::fmt::Display) -> Result<(), Error> {
        if !lock(&self.claims.0).insert(claim.clone()) {
            let message = format!("another operation on {what} {name} is under way; try again");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        self.held.push(claim);
        Ok(())
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        let mut claims = lock(&self.claims.0);
        for claim in &self.held {
            claims.remove(claim);
        }
    }
}
