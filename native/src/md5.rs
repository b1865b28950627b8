//! MD5 (RFC 1321): the checksum of a KPL aggregate, and the hash by which Kinesis chooses the shard of a key.
//!
//! It protects nothing here. Several messages are hashed side by side, one in each lane of a vector register, because
//! a single one leaves most of the processor idle.

const BLOCK: usize = 64;

pub type Digest = [u8; 16];

const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
const SHIFTS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
const SINES: [u32; 64] = sines();

/// floor(2^32 * |sin(n)|) for n = 1 ... 64, from the series of the sine: the standard library has no constant sine.
const fn sines() -> [u32; 64] {
    let mut table = [0; 64];
    let mut n = 0;
    while n < 64 {
        let sine = constant_sine((n + 1) as f64);
        let size = if sine < 0.0 { -sine } else { sine };
        table[n] = (size * 4_294_967_296.0) as u32;
        n += 1;
    }
    table
}

const fn constant_sine(x: f64) -> f64 {
    // Two parts of 2 pi, so that the reduced argument is exact enough for 32 bits.
    let turns = (x / core::f64::consts::TAU + 0.5) as i64 as f64;
    let reduced = x - turns * std::f64::consts::TAU - turns * 2.449_293_598_294_706_4e-16;
    let (mut term, mut sum, mut n) = (reduced, reduced, 1);
    while n < 20 {
        let m = (2 * n) as f64;
        term = -term * reduced * reduced / (m * (m + 1.0));
        sum += term;
        n += 1;
    }
    sum
}

/// The same word of N messages.
type Lanes<const N: usize> = [u32; N];

// Each operation is a loop of its own, because the compiler turns exactly that into one instruction for all lanes.

#[inline(always)]
fn map<const N: usize>(a: Lanes<N>, f: impl Fn(u32) -> u32) -> Lanes<N> {
    let mut result = [0; N];
    for lane in 0..N {
        result[lane] = f(a[lane]);
    }
    result
}

#[inline(always)]
fn zip<const N: usize>(a: Lanes<N>, b: Lanes<N>, f: impl Fn(u32, u32) -> u32) -> Lanes<N> {
    let mut result = [0; N];
    for lane in 0..N {
        result[lane] = f(a[lane], b[lane]);
    }
    result
}

#[inline(always)]
fn add<const N: usize>(a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    zip(a, b, u32::wrapping_add)
}

#[inline(always)]
fn and<const N: usize>(a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    zip(a, b, |x, y| x & y)
}

#[inline(always)]
fn or<const N: usize>(a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    zip(a, b, |x, y| x | y)
}

#[inline(always)]
fn xor<const N: usize>(a: Lanes<N>, b: Lanes<N>) -> Lanes<N> {
    zip(a, b, |x, y| x ^ y)
}

type State<const N: usize> = [Lanes<N>; 4];

