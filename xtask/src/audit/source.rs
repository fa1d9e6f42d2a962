//! What is in the source of the privileged code: how much there is to read, what can be asked for, unsafe blocks, crates.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::Section;
use crate::policy::files::{Source, audited};
use crate::policy::lines::{self, Part, Rule, grouped};
use crate::policy::{LIST, listed};

/// What there is to read, in order.
pub fn parts(root: &Path) -> Result<Section> {
    let parts = lines::count(root)?;
    let row = |Part { process, question, places, lines }: &Part| {
        vec![process.clone(), format!("`{}`", places.join("`, `")), grouped(*lines), question.clone()]
    };
    let sum = |process| grouped(parts.iter().filter(|part| part.process == process).map(|part| part.lines).sum());
    let sums = ["placer", "workers", "start", "keeper"].map(|process| format!("{process} {}", sum(process)));
    let note = format!(
        "Lines without tests, comments, blank lines and lines that are only text: {}. A file is in the row that names it \
         most exactly.",
        sums.join(", ")
    );
    let columns = &["process", "read, in this order", "lines", "what to look for"];
    Ok(Section { title: "What to read", note, columns, rows: parts.iter().map(row).collect() })
}

/// The rules that only a comment holds.
pub fn rules(root: &Path) -> Result<Section> {
    let row = |(number, Rule { rule, reason }): (usize, Rule)| vec![number.to_string(), rule, reason];
    let rows = (1..).zip(lines::rules(root)?).map(row).collect();
    let note = "All others are types, lints or tests.".to_owned();
    let columns = &["", "rule", "why it cannot be a type"];
    Ok(Section { title: "Rules that hold by a comment only", note, columns, rows })
}

/// What a frontend can ask the keeper for, and what each request carries.
pub fn requests(root: &Path) -> Result<Section> {
    let text = fs::read_to_string(root.join("protocol/src/request.rs"))?;
    let block = within(&text, "\nrequests! {\n", "\n}\n")?;
    let plain = |text: &str| text.trim_matches([',', '"']).to_owned();
    let row = |request: &str| {
        let (head, what) = documented(request, "    ").into_iter().next().context("a request without a description")?;
        let fields = documented(request, "        ").into_iter().map(|(field, _)| format!("`{}`", plain(&field)));
        let words: Vec<_> = head.split_whitespace().map(plain).collect();
        ensure!(words.len() == 7, "a request that is written in another way: {head}");
        let fields = fields.collect::<Vec<_>>().join(", ");
        Ok([&words[1], &words[3], &words[4], &words[5], &fields, &what].map(String::clone).into())
    };
    let rows = block.split("\n    }\n").map(row).collect::<Result<Vec<_>>>()?;
    let note = format!("{} requests of a frontend to the keeper.", rows.len());
    let columns = &["request", "since version", "waits for", "effect", "carries", "what it does"];
    Ok(Section { title: "Requests", note, columns, rows })
}

/// What the keeper can ask the placer for.
pub fn placer(root: &Path) -> Result<Section> {
    let text = fs::read_to_string(root.join("privhelper/src/place/wire.rs"))?;
    let requests = documented(within(&text, "\npub enum Request {\n", "\n}\n")?, "    ");
    let rows: Vec<_> =
        requests.into_iter().map(|(item, what)| vec![format!("`{}`", item.trim_end_matches(',')), what]).collect();
    let note = format!("{} kinds of requests of the keeper to the placer.", rows.len());
    Ok(Section { title: "The placer's requests", note, columns: &["request", "what it asks for"], rows })
}

/// Capabilities by process.
pub fn capabilities(root: &Path) -> Result<Section> {
    let text = fs::read_to_string(root.join("privhelper/src/capabilities.rs"))?;
    let kept = documented(&text, "").into_iter().filter_map(|(item, what)| {
        let list = item.split_once("&[Capability] = &[")?.1.trim_end_matches("];").to_owned();
        Some(vec![what, if list.is_empty() { "none".to_owned() } else { list }])
    });
    let note = "What is permitted. [Why it holds](why-it-holds.md#processes) says when it is effective.".to_owned();
    Ok(Section { title: "Capabilities", note, columns: &["of", "capabilities"], rows: kept.collect() })
}

