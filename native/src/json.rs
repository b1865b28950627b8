//! JSON as RFC 8259 has it, and as orjson reads it: UTF-8, no lone surrogates, no infinite numbers.

use std::borrow::Cow;

use memchr::memchr2;

use crate::source::{NotWellFormed, Read, Source, Value};

const DEPTH_MAX: usize = 1024;

pub struct Json<'a> {
    text: &'a str,
    at: usize,
    /// For each open container: nothing of it was read yet.
    open: Vec<bool>,
}

impl<'a> Json<'a> {
    pub fn new(body: &'a [u8]) -> Read<Self> {
        let text = std::str::from_utf8(body).map_err(|_| NotWellFormed)?;
        Ok(Self { text, at: 0, open: Vec::new() })
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Read<()> {
        self.skip_space();
        if self.peek() != Some(byte) {
            return Err(NotWellFormed);
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, word: &str, value: Value<'a>) -> Read<Value<'a>> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(NotWellFormed);
        }
        self.at += word.len();
        Ok(value)
    }

    fn enter(&mut self, value: Value<'a>) -> Read<Value<'a>> {
        if self.open.len() == DEPTH_MAX {
            return Err(NotWellFormed);
        }
        self.at += 1;
        self.open.push(true);
        Ok(value)
    }

    /// Whether the innermost container continues; leaves it at `close`.
    fn continues(&mut self, close: u8) -> Read<bool> {
        self.skip_space();
        let next = self.peek().ok_or(NotWellFormed)?;
        if next == close {
            self.at += 1;
            self.open.pop();
            return Ok(false);
        }
        let first = self.open.last_mut().ok_or(NotWellFormed)?;
        if *first {
            *first = false;
        } else if next == b',' {
            self.at += 1;
        } else {
            return Err(NotWellFormed);
        }
        Ok(true)
    }

    /// The text after an opening quote.
    fn string(&mut self) -> Read<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        let rest = &self.text.as_bytes()[start..];
        let length = memchr2(b'"', b'\\', rest).ok_or(NotWellFormed)?;
        check_printable(&rest[..length])?;
        let plain = &self.text[start..start + length];
        self.at += length;
        if rest[length] == b'"' {
            self.at += 1;
            return Ok(Cow::Borrowed(plain));
        }
        self.escaped_string(plain.to_owned()).map(Cow::Owned)
    }

    /// The rest of a string from its first escape on.
    fn escaped_string(&mut self, mut text: String) -> Read<String> {
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let length = memchr2(b'"', b'\\', rest).ok_or(NotWellFormed)?;
            check_printable(&rest[..length])?;
            text.push_str(&self.text[self.at..self.at + length]);
            self.at += length + 1;
            if rest[length] == b'"' {
                return Ok(text);
            }
            text.push(self.escape()?);
        }
    }

    fn escape(&mut self) -> Read<char> {
        let kind = self.peek().ok_or(NotWellFormed)?;
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(NotWellFormed),
        })
    }

    fn unicode_escape(&mut self) -> Read<char> {
        let unit = self.four_hex()?;
        if !(0xd800..0xdc00).contains(&unit) {
            return char::from_u32(unit).ok_or(NotWellFormed); // a low surrogate alone is no character
        }
        if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
            return Err(NotWellFormed);
        }
        self.at += 2;
        let low = self.four_hex()?;
        if !(0xdc00..0xe000).contains(&low) {
            return Err(NotWellFormed);
        }
        char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)).ok_or(NotWellFormed)
    }

    fn four_hex(&mut self) -> Read<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).ok_or(NotWellFormed)?;
        self.at += 4;
        digits.iter().try_fold(0, |number, &digit| {
            char::from(digit).to_digit(16).map(|value| number << 4 | value).ok_or(NotWellFormed)
        })
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Read<Value<'a>> {
        let start = self.at;
        let negative = self.peek() == Some(b'-');
        if negative {
            self.at += 1;
        }
        let leading_zero = self.peek() == Some(b'0');
        let digits = self.digits();
        if digits == 0 || (leading_zero && digits > 1) {
            return Err(NotWellFormed);
        }
        let mut integer = true;
        if self.peek() == Some(b'.') {
            integer = false;
            self.at += 1;
            if self.digits() == 0 {
                return Err(NotWellFormed);
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(NotWellFormed);
            }
        }
        to_number(&self.text[start..self.at], integer)
    }
}

/// Integers that 64 bits cannot hold are floats, as in orjson.
fn to_number<'a>(text: &str, integer: bool) -> Read<Value<'a>> {
    if integer {
        if let Ok(number) = text.parse::<u64>() {
            return Ok(Value::Unsigned(number));
        }
        match text.parse::<i64>() {
            Ok(0) => return Ok(Value::Unsigned(0)), // -0
            Ok(number) => return Ok(Value::Negative(!number.cast_unsigned())),
            Err(_) => {}
        }
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Value::Float(number)),
        _ => Err(NotWellFormed),
    }
}

/// Without an early exit, so that the compiler compares many bytes at once.
fn check_printable(text: &[u8]) -> Read<()> {
    if text.iter().fold(false, |found, &byte| found | (byte < 0x20)) { Err(NotWellFormed) } else { Ok(()) }
}

impl<'a> Source<'a> for Json<'a> {
    const INTEGER_IS_MS: bool = false;
    const NAME: &'static str = "JSON";

    fn value(&mut self) -> Read<Value<'a>> {
        self.skip_space();
        match self.peek().ok_or(NotWellFormed)? {
            b'"' => self.string().map(Value::Text),
            b'{' => self.enter(Value::Map),
            b'[' => self.enter(Value::List),
            b't' => self.literal("true", Value::True),
            b'f' => self.literal("false", Value::False),
            b'n' => self.literal("null", Value::Null),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(NotWellFormed),
        }
    }

    fn key(&mut self) -> Read<Option<Option<Cow<'a, str>>>> {
        if !self.continues(b'}')? {
            return Ok(None);
        }
        self.skip_space();
        if self.peek() != Some(b'"') {
            return Err(NotWellFormed);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(Some(key)))
    }

    fn item(&mut self) -> Read<bool> {
        self.continues(b']')
    }

    fn end(&mut self) -> Read<()> {
        self.skip_space();
        if self.at == self.text.len() { Ok(()) } else { Err(NotWellFormed) }
    }
}
