//! How values are shown to people.

use std::fmt;

use crate::{CodecError, TargetPath};

impl fmt::Display for CodecError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::TooLong => "the packet is longer than 4096 bytes",
            Self::Malformed => "the packet is cut off or malformed",
            Self::TrailingBytes => "the packet has bytes left over after the value",
        })
    }
}

impl std::error::Error for CodecError {}

impl fmt::Display for TargetPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.directory, self.path)
    }
}
