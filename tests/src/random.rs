//! Random packets that are the same in every run.

/// Marsaglia's xorshift generator: what matters here is that a failure can be repeated.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// A different sequence for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// One of the seeds, usually changed in a few places.
    pub fn mutated(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut packet = seeds[self.below(seeds.len())].clone();
        for _ in 0..self.below(4) {
            self.change(&mut packet, seeds);
        }
        // An empty packet would mean the end of the connection.
        if packet.is_empty() { vec![0] } else { packet }
    }

    fn change(&mut self, packet: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        const BYTES: [u8; 9] = [0, 1, 2, b'a', b'.', b'/', 0x7f, 0x80, 0xff];
        let at = self.below(packet.len() + 1);
        match self.below(8) {
            0 => packet.truncate(at),
            1 => packet.extend(std::iter::repeat_n(BYTES[self.below(BYTES.len())], self.below(64))),
            2 => {
                let other = &seeds[self.below(seeds.len())];
                packet.truncate(at);
                packet.extend(&other[at.min(other.len())..]);
            }
            3 => packet.insert(at, BYTES[self.below(BYTES.len())]),
            4 if at < packet.len() => drop(packet.remove(at)),
            5 if at + 8 <= packet.len() => {
                let number = 1_u64.checked_shl(u32::try_from(self.below(65)).unwrap_or(0)).unwrap_or(u64::MAX);
                packet[at..at + 8].copy_from_slice(&number.to_le_bytes());
            }
            6 if at < packet.len() => packet[at] = BYTES[self.below(BYTES.len())],
            _ if at < packet.len() => packet[at] ^= 1 << self.below(8),
            _ => {}
        }
    }
}
