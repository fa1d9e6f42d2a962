//! What is known about the crates, and what the binary is.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use super::Section;
use crate::checksum::sha256;
use crate::policy::PACKAGE;
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// The advisories that are accepted, with the reason.
pub fn accepted(root: &Path) -> Result<Section> {
    let rows = accepted_in(&fs::read_to_string(root.join("deny.toml"))?);
    let note = "`cargo xtask lint --advisories` asks whether there are others.".to_owned();
    Ok(Section { title: "Accepted advisories", note, columns: &["advisory", "why"], rows })
}

/// The advisories that deny.toml accepts, with their reasons.
fn accepted_in(deny: &str) -> Vec<Vec<String>> {
    let blocks = deny.split("[[advisories.ignore]]").skip(1);
    let value = |block: &str, key: &str| {
        let rest = block.split_once(&format!("{key} = "))?.1;
        let (quote, rest) = match rest.strip_prefix("\"\"\"") {
            Some(rest) => ("\"\"\"", rest),
            None => ("\"", rest.strip_prefix('"')?),
        };
        Some(rest.split_once(quote)?.0.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    blocks.filter_map(|block| Some(vec![value(block, "id")?, value(block, "reason")?])).collect()
}

/// The hash of the helper as shipped, from two independent builds.
pub fn hash(workspace: &Workspace) -> Result<Section> {
    let host = Architecture::host();
    let mut section =
        Section { title: "Binary", note: String::new(), columns: &["build", "SHA-256"], rows: Vec::new() };
    for number in ["1", "2"] {
        let target = workspace.target.join("audit").join(number);
        // Cargo would not rebuild what an earlier build left.
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        let built = workspace.with_target(target).build(Selection::Only(&[PACKAGE]), host, Profile::Release)?;
        let program = built.first().with_context(|| format!("the build made no {PACKAGE}"))?;
        let content = fs::read(program)?;
        section.rows.push(vec![number.to_owned(), sha256(&content)]);
    }
    ensure!(section.rows[0][1] == section.rows[1][1], "two builds of one source differ: {:?}", section.rows);
    section.note = format!("{PACKAGE} for {}, twice from nothing: one hash.", host.triple());
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_accepted_has_a_reason() {
        let deny = "[advisories]\n\n[[advisories.ignore]]\nid = \"RUSTSEC-1\"\nreason = \"\"\"\none\ntwo\n\"\"\"\n\n\
                    [[advisories.ignore]]\nid = \"RUSTSEC-2\"\nreason = \"three\"\n\n[bans]\n";
        let row = |id: &str, why: &str| vec![id.to_owned(), why.to_owned()];
        assert_eq!(accepted_in(deny), [row("RUSTSEC-1", "one two"), row("RUSTSEC-2", "three")]);
    }
}
