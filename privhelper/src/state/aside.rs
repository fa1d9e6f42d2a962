//! Deleting an entry of a pool: it is put aside, where the emptier finds it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Served, layout};
use crate::sys::{Error as SysError, Result as SysResult, walk};

/// The highest number in the name of a deleted volume.
#[derive(Debug, Default)]
pub struct DeletedNumbers(AtomicU64);

/// An entry that was put aside, where the emptier finds it: only [`Served::put_aside`] makes one, and nothing else lets the
/// row of a volume say that it is deleted.
#[derive(Debug)]
pub struct Aside {
    name: String,
    is_in_place: bool,
    synced: SysResult<()>,
}

impl DeletedNumbers {
    /// A number that no other deleted volume has in its name.
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Relaxed).saturating_add(1)
    }

    /// Records a number that was found in the name of a deleted volume at start.
    pub fn found(&self, number: u64) {
        self.0.fetch_max(number, Relaxed);
    }
}

impl Aside {
    /// The name that it has now.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether that is the name that it had: it is marked instead.
    pub fn is_in_place(&self) -> bool {
        self.is_in_place
    }

    /// Returns whether it is on disk: if not, a power cut can bring it back.
    pub fn synced(self) -> SysResult<()> {
        self.synced
    }
}

impl Served {
    /// Deletes an entry: renames it or, where that fails, marks it in its place. A name can need a block that a full
    /// pool does not have. From then on the emptier may find the entry.
    pub fn put_aside(&self, name: &str) -> SysResult<Aside> {
        let aside = layout::deleted_name(self.deleted_numbers.next(), name);
        match walk::rename_new(&self.directory, name, &self.directory, &aside) {
            Ok(()) => Ok(Aside { name: aside, is_in_place: false, synced: self.sync_names() }),
            Err(error) => {
                let in_place = || {
                    let volume = layout::open_volume(&self.directory, name)?;
                    layout::delete_in_place(&volume)?;
                    let synced = self.noting_failure(self.sync(volume));
                    Ok(Aside { name: name.to_owned(), is_in_place: true, synced })
                };
                in_place().map_err(|_: SysError| error)
            }
        }
    }
}

#[cfg(test)]
pub mod testing {
    use super::*;

    /// What would have been put aside under this name.
    pub fn aside(name: &str) -> Aside {
        Aside { name: name.to_owned(), is_in_place: false, synced: Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_used_that_was_found_at_start() {
        let numbers = DeletedNumbers::default();
        [7, 0, 3].into_iter().for_each(|found| numbers.found(found));
        assert_eq!([numbers.next(), numbers.next()], [8, 9]);
    }
}
