//! The signature without which no program starts on Apple's processors. It is nobody's: a list of the hashes of the
//! file's pages, which the linker writes, and which whatever changes the file afterwards invalidates.
//!
//! Source: Apple's xnu, `osfmk/kern/cs_blobs.h`.

use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian;
use object::macho::{LC_CODE_SIGNATURE, LinkeditDataCommand, MachHeader64};
use object::read::macho::MachHeader as _;
use sha2::{Digest as _, Sha256};

/// The first word of the signature, which is an index of blobs.
const SIGNATURE: u32 = 0xfade_0cc0;

/// The first word of the blob with the hashes.
const CODE_DIRECTORY: u32 = 0xfade_0c02;

/// The kind of hash that stands for SHA-256, and its length.
const SHA256: [u8; 2] = [32, 2];

/// Fails unless the program is signed, and all its pages are as the signature says.
pub fn verify(program: &[u8]) -> Result<()> {
    let (start, length) = place(program)?;
    let signature = program.get(start..).and_then(|rest| rest.get(..length)).context("its signature is cut off")?;
    ensure!(word(signature, 0)? == SIGNATURE, "its signature is of an unknown kind");
    // The index's first entry, after the count of entries, is a kind and the offset of the blob.
    let directory = signature.get(word(signature, 16)? as usize..).context("its signature has no hashes")?;
    ensure!(word(directory, 0)? == CODE_DIRECTORY, "its signature does not begin with hashes");
    let (hashes, count, limit) = (word(directory, 16)?, word(directory, 28)?, word(directory, 32)? as usize);
    let [size, kind, _, page] = word(directory, 36)?.to_be_bytes();
    ensure!([size, kind] == SHA256 && page < 32, "its signature has hashes of another kind");
    ensure!(limit == start, "its signature is of {limit} bytes, and {start} are before it");
    let hashes = directory.get(hashes as usize..).context("its signature lacks the hashes")?;
    let pages = program.get(..limit).unwrap_or_default().chunks(1 << page);
    ensure!(pages.len() == count as usize, "its signature has {count} hashes for {} pages", pages.len());
    for (number, (page, hash)) in pages.zip(hashes.chunks(SHA256[0].into())).enumerate() {
        ensure!(Sha256::digest(page).as_slice() == hash, "page {number} is not what was signed");
    }
    Ok(())
}

/// Returns where the signature is: offset and length.
fn place(program: &[u8]) -> Result<(usize, usize)> {
    let header = MachHeader64::<LittleEndian>::parse(program, 0).context("it is no program for macOS")?;
    let mut commands = header.load_commands(LittleEndian, program, 0).context("read how it is loaded")?;
    while let Some(command) = commands.next().context("read how it is loaded")? {
        if command.cmd() == LC_CODE_SIGNATURE {
            let place: &LinkeditDataCommand<LittleEndian> = command.data().context("read where its signature is")?;
            return Ok((place.dataoff.get(LittleEndian) as usize, place.datasize.get(LittleEndian) as usize));
        }
    }
    bail!("it has no signature")
}

fn word(bytes: &[u8], offset: usize) -> Result<u32> {
    let word = bytes.get(offset..).and_then(|rest| rest.first_chunk()).context("its signature is cut off")?;
    Ok(u32::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, one command that says where the signature is, a second page, and the signature.
    fn program(signed: bool) -> Vec<u8> {
        let mut program = Vec::new();
        for word in [0xfeed_facf, 0x0100_000c, 0, 2, u32::from(signed), 16, 0, 0, 0x1d, 16, 8192, 84 + 64] {
            program.extend(u32::to_le_bytes(word));
        }
        program.resize(8192, 7);
        let hashes: Vec<u8> = program.chunks(4096).flat_map(Sha256::digest).collect();
        let directory = [CODE_DIRECTORY, 64 + 64, 0x20400, 2, 64, 44, 0, 2, 8192, 0x2002_000c, 0, 0, 0, 0, 0, 0];
        let signature = [SIGNATURE, 20 + 64 + 64, 1, 0, 20].into_iter().chain(directory);
        program.extend(signature.flat_map(u32::to_be_bytes));
        program.extend(hashes);
        program
    }

    #[test]
    fn a_changed_byte_is_noticed_and_so_is_a_lack_of_a_signature() {
        let mut signed = program(true);
        verify(&signed).unwrap();
        signed[5000] ^= 1;
        assert!(verify(&signed).unwrap_err().to_string().contains("page 1 "));
        assert!(verify(&program(false)).unwrap_err().to_string().contains("no signature"));
        let whole = program(true);
        for end in [0, 40, 100, 8191, 8200, 8300, whole.len() - 1] {
            assert!(verify(&whole[..end]).is_err(), "{end}");
        }
    }
}
