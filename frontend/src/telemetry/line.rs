//! What a line of the log may be, whoever its text comes from: one line, and no longer than others can bear.

use std::borrow::Cow;

use bulkhead_model::printable::printable;
use serde_json::{Map, Value};

use super::LogFormat;

/// The longest line, in bytes, with its line feed.
pub const LONGEST: usize = 4096;

/// The shortest texts that are still cut in a line of JSON.
const SHORTEST: usize = 16;

/// `line`, which the logger wrote in this format, as it goes into the log.
pub fn fit(format: LogFormat, line: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(line);
    let text = match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.strip_suffix('\n').unwrap_or(text)),
        Cow::Owned(mut text) => {
            text.truncate(text.trim_end_matches('\n').len());
            Cow::Owned(text)
        }
    };
    // JSON escapes line feeds itself.
    if format == LogFormat::Json && text.len() < LONGEST {
        return text;
    }
    let fitted = match format {
        LogFormat::Text => None,
        LogFormat::Json => serde_json::from_str(&text).ok().and_then(shortened),
    };
    match (fitted, text) {
        (Some(fitted), _) => Cow::Owned(fitted),
        (None, Cow::Borrowed(text)) => printable(text, LONGEST - 1),
        (None, Cow::Owned(text)) => Cow::Owned(printable(&text, LONGEST - 1).into_owned()),
    }
}

/// An event with its texts cut until it fits.
fn shortened(mut event: Map<String, Value>) -> Option<String> {
    let mut longest = LONGEST / 2;
    while longest >= SHORTEST {
        for text in event.values_mut() {
            if let Value::String(text) = text {
                *text = printable(text, longest).into_owned();
            }
        }
        let line = Value::from(event.clone()).to_string();
        if line.len() < LONGEST {
            return Some(line);
        }
        longest /= 2;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_one_line() {
        assert_eq!(fit(LogFormat::Text, b"a \"line\" reason=\"x\"\n"), "a \"line\" reason=\"x\"");
        let forged = "not provisioned: a\n2026-01-01T00:00:00Z  INFO all is well\n";
        assert_eq!(
            fit(LogFormat::Text, forged.as_bytes()),
            "not provisioned: a\\n2026-01-01T00:00:00Z  INFO all is well"
        );
        let long = fit(LogFormat::Text, "\n".repeat(150_000).as_bytes()).into_owned();
        assert!(long.len() < LONGEST && long.ends_with('…'), "{}", long.len());
        assert_eq!(fit(LogFormat::Text, b"\xff\xfe\n"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn json_that_is_too_long_is_still_json() {
        let event = json!({ "timestamp": "2026-01-01T00:00:00Z", "level": "WARN", "message": "a\n".repeat(100_000),
                            "name": "\u{1}".repeat(100_000), "number": 7 });
        let line = fit(LogFormat::Json, format!("{event}\n").as_bytes()).into_owned();
        assert!(line.len() < LONGEST && !line.contains('\n'), "{}", line.len());
        let kept: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&kept["level"], &kept["number"]), (&json!("WARN"), &json!(7)));
        assert!(kept["message"].as_str().unwrap().starts_with("a\\na\\n"), "{line}");
        let short = "{\"message\":\"a\\nb\"}";
        assert_eq!(fit(LogFormat::Json, format!("{short}\n").as_bytes()), short);
    }
}
