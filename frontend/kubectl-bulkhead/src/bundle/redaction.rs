//! What a bundle leaves out of what it was told: secrets wherever they are, and the names of tenants' objects.

use std::collections::BTreeMap;

use regex::{Captures, Regex};
use serde_json::{Map, Value};

/// What stands where something was left out.
pub const LEFT_OUT: &str = "[left out]";

/// Names that say nothing of their owner.
const GENERIC: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// The beginnings of the annotations that are kept, beside the driver's own: those of the control plane about volumes.
const ANNOTATIONS: [&str; 5] = [
    "volume.kubernetes.io/", "volume.beta.kubernetes.io/", "pv.kubernetes.io/", "storageclass.kubernetes.io/",
    "snapshot.storage.kubernetes.io/",
];

/// A word that the name of a secret has in it.
const SECRET: &str =
    "(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization)";

/// Leaves out what is not for others, and gives the same name the same pseudonym throughout a bundle.
pub struct Redaction {
    driver: String,
    /// The namespace of the agents, which is not a tenant's.
    namespace: String,
    secrets: Vec<(Regex, &'static str)>,
    is_secret: Regex,
    word: Regex,
    of_namespace: Regex,
    /// Pseudonyms by name; `None` where names are kept.
    names: Option<BTreeMap<String, String>>,
    numbers: BTreeMap<&'static str, usize>,
}

impl Redaction {
    /// For the agents of `driver` in `namespace`.
    pub fn new(driver: &str, namespace: &str, keeps_names: bool) -> Result<Self, regex::Error> {
        // A value is quoted, quoted in a text that is quoted itself, or goes on to the end of its line.
        let assigned = format!(
            r#"(?i)([a-z0-9_.-]*{SECRET}[a-z0-9_.-]*\\?["']?\s*[:=]\s*)(?:"(?:[^"\\]|\\.)*"?|\\"(?:[^"\\]|\\[^"])*(?:\\")?|[^\n"]+)"#
        );
        let secrets = [
            (r"-----BEGIN [A-Z0-9 ]+-----(?s:.*?)(?:-----END [A-Z0-9 ]+-----|\z)", LEFT_OUT),
            (r"\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*", LEFT_OUT),
            (r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+", "$1 [left out]"),
            (r"://[^/@\s]+@", "://[left out]@"),
            (r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,})", LEFT_OUT),
            (&assigned, "$1[left out]"),
        ];
        let secrets = secrets.into_iter().map(|(pattern, instead)| Ok((Regex::new(pattern)?, instead)));
        Ok(Self {
            driver: driver.to_owned(),
            namespace: namespace.to_owned(),
            secrets: secrets.collect::<Result<_, regex::Error>>()?,
            is_secret: Regex::new(&format!("(?i){SECRET}"))?,
            word: Regex::new("[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")?,
            of_namespace: Regex::new(r#"\bnamespace\\?"?\s*[:=]\s*\\?"([a-z0-9][a-z0-9-]*)"#)?,
            names: (!keeps_names).then(BTreeMap::new),
            numbers: BTreeMap::new(),
        })
    }

    /// Whether tenants' names stay.
    pub fn keeps_names(&self) -> bool {
        self.names.is_none()
    }

    /// Has a tenant's name replaced from now on. `kind` is what it is called instead, with a number.
    pub fn learn(&mut self, kind: &'static str, name: &str) {
        let Some(names) = &mut self.names else { return };
        if name.is_empty() || name == self.namespace || GENERIC.contains(&name) || names.contains_key(name) {
            return;
        }
        let number = self.numbers.entry(kind).or_default();
        *number += 1;
        names.insert(name.to_owned(), format!("{kind}-{number}"));
    }

    /// A text for the bundle.
    pub fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (secret, instead) in &self.secrets {
            text = secret.replace_all(&text, *instead).into_owned();
        }
        let namespaces: Vec<_> = self.of_namespace.captures_iter(&text).map(|found| found[1].to_owned()).collect();
        namespaces.iter().for_each(|namespace| self.learn("namespace", namespace));
        self.renamed(&text)
    }

    fn renamed(&self, text: &str) -> String {
        let Some(names) = &self.names else { return text.to_owned() };
        let instead = |word: &Captures<'_>| names.get(&word[0]).cloned().unwrap_or_else(|| word[0].to_owned());
        self.word.replace_all(text, instead).into_owned()
    }

    /// A document for the bundle.
    pub fn json(&mut self, value: Value) -> Value {
        match value {
            Value::String(text) => self.text(&text).into(),
            Value::Array(values) => self.array(values),
            Value::Object(members) => self.object(members),
            Value::Null | Value::Bool(_) | Value::Number(_) => value,
        }
    }

    fn array(&mut self, values: Vec<Value>) -> Value {
        // `--token`, and what it is in the next word.
        let mut is_secret_next = false;
        let mut redacted = |value: Value| {
            let is_secret = std::mem::take(&mut is_secret_next) && value.is_string();
            is_secret_next = value
                .as_str()
                .is_some_and(|text| text.starts_with('-') && !text.contains('=') && self.is_secret.is_match(text));
            if is_secret { LEFT_OUT.into() } else { self.json(value) }
        };
        values.into_iter().map(&mut redacted).collect()
    }

