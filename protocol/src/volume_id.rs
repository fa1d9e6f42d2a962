//! The volume id: the one name that travels from a CSI call to a directory entry in a pool.

use crate::checked::checked_text;

checked_text!(
    /// The id of a volume: `^[a-z][a-z0-9-.]{0,128}[a-z0-9]$`, so 2 to 130 bytes of ASCII.
    ///
    /// It is safe as a single path component: it is not empty, has no slash, does not begin with a dot and is shorter
    /// than `NAME_MAX`. No value of this type can exist that does not match.
    VolumeId,
    matches,
    "a volume id is 2 to 130 characters of a-z, 0-9, '-' and '.', begins with a letter and ends with a letter or digit"
);

/// The pattern above, by hand, since a regular expression engine has no place in a privileged process.
fn matches(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase();
    let end = |byte: u8| letter(byte) || byte.is_ascii_digit();
    match text.as_bytes() {
        [first, middle @ .., last] => {
            let inner = |byte: &u8| end(*byte) || matches!(byte, b'-' | b'.');
            middle.len() <= 128 && letter(*first) && middle.iter().all(inner) && end(*last)
        }
        _ => false,
    }
}
