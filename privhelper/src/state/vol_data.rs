//! The kubelet's `vol_data.json`: a JSON object whose keys and values are strings (kubelet's csi_plugin.go,
//! `saveVolumeData`). A JSON library would be most of what a reviewer has to read here, for two values.

/// The longest file in bytes; the kubelet's are much shorter.
pub const MAX_LENGTH: usize = 16 << 10;

/// The two values that matter here; empty where the file has none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct VolData {
    /// `driverName`.
    pub driver: String,
    /// `volumeHandle`.
    pub volume: String,
}

/// Reads the file's content. `None` if it is anything but one JSON object of strings, or has a key twice that matters.
pub fn parse(content: &[u8]) -> Option<VolData> {
    let mut rest = Rest(std::str::from_utf8(content).ok()?);
    let (mut driver, mut volume) = (None, None);
    rest.take('{')?;
    if rest.take('}').is_none() {
        loop {
            let key = rest.string()?;
            rest.take(':')?;
            let value = rest.string()?;
            let slot = match key.as_str() {
                "driverName" => Some(&mut driver),
                "volumeHandle" => Some(&mut volume),
                _ => None,
            };
            if let Some(slot) = slot
                && slot.replace(value).is_some()
            {
                return None;
            }
            if rest.take(',').is_none() {
                break rest.take('}')?;
            }
        }
    }
    if !rest.0.trim_matches(WHITE).is_empty() {
        return None;
    }
    Some(VolData { driver: driver.unwrap_or_default(), volume: volume.unwrap_or_default() })
}

/// JSON's white space (RFC 8259, section 2).
const WHITE: [char; 4] = [' ', '\t', '\n', '\r'];

/// What is left to read.
struct Rest<'a>(&'a str);

impl Rest<'_> {
    /// Takes one character, after any white space.
    fn take(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.trim_start_matches(WHITE).strip_prefix(wanted)?;
        Some(())
    }

    /// Takes a string, after any white space.
    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut text = String::new();
        let mut characters = self.0.chars();
        loop {
            match characters.next()? {
                '"' => break,
                '\\' => text.push(match characters.next()? {
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    'u' => unicode(&mut characters)?,
                    same @ ('"' | '\\' | '/') => same,
                    _ => return None,
                }),
                control if control < ' ' => return None,
                other => text.push(other),
            }
        }
        self.0 = characters.as_str();
        Some(text)
    }
}

/// The character of a `\u` escape. Surrogate pairs are refused: neither value can hold such a character.
fn unicode(characters: &mut std::str::Chars<'_>) -> Option<char> {
    let mut code = 0_u32;
    for _ in 0..4 {
        code = code.checked_mul(16)?.checked_add(characters.next()?.to_digit(16)?)?;
    }
    char::from_u32(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_own_form_is_read() {
        let content = br#"{"attachmentID":"csi-1","driverName":"bulkhead.csi.local","nodeName":"n","specVolID":"pvc-1","volumeHandle":"pvc-1","volumeLifecycleMode":"Persistent"}"#;
        let found = parse(content).expect("an object");
        assert_eq!((found.driver.as_str(), found.volume.as_str()), ("bulkhead.csi.local", "pvc-1"));
    }

    #[test]
    fn escapes_and_white_space_are_read() {
        let found = parse(b" {\n \"driverName\" : \"a\\u002e\\\"b\" , \"volumeHandle\":\"v\" } \n").expect("an object");
        assert_eq!((found.driver.as_str(), found.volume.as_str()), ("a.\"b", "v"));
    }

    #[test]
    fn every_escape_stands_for_its_character() {
        let found = parse(br#"{"driverName":"\b\f\n\r\t\"\\\/\u00e9\u20AC","volumeHandle":""}"#).expect("an object");
        assert_eq!(found, VolData { driver: "\u{8}\u{c}\n\r\t\"\\/é€".to_owned(), volume: String::new() });
    }

    #[test]
    fn no_part_of_an_object_is_one() {
        let content = br#" {"driverName":"a\u0041\"","volumeHandle":"pvc-1","other":"x"} "#;
        assert!(parse(content).is_some());
        for length in 0..content.len() - 1 {
            assert_eq!(parse(&content[..length]), None, "{length} bytes");
        }
        for twice in [r#"{"volumeHandle":"a","volumeHandle":"a"}"#, r#"{"driverName":"","driverName":""}"#] {
            assert_eq!(parse(twice.as_bytes()), None, "{twice}");
        }
        assert!(parse(br#"{"other":"a","other":"b"}"#).is_some(), "a key that does not matter");
    }

    #[test]
    fn anything_else_is_refused() {
        for content in [
            "",
            "{",
            "[]",
            "{\"a\":1}",
            "{\"a\":\"b\",}",
            "{\"a\":\"b\"}x",
            "{\"a\":\"b\"",
            "{\"a\":{\"b\":\"c\"}}",
            "{\"a\" \"b\"}",
            "{\"driverName\":\"x\",\"driverName\":\"y\"}",
            "{\"a\":\"\\ud83d\\ude00\"}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12\"}",
            "{\"a\":\"\\u00g0\"}",
            "{\"a\":\"\u{1f}\"}",
            "{\"a\":\"\n\"}",
            "\u{feff}{}",
        ] {
            assert_eq!(parse(content.as_bytes()), None, "{content:?}");
        }
        assert_eq!(parse(b"{\"a\":\"\xff\"}"), None);
        assert_eq!(parse(b"{}"), Some(VolData::default()));
    }
}
