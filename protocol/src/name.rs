//! Names that the helper's configuration gives: of the driver, of pools, of publish directories.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The text is no name of the wanted sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidName;

/// Whether `text` is 1 to 63 bytes of lower-case letters, digits and `also`, with a letter or digit at both ends.
fn is_name(text: &str, also: &[u8]) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || also.contains(byte))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $also:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<Self, InvalidName> {
                if is_name(&text, $also) { Ok(Self(text)) } else { Err(InvalidName) }
            }
        }

        impl std::str::FromStr for $type {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::try_from(text.to_owned())
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

name!(
    /// The name of a pool: 1 to 63 bytes of `[a-z0-9-]`, with a letter or digit at both ends.
    PoolName,
    b"-"
);
name!(
    /// The name of a publish directory: formed like a pool's.
    PublishName,
    b"-"
);
name!(
    /// The CSI plugin name (CSI 1.12, GetPluginInfo): 1 to 63 bytes of `[a-z0-9.-]`, with a letter or digit at both ends.
    DriverName,
    b".-"
);

impl fmt::Display for InvalidName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a name is 1 to 63 characters of a-z, 0-9 and '-' (a driver's also '.'), with a letter or digit at both ends")
    }
}

impl std::error::Error for InvalidName {}
