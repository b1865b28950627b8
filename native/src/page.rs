//! The fields of a GetRecords response and of a SubscribeToShard event, and what is wrong with them.
//!
//! The rules, their order and the texts of the errors are those of `leasehold.adapters.aws.kinesis_decoding`.

use std::borrow::Cow;

use crate::base64::decode_append;
use crate::cbor::Cbor;
use crate::columns::RawColumns;
use crate::json::Json;
use crate::source::{NotWellFormed, Read, Source, Value, skip};

const SEQUENCE_DIGITS_MAX: usize = 129;
const HASH_KEY_DIGITS_MAX: usize = 39;

/// The two kinds of bodies. They differ in the field that says where to continue.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Page,
    Event,
}

impl Kind {
    fn next_field(self) -> &'static str {
        match self {
            Self::Page => "NextShardIterator",
            Self::Event => "ContinuationSequenceNumber",
        }
    }
}

pub struct Child {
    pub shard_id: String,
    pub parents: Vec<String>,
    pub start: u128,
    pub end: u128,
}

pub struct Page {
    pub next: Option<String>,
    pub millis_behind: Option<u64>,
    pub children: Vec<Child>,
    pub records: RawColumns,
}

/// A field of a body: absent (or null), invalid, or its value. If a key occurs twice, the last one counts.
enum Field<T> {
    Absent,
    Invalid,
    Present(T),
}

/// The records before the first invalid one, and how many there are in all.
struct Records {
    columns: RawColumns,
    count: usize,
    problem: Option<(usize, &'static str)>,
}

struct Fields {
    next: Field<String>,
    children: Field<Vec<Child>>,
    records: Field<Records>,
    millis_behind: Field<u64>,
}

/// The content of a body, or what is wrong with it.
pub fn decode(body: &[u8], cbor: bool, kind: Kind) -> Result<Page, String> {
    if i32::try_from(body.len()).is_err() {
        return Err("it is longer than 2 GiB".to_owned());
    }
    if cbor {
        return decode_from(Cbor::new(body), kind, body.len());
    }
    match Json::new(body) {
        Ok(json) => decode_from(json, kind, body.len() / 4 * 3),
        Err(NotWellFormed) => Err("it is not JSON".to_owned()),
    }
}

fn decode_from<'a, S: Source<'a>>(mut source: S, kind: Kind, data_bytes_max: usize) -> Result<Page, String> {
    match read_fields(&mut source, kind, data_bytes_max) {
        Err(NotWellFormed) => Err(format!("it is not {}", S::NAME)),
        Ok(None) => Err("it is not an object".to_owned()),
        Ok(Some(fields)) => check_fields(fields, kind),
    }
}

fn check_fields(fields: Fields, kind: Kind) -> Result<Page, String> {
    let name = kind.next_field();
    let next = match fields.next {
        Field::Absent => None,
        Field::Invalid => return Err(format!("{name} is not text")),
        Field::Present(text) => Some(text),
    };
    let children = match fields.children {
        Field::Absent => Vec::new(),
        Field::Invalid => {
            return Err("ChildShards lacks a ShardId, ParentShards or a HashKeyRange".to_owned());
        }
        Field::Present(children) => children,
    };
    match (&next, children.is_empty()) {
        (None, true) => return Err(format!("it has neither a {name} nor ChildShards")),
        (Some(_), false) => return Err(format!("it has both a {name} and ChildShards")),
        _ => {}
    }
    if kind == Kind::Event && next.as_ref().is_some_and(|text| !is_sequence_number(text)) {
        return Err(format!("{name} is not a sequence number"));
    }
    let Field::Present(records) = fields.records else {
        return Err("it has no list of Records".to_owned());
    };
    if let Some((index, field)) = records.problem {
        return Err(format!("record {index} of {} has no {field}", records.count));
    }
    let millis_behind = match fields.millis_behind {
        Field::Absent => None,
        Field::Invalid => return Err("MillisBehindLatest is not a number of milliseconds".to_owned()),
        Field::Present(number) => Some(number),
    };
    Ok(Page { next, millis_behind, children, records: records.columns })
}

fn is_sequence_number(text: &str) -> bool {
    (1..=SEQUENCE_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// None if the body is no object.
fn read_fields<'a, S: Source<'a>>(source: &mut S, kind: Kind, data_bytes_max: usize) -> Read<Option<Fields>> {
    let top = source.value()?;
    if !matches!(top, Value::Map) {
        skip(source, &top)?;
        source.end()?;
        return Ok(None);
    }
    let mut fields =
        Fields { next: Field::Absent, children: Field::Absent, records: Field::Absent, millis_behind: Field::Absent };
    while let Some(key) = source.key()? {
        match key.as_deref() {
            Some("Records") => fields.records = read_records(source, data_bytes_max)?,
            Some("ChildShards") => fields.children = read_children(source)?,
            Some("MillisBehindLatest") => {
                fields.millis_behind = match read_scalar(source)? {
                    Value::Null => Field::Absent,
                    Value::Unsigned(number) if i64::try_from(number).is_ok() => Field::Present(number),
                    _ => Field::Invalid,
                }
            }
            Some(name) if name == kind.next_field() => {
                fields.next = match read_scalar(source)? {
                    Value::Null => Field::Absent,
                    Value::Text(text) if !text.is_empty() => Field::Present(text.into_owned()),
                    _ => Field::Invalid,
                }
            }
            _ => read_scalar(source).map(drop)?,
        }
    }
    source.end()?;
    Ok(Some(fields))
}

/// The next value; of a map or a list only that it is one.
fn read_scalar<'a, S: Source<'a>>(source: &mut S) -> Read<Value<'a>> {
    let value = source.value()?;
    skip(source, &value)?;
    Ok(value)
}

fn read_records<'a, S: Source<'a>>(source: &mut S, data_bytes_max: usize) -> Read<Field<Records>> {
    let value = source.value()?;
    if !matches!(value, Value::List) {
        skip(source, &value)?;
        return Ok(Field::Invalid);
    }
    let mut records = Records { columns: RawColumns::new(), count: 0, problem: None };
    records.columns.data.values.reserve_exact(data_bytes_max);
    while source.item()? {
        let index = records.count;
        records.count += 1;
        let problem = match source.value()? {
            Value::Map => {
                let entry = read_entry(source)?;
                if records.problem.is_none() { add_record::<S>(&entry, &mut records.columns).err() } else { None }
            }
            other => {
                skip(source, &other)?;
                Some("fields")
            }
        };
        if let (Some(problem), None) = (problem, records.problem) {
            records.problem = Some((index, problem));
        }
    }
    Ok(Field::Present(records))
}

/// The fields of one record as they were read.
struct Entry<'a> {
    data: Value<'a>,
    partition_key: Value<'a>,
    sequence_number: Value<'a>,
    arrival: Value<'a>,
    encryption_type: Value<'a>,
}

fn read_entry<'a, S: Source<'a>>(source: &mut S) -> Read<Entry<'a>> {
    let mut entry = Entry {
        data: Value::Null,
        partition_key: Value::Null,
        sequence_number: Value::Null,
        arrival: Value::Null,
        encryption_type: Value::Null,
    };
    while let Some(key) = source.key()? {
        let value = read_scalar(source)?;
        match key.as_deref() {
            Some("Data") => entry.data = value,
            Some("PartitionKey") => entry.partition_key = value,
            Some("SequenceNumber") => entry.sequence_number = value,
            Some("ApproximateArrivalTimestamp") => entry.arrival = value,
            Some("EncryptionType") => entry.encryption_type = value,
            _ => {}
        }
    }
    Ok(entry)
}

