//! Random numbers.

use super::{Called, Result};

/// A random number.
pub fn number() -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).by("getrandom")?;
    Ok(u32::from_ne_bytes(bytes))
}
