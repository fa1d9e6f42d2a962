//! Lines, unsafe blocks and crates of the privileged code.

use std::path::Path;

use anyhow::{Context, Result};
use fs_err as fs;

use super::Section;
use crate::policy::files::{Source, audited};
use crate::policy::{LIST, lines, listed};

/// Returns how many lines there are to review.
pub fn lines(root: &Path) -> Result<Section> {
    let rows =
        lines::count(root)?.map(|(name, lines, goal)| vec![name.to_owned(), lines.to_string(), goal.to_string()]);
    Ok(Section {
        title: "Lines of Rust",
        note: "privhelper/ and protocol/, without tests, comments, blank lines and lines that are only text."
            .to_owned(),
        columns: &["which", "lines", "goal"],
        rows: rows.into(),
    })
}

/// Every unsafe block, with the comment that says why it is sound.
pub fn unsafe_blocks(root: &Path) -> Result<Section> {
    let mut rows = Vec::new();
    for Source { path, text } in audited(root)? {
        for (number, reason) in blocks(&text) {
            let reason = reason.with_context(|| format!("{}:{number}: unsafe without a reason", path.display()))?;
            rows.push(vec![format!("{}:{number}", path.display()), reason]);
        }
    }
    let note = format!("{} blocks, each with one call.", rows.len());
    Ok(Section { title: "Unsafe", note, columns: &["where", "why it is sound"], rows })
}

/// The numbers of the lines that open an unsafe block, and the SAFETY comment above each.
fn blocks(text: &str) -> Vec<(usize, Option<String>)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_block = |line: &str| line.contains("unsafe {") && !line.starts_with("//");
    let blocks = lines.iter().enumerate().filter(|(_, line)| is_block(line));
    blocks.map(|(index, _)| (index + 1, reason(&lines[..index]))).collect()
}

/// The last SAFETY comment, unless a statement ends between it and the block.
fn reason(above: &[&str]) -> Option<String> {
    let begin = above.iter().rposition(|line| line.starts_with("// SAFETY:"))?;
    let is_comment = |line: &&&str| line.starts_with("//");
    let comment: Vec<&str> = above[begin..].iter().take_while(is_comment).copied().collect();
    let between = &above[begin + comment.len()..];
    if between.iter().any(|line| line.ends_with(';') || line.ends_with('}') || line.is_empty()) {
        return None;
    }
    let words: Vec<&str> = comment.iter().map(|line| line.trim_start_matches('/').trim()).collect();
    Some(words.join(" ").trim_start_matches("SAFETY:").trim().to_owned())
}

/// Every crate in the helper's binary.
pub fn crates(root: &Path) -> Result<Section> {
    let rows: Vec<_> =
        listed(&fs::read_to_string(root.join(LIST))?)?.into_iter().map(|(name, why)| vec![name, why]).collect();
    let note = format!("{} crates: `cargo xtask test --step policy` compares them with the real tree.", rows.len());
    Ok(Section { title: "Crates in the helper's binary", note, columns: &["crate", "why it is there"], rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_reason_above_it() {
        let text = "// SAFETY: it lives\n// long enough.\nlet a = unsafe { b() };\n\nc();\nlet d = unsafe { e() };\n\
                    // SAFETY: so does this.\nlet f =\n    unsafe { g() };\n// no unsafe { } here\n";
        let found = blocks(text);
        assert_eq!(found[0], (3, Some("it lives long enough.".to_owned())));
        assert_eq!(found[1], (6, None));
        assert_eq!(found[2], (9, Some("so does this.".to_owned())));
        assert_eq!(found.len(), 3);
    }
}
