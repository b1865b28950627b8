//! Splits KPL aggregates into user records. The rules are those of `leasehold.core.records.deaggregation`.

use std::borrow::Cow;

use crate::columns::{RawColumns, TooLong, UserColumns};
use crate::kpl::{INDEX_ABSENT, MalformedMessage, Message, count_entries};
use crate::md5::{Digest, digest_all};
use crate::page::parse_hash_key;

const MAGIC: [u8; 4] = [0xf3, 0x89, 0x9a, 0xc2];
const DIGEST_BYTES: usize = 16;
const USER_RECORD_BYTES: u128 = 200;
const PARSED_BYTES_PER_BYTE: u128 = 40;
const ENTRY_BYTES_MIN: usize = 2;
/// The memory of the numbers of one user record: an explicit hash key as text, two integers, offsets.
const ROW_BYTES: usize = 80;
/// What all user records of a call may repeat: keys, sequence numbers and the like. Python shares these; columns cannot.
const REPEATED_BYTES_MAX: usize = 256 * 1024 * 1024;

#[derive(Clone, Copy, PartialEq)]
pub enum OutOfRange {
    DropAggregate,
    DropRecord,
    Keep,
}

pub struct Settings {
    /// The hash keys of the shard; None: no user record is out of range.
    pub range: Option<(u128, u128)>,
    pub out_of_range: OutOfRange,
    pub fail_unreadable: bool,
    pub user_records_max: u64,
    pub expanded_bytes_max: u64,
}

/// One Kinesis record, with borrowed fields.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    pub data: &'a [u8],
    pub partition_key: &'a [u8],
    pub sequence_number: &'a [u8],
    pub arrival_ms: Option<i64>,
    pub encryption_type: Option<&'a [u8]>,
}

pub struct Incident {
    /// The row of the Kinesis record.
    pub row: usize,
    pub outcome: &'static str,
    pub dropped: usize,
}

pub enum Failure {
    TooLong,
    Unreadable { row: usize, problem: String },
}

impl From<TooLong> for Failure {
    fn from(_: TooLong) -> Self {
        Self::TooLong
    }
}

pub struct UserRecords {
    pub raw: RawColumns,
    pub user: UserColumns,
    pub incidents: Vec<Incident>,
    repeated_bytes: usize,
}

/// An aggregate that must be delivered raw. It holds `count` user records.
struct CannotSplit {
    outcome: &'static str,
    count: usize,
    problem: String,
}

/// Whether data can be an aggregate: shorter data starts with the magic bytes by chance.
fn payload_of(data: &[u8]) -> Option<&[u8]> {
    data.strip_prefix(&MAGIC).filter(|rest| rest.len() > DIGEST_BYTES).map(|rest| &rest[..rest.len() - DIGEST_BYTES])
}

pub fn has_aggregates<'a>(mut data: impl Iterator<Item = &'a [u8]>) -> bool {
    data.any(|data| payload_of(data).is_some())
}

/// The user records of all Kinesis records, in order.
pub fn deaggregate<'a>(
    records: impl Iterator<Item = Record<'a>> + Clone,
    settings: &Settings,
) -> Result<UserRecords, Failure> {
    let payloads: Vec<&[u8]> = records.clone().filter_map(|record| payload_of(record.data)).collect();
    let mut digests = digest_all(&payloads).into_iter();
    let mut output =
        UserRecords { raw: RawColumns::new(), user: UserColumns::new(), incidents: Vec::new(), repeated_bytes: 0 };
    output.raw.data.values.reserve(records.clone().map(|record| record.data.len()).sum());
    let mut splitter = Splitter::default();
    for (row, record) in records.enumerate() {
        let Some(payload) = payload_of(record.data) else {
            output.push_raw(&record, 0)?;
            continue;
        };
        if digests.next().as_ref().map(Digest::as_slice) != Some(&record.data[record.data.len() - DIGEST_BYTES..]) {
            output.push_raw(&record, 0)?;
            output.report(row, "raw-bad-checksum", 0);
            continue;
        }
        match splitter.split(payload, settings) {
            Ok(()) => output.push_split(row, &record, &splitter, settings)?,
            Err(NotSplit::Malformed) => {
                output.push_raw(&record, 0)?;
                output.report(row, "raw-malformed", 0);
            }
            Err(NotSplit::Refused(reason)) => {
                if settings.fail_unreadable {
                    return Err(Failure::Unreadable { row, problem: reason.problem });
                }
                output.push_raw(&record, reason.count as i64 - 1)?;
                output.report(row, reason.outcome, 0);
            }
        }
    }
    Ok(output)
}

impl UserRecords {
    fn report(&mut self, row: usize, outcome: &'static str, dropped: usize) {
        self.incidents.push(Incident { row, outcome, dropped });
    }

    fn push_raw(&mut self, record: &Record<'_>, sub_sequence_number: i64) -> Result<(), TooLong> {
        self.raw.data.push(record.data)?;
        self.raw.partition_key.push(record.partition_key)?;
        self.push_envelope(record, 1)?;
        self.user.sub_sequence_number.push(Some(sub_sequence_number));
        self.user.explicit_hash_key.push_optional(None)?;
        self.user.aggregated.push(false);
        Ok(())
    }

