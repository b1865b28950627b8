//! Columns as they are built: offsets, values and bitmaps in Arrow's layout.

/// A column would be longer than its 32-bit offsets can express, or user records would repeat too many bytes.
#[derive(Debug)]
pub struct TooLong;

/// Bits in Arrow's order: the first row is the lowest bit of the first byte.
#[derive(Default)]
pub struct Bits {
    pub bytes: Vec<u8>,
    pub rows: usize,
    pub ones: usize,
}

impl Bits {
    pub fn push(&mut self, bit: bool) {
        if self.rows.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if bit && let Some(last) = self.bytes.last_mut() {
            *last |= 1 << (self.rows % 8);
            self.ones += 1;
        }
        self.rows += 1;
    }

    /// The same bit for several rows.
    pub fn push_repeated(&mut self, bit: bool, rows: usize) {
        let until_byte = rows.min(self.rows.next_multiple_of(8) - self.rows);
        for _ in 0..until_byte {
            self.push(bit);
        }
        let mut rest = Self::repeated(bit, rows - until_byte);
        self.bytes.append(&mut rest.bytes);
        self.rows += rest.rows;
        self.ones += rest.ones;
    }

    pub fn get(&self, row: usize) -> bool {
        self.bytes[row / 8] >> (row % 8) & 1 == 1
    }

    pub fn repeated(bit: bool, rows: usize) -> Self {
        let mut bytes = vec![if bit { 0xff } else { 0 }; rows.div_ceil(8)];
        if bit
            && !rows.is_multiple_of(8)
            && let Some(last) = bytes.last_mut()
        {
            *last = (1 << (rows % 8)) - 1;
        }
        Self { bytes, rows, ones: if bit { rows } else { 0 } }
    }
}

/// Binary or text values. `valid` is absent if the column has no nulls by its type.
pub struct Bytes {
    pub offsets: Vec<i32>,
    pub values: Vec<u8>,
    pub valid: Option<Bits>,
}

impl Bytes {
    pub fn new(nullable: bool) -> Self {
        Self { offsets: vec![0], values: Vec::new(), valid: nullable.then(Bits::default) }
    }

    pub fn nulls(rows: usize) -> Self {
        Self { offsets: vec![0; rows + 1], values: Vec::new(), valid: Some(Bits::repeated(false, rows)) }
    }

    /// The values in order; None for a null.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.offsets.windows(2).enumerate().map(|(row, ends)| {
            let is_valid = self.valid.as_ref().is_none_or(|valid| valid.get(row));
            is_valid.then(|| &self.values[ends[0] as usize..ends[1] as usize])
        })
    }

    pub fn push(&mut self, value: &[u8]) -> Result<(), TooLong> {
        self.values.extend_from_slice(value);
        self.end_value()
    }

    pub fn push_optional(&mut self, value: Option<&[u8]>) -> Result<(), TooLong> {
        match value {
            Some(value) => self.push(value),
            None => {
                let end = self.end();
                self.offsets.push(end);
                if let Some(valid) = &mut self.valid {
                    valid.push(false);
                }
                Ok(())
            }
        }
    }

    /// The same value for several rows.
    pub fn push_repeated(&mut self, value: Option<&[u8]>, rows: usize) -> Result<(), TooLong> {
        let bytes = value.unwrap_or_default();
        let end = bytes.len().checked_mul(rows).and_then(|added| added.checked_add(self.values.len()));
        let end = end.ok_or(TooLong)?;
        i32::try_from(end).map_err(|_| TooLong)?;
        self.offsets.reserve(rows);
        self.values.reserve(end - self.values.len());
        for _ in 0..rows {
            self.values.extend_from_slice(bytes);
            self.offsets.push(self.values.len() as i32);
        }
        if let Some(valid) = &mut self.valid {
            valid.push_repeated(value.is_some(), rows);
        }
        Ok(())
    }

    /// Values of a column without nulls.
    pub fn push_all<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) -> Result<(), TooLong> {
        self.offsets.reserve(values.size_hint().0);
        for value in values {
            self.push(value)?;
        }
        Ok(())
    }

    /// Ends a value whose bytes the caller has appended to `values`.
    pub fn end_value(&mut self) -> Result<(), TooLong> {
        let end = i32::try_from(self.values.len()).map_err(|_| TooLong)?;
        self.offsets.push(end);
        if let Some(valid) = &mut self.valid {
            valid.push(true);
        }
        Ok(())
    }

    fn end(&self) -> i32 {
        self.offsets.last().copied().unwrap_or(0)
    }
}

/// 64-bit integers. `valid` is absent if the column has no nulls by its type.
pub struct Ints {
    pub values: Vec<i64>,
    pub valid: Option<Bits>,
}

impl Ints {
    pub fn new(nullable: bool) -> Self {
        Self { values: Vec::new(), valid: nullable.then(Bits::default) }
    }

    /// The values in order; None for a null.
    pub fn iter(&self) -> impl Iterator<Item = Option<i64>> {
        self.values
            .iter()
            .enumerate()
            .map(|(row, &value)| self.valid.as_ref().is_none_or(|valid| valid.get(row)).then_some(value))
    }

    /// The same value for several rows.
    pub fn push_repeated(&mut self, value: Option<i64>, rows: usize) {
        self.values.extend(std::iter::repeat_n(value.unwrap_or(0), rows));
        if let Some(valid) = &mut self.valid {
            valid.push_repeated(value.is_some(), rows);
        }
    }

    pub fn push(&mut self, value: Option<i64>) {
        self.values.push(value.unwrap_or(0));
        if let Some(valid) = &mut self.valid {
            valid.push(value.is_some());
        }
    }
}

/// One row a Kinesis record.
pub struct RawColumns {
    pub data: Bytes,
    pub partition_key: Bytes,
    pub sequence_number: Bytes,
    pub arrival_ms: Ints,
    pub encryption_type: Bytes,
}

impl RawColumns {
    pub fn new() -> Self {
        Self {
            data: Bytes::new(false),
            partition_key: Bytes::new(false),
            sequence_number: Bytes::new(false),
            arrival_ms: Ints::new(true),
            encryption_type: Bytes::new(true),
        }
    }

    pub fn rows(&self) -> usize {
        self.arrival_ms.values.len()
    }
}

/// The columns that a user record has in addition.
pub struct UserColumns {
    pub sub_sequence_number: Ints,
    pub explicit_hash_key: Bytes,
    pub aggregated: Bits,
}

impl UserColumns {
    pub fn new() -> Self {
        Self { sub_sequence_number: Ints::new(false), explicit_hash_key: Bytes::new(true), aggregated: Bits::default() }
    }

    /// The columns of `rows` records that are not parts of aggregates.
    pub fn unaggregated(rows: usize) -> Self {
        Self {
            sub_sequence_number: Ints { values: vec![0; rows], valid: None },
            explicit_hash_key: Bytes::nulls(rows),
            aggregated: Bits::repeated(false, rows),
        }
    }
}
