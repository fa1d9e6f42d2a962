//! `/etc/fstab`, which is also where it is noted what was begun: a comment before a disk is formatted, and the line that
//! mounts it once that is done. So a run that was interrupted is finished by the next, from what both can see.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::{Called, SysError, file, walk};
use bulkhead_protocol::PoolName;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Options of the mount. A disk that is missing keeps no machine from starting.
pub const OPTIONS: &str = "prjquota,nofail";
const BEGUN: &str = "# begun by bulkhead-setup prepare:";
const MADE: &str = "# made by bulkhead-setup prepare:";
const LONGEST: usize = 1 << 20;

/// A pool that was begun, or made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The pool's name.
    pub name: PoolName,
    /// The uuid that its filesystem got, or is to get.
    pub uuid: String,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// Whether its filesystem was made.
    pub is_made: bool,
}

/// The file, which no other run of this program changes meanwhile.
#[derive(Debug)]
pub struct Fstab {
    path: PathBuf,
    directory: OwnedFd,
    name: String,
}

impl Fstab {
    /// Opens the directory of the file, and locks it.
    ///
    /// # Errors
    /// A sentence on why that fails.
    pub fn open(path: &Path) -> Result<Self, String> {
        let cannot = |error: SysError| match error.errno {
            Errno::AGAIN => "another bulkhead-setup prepare is at work; wait for its end".to_owned(),
            _ => format!("cannot open the directory of {}: {error}", shown(path)),
        };
        let (Some(around), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(format!("{} is not the path of a file", shown(path)));
        };
        let directory = walk::open_at_start(around, OFlags::RDONLY | OFlags::DIRECTORY).map_err(cannot)?;
        walk::lock(&directory).map_err(cannot)?;
        Ok(Self { path: path.to_owned(), directory, name: name.to_string_lossy().into_owned() })
    }

    fn text(&self) -> Result<String, String> {
        let read = file::open(&self.directory, self.name.as_str(), OFlags::RDONLY);
        let read = read.and_then(|file| file::read_up_to(file, LONGEST));
        match read {
            Err(error) if error.errno == Errno::NOENT => Ok(String::new()),
            Err(error) => Err(format!("cannot read {}: {error}", shown(&self.path))),
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| format!("{} is not a text", shown(&self.path))),
        }
    }

    /// The notes in it, and the directories on which others of its lines mount.
    ///
    /// # Errors
    /// A sentence on why it cannot be read.
    pub fn read(&self) -> Result<(Vec<Note>, Vec<PathBuf>), String> {
        let text = self.text()?;
        let points = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let points = points.filter_map(|line| line.split_whitespace().nth(1)).map(PathBuf::from).collect();
        Ok((notes(&text), points))
    }

    /// Writes a note in place of what there is of its pool.
    ///
    /// # Errors
    /// A sentence on why it cannot be written.
    pub fn write(&self, note: &Note) -> Result<(), String> {
        let mut text = without(&self.text()?, &note.name);
        text.push_str(&lines(note));
        self.replace(&text)
    }

    /// Removes what there is of a pool.
    ///
    /// # Errors
    /// A sentence on why it cannot be written.
    pub fn forget(&self, name: &PoolName) -> Result<(), String> {
        self.replace(&without(&self.text()?, name))
    }

    /// Puts a new file in place of the old one, at once: a power cut leaves one or the other.
    fn replace(&self, text: &str) -> Result<(), String> {
        let put = || {
            let new = format!("{}.bulkhead-setup", self.name);
            match file::remove(&self.directory, &*new) {
                Err(error) if error.errno != Errno::NOENT => return Err(error),
                _ => {}
            }
            let written = file::create(&self.directory, &new, Mode::RUSR | Mode::WUSR)?;
            walk::write_at(&written, text.as_bytes(), 0)?;
            let mode = match file::status_at(&self.directory, self.name.as_str()) {
                Ok(old) => Mode::from_raw_mode(old.mode & 0o777),
                Err(_) => Mode::from_raw_mode(0o644),
            };
            rustix::fs::fchmod(&written, mode).by("fchmod")?;
            file::sync(&written)?;
            rustix::fs::renameat(&self.directory, &*new, &self.directory, &*self.name).by("renameat")?;
            file::sync(&self.directory)
        };
        put().map_err(|error: SysError| format!("cannot write {}: {error}", shown(&self.path)))
    }
}

