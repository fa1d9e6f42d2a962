//! Which disks are meant: by size, model and path.

use std::path::Path;

use bulkhead_privhelper::{file, walk};
use rustix::fs::OFlags;

use super::devices::Device;
use super::why::Why;

/// What of a whole machine is a disk, unless other types are asked for.
const DISK: &str = "disk";

/// What a disk has to be. Of several models, paths and types, one has to fit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The least and the most bytes.
    pub sizes: Option<(u64, u64)>,
    /// Patterns for what the disk calls itself.
    pub models: Vec<String>,
    /// Patterns for its node, and for links to that.
    pub paths: Vec<String>,
    /// Types, as lsblk(8) calls them.
    pub types: Vec<String>,
}

impl Rule {
    /// Returns whether it tells any disk from another.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_none() && self.models.is_empty() && self.paths.is_empty()
    }

    /// Returns whether devices of this type are meant at all.
    pub fn takes_type(&self, kind: &str) -> bool {
        if self.types.is_empty() { kind == DISK } else { self.types.iter().any(|wanted| wanted == kind) }
    }

    /// Returns in what a device does not match, if it does not.
    pub fn mismatch(&self, device: &Device) -> Option<Why> {
        let differs_in = |flag| Some(Why::NotMatching(flag));
        if self.sizes.is_some_and(|(least, most)| device.size < least || device.size > most) {
            return differs_in("--size");
        }
        if !self.models.is_empty() && !self.models.iter().any(|pattern| fits(pattern, &device.model)) {
            return differs_in("--model");
        }
        let leads_there = |pattern: &String| {
            device.paths.iter().any(|path| fits(pattern, &path.to_string_lossy()))
                || !pattern.contains(['*', '?']) && number_of(Path::new(pattern)) == Some(device.number)
        };
        if !self.paths.is_empty() && !self.paths.iter().any(leads_there) {
            return differs_in("--path");
        }
        None
    }
}

/// The number of the device that a path leads to, over links as well.
pub fn number_of(path: &Path) -> Option<(u32, u32)> {
    let node = walk::open_at_start(path, OFlags::PATH).and_then(file::status).ok()?;
    node.file_type.is_block_device().then_some(node.device)
}

/// Returns whether a text fits a pattern, in which `*` stands for any number of characters and `?` for one.
fn fits(pattern: &str, text: &str) -> bool {
    let rest = |text: &str| text.chars().skip(1).collect::<String>();
    match (pattern.chars().next(), text.chars().next()) {
        (None, None) => true,
        (Some('*'), next) => fits(&rest(pattern), text) || next.is_some() && fits(pattern, &rest(text)),
        (Some(wanted), Some(found)) => (wanted == '?' || wanted == found) && fits(&rest(pattern), &rest(text)),
        _ => false,
    }
}

/// Reads `MIN..MAX`, of which one may be left out.
///
/// # Errors
/// A sentence on what is expected.
pub fn sizes(text: &str) -> Result<(u64, u64), String> {
    let read = || {
        let (least, most) = text.split_once("..")?;
        let least = if least.is_empty() { 0 } else { size(least)? };
        let most = if most.is_empty() { u64::MAX } else { size(most)? };
        (text != ".." && least <= most).then_some((least, most))
    };
    read().ok_or_else(|| {
        format!("expected MIN..MAX, MIN.. or ..MAX, as in 900G..1100G or 1Ti.. (k, M, G, T, P; Ki, Mi, Gi, Ti, Pi), not {text:?}")
    })
}

/// Reads a number of bytes, with a suffix of Kubernetes' quantities.
fn size(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(digits)?;
    let (base, power) = match suffix {
        "" => (1, 0),
        "k" => (1000, 1),
        "M" => (1000, 2),
        "G" => (1000, 3),
        "T" => (1000, 4),
        "P" => (1000, 5),
        "Ki" => (1024, 1),
        "Mi" => (1024, 2),
        "Gi" => (1024, 3),
        "Ti" => (1024, 4),
        "Pi" => (1024, 5),
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(u64::checked_pow(base, power)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_for_the_whole_text() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "any"),
            ("a*c", "abcbc"),
            ("*b?d*", "aabcde"),
            ("SAMSUNG MZ*", "SAMSUNG MZ7L33T8"),
            ("**a", "a"),
        ] {
            assert!(fits(pattern, text), "{pattern:?} {text:?}");
        }
        for (pattern, text) in
            [("", "a"), ("a", ""), ("a*c", "abcb"), ("a?", "a"), ("/dev/sd?", "/dev/sdaa"), ("*a", "b")]
        {
            assert!(!fits(pattern, text), "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn sizes_are_quantities_with_an_open_end_or_none() {
        assert_eq!(sizes("1k..2Ki"), Ok((1000, 2048)));
        assert_eq!(sizes("900G.."), Ok((900_000_000_000, u64::MAX)));
        assert_eq!(sizes("..1Ti"), Ok((0, 1 << 40)));
        for wrong in ["", "..", "1G", "2G..1G", "1.5T..", "-1..", "1K..", "G..", "99999999P.."] {
            assert!(sizes(wrong).is_err_and(|said| said.contains("expected MIN..MAX")), "{wrong}");
        }
    }

    #[test]
    fn a_rule_says_in_what_a_disk_differs() {
        let disk = Device {
            size: 1000,
            model: "Fast 1".to_owned(),
            paths: vec!["/dev/sdx".into(), "/dev/disk/by-id/wwn-0x5".into()],
            ..Device::default()
        };
        let rule = |sizes, model: &str, path: &str| Rule {
            sizes,
            models: vec![model.to_owned()],
            paths: vec![path.to_owned()],
            types: Vec::new(),
        };
        let differs = |rule: Rule| rule.mismatch(&disk).map(|why| why.to_string());
        assert_eq!(differs(rule(Some((1000, 1000)), "Fast*", "/dev/disk/by-id/wwn-*")), None);
        assert_eq!(differs(Rule::default()), None);
        let other = |flag: &str| Some(format!("does not match {flag}"));
        assert_eq!(differs(rule(Some((1001, 2000)), "*", "*")), other("--size"));
        assert_eq!(differs(rule(None, "Slow*", "*")), other("--model"));
        assert_eq!(differs(rule(None, "*", "/dev/sd")), other("--path"));
        assert!(Rule::default().takes_type("disk") && !Rule::default().takes_type("loop"));
        let loops = Rule { types: vec!["loop".to_owned()], ..Rule::default() };
        assert!(loops.takes_type("loop") && !loops.takes_type("disk"));
    }
}
