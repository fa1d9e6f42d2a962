//! Reads fields of CSI's messages, and writes them.

use std::collections::BTreeMap;

use bulkhead_model::volumes::{Attributes, Fault, Parameters, SizeRange};

use crate::proto::csi::CapacityRange;

/// The maximum number of volumes or snapshots in a response, well below the 4 MiB that gRPC clients accept.
const LONGEST_PAGE: usize = 1000;

/// Returns a required field, which must not be empty.
pub(super) fn required<'a>(field: &str, text: &'a str) -> Result<&'a str, Fault> {
    if text.is_empty() { Err(Fault::invalid(format!("{field} is missing"))) } else { Ok(text) }
}

/// A number of bytes in CSI's signed type.
pub fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns how many entries of a list a client gets, which asks for this many at most; zero means that it does not
/// mind.
pub(super) fn page_size(max_entries: i32) -> Result<usize, Fault> {
    match usize::try_from(max_entries) {
        Ok(0) => Ok(LONGEST_PAGE),
        Ok(entries) => Ok(entries.min(LONGEST_PAGE)),
        Err(_) => Err(Fault::invalid(format!("max_entries is negative: {max_entries}"))),
    }
}

/// The sizes that a request allows; `None` if it says nothing about them.
///
/// # Errors
/// See [`SizeRange::new`].
pub(super) fn size_range(range: Option<CapacityRange>) -> Result<Option<SizeRange>, Fault> {
    range.map(|range| SizeRange::new(range.required_bytes, range.limit_bytes)).transpose()
}

/// The attributes in a request.
///
/// # Errors
/// See [`Attributes::parse`].
pub(super) fn attributes(pairs: &BTreeMap<String, String>) -> Result<Attributes, Fault> {
    Attributes::parse(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}

/// The parameters in a request.
///
/// # Errors
/// See [`Parameters::parse`].
pub(super) fn parameters(pairs: &BTreeMap<String, String>) -> Result<Parameters, Fault> {
    Parameters::parse(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())))
}
