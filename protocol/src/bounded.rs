//! Sequences and texts with a fixed bound.
//!
//! A length in a packet must never decide an allocation: serde's own `Vec` would reserve up to a mebibyte for a length
//! claimed in twelve bytes. Here memory grows only with the elements that were actually read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Invalid;
use crate::checked::checked_text;

const TOO_MANY: Invalid = Invalid("there are more values than the bound allows");

/// At most `N` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpTo<T, const N: usize>(Vec<T>);

impl<T, const N: usize> UpTo<T, N> {
    /// The values.
    pub fn as_slice(&self) -> &[T] {
        &self.0
    }

    /// The values, by value.
    pub fn into_vec(self) -> Vec<T> {
        self.0
    }

    /// Others in their places.
    #[must_use]
    pub fn map(self, change: impl FnMut(T) -> T) -> Self {
        Self(self.0.into_iter().map(change).collect())
    }
}

impl<T, const N: usize> Default for UpTo<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const N: usize> TryFrom<Vec<T>> for UpTo<T, N> {
    type Error = Invalid;

    fn try_from(values: Vec<T>) -> Result<Self, Invalid> {
        if values.len() <= N { Ok(Self(values)) } else { Err(TOO_MANY) }
    }
}

impl<T: Serialize, const N: usize> Serialize for UpTo<T, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for UpTo<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const N: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Elements<T, N> {
            type Value = UpTo<T, N>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(out, "at most {N} values")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = sequence.next_element()? {
                    if values.len() == N {
                        return Err(A::Error::custom(TOO_MANY));
                    }
                    values.push(value);
                }
                Ok(UpTo(values))
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

checked_text!(
    /// A text of at most 512 bytes.
    Text,
    |text: &str| text.len() <= Text::MAX_LENGTH,
    "a text is at most 512 bytes long"
);

impl Text {
    /// The longest text in bytes.
    pub const MAX_LENGTH: usize = 512;

    /// `text`, cut at a character's boundary if it is too long.
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(Self::MAX_LENGTH));
        Self(text.into())
    }
}