    /// The fields that user records have from their Kinesis record.
    fn push_envelope(&mut self, record: &Record<'_>, rows: usize) -> Result<(), TooLong> {
        self.raw.sequence_number.push_repeated(Some(record.sequence_number), rows)?;
        self.raw.arrival_ms.push_repeated(record.arrival_ms, rows);
        self.raw.encryption_type.push_repeated(record.encryption_type, rows)
    }

    fn push_split(
        &mut self,
        row: usize,
        record: &Record<'_>,
        splitter: &Splitter<'_>,
        settings: &Settings,
    ) -> Result<(), TooLong> {
        let outside = splitter.records_outside(settings);
        let count = splitter.message.records.len();
        let dropped = match (&outside, settings.out_of_range) {
            (None, _) => 0,
            (Some(_), OutOfRange::DropAggregate) => count,
            (Some(outside), _) => outside.iter().filter(|&&is_outside| is_outside).count(),
        };
        if dropped > 0 {
            self.report(row, "out-of-range", dropped);
        }
        if dropped == count {
            return Ok(());
        }
        self.count_repeated_bytes(record, splitter)?;
        match outside {
            None => self.push_parts(record, splitter, 0..count),
            Some(outside) => {
                let kept: Vec<usize> = (0..count).filter(|&index| !outside[index]).collect();
                self.push_parts(record, splitter, kept.into_iter())
            }
        }
    }

    /// Fails before anything is allocated for the aggregate.
    fn count_repeated_bytes(&mut self, record: &Record<'_>, splitter: &Splitter<'_>) -> Result<(), TooLong> {
        let envelope = record.sequence_number.len() + record.encryption_type.map_or(0, <[u8]>::len);
        let parts = &splitter.message.records;
        let keys = parts.iter().map(|part| splitter.partition_key(part.key_index).len());
        let bytes = keys.fold(parts.len().saturating_mul(envelope + ROW_BYTES), usize::saturating_add);
        self.repeated_bytes = self.repeated_bytes.saturating_add(bytes);
        if self.repeated_bytes <= REPEATED_BYTES_MAX { Ok(()) } else { Err(TooLong) }
    }

    /// One column after the other: most of an aggregate's columns repeat one value.
    fn push_parts(
        &mut self,
        record: &Record<'_>,
        splitter: &Splitter<'_>,
        kept: impl ExactSizeIterator<Item = usize> + Clone,
    ) -> Result<(), TooLong> {
        let parts = || kept.clone().map(|index| &splitter.message.records[index]);
        self.raw.data.push_all(parts().map(|part| part.data))?;
        self.raw.partition_key.push_all(parts().map(|part| splitter.partition_key(part.key_index)))?;
        self.push_envelope(record, kept.len())?;
        self.user.sub_sequence_number.values.extend(kept.clone().map(|index| index as i64));
        self.user.aggregated.push_repeated(true, kept.len());
        if splitter.hash_keys.is_empty() {
            return self.user.explicit_hash_key.push_repeated(None, kept.len());
        }
        for part in parts() {
            self.user.explicit_hash_key.push_optional(splitter.hash_key(part.hash_key_index).map(|key| key.text))?;
        }
        Ok(())
    }
}

enum NotSplit {
    Malformed,
    Refused(CannotSplit),
}

impl From<MalformedMessage> for NotSplit {
    fn from(_: MalformedMessage) -> Self {
        Self::Malformed
    }
}

impl From<CannotSplit> for NotSplit {
    fn from(reason: CannotSplit) -> Self {
        Self::Refused(reason)
    }
}

#[derive(Clone, Copy)]
struct HashKey<'a> {
    number: u128,
    /// Without leading zeros.
    text: &'a [u8],
}

/// One aggregate after the other. Its tables are decoded once for each aggregate.
#[derive(Default)]
struct Splitter<'a> {
    message: Message<'a>,
    partition_keys: Vec<Cow<'a, str>>,
    hash_keys: Vec<Option<HashKey<'a>>>,
}

impl<'a> Splitter<'a> {
    fn split(&mut self, payload: &'a [u8], settings: &Settings) -> Result<(), NotSplit> {
        check_before_reading(payload, settings)?;
        self.message.read(payload)?;
        self.partition_keys.clear();
        self.hash_keys.clear();
        if self.message.records.is_empty() {
            return Ok(());
        }
        self.check_counts(settings)?;
        self.check_indices_and_expansion(payload.len(), settings)?;
        // Java also replaces invalid UTF-8 before it hashes the key.
        self.partition_keys.extend(self.message.partition_keys.iter().map(|key| String::from_utf8_lossy(key)));
        Ok(())
    }

    fn partition_key(&self, index: u64) -> &[u8] {
        look_up(&self.partition_keys, index).map_or(&[], |key| key.as_bytes())
    }

