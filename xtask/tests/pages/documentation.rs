//! What the documentation refers to exists: the files and headings that its links point to, and the files that
//! CONTRIBUTING.md tells people to change.

use std::collections::BTreeSet;
use std::iter;
use std::path::{Path, PathBuf};

use fs_err as fs;

use super::{files, read, root};

/// Directories whose files CONTRIBUTING.md names by their path from the root.
const NAMED: [&str; 7] = ["privhelper/", "protocol/", "frontend/", "tests/", "xtask/", "deploy/", "docs/"];

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    let pages = files("", ".md");
    assert!(pages.len() > 10, "only {} pages were found", pages.len());
    let broken: Vec<String> = pages.iter().flat_map(|page| broken_links(page)).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn files_named_in_contributing_exist() {
    let text = read("CONTRIBUTING.md");
    let named: Vec<&str> = code_spans(&text).into_iter().filter(|span| is_path(span)).collect();
    assert!(named.len() > 30, "only {} paths were found", named.len());
    let missing: Vec<&str> = named.into_iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md names files that do not exist: {missing:?}");
    // Those that it names by the end of their path.
    let all = files("", "");
    let ends: Vec<&str> = code_spans(&text).into_iter().filter(|span| is_end_of_path(span)).collect();
    assert!(ends.len() > 20, "only {} names of files were found", ends.len());
    let missing: Vec<&str> = ends.into_iter().filter(|end| !all.iter().any(|path| path.ends_with(end))).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md names files that exist nowhere: {missing:?}");
}

#[test]
fn units_name_manual_pages_that_are_shipped() {
    let units: Vec<PathBuf> = [".service", ".socket"].into_iter().flat_map(|ending| files("deploy", ending)).collect();
    assert_eq!(units.len(), 3, "{units:?}");
    for unit in units {
        let text = read(&unit);
        let pages = text.lines().find_map(|line| line.strip_prefix("Documentation="));
        let pages: Vec<&str> = pages.into_iter().flat_map(str::split_whitespace).collect();
        assert!(!pages.is_empty(), "{} names none", unit.display());
        for page in pages {
            let (name, section) = page
                .strip_prefix("man:")
                .and_then(|page| page.strip_suffix(')')?.split_once('('))
                .expect("a manual page");
            assert!(root().join(format!("deploy/man/{name}.{section}")).exists(), "{}: {page}", unit.display());
        }
    }
}

#[test]
fn broken_links_are_found() {
    let root = tempfile::tempdir().expect("a directory");
    let page = root.path().join("page.md");
    fs::write(root.path().join("other.md"), "# Some `code`, twice\n## Twice\n## Twice\n").expect("a page");
    let text = "# Page\n[a](other.md) [b](other.md#some-code-twice) [c](#page) [d](https://example.com/x) [e](.)\n\
                [f](other.md#twice-1)\n```\n[not a link](nowhere.md)\n```\n[g](nowhere.md) [h](other.md#none) [i](#none)\n";
    fs::write(&page, text).expect("a page");
    let broken = broken_links(&page);
    let named = |part: &str| broken.iter().any(|link| link.ends_with(part));
    assert!(broken.len() == 3 && named("nowhere.md") && named("other.md#none") && named(" #none"), "{broken:?}");
}

/// The links on a page whose files or headings do not exist, each as `page: link`.
fn broken_links(page: &Path) -> Vec<String> {
    let text = read(page);
    let leads = |link: &str| {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
        target.exists() && (heading.is_empty() || anchors(&read(&target)).contains(heading))
    };
    let is_elsewhere = |link: &str| link.contains("://") || link.starts_with("mailto:");
    let broken = links(&text).into_iter().filter(|link| !is_elsewhere(link) && !leads(link));
    broken.map(|link| format!("{}: {link}", page.display())).collect()
}

/// The text outside fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```").step_by(2)
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    prose(text)
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

/// The anchors that GitHub generates for the headings of a page.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).flat_map(str::lines).filter(|line| line.starts_with('#')) {
        let Some(heading) = heading.trim_start_matches('#').strip_prefix(' ') else { continue };
        let mut anchor = heading.to_lowercase().replace(' ', "-");
        anchor.retain(|kept| kept.is_alphanumeric() || "-_".contains(kept));
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let unique = iter::once(anchor.clone()).chain(numbered).find(|unique| !anchors.contains(unique));
        anchors.extend(unique);
    }
    anchors
}

/// The texts between single backquotes.
fn code_spans(text: &str) -> Vec<&str> {
    prose(text).flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// Returns whether `text` is a path from the root, without placeholders.
fn is_path(text: &str) -> bool {
    NAMED.iter().any(|directory| text.starts_with(directory)) && !text.contains(['<', '*', ' ', '{'])
}

/// Whether `text` is the name of a file, perhaps with the last directories before it, without placeholders.
fn is_end_of_path(text: &str) -> bool {
    let is_file = [".rs", ".py", ".txt", ".yaml"].iter().any(|ending| text.ends_with(ending));
    is_file && !is_path(text) && !text.contains(['<', '*', ' ', '{'])
}
