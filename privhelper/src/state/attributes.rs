//! What is recorded on the files of a pool, by way of the placer.

use std::sync::Arc;

use bulkhead_protocol::PoolName;

use super::Placer;
use crate::place::attributes::Attribute;
use crate::sys::Result as SysResult;

/// The attributes of a pool's files.
#[derive(Clone, Debug)]
pub struct Attributes {
    placer: Arc<Placer>,
    pool: PoolName,
}

impl Attributes {
    /// Those of this pool.
    pub fn new(placer: Arc<Placer>, pool: PoolName) -> Self {
        Self { placer, pool }
    }

    /// Reads one of an entry; `None` if there is none. Those of the marker are of no entry.
    pub fn read(&self, entry: &str, attribute: Attribute) -> SysResult<Option<Vec<u8>>> {
        self.placer.attribute(&self.pool, entry, attribute)
    }

    /// Writes one of an entry.
    pub fn write(&self, entry: &str, attribute: Attribute, value: &[u8]) -> SysResult<()> {
        self.placer.set_attribute(&self.pool, entry, attribute, value)
    }
}