    fn hash_key(&self, index: u64) -> Option<HashKey<'a>> {
        look_up(&self.hash_keys, index).copied().flatten()
    }

    fn check_counts(&self, settings: &Settings) -> Result<(), CannotSplit> {
        let records = self.message.records.len();
        let keys = self.message.partition_keys.len().max(self.message.hash_keys.len());
        if records.max(keys) as u64 <= settings.user_records_max {
            return Ok(());
        }
        Err(CannotSplit {
            outcome: "raw-too-many",
            count: records,
            problem: format!(
                "it holds {records} user records and up to {keys} keys per table, more than user_records_max={}; {IF_TRUSTED}",
                settings.user_records_max
            ),
        })
    }

    /// Every user record repeats its partition key, so one long key and many short records can expand to gigabytes.
    fn check_indices_and_expansion(&mut self, payload_bytes: usize, settings: &Settings) -> Result<(), CannotSplit> {
        let count = self.message.records.len();
        let mut key_bytes: u128 = 0;
        for record in &self.message.records {
            let key = look_up(&self.message.partition_keys, record.key_index).ok_or_else(|| bad_key(count))?;
            key_bytes += key.len() as u128;
        }
        let expanded = payload_bytes as u128 + count as u128 * USER_RECORD_BYTES + key_bytes;
        if expanded > u128::from(settings.expanded_bytes_max) {
            return Err(CannotSplit {
                outcome: "raw-too-large",
                count,
                problem: format!(
                    "its {count} user records expand to {expanded} bytes, more than expanded_bytes_max={}; {IF_TRUSTED}",
                    settings.expanded_bytes_max
                ),
            });
        }
        self.hash_keys.extend(self.message.hash_keys.iter().map(|text| read_hash_key(text)));
        let is_valid = |index| index == INDEX_ABSENT || self.hash_key(index).is_some();
        if self.message.records.iter().all(|record| is_valid(record.hash_key_index)) {
            Ok(())
        } else {
            Err(bad_key(count))
        }
    }

    /// For each user record whether it belongs to another shard; None if none does.
    fn records_outside(&self, settings: &Settings) -> Option<Vec<bool>> {
        let (start, end) = settings.range.filter(|&range| range != (0, u128::MAX))?;
        if settings.out_of_range == OutOfRange::Keep {
            return None;
        }
        let hashes = self.hash_used_keys();
        let outside: Vec<bool> = self
            .message
            .records
            .iter()
            .map(|record| {
                let explicit = self.hash_key(record.hash_key_index).map(|key| key.number);
                let number = explicit.or_else(|| look_up(&hashes, record.key_index).copied()).unwrap_or(start);
                number < start || number > end
            })
            .collect();
        outside.contains(&true).then_some(outside)
    }

    /// The hashes of the partition keys, by index; 0 for those whose hash decides nothing.
    fn hash_used_keys(&self) -> Vec<u128> {
        let mut is_used = vec![false; self.partition_keys.len()];
        for record in &self.message.records {
            if record.hash_key_index == INDEX_ABSENT
                && let Ok(index) = usize::try_from(record.key_index)
            {
                is_used[index] = true;
            }
        }
        let used = |is_used: &[bool]| (0..is_used.len()).filter(|&index| is_used[index]).collect::<Vec<_>>();
        let indices = used(&is_used);
        let keys: Vec<&[u8]> = indices.iter().map(|&index| self.partition_keys[index].as_bytes()).collect();
        let mut hashes = vec![0; self.partition_keys.len()];
        for (index, digest) in indices.into_iter().zip(digest_all(&keys)) {
            hashes[index] = u128::from_be_bytes(digest);
        }
        hashes
    }
}

const IF_TRUSTED: &str = "raise that limit if you trust the producer";

fn look_up<T>(table: &[T], index: u64) -> Option<&T> {
    table.get(usize::try_from(index).ok()?)
}

fn bad_key(count: usize) -> CannotSplit {
    CannotSplit {
        outcome: "raw-bad-key",
        count,
        problem:
            "a user record refers to a partition key or an explicit hash key that is not in the aggregate's table, \
                  or to an explicit hash key that is not a number from 0 to 2^128-1; check its producer"
                .to_owned(),
    }
}

fn read_hash_key(text: &[u8]) -> Option<HashKey<'_>> {
    let number = parse_hash_key(text)?;
    let zeros = text.iter().take_while(|&&digit| digit == b'0').count();
    Some(HashKey { number, text: &text[zeros.min(text.len() - 1)..] })
}

/// The limit is for the parser of the Python implementation; both must treat an aggregate alike.
fn check_before_reading(payload: &[u8], settings: &Settings) -> Result<(), CannotSplit> {
    if payload.len() as u128 * PARSED_BYTES_PER_BYTE <= u128::from(settings.expanded_bytes_max) {
        return Ok(());
    }
    let entries_max = settings.user_records_max.saturating_mul(3); // user records and two tables
    if count_entries(payload, entries_max) <= entries_max {
        return Ok(());
    }
    Err(CannotSplit {
        outcome: "raw-too-many",
        count: payload.len() / ENTRY_BYTES_MIN, // an upper bound; counting all of them is the attack
        problem: format!(
            "it holds more than {entries_max} user records and keys, three times user_records_max={}; {IF_TRUSTED}",
            settings.user_records_max
        ),
    })
}
