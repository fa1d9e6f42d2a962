use serde_json::{Value, json};

use super::*;

/// Returns what is kept of an answer, which arrives in pieces of `size` bytes.
fn kept_of_pieces(fields: Fields, text: &str, size: usize) -> Result<String, Unreadable> {
    let mut reducer = Reducer::new(fields);
    let pieces: Result<Vec<_>, _> = text.as_bytes().chunks(size).map(|piece| reducer.reduce(piece)).collect();
    Ok(String::from_utf8(pieces?.concat()).unwrap())
}

/// The same, which must not depend on the size of the pieces.
fn kept(fields: Fields, answer: &Value) -> Value {
    let (compact, indented) = (answer.to_string(), format!("{answer:#}"));
    let whole = kept_of_pieces(fields, &compact, usize::MAX).unwrap();
    for size in [1, 2, 3, 7, 64] {
        assert_eq!(kept_of_pieces(fields, &compact, size).unwrap(), whole);
        assert_eq!(kept_of_pieces(fields, &indented, size).unwrap(), whole);
    }
    serde_json::from_str(&whole).unwrap()
}

#[test]
fn what_is_not_read_is_not_kept() {
    let claim = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "managedFields": [{ "manager": "x", "fieldsV1": { "f:spec": {} } }], "name": "data",
            "annotations": { "note": "y".repeat(5000), "pv.kubernetes.io/bind-completed": "yes" },
            "labels": { "a": "b" },
        },
        "spec": {
            "dataSource": { "name": "\"}],[{".repeat(1000) },
            "selector": { "matchLabels": { "a": "b" } },
            "resources": { "limits": {}, "requests": { "storage": "1Gi", "other": 1 } },
        },
        "status": {
            "conditions": [{ "type": "ModifyingVolume", "message": "z".repeat(5000) }],
            "others": [[], {}, [{ "a": [1, true, null] }]], "phase": "Bound",
        },
    });
    let expected = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data", "annotations": { "pv.kubernetes.io/bind-completed": "yes" } },
        "spec": { "selector": {}, "resources": { "requests": { "storage": "1Gi" } } },
        "status": { "conditions": [{ "type": "ModifyingVolume" }], "phase": "Bound" },
    });
    assert_eq!(kept(Fields::Claim, &claim), expected);
    let list =
        json!({ "metadata": { "continue": "c".repeat(5000), "remainingItemCount": 7 }, "items": [claim, claim] });
    let of_list = kept(Fields::Claim, &list);
    assert_eq!(of_list["items"], json!([expected, expected]));
    assert_eq!(of_list["metadata"], json!({ "continue": "c".repeat(5000) }));
    let event = json!({ "type": "ADDED", "object": claim });
    assert_eq!(kept(Fields::Claim, &event), json!({ "type": "ADDED", "object": expected }));
}

#[test]
fn a_refusal_is_kept_whatever_it_is_about() {
    let refusal = json!({ "kind": "Status", "metadata": {}, "status": "Failure", "code": 429, "reason": "Busy",
                          "message": "\u{1F512} later\n", "details": { "retryAfterSeconds": 7 } });
    for fields in [Fields::Claim, Fields::PersistentVolume, Fields::Other] {
        assert_eq!(kept(fields, &refusal), refusal);
    }
}

#[test]
fn of_other_objects_only_the_managed_fields_are_dropped() {
    let mut class = json!({ "metadata": { "name": "local", "annotations": { "a": "x".repeat(2000) },
                                          "managedFields": [{}] },
                            "parameters": { "pool": "fast" }, "mountOptions": vec!["noatime"; 40] });
    let kept = kept(Fields::Other, &class);
    class["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(kept, class);
}

#[test]
fn where_a_name_is_expected_little_is_kept() {
    let claim = json!({ "spec": { "storageClassName": "\u{1}".repeat(1000), "volumeName": "é".repeat(512),
                                  "accessModes": vec!["ReadWriteOnce"; 50_000] } });
    let kept = kept(Fields::Claim, &claim);
    assert_eq!(kept["spec"]["storageClassName"], "(longer than 1024 bytes)");
    assert_eq!(kept["spec"]["volumeName"], "é".repeat(512));
    assert_eq!(kept["spec"]["accessModes"], json!(vec!["ReadWriteOnce"; FEW]));
}

#[test]
fn lines_are_told_apart() {
    let lines = "{\"type\":\"ADDED\",\"object\":{\"spec\":{\"x\":1}}}\n".repeat(3);
    let expected = "{\"type\":\"ADDED\",\"object\":{\"spec\":{}}}\n".repeat(3);
    for size in [1, 5, 1000] {
        assert_eq!(kept_of_pieces(Fields::Claim, &lines, size).unwrap(), expected);
    }
}

#[test]
fn nothing_grows_without_end() {
    let mut reducer = Reducer::new(Fields::Claim);
    reducer.reduce(b"{\"metadata\":{\"labels\":\"").unwrap();
    for _ in 0..100 {
        assert_eq!(reducer.reduce(&[b'x'; 1 << 20]).unwrap(), b"", "it is not read");
    }
    let endless = |begin: &str, piece: &[u8]| {
        let mut reducer = Reducer::new(Fields::Claim);
        reducer.reduce(begin.as_bytes()).unwrap();
        (0..1 << 25).find_map(|_| reducer.reduce(piece).err())
    };
    assert_eq!(endless("{\"kind\":\"", &[b'x'; 4096]), Some(Unreadable::TooLarge));
    assert_eq!(endless("{\"items\":[", &b"{},".repeat(4096)), Some(Unreadable::TooLarge));
    assert_eq!(endless("{\"items\":[1", &[b'1'; 4096]), Some(Unreadable::TooLarge));
    assert_eq!(endless("{\"kind\":", b"[["), Some(Unreadable::TooDeep));
    let mut watch = Reducer::new(Fields::Claim);
    let line = [b"{\"kind\":\"".as_slice(), &[b'x'; 1 << 20], b"\"}\n"].concat();
    assert!((0..20).all(|_| watch.reduce(&line).is_ok()), "each line counts for itself");
}

#[test]
fn what_is_not_json_does_no_harm() {
    for text in ["]}", "}{", "\"", "{\"a\" \"b\"", "{,:,}", "[1 2]", "{1:2}", "\\", "\n\n", "{\"items\":[}"] {
        for size in [1, 100] {
            let _ = kept_of_pieces(Fields::Claim, text, size);
        }
    }
}
