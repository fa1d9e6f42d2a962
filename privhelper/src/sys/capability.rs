//! Capabilities (capabilities(7)): dropped once, then raised for one operation at a time.

use std::cell::Cell;

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitiesSecureBits;

use super::{Errno, Result};

thread_local! {
    /// What the thread may raise.
    static ALLOWED: Cell<&'static [Capability]> = const { Cell::new(&[]) };
}

/// The permission to raise some capabilities, for as long as the value lives.
#[derive(Debug)]
pub struct Allowed(());

/// Allows the calling thread to raise these capabilities, and no others.
pub fn allow(capabilities: &'static [Capability]) -> Allowed {
    ALLOWED.set(capabilities);
    Allowed(())
}

impl Drop for Allowed {
    fn drop(&mut self) {
        ALLOWED.set(&[]);
    }
}

/// The right to use one capability, for as long as the value lives.
#[derive(Debug)]
pub struct Raised {
    /// What to lower again; nothing if it was raised before.
    lower: Option<Capability>,
}

/// Raises a capability of the calling thread from permitted to effective. The only way to do so.
///
/// # Errors
/// `PERM` when the thread is not allowed to raise it, or it is not permitted.
pub fn raise(capability: Capability) -> Result<Raised> {
    let denied = |_| Errno::PERM;
    let mut effective = caps::read(None, CapSet::Effective).map_err(denied)?;
    if !effective.insert(capability) {
        // It is raised already; during the start all are.
        return Ok(Raised { lower: None });
    }
    if !ALLOWED.get().contains(&capability) {
        return Err(Errno::PERM);
    }
    caps::set(None, CapSet::Effective, &effective).map_err(denied)?;
    Ok(Raised { lower: Some(capability) })
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(capability) = self.lower {
            // Lowering an effective capability needs no privilege and cannot fail for the calling thread.
            let _ = caps::drop(None, CapSet::Effective, capability);
        }
    }
}

const SECURE_BITS: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Leaves the calling thread the permitted capabilities in `keep` and no way to any other: bounding, ambient and
/// inheritable sets empty, effective set empty, securebits locked, no_new_privs, not dumpable. Threads that it starts
/// later inherit all of it.
pub fn drop_all_but(keep: &[Capability]) -> Result<()> {
    let denied = |_| Errno::PERM;
    caps::clear(None, CapSet::Ambient).map_err(denied)?;
    // A service manager may have cleared the bounding set already, and taken SETPCAP with it: drop what is there.
    for capability in caps::read(None, CapSet::Bounding).map_err(denied)? {
        caps::drop(None, CapSet::Bounding, capability).map_err(denied)?;
    }
    if rustix::thread::capabilities_secure_bits()? != SECURE_BITS {
        rustix::thread::set_capabilities_secure_bits(SECURE_BITS)?;
    }
    caps::clear(None, CapSet::Inheritable).map_err(denied)?;
    caps::clear(None, CapSet::Effective).map_err(denied)?;
    caps::set(None, CapSet::Permitted, &keep.iter().copied().collect()).map_err(denied)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)
}

/// Whether the calling thread is exactly as [`drop_all_but`] leaves it; otherwise what differs.
pub fn verify_dropped(keep: &[Capability]) -> std::result::Result<(), &'static str> {
    let kept: CapsHashSet = keep.iter().copied().collect();
    let is = |set, wanted: &CapsHashSet| caps::read(None, set).is_ok_and(|found| found == *wanted);
    let none = CapsHashSet::new();
    let facts = [
        (is(CapSet::Permitted, &kept), "permitted capabilities"),
        (is(CapSet::Effective, &none), "effective capabilities"),
        (is(CapSet::Inheritable, &none), "inheritable capabilities"),
        (is(CapSet::Ambient, &none), "ambient capabilities"),
        (is(CapSet::Bounding, &none), "the capability bounding set"),
        (rustix::thread::capabilities_secure_bits() == Ok(SECURE_BITS), "securebits"),
        (rustix::thread::no_new_privs() == Ok(true), "no_new_privs"),
        (rustix::process::dumpable_behavior() == Ok(DumpableBehavior::NotDumpable), "the dumpable flag"),
    ];
    facts.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(*what))
}