    fn object(&mut self, mut members: Map<String, Value>) -> Value {
        members.remove("managedFields");
        let kept = |name: &str| name.starts_with(&self.driver) || ANNOTATIONS.iter().any(|it| name.starts_with(it));
        if let Some(Value::Object(annotations)) = members.get_mut("annotations") {
            annotations.retain(|name, _| kept(name));
        }
        if let Some(Value::Array(variables)) = members.get_mut("env") {
            let values = variables.iter_mut().filter_map(|variable| variable.get_mut("value"));
            values.for_each(|value| *value = LEFT_OUT.into());
        }
        let redacted = |(name, value): (String, Value)| {
            let is_secret = self.is_secret.is_match(&name) && (value.is_string() || value.is_number());
            let value = if is_secret { LEFT_OUT.into() } else { self.json(value) };
            (self.member(&name), value)
        };
        Value::Object(members.into_iter().map(redacted).collect())
    }

    /// A member's name. Those of the API are letters only, and stay, also where a tenant has called something so.
    fn member(&mut self, name: &str) -> String {
        if name.chars().all(|letter| letter.is_ascii_alphabetic()) && name.len() < 48 {
            return name.to_owned();
        }
        self.text(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLANTED: &str = "hunter2-PLANTED";

    fn redaction(keeps_names: bool) -> Redaction {
        Redaction::new("bulkhead.csi.local", "bulkhead-system", keeps_names).unwrap()
    }

    #[test]
    fn no_secret_is_left_in_a_text() {
        let jwt = format!("eyJhbGciOiJSUzI1NiJ9.{PLANTED}.{PLANTED}");
        for text in [
            format!("password={PLANTED} and {PLANTED}"),
            format!("PASSWORD: {PLANTED}"),
            format!("{{\"db_password\":\"a \\\"{PLANTED}\\\" b\",\"x\":1}}"),
            format!("msg=\"got {{\\\"token\\\":\\\"{PLANTED}\\\"}}\""),
            format!("Authorization: Bearer {PLANTED}"),
            format!("sent bearer {PLANTED}"),
            format!("https://admin:{PLANTED}@registry.example.com/x"),
            format!("-----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----"),
            format!("-----BEGIN PRIVATE KEY-----\n{PLANTED}"),
            format!("--registry-token={PLANTED}"),
            jwt,
        ] {
            for keeps_names in [true, false] {
                let left = redaction(keeps_names).text(&text);
                assert!(!left.contains(PLANTED), "{text:?} became {left:?}");
            }
        }
        let harmless = "volume pvc-1 is kept: the agent's token of that node\nready";
        assert_eq!(redaction(false).text(harmless), harmless);
    }

    #[test]
    fn no_secret_is_left_in_an_object() {
        let object = json!({
            "metadata": { "name": "a", "managedFields": [PLANTED], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": PLANTED, "team/note": PLANTED,
                "volume.kubernetes.io/selected-node": "node-a" } },
            "spec": { "containers": [{ "env": [{ "name": "X", "value": PLANTED }], "password": PLANTED,
                                       "args": ["--token", PLANTED, "--pool", "p"] }] },
            "data": { "config.yaml": format!("a: 1\npassword: {PLANTED}\nb: 2") },
        });
        let left = redaction(false).json(object);
        assert!(!left.to_string().contains(PLANTED), "{left}");
        assert_eq!(left["metadata"]["annotations"], json!({ "volume.kubernetes.io/selected-node": "node-a" }));
        assert_eq!(left["spec"]["containers"][0]["args"], json!(["--token", LEFT_OUT, "--pool", "p"]));
        assert!(left["data"]["config.yaml"].as_str().unwrap().ends_with("\nb: 2"), "{left}");
    }

    #[test]
    fn a_name_has_one_pseudonym_and_no_other_word_changes() {
        let mut redaction = redaction(false);
        redaction.learn("namespace", "shop");
        redaction.learn("claim", "data-0");
        redaction.learn("claim", "metadata");
        redaction.learn("namespace", "bulkhead-system");
        let text = "shop/data-0 in bulkhead-system, shop_data-0: workshop and data-01 stay; x of shop.";
        let left =
            "namespace-1/claim-1 in bulkhead-system, namespace-1_claim-1: workshop and data-01 stay; x of namespace-1.";
        assert_eq!(redaction.text(text), left);
        let object = redaction.json(json!({ "metadata": { "name": "metadata", "namespace": "shop" } }));
        assert_eq!(object, json!({ "metadata": { "name": "claim-2", "namespace": "namespace-1" } }));
        assert_eq!(
            redaction.text("held{namespace=\"bank\"} 1\nbank"),
            "held{namespace=\"namespace-2\"} 1\nnamespace-2"
        );
    }
}
