//! The message of a KPL aggregate, read as protobuf's runtime reads it (tests/native compares the two).

/// The bytes are not a message, or lack a required field.
#[derive(Debug)]
pub struct MalformedMessage;

type Parsed<T> = Result<T, MalformedMessage>;

pub const INDEX_ABSENT: u64 = u64::MAX;
/// Nested messages and groups, as in the protobuf runtime.
const DEPTH_MAX: usize = 100;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const DELIMITED: u32 = 2;
const GROUP_START: u32 = 3;
const GROUP_END: u32 = 4;
const FIXED32: u32 = 5;

#[derive(Clone, Copy)]
pub struct UserRecord<'a> {
    pub data: &'a [u8],
    pub key_index: u64,
    pub hash_key_index: u64,
}

/// The content of one message. The vectors are used again for the next one.
#[derive(Default)]
pub struct Message<'a> {
    pub partition_keys: Vec<&'a [u8]>,
    pub hash_keys: Vec<&'a [u8]>,
    pub records: Vec<UserRecord<'a>>,
}

impl<'a> Message<'a> {
    pub fn read(&mut self, payload: &'a [u8]) -> Parsed<()> {
        self.partition_keys.clear();
        self.hash_keys.clear();
        self.records.clear();
        let mut wire = Wire { rest: payload };
        while !wire.rest.is_empty() {
            match wire.tag()? {
                (1, DELIMITED) => self.partition_keys.push(wire.delimited()?),
                (2, DELIMITED) => self.hash_keys.push(wire.delimited()?),
                (3, DELIMITED) => self.records.push(read_record(wire.delimited()?)?),
                (field, wire_type) => wire.skip(field, wire_type, DEPTH_MAX)?,
            }
        }
        Ok(())
    }
}

fn read_record(message: &[u8]) -> Parsed<UserRecord<'_>> {
    let (mut key_index, mut hash_key_index, mut data) = (None, INDEX_ABSENT, None);
    let mut wire = Wire { rest: message };
    while !wire.rest.is_empty() {
        match wire.tag()? {
            (1, VARINT) => key_index = Some(wire.varint()?),
            (2, VARINT) => hash_key_index = wire.varint()?,
            (3, DELIMITED) => data = Some(wire.delimited()?),
            (field, wire_type) => wire.skip(field, wire_type, DEPTH_MAX - 1)?,
        }
    }
    match (data, key_index) {
        (Some(data), Some(key_index)) => Ok(UserRecord { data, key_index, hash_key_index }),
        _ => Err(MalformedMessage),
    }
}

struct Wire<'a> {
    rest: &'a [u8],
}

impl<'a> Wire<'a> {
    fn take(&mut self, count: usize) -> Parsed<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(MalformedMessage)?;
        self.rest = rest;
        Ok(taken)
    }

    /// At most ten bytes; of the tenth, only the lowest bit counts.
    fn varint(&mut self) -> Parsed<u64> {
        let mut value = 0;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(MalformedMessage)
    }

    /// A varint of at most five bytes and at most `max`.
    fn short_varint(&mut self, max: u32) -> Parsed<u32> {
        let before = self.rest.len();
        let value = self.varint()?;
        match u32::try_from(value) {
            Ok(value) if value <= max && before - self.rest.len() <= 5 => Ok(value),
            _ => Err(MalformedMessage),
        }
    }

    fn any_tag(&mut self) -> Parsed<(u32, u32)> {
        let tag = self.short_varint(u32::MAX)?;
        Ok((tag >> 3, tag & 7))
    }

    /// The number of a field and its wire type.
    fn tag(&mut self) -> Parsed<(u32, u32)> {
        match self.any_tag()? {
            (0, _) => Err(MalformedMessage),
            tag => Ok(tag),
        }
    }

    fn delimited(&mut self) -> Parsed<&'a [u8]> {
        let length = self.short_varint(i32::MAX.unsigned_abs())?;
        self.take(length as usize)
    }

    /// Skips an unknown field: a group with everything in it, at most `depth` groups deep.
    fn skip(&mut self, field: u32, wire_type: u32, depth: usize) -> Parsed<()> {
        let mut groups = Vec::new();
        let (mut field, mut wire_type) = (field, wire_type);
        loop {
            match wire_type {
                VARINT => self.varint().map(drop)?,
                FIXED64 => self.take(8).map(drop)?,
                FIXED32 => self.take(4).map(drop)?,
                DELIMITED => self.delimited().map(drop)?,
                GROUP_START if groups.len() < depth => groups.push(field),
                GROUP_END if groups.pop() == Some(field) => {}
                _ => return Err(MalformedMessage),
            }
            if groups.is_empty() {
                return Ok(());
            }
            (field, wire_type) = self.any_tag()?;
        }
    }
}

/// The number of top-level fields. Stops after more than `stop_after`, and at anything that is not a field: the reader
/// reports that. The same steps as `count_entries` in Python, whose result decides about the limits.
pub fn count_entries(payload: &[u8], stop_after: u64) -> u64 {
    let (mut count, mut at) = (0, 0);
    while at < payload.len() && count <= stop_after {
        match skip_entry(payload, at) {
            Some(next) => at = next,
            None => break,
        }
        count += 1;
    }
    count
}

fn skip_entry(payload: &[u8], at: usize) -> Option<usize> {
    let (tag, at) = count_varint(payload, at)?;
    let (step, at) = match (tag & 7) as u32 {
        VARINT => (0, count_varint(payload, at)?.1),
        DELIMITED => count_varint(payload, at)?,
        FIXED64 => (8, at),
        FIXED32 => (4, at),
        GROUP_START | GROUP_END => (0, at),
        _ => return None,
    };
    Some(usize::try_from(step).map_or(usize::MAX, |step| at.saturating_add(step)))
}

/// Up to ten bytes, which hold 70 bits.
fn count_varint(payload: &[u8], at: usize) -> Option<(u128, usize)> {
    let mut value = 0;
    for index in 0..10 {
        let byte = *payload.get(at + index)?;
        value |= u128::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some((value, at + index + 1));
        }
    }
    None
}
