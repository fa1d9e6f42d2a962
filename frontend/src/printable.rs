//! Text of others, made fit to be shown: nothing in it can forge another line, move the cursor, hide what follows, or
//! take more room than it is given.

use std::borrow::Cow;
use std::fmt::Write;

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
        match character {
            '\\' | '"' | '\'' => shown.push(character),
            // Writing to a text cannot fail.
            _ => _ = write!(shown, "{}", character.escape_debug()),
        }
        if shown.len() > longest {
            shown.truncate(fits);
            shown.push_str(REST);
            break;
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_seen_stays_as_it_is() {
        for text in ["", "a \"quoted\" C:\\path, 'too'", "Größe: 5 €, 容量"] {
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
}
