//! Arrow's C data interface: batches that leave this package, and batches that enter it.
//!
//! Most of the package's `unsafe` code is here. What it relies on:
//!
//! * An exported array keeps the columns alive (`ArrayOwner`) until the consumer calls `release`. The columns are
//!   never changed after they were exported.
//! * An imported array obeys the specification: its buffers are as long as its length, offset and offsets say, and stay
//!   so until it is released. Its types are checked, and its offsets are checked before a slice is made from them.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use crate::columns::{Bits, Bytes, Ints, RawColumns, UserColumns};

pub const SCHEMA_NAME: &CStr = c"arrow_schema";
pub const ARRAY_NAME: &CStr = c"arrow_array";
const NULLABLE: i64 = 2;

/// Name, format and whether it may be null.
type Spec = (&'static CStr, &'static CStr, bool);

const COLUMNS: [Spec; 8] = [
    (c"data", c"z", false),
    (c"partition_key", c"u", false),
    (c"sequence_number", c"u", false),
    (c"arrival_ms", c"l", true),
    (c"encryption_type", c"u", true),
    (c"sub_sequence_number", c"l", false),
    (c"explicit_hash_key", c"u", true),
    (c"aggregated", c"b", false),
];
pub const RAW_COLUMNS: usize = 5;
pub const USER_COLUMNS: usize = 8;

#[repr(C)]
pub struct ArrowSchema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    n_children: i64,
    children: *mut *mut ArrowSchema,
    dictionary: *mut ArrowSchema,
    release: Option<unsafe extern "C" fn(*mut ArrowSchema)>,
    private_data: *mut c_void,
}

#[repr(C)]
pub struct ArrowArray {
    length: i64,
    null_count: i64,
    offset: i64,
    n_buffers: i64,
    n_children: i64,
    buffers: *mut *const c_void,
    children: *mut *mut ArrowArray,
    dictionary: *mut ArrowArray,
    release: Option<unsafe extern "C" fn(*mut ArrowArray)>,
    private_data: *mut c_void,
}

// SAFETY: the specification allows the structures to move between threads, and `release` to be called from any.
unsafe impl Send for ArrowSchema {}
unsafe impl Send for ArrowArray {}
// SAFETY: shared references only read the structure and immutable buffers.
unsafe impl Sync for ArrowArray {}

impl Drop for ArrowSchema {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the structure was not released and not moved, or `release` would be None.
            unsafe { release(self) }
        }
    }
}

impl Drop for ArrowArray {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: as above.
            unsafe { release(self) }
        }
    }
}

/// One column of a batch: our own, or a column of an imported batch.
pub enum Column {
    Bytes(Bytes),
    Ints(Ints),
    Bits(Bits),
    Imported(Arc<ImportedBatch>, usize),
}

/// A record batch in the schema RAW (five columns) or USER (eight).
pub struct Batch {
    columns: Vec<Column>,
    pub rows: usize,
}

impl Batch {
    pub fn from_raw(raw: RawColumns) -> Self {
        let rows = raw.rows();
        Self { columns: raw_columns(raw).into(), rows }
    }

    pub fn from_user(raw: RawColumns, user: UserColumns) -> Self {
        let rows = raw.rows();
        Self { columns: raw_columns(raw).into_iter().chain(user_columns(user)).collect(), rows }
    }

    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The records of a batch without aggregates: its columns are shared, not copied.
    pub fn from_unaggregated(batch: &Arc<ImportedBatch>) -> Self {
        let shared = (0..RAW_COLUMNS).map(|index| Column::Imported(Arc::clone(batch), index));
        let user = user_columns(UserColumns::unaggregated(batch.rows));
        Self { columns: shared.chain(user).collect(), rows: batch.rows }
    }
}

fn raw_columns(raw: RawColumns) -> [Column; RAW_COLUMNS] {
    [
        Column::Bytes(raw.data),
        Column::Bytes(raw.partition_key),
        Column::Bytes(raw.sequence_number),
        Column::Ints(raw.arrival_ms),
        Column::Bytes(raw.encryption_type),
    ]
}

