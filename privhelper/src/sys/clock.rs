//! The time of day.

use std::time::SystemTime;

use nix::libc;

/// The date and the time of day in UTC, as in RFC 3339.
pub fn now() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.as_secs().try_into().unwrap_or_default();
    // SAFETY: `struct tm` has integer fields and a pointer that may be null, for which all zeros are valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: the C library reads `seconds` and writes one `struct tm` to `tm`; both outlive the call.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut tm) };
    let (year, month, day) = (tm.tm_year.saturating_add(1900), tm.tm_mon.saturating_add(1), tm.tm_mday);
    let (hour, minute, second, milliseconds) = (tm.tm_hour, tm.tm_min, tm.tm_sec, now.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}
