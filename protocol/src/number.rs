//! The one way in for numbers from outside, as [`crate::checked`] is for texts.

/// Defines a type for the numbers for which `$matches` holds.
macro_rules! checked_number {
    ($(#[$doc:meta])* $type:ident($number:ident = $named:literal), $matches:expr, $format:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = $named)]
        pub struct $type($number);

        impl $type {
            /// The number.
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl TryFrom<$number> for $type {
            type Error = $crate::Invalid;

            fn try_from(number: $number) -> Result<Self, $crate::Invalid> {
                if $matches(number) { Ok(Self(number)) } else { Err($crate::Invalid($what)) }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(out, $format, self.0)
            }
        }
    };
}

pub(crate) use checked_number;
