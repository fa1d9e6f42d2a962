//! Text of others, as it is shown to people.

use bulkhead_model::exposition::samples;
use bulkhead_model::objects::{lease, names};
use bulkhead_model::printable::{printable, visible_json};
use bulkhead_protocol::{Error, ErrorKind, Text};
use serde_json::Value;

/// It takes no more room than it is given, and nothing in it has an effect.
pub fn run(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    for longest in [3, 4, 17, 120, 4096] {
        let shown = printable(&text, longest);
        assert!(shown.len() <= longest && shown.chars().all(is_seen), "{shown:?}");
        assert!(shown == text || shown.contains(['\\', '…']));
    }
    let error = Error::new(ErrorKind::Io(5), &*text).to_string();
    assert!(error.chars().all(is_seen), "{error:?}");
    assert!(Text::new(&*text).as_str().len() <= Text::MAX_LENGTH && text.starts_with(Text::new(&*text).as_str()));
    if let Ok(value) = serde_json::from_str::<Value>(&text) {
        let written = value.to_string();
        let shown = visible_json(&written);
        assert!(shown.chars().all(is_seen), "{shown:?}");
        // Not the value itself: a number with many digits is another one once it was written.
        let read = |text| serde_json::from_str::<Value>(text).expect("it is JSON still");
        assert_eq!(read(&shown), read(&written));
    }
    for sample in samples(&text) {
        assert!(text.contains(sample.name));
        let _ = sample.label("pool");
    }
    let reported = lease::reported(Some(&text.to_string()));
    let again = serde_json::to_string(&reported).expect("JSON");
    assert_eq!(lease::reported(Some(&again)), reported);
    if names::is_object_name(&text) {
        assert!(text.chars().all(|character| character.is_ascii_graphic() && !"/?#%\\".contains(character)));
    }
}

/// Returns whether a character stands for itself: neither a control character nor one of those that turn or hide
/// others.
fn is_seen(character: char) -> bool {
    let hides = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !hides
}
