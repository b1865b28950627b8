//! Rows of a batch as Python's named tuples, and the columns of a page as lists.
//!
//! `unsafe` is needed to create instances of the caller's class without a call of Python code a row. A new instance
//! is what `tuple.__new__(cls, row)` makes: memory from `PyType_GenericAlloc`, then each item is set once.
#![allow(unsafe_code)]

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple, PyType};

use crate::arrow::{Batch, Column, ImportedBatch, USER_COLUMNS};
use crate::page::parse_hash_key;

pub fn to_records<'py>(batch: &ImportedBatch, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyList>> {
    let py = class.py();
    if !class.is_subclass_of::<PyTuple>()? {
        return Err(PyTypeError::new_err("the class of the records must be a named tuple"));
    }
    let mut rows = Rows::new(batch, py);
    let records = (0..batch.rows).map(|row| new_tuple(class, rows.row(row)?)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, records)
}

/// The columns of a decoded page, each as a list: of bytes for the first one, of texts or integers for the others.
pub fn to_columns<'py>(batch: &Batch, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyList>>> {
    let lists = batch.columns().iter().enumerate().map(|(index, column)| match column {
        Column::Bytes(values) if index == 0 => {
            let data: Vec<_> = values.iter().map(|value| PyBytes::new(py, value.unwrap_or_default())).collect();
            PyList::new(py, data)
        }
        Column::Bytes(values) => {
            let texts = values.iter().map(|text| text.map(|text| PyString::from_bytes(py, text)).transpose());
            PyList::new(py, texts.collect::<PyResult<Vec<_>>>()?)
        }
        Column::Ints(values) => PyList::new(py, values.iter().collect::<Vec<_>>()),
        Column::Bits(_) | Column::Imported(..) => Err(PyTypeError::new_err("expected the records of a page")),
    });
    lists.collect()
}

type Row<'py> = [Bound<'py, PyAny>; USER_COLUMNS];

fn new_tuple<'py>(class: &Bound<'py, PyType>, row: Row<'py>) -> PyResult<Bound<'py, PyAny>> {
    let py = class.py();
    // SAFETY: the class is a subclass of tuple, so this is a tuple with room for USER_COLUMNS items, all of them null;
    // nothing else refers to it, and PyTuple_SetItem takes over the reference of each item.
    unsafe {
        let tuple = Bound::from_owned_ptr_or_err(
            py,
            ffi::PyType_GenericAlloc(class.as_type_ptr(), USER_COLUMNS as ffi::Py_ssize_t),
        )?;
        for (index, item) in row.into_iter().enumerate() {
            if ffi::PyTuple_SetItem(tuple.as_ptr(), index as ffi::Py_ssize_t, item.into_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(tuple)
    }
}

/// A text column, with the object of the last text: parts of an aggregate have the same sequence number, and often the
/// same key.
struct Texts<'a, 'py> {
    view: crate::arrow::BytesView<'a>,
    last: Option<(&'a [u8], Bound<'py, PyAny>)>,
}

impl<'a, 'py> Texts<'a, 'py> {
    fn get(&mut self, py: Python<'py>, row: usize) -> PyResult<Bound<'py, PyAny>> {
        let Some(text) = self.view.get(row) else { return Ok(py.None().into_bound(py)) };
        if let Some((last, object)) = &self.last
            && *last == text
        {
            return Ok(object.clone());
        }
        let object = PyString::from_bytes(py, text)?.into_any();
        self.last = Some((text, object.clone()));
        Ok(object)
    }
}

struct Rows<'a, 'py> {
    py: Python<'py>,
    batch: &'a ImportedBatch,
    data: crate::arrow::BytesView<'a>,
    partition_key: Texts<'a, 'py>,
    sequence_number: Texts<'a, 'py>,
    arrival_ms: crate::arrow::IntsView<'a>,
    encryption_type: Texts<'a, 'py>,
    sub_sequence_number: crate::arrow::IntsView<'a>,
    explicit_hash_key: crate::arrow::BytesView<'a>,
}

impl<'a, 'py> Rows<'a, 'py> {
    fn new(batch: &'a ImportedBatch, py: Python<'py>) -> Self {
        let texts = |index| Texts { view: batch.bytes(index), last: None };
        Self {
            py,
            batch,
            data: batch.bytes(0),
            partition_key: texts(1),
            sequence_number: texts(2),
            arrival_ms: batch.ints(3),
            encryption_type: texts(4),
            sub_sequence_number: batch.ints(5),
            explicit_hash_key: batch.bytes(6),
        }
    }

    fn row(&mut self, row: usize) -> PyResult<Row<'py>> {
        let py = self.py;
        let none = || py.None().into_bound(py);
        let int = |value: Option<i64>| value.map_or_else(none, |value| PyInt::new(py, value).into_any());
        let hash_key = match self.explicit_hash_key.get(row) {
            None => none(),
            Some(text) => {
                let number = parse_hash_key(text)
                    .ok_or_else(|| PyValueError::new_err("an explicit hash key is not a number below 2^128"))?;
                number.into_pyobject(py)?.into_any()
            }
        };
        Ok([
            PyBytes::new(py, self.data.bytes(row)).into_any(),
            self.partition_key.get(py, row)?,
            self.sequence_number.get(py, row)?,
            int(self.arrival_ms.get(row)),
            self.encryption_type.get(py, row)?,
            int(self.sub_sequence_number.get(row)),
            hash_key,
            self.batch.bits(7).get(row).into_pyobject(py)?.to_owned().into_any(),
        ])
    }
}
