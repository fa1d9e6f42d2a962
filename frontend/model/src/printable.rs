//! Text of others, made fit to be shown: nothing in it can forge another line, move the cursor, hide what follows, or
//! take more room than it is given.
//!
//! Whoever may create a claim chooses names, labels, annotations and parts of the API server's messages. A terminal
//! obeys control characters in them, reorders text at marks that nobody sees, and a line break begins a row that looks
//! like one of ours. So whatever the tools print and the frontend logs passes through here.

use std::borrow::Cow;
use std::fmt::Write;

/// The longest cell of a table, in bytes. `NAMESPACE/NAME` of any object fits: 63 characters, a slash and 253.
pub const CELL: usize = 320;

/// The longest message, in bytes.
pub const MESSAGE: usize = 4096;

/// What stands for the rest of a text that is too long.
const REST: &str = "…";

/// `text` in at most `longest` bytes (but at least three). Characters that have no shape of their own, such as line
/// feeds and those that control a terminal or the direction of writing, are escaped.
pub fn printable(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len().min(longest));
    // Where to cut if more follows than there is room for.
    let mut fits = 0;
    for character in text.chars() {
        if shown.len() + REST.len() <= longest {
            fits = shown.len();
        }
        if is_seen(character) {
            shown.push(character);
        } else {
            // Writing to a text cannot fail.
            _ = write!(shown, "{}", character.escape_debug());
        }
        if shown.len() > longest {
            shown.truncate(fits);
            shown.push_str(REST);
            break;
        }
    }
    Cow::Owned(shown)
}

/// Returns whether `character` stands for itself on a terminal. Quotes do, though Rust's own escaping means them as
/// well.
fn is_seen(character: char) -> bool {
    matches!(character, '"' | '\'' | '\\') || character.escape_debug().len() == 1
}

/// JSON in which each character that cannot be seen is an escape sequence. To a reader of JSON it is the same text.
pub fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        let mut units = [0; 2];
        // Outside of strings, JSON has nothing but line breaks that could not be seen.
        if is_seen(character) || character == '\n' {
            shown.push(character);
        } else {
            shown.extend(character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_stays_as_it_is() {
        for text in ["", "pvc-1", "a \"quoted\" C:\\path, 'too'", "Größe: 5 €, 容量"] {
            assert_eq!(printable(text, 100), text);
        }
    }

    #[test]
    fn what_cannot_be_seen_is_escaped() {
        let hostile = "a\nb\r\t\0\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{2028}\u{feff}c";
        assert_eq!(printable(hostile, 100), "a\\nb\\r\\t\\0\\u{1b}[2J\\u{7f}\\u{9b}\\u{202e}\\u{2028}\\u{feff}c");
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        assert_eq!(printable("0123456789", 10), "0123456789");
        assert_eq!(printable("0123456789x", 10), "0123456…");
        assert_eq!(printable("€€€€", 10), "€€…");
        assert_eq!(printable("01234\n\n\n", 10), "01234\\n…");
        for longest in 3..40 {
            let shown = printable("\u{1b}\u{1b}é\n\u{202e}0123456789€€€€", longest);
            assert!(shown.len() <= longest && shown.ends_with('…'), "{longest}: {shown}");
        }
    }

    #[test]
    fn json_is_seen_whole_and_read_as_it_was() {
        let hostile = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\u{e0041}\"\\";
        let value = serde_json::json!({ hostile: [hostile, 1, {}], "empty": [] });
        let written = visible_json(&format!("{value:#}"));
        assert!(written.chars().all(|character| is_seen(character) || character == '\n'), "{written}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
        assert_eq!(written.lines().count(), format!("{value:#}").lines().count());
    }
}
