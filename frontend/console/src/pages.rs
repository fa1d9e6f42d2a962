//! The directory that manual pages are written into. No link in it is followed: where others may write to it, one of
//! them would lead root's pen elsewhere.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// The directory.
pub(crate) struct Pages(OwnedFd);

impl Pages {
    /// Opens it.
    ///
    /// # Errors
    /// When it does not exist, is a link, or is no directory.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, directory, flags, Mode::empty())?))
    }

    /// Writes a page, in the place of the one that may be there.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn put(&self, page: &str, text: &[u8]) -> io::Result<()> {
        match unlinkat(&self.0, page, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.0, page, flags, Mode::from_raw_mode(0o644))?;
        File::from(file).write_all(text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (place, precious) = (directory.path().join("pages"), directory.path().join("precious"));
        fs::create_dir(&place).unwrap();
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, place.join("tool.1")).unwrap();
        Pages::open(&place).unwrap().put("tool.1", b"page").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert!(fs::symlink_metadata(place.join("tool.1")).unwrap().is_file());
        let link = directory.path().join("link");
        symlink(&place, &link).unwrap();
        assert!(Pages::open(&link).is_err());
    }

    #[test]
    fn a_page_is_replaced_and_what_else_has_its_content_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (page, other) = (directory.path().join("tool.1"), directory.path().join("other"));
        fs::write(&other, "precious").unwrap();
        fs::hard_link(&other, &page).unwrap();
        let pages = Pages::open(directory.path()).unwrap();
        for text in ["a", "b"] {
            pages.put("tool.1", text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&page).unwrap(), text);
        }
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(Pages::open(&page).is_err(), "it is no directory");
        assert!(Pages::open(&directory.path().join("none")).is_err());
    }
}
