//! What is recorded on the files of a pool, by way of the placer.

use std::sync::Arc;

use bulkhead_protocol::PoolName;

use super::Placer;
use crate::place::attributes::{Attribute, Part};
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

    /// Reads one; `None` if there is none.
    pub fn read(&self, part: Part, attribute: Attribute) -> SysResult<Option<Vec<u8>>> {
        self.placer.attribute(&self.pool, part, attribute)
    }

    /// Writes one.
    pub fn write(&self, part: Part, attribute: Attribute, value: &[u8]) -> SysResult<()> {
        self.placer.set_attribute(&self.pool, part, attribute, value)
    }
}
