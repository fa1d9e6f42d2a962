//! Which shared libraries a program asks for, read from its file: `ldd` runs the program, and one for another
//! processor does not run here.

/// Names of the libraries, and the path of the loader. Empty for what is static or no 64-bit little-endian ELF file.
pub fn needed(file: &[u8]) -> Vec<String> {
    needed_or_none(file).unwrap_or_default()
}

const PROGRAM_LOAD: u32 = 1;
const PROGRAM_DYNAMIC: u32 = 2;
const PROGRAM_INTERPRETER: u32 = 3;
const DYNAMIC_NEEDED: u64 = 1;
const DYNAMIC_STRINGS: u64 = 5;

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn needed_or_none(file: &[u8]) -> Option<Vec<String>> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let segments = segments(file)?;
    let of_kind = |kind| segments.iter().find(|segment| segment.kind == kind);
    let mut names = Vec::new();
    if let Some(interpreter) = of_kind(PROGRAM_INTERPRETER) {
        names.push(text(file, interpreter.offset)?);
    }
    let dynamic = of_kind(PROGRAM_DYNAMIC)?;
    let entries: Vec<(u64, u64)> = (0..dynamic.size / 16)
        .map_while(|index| {
            let at = dynamic.offset + index * 16;
            Some((word(file, at)?, word(file, at + 8)?))
        })
        .collect();
    let strings_address = entries.iter().find(|(tag, _)| *tag == DYNAMIC_STRINGS)?.1;
    let home = segments.iter().find(|segment| {
        segment.kind == PROGRAM_LOAD && (segment.address..segment.address + segment.size).contains(&strings_address)
    })?;
    let strings = strings_address - home.address + home.offset;
    for (_, name) in entries.iter().filter(|(tag, _)| *tag == DYNAMIC_NEEDED) {
        names.push(text(file, strings + name)?);
    }
    Some(names)
}

fn segments(file: &[u8]) -> Option<Vec<Segment>> {
    let table = word(file, 32)?;
    let entry_size = u64::from(half(file, 54)?);
    let count = u64::from(half(file, 56)?);
    (0..count)
        .map(|index| {
            let at = table + index * entry_size;
            let kind = u32::from_le_bytes(bytes(file, at)?);
            Some(Segment {
                kind,
                offset: word(file, at + 8)?,
                address: word(file, at + 16)?,
                size: word(file, at + 32)?,
            })
        })
        .collect()
}

fn bytes<const N: usize>(file: &[u8], at: u64) -> Option<[u8; N]> {
    let at = usize::try_from(at).ok()?;
    file.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn half(file: &[u8], at: u64) -> Option<u16> {
    bytes(file, at).map(u16::from_le_bytes)
}

fn word(file: &[u8], at: u64) -> Option<u64> {
    bytes(file, at).map(u64::from_le_bytes)
}

fn text(file: &[u8], at: u64) -> Option<String> {
    let rest = file.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().position(|&byte| byte == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_of_this_host() {
        let names = needed(&std::fs::read("/bin/mount").unwrap());
        assert!(names.iter().any(|name| name.starts_with("/lib")), "no loader in {names:?}");
        assert!(names.iter().any(|name| name == "libc.so.6"), "no C library in {names:?}");
    }

    #[test]
    fn what_is_no_program() {
        assert!(needed(b"#!/bin/sh\n").is_empty());
        assert!(needed(b"\x7fELF\x02\x01").is_empty());
    }
}