/// The lines of a note.
fn lines(Note { name, uuid, directory, is_made }: &Note) -> String {
    let directory = directory.to_string_lossy();
    if *is_made {
        format!("{MADE} {name}\nUUID={uuid} {directory} xfs {OPTIONS} 0 0\n")
    } else {
        format!("{BEGUN} {name} UUID={uuid} {directory}\n")
    }
}

/// The notes in a text. A line that somebody has changed so that it is none any more is theirs.
fn notes(text: &str) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let note = if let Some(rest) = line.strip_prefix(BEGUN) {
            rest.trim().split_once(' ').and_then(|(name, rest)| note(name, rest, false))
        } else if let Some(name) = line.strip_prefix(MADE) {
            lines.peek().and_then(|next| note(name.trim(), next, true))
        } else {
            None
        };
        notes.extend(note);
    }
    notes
}

fn note(name: &str, rest: &str, is_made: bool) -> Option<Note> {
    let mut words = rest.split_whitespace();
    let uuid = words.next()?.strip_prefix("UUID=")?.to_owned();
    let directory = PathBuf::from(words.next()?);
    Some(Note { name: name.parse().ok()?, uuid, directory, is_made })
}

/// A text without the note of a pool.
fn without(text: &str, name: &PoolName) -> String {
    let found: Vec<_> = notes(text).into_iter().filter(|note| note.name == *name).collect();
    let mut rest = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let begun = found.iter().any(|note| !note.is_made && self::lines(note).trim_end() == line);
        let made = line.strip_prefix(MADE).is_some_and(|title| title.trim() == name.as_str());
        if made && found.iter().any(|note| note.is_made) {
            lines.next();
        } else if !begun {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    rest
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own files")]
mod tests {
    use std::fs;

    use super::*;

    fn note(name: &str, is_made: bool) -> Note {
        let uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned();
        let directory = Path::new("/srv/bulkhead").join(name);
        Note { name: name.parse().expect("a name"), uuid, directory, is_made }
    }

    #[test]
    fn a_note_is_read_as_it_was_written_and_other_lines_stay() {
        let path = std::env::temp_dir().join(format!("bulkhead-fstab-{}", std::process::id()));
        fs::create_dir(&path).expect("a directory");
        let file = path.join("fstab");
        let own = "# a comment\nUUID=1 / ext4 defaults 0 1\n\t# UUID=2 /old xfs x 0 0\n/dev/sdx /data xfs x 0 0";
        fs::write(&file, own).expect("a file");
        let fstab = Fstab::open(&file).expect("it opens");
        let said = Fstab::open(&file).expect_err("it is locked");
        assert!(said.contains("another bulkhead-setup prepare"), "{said}");
        let (first, second) = (note("disk-1", false), note("disk-2", false));
        fstab.write(&first).expect("it is written");
        fstab.write(&second).expect("it is written");
        let (notes, points) = fstab.read().expect("it is read");
        assert_eq!(notes, [first.clone(), second.clone()]);
        assert_eq!(points, [Path::new("/"), Path::new("/data")], "what is begun is not mounted");
        let made = note("disk-1", true);
        fstab.write(&made).expect("it is written");
        fstab.write(&made).expect("it is written again");
        let (notes, points) = fstab.read().expect("it is read");
        assert_eq!(notes, [second.clone(), made.clone()]);
        assert_eq!(points[2], Path::new("/srv/bulkhead/disk-1"));
        fstab.forget(&second.name).expect("it is written");
        fstab.forget(&made.name).expect("it is written");
        assert_eq!(fs::read_to_string(&file).expect("it is there"), format!("{own}\n"));
        fs::remove_dir_all(&path).expect("an end");
    }

    #[test]
    fn a_line_that_was_changed_is_no_note() {
        let made = lines(&note("disk-1", true));
        assert_eq!(notes(&made).len(), 1);
        for changed in
            [made.replace("UUID=", "LABEL="), made.replace("disk-1\n", "Disk 1\n"), made.replace('\n', "\n#")]
        {
            assert_eq!(notes(&changed), [], "{changed}");
            assert_eq!(without(&changed, &note("disk-1", true).name), changed.trim_end().to_owned() + "\n");
        }
        let begun = lines(&note("disk-1", false));
        assert_eq!(notes(&begun), [note("disk-1", false)]);
    }
}
