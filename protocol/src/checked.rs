//! The one way in for values from outside: a private field, a check, and decoding that uses the check.

use std::fmt;

/// A value that its type does not allow; the text says what is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid(pub(crate) &'static str);

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl std::error::Error for Invalid {}

/// Writes a text that may come from anybody: control characters, and others that cannot be seen, are escaped, so that
/// nothing can be made to look like another line of a log.
pub(crate) fn show(text: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    for character in text.chars() {
        if matches!(character, '"' | '\'') {
            write!(out, "{character}")?;
        } else {
            write!(out, "{}", character.escape_debug())?;
        }
    }
    Ok(())
}

/// Defines a type for the texts for which `$matches` holds. A clone shares the text.
macro_rules! checked_text {
    ($(#[$doc:meta])* $type:ident, $matches:expr, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String")]
        pub struct $type(std::sync::Arc<str>);

        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = $crate::Invalid;

            fn try_from(text: String) -> Result<Self, $crate::Invalid> {
                if $matches(&text) { Ok(Self(text.into())) } else { Err($crate::Invalid($what)) }
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Invalid;

            fn from_str(text: &str) -> Result<Self, $crate::Invalid> {
                text.to_owned().try_into()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::checked::show(&self.0, out)
            }
        }
    };
}

pub(crate) use checked_text;