fn user_columns(user: UserColumns) -> [Column; USER_COLUMNS - RAW_COLUMNS] {
    [Column::Ints(user.sub_sequence_number), Column::Bytes(user.explicit_hash_key), Column::Bits(user.aggregated)]
}

// --- Export --------------------------------------------------------------------------------------------------------

/// What the children of an exported schema live in.
struct SchemaOwner {
    _children: Vec<ArrowSchema>,
    pointers: Vec<*mut ArrowSchema>,
}

/// What the buffers and children of an exported array live in.
struct ArrayOwner {
    _batch: Arc<Batch>,
    buffers: Vec<*const c_void>,
    _children: Vec<ArrowArray>,
    pointers: Vec<*mut ArrowArray>,
}

unsafe extern "C" fn release_schema(schema: *mut ArrowSchema) {
    // SAFETY: the consumer passes a schema that `new_schema` made and that was not released. A consumer may have moved
    // children out; their `release` is None then, and dropping them does nothing.
    unsafe {
        (*schema).release = None;
        drop(Box::from_raw((*schema).private_data.cast::<SchemaOwner>()));
    }
}

unsafe extern "C" fn release_array(array: *mut ArrowArray) {
    // SAFETY: as for the schema.
    unsafe {
        (*array).release = None;
        drop(Box::from_raw((*array).private_data.cast::<ArrayOwner>()));
    }
}

fn new_schema(name: &'static CStr, format: &'static CStr, flags: i64, mut children: Vec<ArrowSchema>) -> ArrowSchema {
    let pointers = children.iter_mut().map(ptr::from_mut).collect();
    let mut owner = Box::new(SchemaOwner { _children: children, pointers });
    ArrowSchema {
        format: format.as_ptr(),
        name: name.as_ptr(),
        metadata: ptr::null(),
        flags,
        n_children: owner.pointers.len() as i64,
        children: owner.pointers.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private_data: Box::into_raw(owner).cast(),
    }
}

/// The lengths of one array: rows, nulls, and the rows before the first one.
struct Extent {
    length: usize,
    null_count: i64,
    offset: i64,
}

fn new_array(
    batch: &Arc<Batch>,
    extent: &Extent,
    buffers: Vec<*const c_void>,
    mut children: Vec<ArrowArray>,
) -> ArrowArray {
    let pointers = children.iter_mut().map(ptr::from_mut).collect();
    let mut owner = Box::new(ArrayOwner { _batch: Arc::clone(batch), buffers, _children: children, pointers });
    ArrowArray {
        length: extent.length as i64,
        null_count: extent.null_count,
        offset: extent.offset,
        n_buffers: owner.buffers.len() as i64,
        n_children: owner.pointers.len() as i64,
        buffers: owner.buffers.as_mut_ptr(),
        children: owner.pointers.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private_data: Box::into_raw(owner).cast(),
    }
}

pub fn export_schema(batch: &Batch) -> ArrowSchema {
    let children = COLUMNS[..batch.columns.len()]
        .iter()
        .map(|&(name, format, nullable)| new_schema(name, format, if nullable { NULLABLE } else { 0 }, Vec::new()))
        .collect();
    new_schema(c"", c"+s", 0, children)
}

pub fn export_array(batch: &Arc<Batch>) -> ArrowArray {
    let children = batch.columns.iter().map(|column| export_column(batch, column)).collect();
    let extent = Extent { length: batch.rows, null_count: 0, offset: 0 };
    new_array(batch, &extent, vec![ptr::null()], children)
}

fn export_column(batch: &Arc<Batch>, column: &Column) -> ArrowArray {
    let (valid, buffers) = match column {
        Column::Bytes(bytes) => (&bytes.valid, vec![bytes.offsets.as_ptr().cast(), bytes.values.as_ptr().cast()]),
        Column::Ints(ints) => (&ints.valid, vec![ints.values.as_ptr().cast()]),
        Column::Bits(bits) => (&None, vec![bits.bytes.as_ptr().cast()]),
        Column::Imported(imported, index) => return export_imported(batch, imported, *index),
    };
    let nulls = valid.as_ref().map_or(0, |bits| bits.rows - bits.ones);
    let bitmap = match valid {
        Some(bits) if nulls > 0 => bits.bytes.as_ptr().cast(),
        _ => ptr::null(),
    };
    let extent = Extent { length: batch.rows, null_count: nulls as i64, offset: 0 };
    new_array(batch, &extent, std::iter::once(bitmap).chain(buffers).collect(), Vec::new())
}

