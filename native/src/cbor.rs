//! CBOR (RFC 8949) as Kinesis sends it: no tag but that of a time, which is left out.
//!
//! A length in the bytes is never trusted: a string must lie within the body, and the items of a container are counted
//! down as they are read.

use std::borrow::Cow;

use crate::source::{NotWellFormed, Read, Source, Value, skip};

/// Containers with content and tags, as cbor2 counts them.
const DEPTH_MAX: usize = 16;
const TIME_TAG: u64 = 1;
const BREAK: u8 = 0xff;

pub struct Cbor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The entries left of each open container; None: until the break.
    open: Vec<Option<u64>>,
}

/// The first byte of an item and its argument. None: indefinite length.
struct Head {
    major: u8,
    info: u8,
    argument: Option<u64>,
}

impl<'a> Cbor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, open: Vec::new() }
    }

    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let count = usize::try_from(count).map_err(|_| NotWellFormed)?;
        let taken = rest.get(..count).ok_or(NotWellFormed)?;
        self.at += count;
        Ok(taken)
    }

    fn head(&mut self) -> Read<Head> {
        let first = self.take(1)?[0];
        let (major, info) = (first >> 5, first & 31);
        let argument = match info {
            0..=23 => Some(u64::from(info)),
            24..=27 => {
                let bytes = self.take(1 << (info - 24))?;
                Some(bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
            }
            31 => None,
            _ => return Err(NotWellFormed),
        };
        Ok(Head { major, info, argument })
    }

    /// A string of a known length, or the parts of one. Each part has a known length.
    fn string(&mut self, head: &Head, check: fn(&[u8]) -> bool) -> Read<Cow<'a, [u8]>> {
        if let Some(length) = head.argument {
            let bytes = self.take(length)?;
            return if check(bytes) { Ok(Cow::Borrowed(bytes)) } else { Err(NotWellFormed) };
        }
        let mut joined = Vec::new();
        loop {
            if self.bytes.get(self.at) == Some(&BREAK) {
                self.at += 1;
                return Ok(Cow::Owned(joined));
            }
            let part = self.head()?;
            let bytes = self.take(part.argument.ok_or(NotWellFormed)?)?;
            if part.major != head.major || !check(bytes) {
                return Err(NotWellFormed);
            }
            joined.extend_from_slice(bytes);
        }
    }

    fn text(&mut self, head: &Head) -> Read<Cow<'a, str>> {
        match self.string(head, |bytes| std::str::from_utf8(bytes).is_ok())? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| NotWellFormed),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| NotWellFormed),
        }
    }

    /// An empty container of known length is entered, too, but it is no level of depth.
    fn enter(&mut self, entries: Option<u64>, tags: usize, value: Value<'a>) -> Read<Value<'a>> {
        if entries != Some(0) && self.open.len() + tags >= DEPTH_MAX {
            return Err(NotWellFormed);
        }
        self.open.push(entries);
        Ok(value)
    }

    fn special(&mut self, head: &Head) -> Read<Value<'a>> {
        let argument = head.argument.ok_or(NotWellFormed)?; // a break where a value belongs
        Ok(match head.info {
            20 => Value::False,
            21 => Value::True,
            22 => Value::Null,
            23 => Value::Undefined,
            24 if argument < 32 => return Err(NotWellFormed),
            25 => Value::Float(half_to_float(argument)),
            26 => Value::Float(f64::from(f32::from_bits(argument as u32))),
            27 => Value::Float(f64::from_bits(argument)),
            _ => Value::Other,
        })
    }

    fn at_break(&mut self) -> bool {
        let found = self.bytes.get(self.at) == Some(&BREAK);
        if found {
            self.at += 1;
        }
        found
    }

    /// Whether the innermost container continues; leaves it at its end.
    fn continues(&mut self) -> Read<bool> {
        let more = match self.open.last_mut().ok_or(NotWellFormed)? {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => !self.at_break(),
        };
        if !more {
            self.open.pop();
        }
        Ok(more)
    }
}

/// Half precision: five bits of exponent, ten of fraction.
fn half_to_float(bits: u64) -> f64 {
    let (exponent, fraction) = ((bits >> 10 & 31) as i32, (bits & 1023) as f64);
    let size = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 & 1 == 1 { -size } else { size }
}

impl<'a> Source<'a> for Cbor<'a> {
    const INTEGER_IS_MS: bool = true;
    const NAME: &'static str = "CBOR";

    fn value(&mut self) -> Read<Value<'a>> {
        let mut head = self.head()?;
        let mut tags = 0;
        while head.major == 6 {
            tags += 1;
            if head.argument != Some(TIME_TAG) || self.open.len() + tags > DEPTH_MAX {
                return Err(NotWellFormed);
            }
            head = self.head()?;
        }
        match head.major {
            0 => head.argument.map(Value::Unsigned).ok_or(NotWellFormed),
            1 => head.argument.map(Value::Negative).ok_or(NotWellFormed),
            2 => self.string(&head, |_| true).map(Value::Bytes),
            3 => self.text(&head).map(Value::Text),
            4 => self.enter(head.argument, tags, Value::List),
            5 => self.enter(head.argument, tags, Value::Map),
            _ => self.special(&head),
        }
    }

    fn key(&mut self) -> Read<Option<Option<Cow<'a, str>>>> {
        if !self.continues()? {
            return Ok(None);
        }
        match self.value()? {
            Value::Text(text) => Ok(Some(Some(text))),
            other => skip(self, &other).map(|()| Some(None)),
        }
    }

    fn item(&mut self) -> Read<bool> {
        self.continues()
    }

    fn end(&mut self) -> Read<()> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(NotWellFormed) }
    }
}
