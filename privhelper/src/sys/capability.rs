//! Capabilities (capabilities(7)), raised for one operation at a time.

use std::cell::Cell;

use caps::{CapSet, Capability};

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

/// The right to use one capability, for as long as the value lives.
#[derive(Debug)]
pub struct Raised {
    /// What to lower again; `None` if it was already raised.
    lower: Option<Capability>,
}

/// Raises a capability of the calling thread from permitted to effective. This is the only way to do so.
///
/// # Errors
/// `PERM` when the thread is not allowed to raise it, or it is not permitted.
pub fn raise(capability: Capability) -> Result<Raised> {
    let denied = |_| Errno::PERM;
    let mut effective = caps::read(None, CapSet::Effective).map_err(denied).by("capget")?;
    if !effective.insert(capability) {
        // Already raised; during startup all are.
        return Ok(Raised { lower: None });
    }
    if !ALLOWED.get().contains(&capability) {
        return Err(Errno::PERM).by_with("raise", capability);
    }
    caps::set(None, CapSet::Effective, &effective).map_err(denied).by_with("capset", capability)?;
    Ok(Raised { lower: Some(capability) })
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(capability) = self.lower
            && caps::drop(None, CapSet::Effective, capability).is_err()
        {
            // The thread would keep it for every request that follows. Lowering needs no privilege, so this is no time
            // to find out what else fails.
            crate::log::last_words("the helper exits: a capability cannot be lowered again");
            std::process::exit(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_allowed_cannot_be_raised() {
        // A thread of its own: its sets are lowered for good.
        let thread = std::thread::spawn(|| {
            caps::clear(None, CapSet::Effective).expect("lowering needs no privilege");
            assert_eq!(
                raise(Capability::CAP_SYS_ADMIN).err().map(|error| error.errno),
                Some(Errno::PERM),
                "nothing is allowed"
            );
            let allowed = allow(&[Capability::CAP_MKNOD]);
            assert_eq!(
                raise(Capability::CAP_SYS_ADMIN).err().map(|error| error.errno),
                Some(Errno::PERM),
                "something else is allowed"
            );
            drop(allowed);
            assert_eq!(
                raise(Capability::CAP_MKNOD).err().map(|error| error.errno),
                Some(Errno::PERM),
                "it is not allowed any more"
            );
        });
        thread.join().expect("the thread ends well");
    }
}
