//! The token that the agent has renewed for itself. It is kept in a file, so that the next agent has it, and in memory,
//! which is all that counts while the agent runs: nobody else writes the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::token::Claims;

/// The file in the agent's directory.
const FILE: &str = "token";

/// The longest file that is read, in bytes. Tokens have about a thousand.
const LONGEST: u64 = 64 << 10;

/// For how long a token that the API server has refused is not used, while there is another: one of several servers may
/// refuse what the others accept, or may only just have started.
const REFUSED: SignedDuration = SignedDuration::from_mins(10);

/// The agent's own token. Clones share the same state.
#[derive(Clone, Debug)]
pub struct OwnToken(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    held: Mutex<Held>,
}

#[derive(Debug)]
enum Held {
    /// The file has not been read yet.
    Unread,
    Nothing,
    Token(Token),
    /// One that the API server has refused, and when.
    Refused(Token, Timestamp),
    Unfit(Unfit),
}

/// A token and what it says.
#[derive(Clone, PartialEq)]
pub struct Token {
    /// The token itself.
    pub text: String,
    /// What it says.
    pub claims: Claims,
}

// It is a secret.
impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Token(until {})", self.claims.end)
    }
}

/// Why the agent's own token is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It may be there.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// It was damaged, or somebody else has written the file.
    #[error("it is no token")]
    NoToken,
    /// The directory is another node's, or the Node was deleted and registered again.
    #[error("it is not for the service account and the Node of the token in the kubeconfig's file")]
    Foreign,
    /// The agent was not running when it had to be renewed.
    #[error("it expired at {0}")]
    Expired(Timestamp),
    /// By its signature, or because what it is bound to is gone.
    #[error("the API server does not accept it")]
    NotAccepted,
}

impl OwnToken {
    /// The one that is kept in `directory`.
    pub fn in_directory(directory: PathBuf) -> Self {
        Self(Arc::new(Inner { directory, held: Mutex::new(Held::Unread) }))
    }

    /// The directory in which it is kept.
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// The token, if there is one that may stand in for that of which `given` is said.
    ///
    /// # Errors
    /// Why there is one that may not.
    pub(super) fn fit(&self, given: &Claims, now: Timestamp) -> Result<Option<Token>, Unfit> {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*held, Held::Unread) {
            *held = read(&self.file());
        }
        let token = match &*held {
            Held::Unread | Held::Nothing => return Ok(None),
            Held::Unfit(why) => return Err(why.clone()),
            // An expired one would be no better.
            Held::Refused(_, at) if given.end > now && now.duration_since(*at) < REFUSED => {
                return Err(Unfit::NotAccepted);
            }
            Held::Token(token) | Held::Refused(token, _) => token,
        };
        if !token.claims.has_holder_of(given) {
            Err(Unfit::Foreign)
        } else if token.claims.end <= now {
            Err(Unfit::Expired(token.claims.end))
        } else {
            Ok(Some(token.clone()))
        }
    }

    /// Holds `token` from now on, and keeps it for the next agent.
    ///
    /// # Errors
    /// When it cannot be kept. It is held nevertheless.
    pub(super) fn replace(&self, token: Token) -> io::Result<()> {
        let kept = write(&self.file(), &token.text);
        *self.0.held.lock().unwrap_or_else(PoisonError::into_inner) = Held::Token(token);
        kept
    }

    /// The API server has refused the token `text`.
    pub(super) fn refused(&self, text: &str, now: Timestamp) {
        let mut held = self.0.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Held::Token(token) | Held::Refused(token, _) = &*held
            && token.text == text
        {
            *held = Held::Refused(token.clone(), now);
        }
    }

    /// Returns where it is kept.
    pub(super) fn file(&self) -> PathBuf {
        self.0.directory.join(FILE)
    }
}

fn read(file: &Path) -> Held {
    let mut text = String::new();
    match File::open(file).and_then(|file| file.take(LONGEST).read_to_string(&mut text)) {
        Ok(_) => Claims::of(&text).map_or(Held::Unfit(Unfit::NoToken), |claims| Held::Token(Token { text, claims })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Held::Nothing,
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Held::Unfit(Unfit::NoToken),
        Err(error) => Held::Unfit(Unfit::Unreadable(error.to_string())),
    }
}

/// Replaces the file as a whole, whenever the machine fails.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let unfinished = file.with_extension("new");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(unfinished, file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::token::fixtures::token;
    use super::*;

    fn parsed(text: String) -> Token {
        Token { claims: Claims::of(&text).unwrap(), text }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_next_agent_has_it_and_nobody_else_can_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let own = || OwnToken::in_directory(directory.path().to_owned());
        let given = parsed(token("1", 0, 600)).claims;
        assert_eq!(own().fit(&given, at(0)), Ok(None));
        for renewed in [parsed(token("1", 100, 700)), parsed(token("1", 200, 800))] {
            fs::write(directory.path().join("token.new"), "of an agent that was killed").unwrap();
            own().replace(renewed.clone()).unwrap();
            assert_eq!(own().fit(&given, at(300)), Ok(Some(renewed)));
        }
        assert_eq!(own().file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(own().fit(&given, at(800)), Err(Unfit::Expired(at(800))));
        assert_eq!(own().fit(&parsed(token("2", 0, 600)).claims, at(300)), Err(Unfit::Foreign));
    }

    #[test]
    fn what_is_no_token_is_said_and_what_cannot_be_kept_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let own = OwnToken::in_directory(directory.path().join("missing"));
        let (given, renewed) = (parsed(token("1", 0, 600)).claims, parsed(token("1", 100, 700)));
        own.replace(renewed.clone()).unwrap_err();
        assert_eq!(own.fit(&given, at(300)), Ok(Some(renewed.clone())));
        own.refused("another", at(300));
        assert_eq!(own.fit(&given, at(300)), Ok(Some(renewed)));
        for garbage in [&b""[..], b"x.y.z", b"\xff\xfe", &[b'x'; 100_000]] {
            fs::write(directory.path().join(FILE), garbage).unwrap();
            let own = OwnToken::in_directory(directory.path().to_owned());
            assert_eq!(own.fit(&given, at(300)), Err(Unfit::NoToken));
        }
    }

    #[test]
    fn one_that_was_refused_is_tried_again_later_and_at_once_where_there_is_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let own = OwnToken::in_directory(directory.path().to_owned());
        let (given, renewed) = (parsed(token("1", 0, 5000)).claims, parsed(token("1", 100, 9000)));
        own.replace(renewed.clone()).unwrap();
        for refused in [1000, 2000] {
            own.refused(&renewed.text, at(refused));
            assert_eq!(own.fit(&given, at(refused + 599)), Err(Unfit::NotAccepted));
            assert_eq!(own.fit(&given, at(refused + 600)), Ok(Some(renewed.clone())));
        }
        own.refused(&renewed.text, at(4999));
        assert_eq!(own.fit(&given, at(4999)), Err(Unfit::NotAccepted));
        assert_eq!(own.fit(&given, at(5000)), Ok(Some(renewed)), "the operator's has expired");
    }
}