/// The same buffers again. The batch keeps the imported one alive.
fn export_imported(batch: &Arc<Batch>, imported: &ImportedBatch, index: usize) -> ArrowArray {
    let child = imported.child(index);
    let buffers = (0..child.n_buffers as usize).map(|buffer| child.buffer(buffer)).collect();
    let null_count =
        if imported.array.offset == 0 && child.length == imported.array.length { child.null_count } else { -1 };
    let extent = Extent { length: batch.rows, null_count, offset: child.offset + imported.array.offset };
    new_array(batch, &extent, buffers, Vec::new())
}

// --- Import --------------------------------------------------------------------------------------------------------

/// A batch from another library, with the types of our columns.
pub struct ImportedBatch {
    array: ArrowArray,
    pub rows: usize,
}

impl ArrowArray {
    /// A pointer that `n_buffers` covers; `import` has checked the number.
    fn buffer(&self, index: usize) -> *const c_void {
        assert!((index as i64) < self.n_buffers);
        // SAFETY: `buffers` points to `n_buffers` pointers.
        unsafe { *self.buffers.add(index) }
    }
}

/// Takes the batch out of its two capsules.
///
/// # Safety
/// Both pointers are from capsules with the names that Arrow defines, so they point to these structures.
pub unsafe fn import(schema: *mut c_void, array: *mut c_void, columns: usize) -> Result<ImportedBatch, String> {
    // SAFETY: moving out is what the interface is for: the structure that remains is marked as released.
    let (schema, array) = unsafe {
        let (schema, array) = (schema.cast::<ArrowSchema>(), array.cast::<ArrowArray>());
        if (*schema).release.is_none() || (*array).release.is_none() {
            return Err("the batch was already used up by another reader".to_owned());
        }
        let taken = (ptr::read(schema), ptr::read(array));
        (*schema).release = None;
        (*array).release = None;
        taken
    };
    check_schema(&schema, columns)?;
    let rows = usize::try_from(array.length).map_err(|_| "the batch has a negative length".to_owned())?;
    let batch = ImportedBatch { array, rows };
    batch.check(columns)?;
    Ok(batch)
}

fn check_schema(schema: &ArrowSchema, columns: usize) -> Result<(), String> {
    let names: Vec<_> = COLUMNS[..columns].iter().map(|(name, ..)| name.to_string_lossy()).collect();
    let expected = || format!("the batch does not have the columns {} with their types", names.join(", "));
    // SAFETY: the strings of a schema that is not released end with a zero byte, and `children` holds `n_children`
    // pointers.
    unsafe {
        if CStr::from_ptr(schema.format) != c"+s" || schema.n_children != columns as i64 {
            return Err(expected());
        }
        for (index, &(name, format, _)) in COLUMNS[..columns].iter().enumerate() {
            let child = *schema.children.add(index);
            if (*child).name.is_null()
                || CStr::from_ptr((*child).name) != name
                || CStr::from_ptr((*child).format) != format
                || !(*child).dictionary.is_null()
            {
                return Err(expected());
            }
        }
    }
    Ok(())
}

impl ImportedBatch {
    fn child(&self, index: usize) -> &ArrowArray {
        assert!((index as i64) < self.array.n_children);
        // SAFETY: `children` holds `n_children` pointers to arrays that live as long as this one.
        unsafe { &**self.array.children.add(index) }
    }