/// Adds one block of each message to its state.
#[inline(always)]
fn compress<const N: usize>(state: &mut State<N>, words: &[Lanes<N>; 16]) {
    let [mut a, mut b, mut c, mut d] = *state;
    macro_rules! round {
        ($round:literal, $mix:expr, $word:expr, $($i:literal)*) => { $(
            let word = map(words[$word($i) % 16], |word| word.wrapping_add(SINES[16 * $round + $i]));
            let sum = add(add(a, $mix), word);
            let next = add(b, map(sum, |sum| sum.rotate_left(SHIFTS[$round][$i % 4])));
            (a, b, c, d) = (d, next, b, c);
        )* };
    }
    round!(0, xor(d, and(b, xor(c, d))), |i: usize| i, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(1, xor(c, and(d, xor(b, c))), |i: usize| 5 * i + 1, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(2, xor(b, xor(c, d)), |i: usize| 3 * i + 5, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    round!(3, xor(c, or(b, map(d, |word| !word))), |i: usize| 7 * i, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    let [a0, b0, c0, d0] = *state;
    *state = [add(a0, a), add(b0, b), add(c0, c), add(d0, d)];
}

/// The words of one block of each message: `words[word][lane]`.
#[inline(always)]
fn transpose<const N: usize>(blocks: &[&[u8; BLOCK]; N]) -> [Lanes<N>; 16] {
    let mut words = [[0; N]; 16];
    for (lane, block) in blocks.iter().enumerate() {
        for (word, bytes) in words.iter_mut().zip(block.as_chunks().0) {
            word[lane] = u32::from_le_bytes(*bytes);
        }
    }
    words
}

/// The last one or two blocks of a message: its rest, a bit, zeros, and its length in bits.
type Tail = [[u8; BLOCK]; 2];

/// Returns how many blocks it has.
#[inline(always)]
fn write_tail(tail: &mut Tail, rest: &[u8], length: usize) -> usize {
    let count = if rest.len() < BLOCK - 8 { 1 } else { 2 };
    let blocks = &mut tail[..count];
    blocks.fill([0; BLOCK]);
    blocks[0][..rest.len()].copy_from_slice(rest);
    blocks[0][rest.len()] = 0x80;
    blocks[count - 1][BLOCK - 8..].copy_from_slice(&(length as u64).wrapping_mul(8).to_le_bytes());
    count
}

/// The digests of all messages, in their order.
pub fn digest_all(messages: &[&[u8]]) -> Vec<Digest> {
    #[cfg(target_arch = "x86_64")]
    if let Some(digests) = wide::digest_all(messages) {
        return digests;
    }
    if messages.len() == 1 { digest_in_lanes::<1>(messages) } else { digest_in_lanes::<4>(messages) }
}

/// The same code for processors with wider registers. The compiler uses their instructions only in functions that say
/// so, and such a function may be called only if the processor has them: that is the reason for `unsafe`.
#[cfg(target_arch = "x86_64")]
mod wide {
    #![allow(unsafe_code)]

    use super::{Digest, digest_in_lanes};

    /// None if the processor has no such registers, or if most of their lanes would be empty.
    pub fn digest_all(messages: &[&[u8]]) -> Option<Vec<Digest>> {
        if messages.len() > 8 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
            // SAFETY: the processor has these instructions.
            return Some(unsafe { with_avx512(messages) });
        }
        if messages.len() > 2 && is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return Some(unsafe { with_avx2(messages) });
        }
        None
    }

    #[target_feature(enable = "avx512f,avx512vl")]
    fn with_avx512(messages: &[&[u8]]) -> Vec<Digest> {
        digest_in_lanes::<16>(messages)
    }

    #[target_feature(enable = "avx2")]
    fn with_avx2(messages: &[&[u8]]) -> Vec<Digest> {
        digest_in_lanes::<8>(messages)
    }
}

/// A message that is being hashed in one lane. Its tail is in another array, because a lane is moved when it is filled.
#[derive(Clone, Copy)]
struct Running<'a> {
    /// The place of the message in the input.
    index: usize,
    whole: &'a [[u8; BLOCK]],
    blocks: usize,
    done: usize,
}

impl<'a> Running<'a> {
    #[inline(always)]
    fn new(index: usize, message: &'a [u8], tail: &mut Tail) -> Self {
        let (whole, rest) = message.as_chunks::<BLOCK>();
        Self { index, whole, blocks: whole.len() + write_tail(tail, rest, message.len()), done: 0 }
    }

    #[inline(always)]
    fn block(self, step: usize, tail: &'a Tail) -> &'a [u8; BLOCK] {
        let index = self.done + step;
        self.whole.get(index).unwrap_or_else(|| &tail[(index - self.whole.len()) % 2])
    }
}

/// The digests of all messages, N at a time. A lane that has finished its message takes the next one.
#[inline(always)]
fn digest_in_lanes<const N: usize>(messages: &[&[u8]]) -> Vec<Digest> {
    let mut digests = vec![[0; 16]; messages.len()];
    let mut waiting = messages.iter().enumerate();
    let mut running: [Option<Running<'_>>; N] = [const { None }; N];
    // A lane without a message hashes zeros, and nobody looks at the result.
    let mut tails = [[[0; BLOCK]; 2]; N];
    let mut state = [[0; N]; 4];
    loop {
        for (lane, slot) in running.iter_mut().enumerate() {
            if slot.is_none()
                && let Some((index, message)) = waiting.next()
            {
                *slot = Some(Running::new(index, message, &mut tails[lane]));
                for (words, start) in state.iter_mut().zip(START) {
                    words[lane] = start;
                }
            }
        }
        let steps = running.iter().flatten().map(|each| each.blocks - each.done).min();
        let Some(steps) = steps else { return digests };
        for step in 0..steps {
            let mut blocks = tails.each_ref().map(|tail| &tail[0]);
            for (lane, block) in blocks.iter_mut().enumerate() {
                if let Some(each) = running[lane] {
                    *block = each.block(step, &tails[lane]);
                }
            }
            compress(&mut state, &transpose(&blocks));
        }
        for (lane, slot) in running.iter_mut().enumerate() {
            let Some(each) = slot else { continue };
            each.done += steps;
            if each.done == each.blocks {
                digests[each.index] = to_digest(&state, lane);
                *slot = None;
            }
        }
    }
}

fn to_digest<const N: usize>(state: &State<N>, lane: usize) -> Digest {
    let mut digest = [0; 16];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word[lane].to_le_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: Digest) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn digest(message: &[u8]) -> String {
        hex(digest_all(&[message])[0])
    }

    #[test]
    fn the_digests_of_the_standard() {
        assert_eq!(digest(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(digest(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(digest(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }

    #[test]
    fn messages_of_all_lengths_are_hashed_together_as_alone() {
        let bytes: Vec<u8> = (0..4096u32).map(|n| (n * 7 % 251) as u8).collect();
        let messages: Vec<&[u8]> = (0..300).map(|n| &bytes[..n * 13 % 4096]).collect();
        for (message, found) in messages.iter().zip(digest_all(&messages)) {
            assert_eq!(hex(found), digest(message));
        }
    }
}
