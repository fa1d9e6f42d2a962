//! Reduces JSON to the fields that are read, piece by piece, and never holds more than it keeps.
//!
//! It follows the structure only. Whether the JSON is valid is found out when what is kept is parsed.

use super::fields::Fields;

/// The longest text that is kept where a short one is expected, in bytes. The longest name in the API has 253.
const SHORT: usize = 1024;

/// What is kept in place of a longer one. It is no valid name of anything.
const TOO_LONG: &[u8] = b"(longer than 1024 bytes)";

/// How many elements of a list of short texts are kept: more than any list that can be served has.
const FEW: usize = 32;

/// How many levels deep the fields that are kept may be nested.
const DEEPEST: usize = 64;

/// The most that is kept of an answer, or of one line of a watch, in bytes.
pub const MOST: usize = 16 << 20;

/// Why an answer cannot be read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// There is too much that would have to be kept.
    #[error("the API server's answer is too large: more than {} MiB of it would have to be kept", MOST >> 20)]
    TooLarge,
    /// It is nested too deep.
    #[error("the API server's answer is nested more than {DEEPEST} levels deep")]
    TooDeep,
}

/// Reduces one answer: a value, or a line for each of several.
#[derive(Debug)]
pub struct Reducer {
    answer: Fields,
    /// The objects and lists that are open and kept, outermost first.
    open: Vec<Container>,
    /// How many others are open, all of them within one that is not kept.
    skipped: usize,
    /// The text that is being read.
    text: Option<Text>,
    /// Whether the number or word that is being read is kept.
    word: Option<bool>,
    kept: Vec<u8>,
    /// How much is kept of the present line.
    length: usize,
}

#[derive(Debug)]
struct Container {
    fields: Fields,
    next: Next,
    /// How many members are kept so far.
    members: usize,
}

/// What comes next in a container.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// An element of a list.
    Element,
    /// A key of an object.
    Key,
    /// The value of the key before it, if it is kept.
    Value(Option<Fields>),
}

#[derive(Debug)]
struct Text {
    role: Role,
    bytes: Vec<u8>,
    is_too_long: bool,
    /// Whether a backslash came last.
    is_escaped: bool,
}

/// What a text is.
#[derive(Clone, Copy, Debug)]
enum Role {
    /// A key in an object of which these are kept.
    Key(Fields),
    /// A value that is kept.
    Value(Fields),
    /// A part of something that is not kept.
    Skipped,
}

impl Reducer {
    /// Keeps `answer` of what will be passed.
    pub fn new(answer: Fields) -> Self {
        let (open, kept) = (Vec::new(), Vec::new());
        Self { answer, open, skipped: 0, text: None, word: None, kept, length: 0 }
    }

    /// Returns what is kept of `piece`, which follows the pieces before it.
    ///
    /// # Errors
    /// See [`Unreadable`]. The rest of the answer is lost then.
    pub fn reduce(&mut self, piece: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut rest = piece;
        while let Some((byte, after)) = rest.split_first() {
            rest = match self.text.take() {
                Some(text) => self.take_of_text(text, rest)?,
                None => {
                    self.take(*byte)?;
                    after
                }
            };
        }
        Ok(std::mem::take(&mut self.kept))
    }

    fn take(&mut self, byte: u8) -> Result<(), Unreadable> {
        match byte {
            b'"' => return self.begin_text(),
            b'{' => return self.begin_container(byte, Next::Key),
            b'[' => return self.begin_container(byte, Next::Element),
            b'}' | b']' => return self.end_container(byte),
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => self.word = None,
            _ => return self.take_of_word(byte),
        }
        match (byte, self.open.last_mut()) {
            (b'\n', None) if self.skipped == 0 => {
                self.kept.push(byte);
                self.length = 0;
            }
            (b',', Some(Container { next: next @ Next::Value(_), .. })) if self.skipped == 0 => *next = Next::Key,
            _ => {}
        }
        Ok(())
    }

    /// Returns what is kept of the value that begins here, if it is.
    fn begin_value(&mut self) -> Result<Option<Fields>, Unreadable> {
        if self.skipped > 0 {
            return Ok(None);
        }
        let Some(container) = self.open.last_mut() else { return Ok(Some(self.answer)) };
        let fields = match container.next {
            Next::Element if container.fields == Fields::Short && container.members >= FEW => None,
            Next::Element => Some(container.fields),
            Next::Value(fields) => return Ok(fields),
            Next::Key => None,
        };
        if fields.is_some() {
            self.begin_member()?;
        }
        Ok(fields)
    }

