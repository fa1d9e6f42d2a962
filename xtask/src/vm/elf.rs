//! Which shared libraries a program needs, read from its file: `ldd` runs the program, and one for another processor
//! does not run here.

use object::LittleEndian;
use object::elf::DT_NEEDED;
use object::read::elf::{ElfFile64, ProgramHeader};

/// The names of the libraries, and the path of the loader: none for a static program. A file that is not 64-bit
/// little-endian ELF is an error.
pub fn needed(file: &[u8]) -> object::Result<Vec<String>> {
    let elf = ElfFile64::<LittleEndian>::parse(file)?;
    let mut names = Vec::new();
    for segment in elf.elf_program_headers() {
        names.extend(segment.interpreter(LittleEndian, file)?.map(text));
    }
    let table = elf.elf_dynamic_table()?;
    for entry in table.iter().filter(|entry| entry.tag == DT_NEEDED) {
        names.push(text(table.string(entry)?));
    }
    Ok(names)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_of_this_host() {
        let names = needed(&std::fs::read("/bin/mount").unwrap()).unwrap();
        assert!(names.iter().any(|name| name.starts_with("/lib")), "no loader in {names:?}");
        assert!(names.iter().any(|name| name == "libc.so.6"), "no C library in {names:?}");
    }

    #[test]
    fn what_is_no_program() {
        assert!(needed(b"#!/bin/sh\n").is_err());
        assert!(needed(b"\x7fELF\x02\x01").is_err());
    }
}
