//! The kubelet's `vol_data.json`: a JSON object whose keys and values are strings (kubelet's csi_plugin.go,
//! `saveVolumeData`). For two values, a JSON library would be most of what a reviewer has to read here.

/// The longest file in bytes; the kubelet's are much shorter.
pub const MAX_LENGTH: usize = 16 << 10;

/// Returns the two values that matter here, `driverName` and `volumeHandle`; empty where the file has none. `None` if it is
/// anything but one JSON object of strings, or has a key that matters twice.
pub fn parse(content: &[u8]) -> Option<(&str, &str)> {
    let mut rest = Rest(std::str::from_utf8(content).ok()?);
    let (mut driver, mut volume) = (None, None);
    rest.take('{')?;
    if rest.take('}').is_none() {
        loop {
            let key = rest.string()?;
            rest.take(':')?;
            let value = rest.string()?;
            let slot = match key {
                "driverName" => Some(&mut driver),
                "volumeHandle" => Some(&mut volume),
                _ => None,
            };
            if slot.is_some_and(|slot| slot.replace(value).is_some()) {
                return None;
            }
            if rest.take(',').is_none() {
                break rest.take('}')?;
            }
        }
    }
    rest.0.trim_matches(WHITE).is_empty().then(|| (driver.unwrap_or_default(), volume.unwrap_or_default()))
}

/// JSON's white space (RFC 8259, section 2).
const WHITE: [char; 4] = [' ', '\t', '\n', '\r'];

/// What is left to read.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Takes one character, after any white space.
    fn take(&mut self, wanted: char) -> Option<()> {
        self.0 = self.0.trim_start_matches(WHITE).strip_prefix(wanted)?;
        Some(())
    }

    /// Takes a string, after any white space. Escapes stay as they are: what the values are compared with has none.
    fn string(&mut self) -> Option<&'a str> {
        self.take('"')?;
        let mut escaped = false;
        let end = self.0.find(|character| match character {
            _ if std::mem::take(&mut escaped) => !"\"\\/bfnrtu".contains(character),
            '\\' => {
                escaped = true;
                false
            }
            _ => character == '"' || character < ' ',
        })?;
        let (text, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.strip_prefix('"')?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_own_form_is_read() {
        let content = br#"{"attachmentID":"csi-1","driverName":"bulkhead.csi.local","nodeName":"n","specVolID":"pvc-1","volumeHandle":"pvc-1","volumeLifecycleMode":"Persistent"}"#;
        let found = parse(content).expect("an object");
        assert_eq!(found, ("bulkhead.csi.local", "pvc-1"));
    }

    #[test]
    fn white_space_is_skipped_and_escapes_stay_as_they_are() {
        let found =
            parse(b" {\n \"driverName\" : \"a\\u002e\\\"b\\\\\" ,\t\"volumeHandle\":\"v\" }\r\n").expect("an object");
        assert_eq!(found, (r#"a\u002e\"b\\"#, "v"));
        assert_eq!(parse(br#"{"volumeHandle":"with space"}"#), Some(("", "with space")));
        for escape in [r#"\b"#, r#"\f"#, r#"\n"#, r#"\r"#, r#"\t"#, r#"\""#, r#"\\"#, r#"\/"#, r#"\ud83d\ude00"#] {
            let content = format!(r#"{{"a":"{escape}","volumeHandle":"v"}}"#);
            assert_eq!(parse(content.as_bytes()), Some(("", "v")), "{content}");
        }
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
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\u{1f}\"}",
            "{\"a\":\"\n\"}",
            "\u{feff}{}",
        ] {
            assert_eq!(parse(content.as_bytes()), None, "{content:?}");
        }
        assert_eq!(parse(b"{\"a\":\"\xff\"}"), None);
        assert_eq!(parse(b"{}"), Some(("", "")));
    }
}
