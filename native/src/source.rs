//! What JSON and CBOR have in common: values that are read one after the other, without a tree in memory.

use std::borrow::Cow;

/// The bytes are not JSON or not CBOR.
#[derive(Debug)]
pub struct NotWellFormed;

pub type Read<T> = Result<T, NotWellFormed>;

/// One value. A map or a list is only entered: its content follows.
#[derive(Debug)]
pub enum Value<'a> {
    Null,
    False,
    True,
    Unsigned(u64),
    /// The value is -1 - n, so that the lowest value of CBOR fits.
    Negative(u64),
    Float(f64),
    Text(Cow<'a, str>),
    Bytes(Cow<'a, [u8]>),
    Map,
    List,
    Undefined,
    Other,
}

pub trait Source<'a> {
    /// An integer in a time is a number of milliseconds. (In JSON, it is a number of seconds.)
    const INTEGER_IS_MS: bool;
    const NAME: &'static str;

    fn value(&mut self) -> Read<Value<'a>>;
    /// The next key of the innermost map; None at its end, which leaves the map. The outer None is the end, the inner
    /// None a key that is not text.
    fn key(&mut self) -> Read<Option<Option<Cow<'a, str>>>>;
    /// Whether the innermost list has another item; leaves the list at its end.
    fn item(&mut self) -> Read<bool>;
    /// Nothing may follow the first value.
    fn end(&mut self) -> Read<()>;
}

/// Reads the rest of `value`: nothing, unless it is a map or a list.
pub fn skip<'a, S: Source<'a>>(source: &mut S, value: &Value<'a>) -> Read<()> {
    let mut open = Vec::new(); // true: a map
    match value {
        Value::Map => open.push(true),
        Value::List => open.push(false),
        _ => return Ok(()),
    }
    while let Some(&is_map) = open.last() {
        let more = if is_map { source.key()?.is_some() } else { source.item()? };
        if !more {
            open.pop();
            continue;
        }
        match source.value()? {
            Value::Map => open.push(true),
            Value::List => open.push(false),
            _ => {}
        }
    }
    Ok(())
}
