//! SHA-256, as `sha256sum` writes it.

use sha2::{Digest, Sha256};

/// The checksum in hexadecimal digits.
pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
