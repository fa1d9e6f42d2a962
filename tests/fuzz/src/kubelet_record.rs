//! The kubelet's `vol_data.json`, as the helper reads it.

use std::fmt;

use bulkhead_privhelper::vol_data;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// It is read as a JSON library reads it, but that escapes stay as they are.
pub fn run(content: &[u8]) {
    let read = vol_data::parse(content);
    let text = std::str::from_utf8(content).ok().map(without_escapes);
    let pairs = text.and_then(|text| serde_json::from_str(&text).ok());
    let expected = pairs.and_then(|Pairs(pairs)| {
        let mut values = ["driverName", "volumeHandle"].map(|wanted| {
            let mut values = pairs.iter().filter(|(key, _)| key == wanted).map(|(_, value)| value.clone());
            (values.next().unwrap_or_default(), values.next().is_none())
        });
        let is_each_there_once = values.iter().all(|(_, once)| *once);
        is_each_there_once.then(|| values.each_mut().map(|(value, _)| std::mem::take(value)))
    });
    let read = read.map(|(driver, volume)| [driver, volume].map(decoded));
    assert_eq!(read, expected);
}

/// The text with an escaped backslash in place of each escape. What no escape is stays.
fn without_escapes(text: &str) -> String {
    let mut changed = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        changed.push(character);
        if character == '\\'
            && let Some(escaped) = rest.next()
        {
            changed.push(if "\"\\/bfnrtu".contains(escaped) { '\\' } else { escaped });
        }
    }
    changed
}

/// Returns what a JSON library makes of a text, after [`without_escapes`].
fn decoded(text: &str) -> String {
    without_escapes(text).replace("\\\\", "\\")
}

/// The members of an object of strings.
struct Pairs(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = members.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}
