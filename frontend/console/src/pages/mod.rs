//! The directory that manual pages are written into. No link in it is followed: where others may write to it, one of
//! them would lead root's pen elsewhere.

#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

pub(crate) use system::Pages;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
