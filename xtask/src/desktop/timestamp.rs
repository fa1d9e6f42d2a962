//! The time at which a program for Windows was linked, which the linker writes into it: the only bytes that two builds of
//! the same source differ by. zig has no option that leaves it out.
//!
//! Source: Microsoft, "PE Format".

use anyhow::{Context, Result, ensure};

/// Where the first header says that the second is.
const PLACE: usize = 0x3c;

/// How the second begins.
const SIGNATURE: [u8; 4] = *b"PE\0\0";

/// Where the time is in the second header.
const TIME: usize = 8;

/// Sets the time to nothing.
pub fn clear(program: &mut [u8]) -> Result<()> {
    let short = "it is no program for Windows";
    let place: [u8; 4] = *program.get(PLACE..).and_then(|rest| rest.first_chunk()).context(short)?;
    let header = program.get_mut(u32::from_le_bytes(place) as usize..).context(short)?;
    ensure!(header.starts_with(&SIGNATURE), short);
    *header.get_mut(TIME..).and_then(|rest| rest.first_chunk_mut()).context(short)? = [0; 4];
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_is_cleared() {
        let mut program = vec![7; 200];
        program[PLACE..PLACE + 4].copy_from_slice(&120_u32.to_le_bytes());
        program[120..124].copy_from_slice(&SIGNATURE);
        let mut expected = program.clone();
        expected[128..132].fill(0);
        clear(&mut program).unwrap();
        assert_eq!(program, expected);
        for end in [0, PLACE + 2, 100, 122, 130] {
            assert!(clear(&mut program[..end]).is_err(), "{end}");
        }
    }
}