/// What the code does without what a later kernel has.
pub fn kernels(root: &Path) -> Result<Section> {
    let mut rows = Vec::new();
    for Source { path, text } in audited(root)? {
        let joined: Vec<_> = text.lines().map(|line| line.trim().trim_start_matches('/').trim()).collect();
        for noted in joined.join(" ").split("KERNEL(").skip(1) {
            let (since, until) = noted.split_once("): ").with_context(|| format!("{}: KERNEL(?", path.display()))?;
            let until = until.split('.').next().unwrap_or_default();
            rows.push(vec![since.to_owned(), until.to_owned(), format!("`{}`", path.display())]);
        }
    }
    let note = "What the helper does on an older kernel; [kernels.md](kernels.md) says what that means.".to_owned();
    Ok(Section { title: "Kernels", note, columns: &["since", "until then", "where"], rows })
}

/// What is between two texts.
fn within<'a>(text: &'a str, begin: &str, end: &str) -> Result<&'a str> {
    let found = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    Ok(found.with_context(|| format!("there is no {begin:?}"))?.0)
}

/// The items of a list at this depth, each with its documentation.
fn documented(list: &str, depth: &str) -> Vec<(String, String)> {
    let (mut items, mut what) = (Vec::new(), Vec::new());
    for line in list.lines().filter_map(|line| line.strip_prefix(depth)) {
        if let Some(text) = line.strip_prefix("/// ") {
            what.push(text);
        } else if line.starts_with(|first: char| first.is_ascii_alphabetic()) && !what.is_empty() {
            items.push((line.to_owned(), std::mem::take(&mut what).join(" ")));
        }
    }
    items
}

/// Every unsafe block, with the comment that says why it is sound. That it is above its block is clippy's concern.
pub fn unsafe_blocks(root: &Path) -> Result<Section> {
    let mut rows = Vec::new();
    for Source { path, text } in audited(root)? {
        let (reasons, path) = (reasons(&text), path.display());
        let blocks = text.lines().filter(|line| line.contains("unsafe {") && !line.trim_start().starts_with("//"));
        ensure!(
            blocks.count() == reasons.len(),
            "{path}: an unsafe block without a reason, or a reason without a block"
        );
        rows.extend(reasons.into_iter().map(|reason| vec![format!("`{path}`"), reason]));
    }
    let note = format!("{} blocks, each with one call.", rows.len());
    Ok(Section { title: "Unsafe", note, columns: &["where", "why it is sound"], rows })
}

/// The comments that begin with SAFETY.
fn reasons(text: &str) -> Vec<String> {
    let comments = text.split("// SAFETY: ").skip(1).map(|rest| {
        let more = rest.lines().skip(1).map_while(|line| line.trim().strip_prefix("// "));
        rest.lines().take(1).chain(more).collect::<Vec<_>>().join(" ")
    });
    comments.collect()
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
    fn a_reason_goes_on_to_the_end_of_its_comment() {
        let text = "// SAFETY: it lives\n    // long enough.\n    let a = unsafe { b() };\n// SAFETY: so does this.\nc();\n// No.\n";
        assert_eq!(reasons(text), ["it lives long enough.", "so does this."]);
    }

    #[test]
    fn an_item_has_the_documentation_above_it() {
        let list = "    /// One,\n    /// in two lines.\n    First(A),\n    Second {\n        /// Deeper.\n        a: B,\n    }\n";
        assert_eq!(documented(list, "    "), [("First(A),".to_owned(), "One, in two lines.".to_owned())]);
        assert_eq!(documented(list, "        "), [("a: B,".to_owned(), "Deeper.".to_owned())]);
    }
}
