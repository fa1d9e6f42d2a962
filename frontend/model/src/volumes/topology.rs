//! The topology of volumes: each is on one node.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_protocol::DriverName;
use sha2::{Digest, Sha256};

use super::name::hexadecimal;

/// The maximum length of a topology segment's value (CSI, NodeGetInfo), the same as a Kubernetes label's.
const LONGEST_VALUE: usize = 63;

/// The one place where this node's volumes can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    key: String,
    value: String,
}

impl Place {
    /// The place of the node with this id.
    pub fn new(driver: &DriverName, node: &str) -> Self {
        let value = if is_label_value(node) { node.to_owned() } else { hexadecimal(&Sha256::digest(node)[..16]) };
        Self { key: format!("{driver}/node"), value }
    }

    /// The segment's key, also used for the labels that select Kubernetes objects.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The segment's value.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The place as topology segments.
    pub fn segments(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(self.key.clone(), self.value.clone())])
    }

    /// Returns whether `segments` name nothing but this place. Keys are compared case-insensitively.
    pub fn satisfies(&self, segments: &BTreeMap<String, String>) -> bool {
        segments.iter().all(|(key, value)| key.eq_ignore_ascii_case(&self.key) && *value == self.value)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.key, self.value)
    }
}

/// Returns whether `text` is a valid label value.
fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST_VALUE
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(node: &str) -> Place {
        Place::new(&"bulkhead.csi.local".parse().unwrap(), node)
    }

    fn segments(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_node_is_called_by_its_id() {
        assert_eq!(place("node-1").segments(), segments(&[("bulkhead.csi.local/node", "node-1")]));
    }

    #[test]
    fn an_id_that_is_no_label_value_becomes_a_hash() {
        for node in ["n".repeat(64).as_str(), "node/1", "-node", "größe"] {
            let value = place(node).value;
            assert!(value.len() == 32 && is_label_value(&value), "{value}");
        }
        assert_ne!(place(&"n".repeat(64)), place(&"n".repeat(65)));
        assert_eq!(place(&"n".repeat(63)).value.len(), 63);
    }

    #[test]
    fn places() {
        let here = place("node-1");
        assert!(here.satisfies(&here.segments()));
        assert!(here.satisfies(&segments(&[("Bulkhead.CSI.local/Node", "node-1")])));
        assert!(here.satisfies(&segments(&[])));
        assert!(!here.satisfies(&segments(&[("bulkhead.csi.local/node", "node-2")])));
        assert!(!here.satisfies(&segments(&[("bulkhead.csi.local/node", "node-1"), ("zone", "a")])));
    }
}
