//! Names from the helper's configuration: of the driver, of pools and of publish directories.

use crate::checked::checked_text;

checked_text!(
    /// The name of a pool: 1 to 63 bytes of `[a-z0-9-]`, with a letter or digit at both ends.
    PoolName,
    |text| is_name(text, b"-"),
    "a pool's name is 1 to 63 characters of a-z, 0-9 and '-', with a letter or digit at both ends"
);
checked_text!(
    /// The name of a publish directory, with the same rules as a pool's.
    PublishName,
    |text| is_name(text, b"-"),
    "a publish directory's name is 1 to 63 characters of a-z, 0-9 and '-', with a letter or digit at both ends"
);
checked_text!(
    /// The CSI plugin name (CSI 1.12, GetPluginInfo): 1 to 63 bytes of `[a-z0-9.-]`, with a letter or digit at both
    /// ends.
    DriverName,
    |text| is_name(text, b".-"),
    "a driver's name is 1 to 63 characters of a-z, 0-9, '-' and '.', with a letter or digit at both ends"
);

fn is_name(text: &str, also: &[u8]) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || also.contains(byte))
}
