//! Answers of the API server, reduced to what is read of them: whoever may create objects chooses what is in them.
//!
//! The first byte of the input says which objects the answer is about, and the second how long the pieces are in which it
//! arrives.

use bulkhead_model::objects::fields::Fields;
use bulkhead_model::objects::reducer::{Reducer, Unreadable};
use serde_json::{Map, Value};

/// An answer about other objects in each place.
const ANSWERS: [Fields; 7] =
    [Fields::Claim, Fields::PersistentVolume, Fields::Content, Fields::Snapshot, Fields::Pod, Fields::Node, Fields::Other];

/// What is kept does not depend on the pieces, is never more than there was, and is what the table of fields says.
pub fn run(input: &[u8]) {
    let [which, length, answer @ ..] = input else { return };
    let fields = ANSWERS[usize::from(*which) % ANSWERS.len()];
    let kept = reduced(fields, answer.chunks(usize::MAX));
    assert_eq!(kept, reduced(fields, answer.chunks(usize::from(*length) + 1)));
    let Ok(kept) = kept else { return };
    // Of what is no JSON, members that nothing separates are separated.
    assert!(kept.len() <= 2 * answer.len());
    let Ok(whole) = serde_json::from_slice::<Value>(answer) else { return };
    assert!(kept.len() <= answer.len());
    // Keys are compared as they are written: those of the API server are not written with escapes.
    let written = if answer.contains(&b'\\') { whole.to_string().into_bytes() } else { answer.to_vec() };
    let Ok(kept) = reduced(fields, [written.as_slice()].into_iter()) else { return };
    let read = |text: &[u8]| serde_json::from_slice::<Value>(text).expect("JSON");
    assert_eq!(read(&kept), projected(read(&written), fields));
}

/// Returns what is kept of an answer.
///
/// # Errors
/// See [`Unreadable`].
pub fn reduced<'a>(fields: Fields, pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, Unreadable> {
    let mut reducer = Reducer::new(fields);
    let mut kept = Vec::new();
    for piece in pieces {
        kept.extend(reducer.reduce(piece)?);
    }
    Ok(kept)
}

/// The same of a value that is in memory as a whole.
fn projected(value: Value, fields: Fields) -> Value {
    match value {
        Value::Object(members) => {
            let kept = |(key, value): (String, Value)| {
                let of_member = fields.of_member(&key).filter(|_| fields == Fields::All || length(&key) <= 1024)?;
                Some((key, projected(value, of_member)))
            };
            Value::Object(members.into_iter().filter_map(kept).collect::<Map<_, _>>())
        }
        Value::Array(values) => {
            let most = if fields == Fields::Short { 32 } else { usize::MAX };
            values.into_iter().take(most).map(|value| projected(value, fields)).collect()
        }
        Value::String(text) if length(&text) > 1024 && fields != Fields::All => "(longer than 1024 bytes)".into(),
        other => other,
    }
}

/// Returns how long a text is as it is written.
fn length(text: &str) -> usize {
    serde_json::to_string(text).map_or(0, |written| written.len() - 2)
}