    fn check(&self, columns: usize) -> Result<(), String> {
        let invalid = || "the batch is no valid Arrow array".to_owned();
        if self.array.n_children != columns as i64 || self.array.offset < 0 {
            return Err(invalid());
        }
        for (index, (_, format, _)) in COLUMNS[..columns].iter().enumerate() {
            let child = self.child(index);
            let buffers = if matches!(format.to_bytes(), b"z" | b"u") { 3 } else { 2 };
            let needed = self.array.offset.checked_add(self.array.length);
            if child.n_buffers != buffers || child.offset < 0 || needed.is_none_or(|needed| child.length < needed) {
                return Err(invalid());
            }
            if buffers == 3 && !self.bytes(index).is_ordered() {
                return Err(invalid());
            }
        }
        Ok(())
    }

    fn start(&self, child: &ArrowArray) -> usize {
        (child.offset + self.array.offset) as usize
    }

    fn valid(&self, child: &ArrowArray) -> BitsView<'_> {
        self.bits_of(child, 0)
    }

    fn bits_of(&self, child: &ArrowArray, buffer: usize) -> BitsView<'_> {
        let (start, pointer) = (self.start(child), child.buffer(buffer).cast::<u8>());
        if pointer.is_null() {
            return BitsView { bytes: None, start };
        }
        // SAFETY: a bitmap covers the rows from the beginning of its buffer to the last row.
        BitsView { bytes: Some(unsafe { std::slice::from_raw_parts(pointer, (start + self.rows).div_ceil(8)) }), start }
    }

    pub fn bytes(&self, index: usize) -> BytesView<'_> {
        let child = self.child(index);
        let (offsets, values) = (child.buffer(1).cast::<i32>(), child.buffer(2).cast::<u8>());
        // SAFETY: there is one offset more than rows; an empty array may have no buffers.
        let offsets = if self.rows == 0 || offsets.is_null() {
            &[0]
        } else {
            unsafe { std::slice::from_raw_parts(offsets.add(self.start(child)), self.rows + 1) }
        };
        let end = offsets.last().map_or(0, |&end| usize::try_from(end).unwrap_or(0));
        // SAFETY: the values reach to the last offset.
        let values =
            if end == 0 || values.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(values, end) } };
        BytesView { offsets, values, valid: self.valid(child) }
    }

    pub fn ints(&self, index: usize) -> IntsView<'_> {
        let child = self.child(index);
        let pointer = child.buffer(1).cast::<i64>();
        // SAFETY: there is one value a row; an empty array may have no buffers.
        let values = if self.rows == 0 || pointer.is_null() {
            &[]
        } else {
            unsafe { std::slice::from_raw_parts(pointer.add(self.start(child)), self.rows) }
        };
        IntsView { values, valid: self.valid(child) }
    }

    pub fn bits(&self, index: usize) -> BitsView<'_> {
        self.bits_of(self.child(index), 1)
    }
}

/// Bits of an imported column. Without a buffer, all are set: no row is null.
#[derive(Clone, Copy)]
pub struct BitsView<'a> {
    bytes: Option<&'a [u8]>,
    start: usize,
}

impl BitsView<'_> {
    pub fn get(&self, row: usize) -> bool {
        let at = self.start + row;
        self.bytes.is_none_or(|bytes| bytes[at / 8] >> (at % 8) & 1 == 1)
    }
}

/// An imported column of binary values or text.
#[derive(Clone, Copy)]
pub struct BytesView<'a> {
    offsets: &'a [i32],
    values: &'a [u8],
    valid: BitsView<'a>,
}

impl<'a> BytesView<'a> {
    fn is_ordered(&self) -> bool {
        self.offsets[0] >= 0
            && self.offsets.windows(2).fold(true, |ordered, pair| ordered & (pair[0] <= pair[1]))
            && self.offsets.last().is_some_and(|&end| end as usize == self.values.len())
    }

    /// The bytes of a row; empty if it is null.
    pub fn bytes(&self, row: usize) -> &'a [u8] {
        &self.values[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    pub fn get(&self, row: usize) -> Option<&'a [u8]> {
        self.valid.get(row).then(|| self.bytes(row))
    }
}

/// An imported column of integers.
#[derive(Clone, Copy)]
pub struct IntsView<'a> {
    values: &'a [i64],
    valid: BitsView<'a>,
}

impl IntsView<'_> {
    pub fn get(&self, row: usize) -> Option<i64> {
        self.valid.get(row).then(|| self.values[row])
    }
}
