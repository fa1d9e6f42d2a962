//! The archive of a bundle: its entries, and the manifest that says of each where it is from and whether it is whole.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use super::redaction::Redaction;

/// The longest entry, in bytes.
pub const ENTRY: usize = 8 << 20;

/// The most that all entries may have, in bytes.
const TOGETHER: usize = 512 << 20;

/// What a bundle never has. It is in each.
const NEVER: &str = "\
Never read: Secrets; and of claims, PersistentVolumes, pods and nodes anything but the fields that this plugin needs, so
no environment of a pod.

Read, and left out before anything was written, which \"[left out]\" marks where it is not a whole field:
- annotations, but for those of Kubernetes and of the driver about volumes; so also kubectl's last-applied-configuration
- managedFields
- values of environment variables
- keys and certificates in PEM, JSON web tokens, credentials in URLs and after Bearer or Basic
- what is assigned to a name with password, secret, token, key or the like in it

Look through the archive all the same before you hand it on: whatever has none of these forms is not recognized.
";

/// An archive that is being written.
pub struct Archive {
    tar: Builder<GzEncoder<File>>,
    pub redaction: Redaction,
    made: u64,
    bytes: usize,
    entries: Vec<Value>,
    missing: usize,
}

/// What a source gave.
pub enum Content {
    Text(String),
    /// A part of a text, and why it is not the whole.
    Part(String, String),
    Json(Value),
    /// Objects, a line each, and why they are not all, if they are not.
    Objects(Vec<Value>, Option<String>),
}

impl Archive {
    /// Begins one in `file`, which must not exist, and which only its owner may read.
    pub fn create(file: &Path, made: u64, redaction: Redaction) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let tar = Builder::new(GzEncoder::new(options.open(file)?, Compression::default()));
        Ok(Self { tar, redaction, made, bytes: 0, entries: Vec::new(), missing: 0 })
    }

    /// Adds what `source` gave, or why it gave nothing.
    pub fn add(&mut self, path: &str, source: &str, found: Result<Content, String>) -> io::Result<()> {
        let (text, flaw) = match found {
            Err(why) => (None, Some(why)),
            Ok(Content::Text(text)) => (Some(self.redaction.text(cut(&text))), is_cut(&text)),
            Ok(Content::Part(text, why)) => (Some(self.redaction.text(cut(&text))), Some(why)),
            Ok(Content::Json(value)) => (Some(format!("{:#}\n", self.redaction.json(value))), None),
            Ok(Content::Objects(objects, flaw)) => {
                let lines = objects.into_iter().map(|object| format!("{}\n", self.redaction.json(object)));
                (Some(lines.collect()), flaw)
            }
        };
        let flaw = flaw.or_else(|| is_cut(text.as_deref()?));
        let text = text.map(|text| cut(&text).to_owned());
        let is_full = |text: &String| self.bytes.saturating_add(text.len()) > TOGETHER;
        let (text, flaw) = match text {
            Some(text) if is_full(&text) => (None, Some(format!("the bundle has {} MiB already", TOGETHER >> 20))),
            text => (text, flaw),
        };
        let path = safe(&self.redaction.text(path));
        self.missing += usize::from(flaw.is_some());
        let flaw = flaw.map(|why| self.redaction.text(&why));
        self.entries.push(json!({
            "entry": path, "source": self.redaction.text(source), "whole": flaw.is_none(), "why": flaw,
            "bytes": text.as_ref().map(String::len),
        }));
        match text {
            Some(text) => self.append(&path, &text),
            None => Ok(()),
        }
    }

    fn append(&mut self, path: &str, text: &str) -> io::Result<()> {
        self.bytes = self.bytes.saturating_add(text.len());
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_mtime(self.made);
        header.set_size(text.len() as u64);
        self.tar.append_data(&mut header, format!("bulkhead-bundle/{path}"), text.as_bytes())
    }

    /// Ends it. Returns how many entries there are, and how many of them are not whole.
    pub fn end(mut self) -> io::Result<(usize, usize)> {
        let names = match self.redaction.keeps_names() {
            true => "Names of namespaces, claims, snapshots and pods are the real ones, as --names was given.\n",
            false => {
                "Names of tenants' namespaces, claims, snapshots and pods are pseudonyms, the same one for the same name.\n\
                 A name that no list knew any more may remain in a log. Nodes, pools and classes have their real names.\n"
            }
        };
        self.append("LEFT-OUT.txt", &format!("{NEVER}\n{names}"))?;
        let manifest = json!({ "plugin": env!("CARGO_PKG_VERSION"), "entries": self.entries });
        self.append("MANIFEST.json", &format!("{manifest:#}\n"))?;
        self.tar.into_inner()?.finish()?.sync_all()?;
        Ok((self.entries.len(), self.missing))
    }
}

/// As much of a text as an entry may have.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(ENTRY)).unwrap_or_default()
}

fn is_cut(text: &str) -> Option<String> {
    (text.len() > ENTRY).then(|| format!("cut after {} MiB", ENTRY >> 20))
}

/// A path that stays below the archive's directory on every system, whatever a peer calls its objects.
fn safe(path: &str) -> String {
    let part = |part: &str| {
        let letter = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' };
        let part: String = part.chars().take(100).map(letter).collect();
        if part.chars().all(|letter| letter == '.') { "_".to_owned() } else { part }
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_directory() {
        assert_eq!(safe("logs/../..\\x/a b/\u{1b}"), "logs/_/.._x/a_b/_");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let text = format!("{}ä", "x".repeat(ENTRY - 1));
        assert_eq!((cut(&text).len(), is_cut(&text).is_some()), (ENTRY - 1, true));
    }
}
