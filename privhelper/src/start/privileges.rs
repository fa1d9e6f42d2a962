//! Step 6 of the helper's life: everything that serving does not need is dropped.

use caps::{CapSet, Capability, CapsHashSet};
use rustix::process::{DumpableBehavior, Gid, Uid};
use rustix::thread::CapabilitiesSecureBits;

use super::refusal::{Refusal, Why};
pub use crate::capabilities::{EMPTIER, KEEPER, MOUNTER, PLACER};
use crate::sys::{Called, Errno, Result as SysResult};

const SECURE_BITS: CapabilitiesSecureBits = CapabilitiesSecureBits::NO_ROOT
    .union(CapabilitiesSecureBits::NO_ROOT_LOCKED)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP)
    .union(CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED)
    .union(CapabilitiesSecureBits::KEEP_CAPS_LOCKED)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE)
    .union(CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED);

/// Leaves the calling thread the permitted capabilities in `keep` and no way to gain any other, and verifies that.
/// Threads that it starts later inherit all of this.
///
/// # Errors
/// A sentence on what could not be dropped, or is still there.
pub fn drop_all_but(keep: &[Capability]) -> Result<(), Refusal> {
    drop_now(keep).map_err(|error| format!("cannot drop privileges: {error}"))?;
    let unlike = |what| format!("refusing to serve: {what} are not as required after the drop");
    verify(keep).map_err(|what| Why::NotConfined.because(unlike(what)))
}

/// The proof that a process has no capability any more: what only the keeper does asks for it.
#[derive(Debug)]
pub struct Unprivileged(());

#[cfg(test)]
impl Unprivileged {
    /// Tests run whatever they have.
    pub fn in_a_test() -> Self {
        Self(())
    }
}

/// Leaves the calling thread no capability, as [`drop_all_but`].
///
/// # Errors
/// A sentence on what could not be dropped, or is still there.
pub fn drop_all() -> Result<Unprivileged, Refusal> {
    drop_all_but(KEEPER).map(|()| Unprivileged(()))
}

/// Gives up what [`drop_all_but`] has left the calling thread.
///
/// # Errors
/// A sentence when that fails.
pub fn give_up() -> Result<Unprivileged, Refusal> {
    let clear = |set| caps::clear(None, set).map_err(|error| format!("cannot give up capabilities: {error}"));
    clear(CapSet::Effective).and_then(|()| clear(CapSet::Permitted))?;
    Ok(Unprivileged(()))
}

/// Makes the process another user's, in no group but one with the same number, and without any group besides. It keeps the
/// capabilities that are permitted, and they stay effective. It does not die with its parent any more, which may not signal
/// it: it has to end by itself when their connection is closed.
///
/// # Errors
/// A sentence on what failed.
pub fn become_user(user: u32) -> Result<(), Refusal> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    let become_user = || -> SysResult<()> {
        rustix::thread::set_keep_capabilities(true).by("PR_SET_KEEPCAPS")?;
        rustix::thread::set_thread_groups(&[]).by("setgroups")?;
        rustix::thread::set_thread_res_gid(gid, gid, gid).by("setresgid")?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).by("setresuid")?;
        let permitted = caps::read(None, CapSet::Permitted).map_err(|_| Errno::PERM).by("capget")?;
        caps::set(None, CapSet::Effective, &permitted).map_err(|_| Errno::PERM).by("capset")
    };
    Ok(become_user().map_err(|error| {
        format!("cannot become user {user}: {error}; that takes CAP_SETUID and CAP_SETGID at start")
    })?)
}

/// Bounding, ambient and inheritable sets empty, effective set empty, securebits locked, no_new_privs, not dumpable.
fn drop_now(keep: &[Capability]) -> SysResult<()> {
    let denied = |_| Errno::PERM;
    caps::clear(None, CapSet::Ambient).map_err(denied).by("PR_CAP_AMBIENT")?;
    // A service manager may already have cleared the bounding set, and SETPCAP with it: drop what is there.
    for capability in caps::read(None, CapSet::Bounding).map_err(denied).by("PR_CAPBSET_READ")? {
        caps::drop(None, CapSet::Bounding, capability).map_err(denied).by_with("PR_CAPBSET_DROP", capability)?;
    }
    if rustix::thread::capabilities_secure_bits().by("PR_GET_SECUREBITS")? != SECURE_BITS {
        rustix::thread::set_capabilities_secure_bits(SECURE_BITS).by("PR_SET_SECUREBITS")?;
    }
    caps::clear(None, CapSet::Inheritable).map_err(denied).by("capset")?;
    caps::clear(None, CapSet::Effective).map_err(denied).by("capset")?;
    caps::set(None, CapSet::Permitted, &keep.iter().copied().collect()).map_err(denied).by("capset")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).by("PR_SET_DUMPABLE")?;
    rustix::thread::set_no_new_privs(true).by("PR_SET_NO_NEW_PRIVS")
}

/// Whether the calling thread is exactly as [`drop_now`] leaves it; otherwise what differs.
fn verify(keep: &[Capability]) -> Result<(), &'static str> {
    let kept: CapsHashSet = keep.iter().copied().collect();
    let is = |set, wanted: &CapsHashSet| caps::read(None, set).is_ok_and(|found| found == *wanted);
    let none = CapsHashSet::new();
    let facts = [
        (is(CapSet::Permitted, &kept), "permitted capabilities"),
        (is(CapSet::Effective, &none), "effective capabilities"),
        (is(CapSet::Inheritable, &none), "inheritable capabilities"),
        (is(CapSet::Ambient, &none), "ambient capabilities"),
        (is(CapSet::Bounding, &none), "the capabilities of the bounding set"),
        (rustix::thread::capabilities_secure_bits() == Ok(SECURE_BITS), "securebits"),
        (rustix::thread::no_new_privs() == Ok(true), "the bits of no_new_privs"),
        (rustix::process::dumpable_behavior() == Ok(DumpableBehavior::NotDumpable), "the dumpable flags"),
    ];
    facts.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, what)| Err(*what))
}