/// Adds a row, or names the first invalid field; then the columns are not used any more.
fn add_record<'a, S: Source<'a>>(entry: &Entry<'a>, columns: &mut RawColumns) -> Result<(), &'static str> {
    let in_range = "fields shorter than 2 GiB"; // cannot be missing: the body is shorter
    let is_data = match &entry.data {
        Value::Text(text) => decode_append(text.as_bytes(), &mut columns.data.values),
        Value::Bytes(bytes) => {
            columns.data.values.extend_from_slice(bytes);
            true
        }
        _ => false,
    };
    if !is_data {
        return Err("Data in base64");
    }
    columns.data.end_value().map_err(|_| in_range)?;
    let Value::Text(key) = &entry.partition_key else { return Err("PartitionKey") };
    columns.partition_key.push(key.as_bytes()).map_err(|_| in_range)?;
    match &entry.sequence_number {
        Value::Text(text) if is_sequence_number(text) => {
            columns.sequence_number.push(text.as_bytes()).map_err(|_| in_range)?;
        }
        _ => return Err("SequenceNumber of 1 to 129 digits"),
    }
    let arrival_ms = to_arrival_ms::<S>(&entry.arrival).ok_or("ApproximateArrivalTimestamp in seconds")?;
    columns.arrival_ms.push(arrival_ms);
    let encryption_type = match &entry.encryption_type {
        Value::Null => None,
        Value::Text(text) => Some(text.as_bytes()),
        _ => return Err("EncryptionType as text"),
    };
    columns.encryption_type.push_optional(encryption_type).map_err(|_| in_range)
}

/// The outer None: not a time.
fn to_arrival_ms<'a, S: Source<'a>>(value: &Value<'a>) -> Option<Option<i64>> {
    match value {
        Value::Null => Some(None),
        Value::Unsigned(ms) if S::INTEGER_IS_MS => i64::try_from(*ms).ok().map(Some),
        Value::Negative(n) if S::INTEGER_IS_MS => i64::try_from(*n).ok().map(|n| Some(-1 - n)),
        Value::Unsigned(seconds) => seconds_to_ms(*seconds as f64).map(Some),
        Value::Negative(n) => seconds_to_ms(-((*n as f64) + 1.0)).map(Some),
        Value::Float(seconds) => seconds_to_ms(*seconds).map(Some),
        _ => None,
    }
}

/// As Python's round(1e3 * seconds), if 64 bits can hold it.
fn seconds_to_ms(seconds: f64) -> Option<i64> {
    let ms = (1e3 * seconds).round_ties_even();
    (-(2f64.powi(63)) <= ms && ms < 2f64.powi(63)).then_some(ms as i64)
}

fn read_children<'a, S: Source<'a>>(source: &mut S) -> Read<Field<Vec<Child>>> {
    let value = source.value()?;
    match value {
        Value::List => {}
        Value::Map => {
            let mut empty = true;
            while source.key()?.is_some() {
                read_scalar(source)?;
                empty = false;
            }
            return Ok(if empty { Field::Absent } else { Field::Invalid });
        }
        // What Python takes for false is absent.
        Value::Null | Value::False | Value::Undefined | Value::Unsigned(0) => return Ok(Field::Absent),
        Value::Float(0.0) => return Ok(Field::Absent),
        Value::Text(text) if text.is_empty() => return Ok(Field::Absent),
        Value::Bytes(bytes) if bytes.is_empty() => return Ok(Field::Absent),
        _ => return Ok(Field::Invalid),
    }
    let mut children = Some(Vec::new());
    while source.item()? {
        let child = read_child(source)?;
        children = children.zip(child).map(|(mut children, child)| {
            children.push(child);
            children
        });
    }
    Ok(children.map_or(Field::Invalid, Field::Present))
}

fn read_child<'a, S: Source<'a>>(source: &mut S) -> Read<Option<Child>> {
    let value = source.value()?;
    if !matches!(value, Value::Map) {
        skip(source, &value)?;
        return Ok(None);
    }
    let (mut shard_id, mut parents, mut range) = (None, None, None);
    while let Some(key) = source.key()? {
        match key.as_deref() {
            Some("ShardId") => shard_id = to_name(read_scalar(source)?),
            Some("ParentShards") => parents = read_parents(source)?,
            Some("HashKeyRange") => range = read_range(source)?,
            _ => read_scalar(source).map(drop)?,
        }
    }
    let (Some(shard_id), Some(parents), Some((start, end))) = (shard_id, parents, range) else {
        return Ok(None);
    };
    Ok(Some(Child { shard_id, parents, start, end }))
}

fn to_name(value: Value<'_>) -> Option<String> {
    match value {
        Value::Text(text) if !text.is_empty() => Some(Cow::into_owned(text)),
        _ => None,
    }
}

fn read_parents<'a, S: Source<'a>>(source: &mut S) -> Read<Option<Vec<String>>> {
    let value = source.value()?;
    if !matches!(value, Value::List) {
        skip(source, &value)?;
        return Ok(None);
    }
    let mut parents = Some(Vec::new());
    while source.item()? {
        let name = to_name(read_scalar(source)?);
        parents = parents.zip(name).map(|(mut parents, name)| {
            parents.push(name);
            parents
        });
    }
    Ok(parents.filter(|names| !names.is_empty()))
}

fn read_range<'a, S: Source<'a>>(source: &mut S) -> Read<Option<(u128, u128)>> {
    let value = source.value()?;
    if !matches!(value, Value::Map) {
        skip(source, &value)?;
        return Ok(None);
    }
    let (mut start, mut end) = (None, None);
    while let Some(key) = source.key()? {
        let value = read_scalar(source)?;
        match key.as_deref() {
            Some("StartingHashKey") => start = to_hash_key(&value),
            Some("EndingHashKey") => end = to_hash_key(&value),
            _ => {}
        }
    }
    Ok(start.zip(end).filter(|(start, end)| start < end))
}

fn to_hash_key(value: &Value<'_>) -> Option<u128> {
    match value {
        Value::Text(text) => parse_hash_key(text.as_bytes()),
        _ => None,
    }
}

/// A number below 2^128 of at most 39 ASCII digits.
pub fn parse_hash_key(text: &[u8]) -> Option<u128> {
    if !(1..=HASH_KEY_DIGITS_MAX).contains(&text.len()) || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
