//! Base64 with padding. Bits that the last character has too many are ignored, as pybase64 does.

const PAD: u8 = b'=';

/// Appends the decoded bytes; false if `text` is not base64, and then `output` may have grown.
pub fn decode_append(text: &[u8], output: &mut Vec<u8>) -> bool {
    if text.is_empty() {
        return true;
    }
    if !text.len().is_multiple_of(4) {
        return false;
    }
    // The last four characters are decoded here: the library refuses bits that the last character has too many.
    let (most, last) = text.split_at(text.len() - 4);
    base64_simd::STANDARD_NO_PAD.decode_append(most, output).is_ok() && decode_last(last, output)
}

fn decode_last(last: &[u8], output: &mut Vec<u8>) -> bool {
    let count = match last {
        [_, _, PAD, PAD] => 1,
        [_, _, _, PAD] => 2,
        _ => 3,
    };
    let mut bits: u32 = 0;
    for &character in &last[..count + 1] {
        let Some(value) = value_of(character) else { return false };
        bits = bits << 6 | value;
    }
    bits <<= 6 * (3 - count);
    output.extend_from_slice(&bits.to_be_bytes()[1..=count]);
    true
}

fn value_of(character: u8) -> Option<u32> {
    Some(u32::from(match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}
