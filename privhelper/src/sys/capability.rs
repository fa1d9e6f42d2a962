//! Capabilities (capabilities(7)), raised for one call at a time.

use std::cell::Cell;

use caps::Capability;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Called, Errno, Result};

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

/// Makes a call with these capabilities raised from permitted to effective, and lowers them again before anything else is
/// done. This is the only way to raise any.
///
/// # Errors
/// The call's; `PERM` when the thread is not allowed to raise one, or it is not permitted.
pub fn with<T>(capabilities: &[Capability], call: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = rustix::thread::capabilities(None).by("capget")?;
    let wanted = capabilities.iter().map(|one| CapabilitySet::from_bits_retain(one.bitmask())).collect();
    if before.effective.contains(wanted) {
        // During startup all are.
        return call();
    }
    if !capabilities.iter().all(|one| ALLOWED.get().contains(one)) {
        return Err(Errno::PERM).by_with("raise", capabilities);
    }
    let raised = CapabilitySets { effective: before.effective | wanted, ..before };
    rustix::thread::set_capabilities(None, raised).by_with("capset", capabilities)?;
    let result = call();
    if rustix::thread::set_capabilities(None, before).is_err() {
        // The thread would keep them for every request that follows. Lowering needs no privilege, so this is no time to find
        // out what else fails.
        crate::log::last_words("the helper exits: a capability cannot be lowered again");
        std::process::exit(1);
    }
    result
}

/// Makes a call as it is and, where that is refused, again with these capabilities.
///
/// # Errors
/// As [`with`].
pub fn where_refused<T>(capabilities: &[Capability], call: impl Fn() -> Result<T>) -> Result<T> {
    match call() {
        Err(error) if [Errno::ACCESS, Errno::PERM].contains(&error.errno) => with(capabilities, call),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use caps::{CapSet, CapsHashSet};

    use super::*;

    /// Clears a set of a thread of its own, in which this is done.
    fn without<T: Send + 'static>(set: CapSet, does: impl FnOnce() -> T + Send + 'static) -> T {
        let thread = std::thread::spawn(move || {
            caps::clear(None, set).expect("lowering needs no privilege");
            does()
        });
        thread.join().expect("the thread ends well")
    }

    /// What is effective during a call with these.
    fn seen(capabilities: &[Capability]) -> std::result::Result<CapsHashSet, Errno> {
        with(capabilities, || Ok(caps::read(None, CapSet::Effective).expect("the thread's own")))
            .map_err(|error| error.errno)
    }

    #[test]
    fn what_is_not_allowed_cannot_be_raised() {
        without(CapSet::Effective, || {
            assert_eq!(seen(&[Capability::CAP_SYS_ADMIN]), Err(Errno::PERM), "nothing is allowed");
            let allowed = allow(&[Capability::CAP_MKNOD]);
            assert_eq!(seen(&[Capability::CAP_SYS_ADMIN]), Err(Errno::PERM), "something else is allowed");
            let both = [Capability::CAP_MKNOD, Capability::CAP_SYS_ADMIN];
            assert_eq!(seen(&both), Err(Errno::PERM), "one of them is not allowed");
            drop(allowed);
            assert_eq!(seen(&[Capability::CAP_MKNOD]), Err(Errno::PERM), "it is not allowed any more");
        });
    }

    #[test]
    fn what_is_raised_is_effective_during_the_call_only() {
        without(CapSet::Effective, || {
            let _allowed = allow(&[Capability::CAP_MKNOD, Capability::CAP_FOWNER]);
            let effective = || caps::read(None, CapSet::Effective).expect("the thread's own");
            let permitted = caps::read(None, CapSet::Permitted).expect("the thread's own");
            for wanted in [&[Capability::CAP_MKNOD][..], &[Capability::CAP_MKNOD, Capability::CAP_FOWNER]] {
                let raised: CapsHashSet = wanted.iter().copied().collect();
                // Who runs the tests may have none.
                let expected = if permitted.is_superset(&raised) { Ok(raised) } else { Err(Errno::PERM) };
                assert_eq!(seen(wanted), expected);
                assert!(effective().is_empty(), "lowered again");
                let failed = with(wanted, || Err::<(), _>(crate::sys::Error::of(Errno::XFULL)));
                assert!(failed.is_err() && effective().is_empty(), "after a failure too");
            }
        });
        without(CapSet::Permitted, || {
            let _allowed = allow(&[Capability::CAP_MKNOD]);
            assert_eq!(seen(&[Capability::CAP_MKNOD]), Err(Errno::PERM), "it is not permitted");
        });
    }
}