    fn begin_member(&mut self) -> Result<(), Unreadable> {
        let Some(container) = self.open.last_mut() else { return Ok(()) };
        let is_first = container.members == 0;
        container.members += 1;
        if is_first { Ok(()) } else { self.keep(b",") }
    }

    fn begin_container(&mut self, byte: u8, next: Next) -> Result<(), Unreadable> {
        let Some(fields) = self.begin_value()? else {
            self.skipped += 1;
            return Ok(());
        };
        if self.open.len() == DEEPEST {
            return Err(Unreadable::TooDeep);
        }
        self.open.push(Container { fields, next, members: 0 });
        self.keep(&[byte])
    }

    fn end_container(&mut self, byte: u8) -> Result<(), Unreadable> {
        self.word = None;
        if self.skipped > 0 {
            self.skipped -= 1;
            return Ok(());
        }
        self.open.pop();
        self.keep(&[byte])
    }

    fn take_of_word(&mut self, byte: u8) -> Result<(), Unreadable> {
        let is_kept = match self.word {
            Some(is_kept) => is_kept,
            None => {
                let is_kept = self.begin_value()?.is_some();
                *self.word.insert(is_kept)
            }
        };
        if is_kept { self.keep(&[byte]) } else { Ok(()) }
    }

    fn begin_text(&mut self) -> Result<(), Unreadable> {
        self.word = None;
        let role = match self.open.last() {
            _ if self.skipped > 0 => Role::Skipped,
            Some(Container { next: Next::Key, fields, .. }) => Role::Key(*fields),
            _ => self.begin_value()?.map_or(Role::Skipped, Role::Value),
        };
        self.text = Some(Text { role, bytes: Vec::new(), is_too_long: false, is_escaped: false });
        Ok(())
    }

    /// Takes what belongs to `text`, and returns the rest of the piece.
    fn take_of_text<'a>(&mut self, mut text: Text, piece: &'a [u8]) -> Result<&'a [u8], Unreadable> {
        // What follows a backslash does not end the text.
        let from = usize::from(text.is_escaped);
        let end = piece.iter().skip(from).position(|byte| matches!(byte, b'"' | b'\\'));
        let (inside, rest) = piece.split_at(end.map_or(piece.len(), |end| from + end));
        text.add(inside)?;
        text.is_escaped = false;
        match rest.split_first() {
            None => self.text = Some(text),
            Some((b'\\', after)) => {
                text.add(b"\\")?;
                self.text = Some(Text { is_escaped: true, ..text });
                return Ok(after);
            }
            Some((_, after)) => {
                self.end_text(&text)?;
                return Ok(after);
            }
        }
        Ok(rest)
    }

    fn end_text(&mut self, text: &Text) -> Result<(), Unreadable> {
        match text.role {
            Role::Skipped => Ok(()),
            Role::Value(_) => self.keep_text(if text.is_too_long { TOO_LONG } else { &text.bytes }),
            Role::Key(fields) => {
                let key = std::str::from_utf8(&text.bytes).ok().filter(|_| !text.is_too_long);
                let of_value = key.and_then(|key| fields.of_member(key));
                if let Some(container) = self.open.last_mut() {
                    container.next = Next::Value(of_value);
                }
                if of_value.is_none() {
                    return Ok(());
                }
                self.begin_member()?;
                self.keep_text(&text.bytes)?;
                self.keep(b":")
            }
        }
    }

    fn keep_text(&mut self, text: &[u8]) -> Result<(), Unreadable> {
        self.keep(b"\"")?;
        self.keep(text)?;
        self.keep(b"\"")
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        self.length += bytes.len();
        if self.length > MOST {
            return Err(Unreadable::TooLarge);
        }
        self.kept.extend_from_slice(bytes);
        Ok(())
    }
}

impl Text {
    fn add(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let (longest, is_whole) = match self.role {
            Role::Skipped => return Ok(()),
            Role::Key(fields) | Role::Value(fields) if fields == Fields::All => (MOST, true),
            Role::Key(_) | Role::Value(_) => (SHORT, false),
        };
        if self.bytes.len() + bytes.len() <= longest {
            self.bytes.extend_from_slice(bytes);
        } else if is_whole {
            return Err(Unreadable::TooLarge);
        } else {
            self.is_too_long = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
