//! `leasehold_native`: GetRecords responses, SubscribeToShard events and KPL aggregates as Arrow columns.
//!
//! The pure Python implementation in `leasehold` defines the behaviour; `tests/native` compares the two.
#![deny(unsafe_code)]

mod arrow;
mod base64;
mod cbor;
mod columns;
mod deaggregation;
mod json;
mod kpl;
mod md5;
mod page;
mod records;
mod source;

use std::sync::Arc;

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyType};

use arrow::{Batch, ImportedBatch, RAW_COLUMNS, USER_COLUMNS};
use deaggregation::{Failure, OutOfRange, Record, Settings};
use page::{Kind, Page};

pyo3::create_exception!(leasehold_native, MalformedError, PyValueError, "A response or an event is invalid.");
pyo3::create_exception!(
    leasehold_native,
    UnreadableAggregateError,
    PyValueError,
    "An aggregate cannot be split. The arguments: the sequence number of its Kinesis record, and the problem."
);

/// Columns of records. `pyarrow.record_batch(batch)` makes an Arrow batch of them, without copying.
#[pyclass(frozen, module = "leasehold_native")]
struct NativeBatch {
    batch: Arc<Batch>,
}

#[pymethods]
impl NativeBatch {
    fn __len__(&self) -> usize {
        self.batch.rows
    }

    fn __repr__(&self) -> String {
        format!("NativeBatch({} rows)", self.batch.rows)
    }

    /// The two capsules of Arrow's interface. Another schema than ours is not offered, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        Ok((
            PyCapsule::new_with_value(py, arrow::export_schema(&self.batch), arrow::SCHEMA_NAME)?,
            PyCapsule::new_with_value(py, arrow::export_array(&self.batch), arrow::ARRAY_NAME)?,
        ))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, arrow::export_schema(&self.batch), arrow::SCHEMA_NAME)
    }
}

type ChildTuple = (String, Vec<String>, u128, u128);

/// The content of a response or an event.
#[pyclass(frozen, module = "leasehold_native")]
struct NativePage {
    #[pyo3(get)]
    next: Option<String>,
    #[pyo3(get)]
    millis_behind: Option<u64>,
    #[pyo3(get)]
    children: Vec<ChildTuple>,
    #[pyo3(get)]
    records: Py<NativeBatch>,
}

#[pymethods]
impl NativePage {
    /// The columns of the records as lists. For a few records, this takes less time than Arrow's interface.
    fn to_columns<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyList>>> {
        records::to_columns(&self.records.get().batch, py)
    }
}

fn decode(py: Python<'_>, body: &Bound<'_, PyBytes>, cbor: bool, kind: Kind) -> PyResult<NativePage> {
    let bytes = body.as_bytes();
    let (page, batch) = py
        .detach(|| {
            page::decode(bytes, cbor, kind).map(|Page { next, millis_behind, children, records }| {
                ((next, millis_behind, children), Arc::new(Batch::from_raw(records)))
            })
        })
        .map_err(MalformedError::new_err)?;
    let (next, millis_behind, children) = page;
    Ok(NativePage {
        next,
        millis_behind,
        children: children.into_iter().map(|each| (each.shard_id, each.parents, each.start, each.end)).collect(),
        records: Py::new(py, NativeBatch { batch })?,
    })
}

/// The content of the body of a GetRecords response.
#[pyfunction]
#[pyo3(signature = (body, cbor=false))]
fn decode_page(py: Python<'_>, body: &Bound<'_, PyBytes>, cbor: bool) -> PyResult<NativePage> {
    decode(py, body, cbor, Kind::Page)
}

/// The content of the payload of a SubscribeToShardEvent.
#[pyfunction]
#[pyo3(signature = (payload, cbor=false))]
fn decode_event(py: Python<'_>, payload: &Bound<'_, PyBytes>, cbor: bool) -> PyResult<NativePage> {
    decode(py, payload, cbor, Kind::Event)
}

#[allow(unsafe_code)]
fn import(batch: &Bound<'_, PyAny>, columns: usize) -> PyResult<ImportedBatch> {
    let export = batch
        .getattr("__arrow_c_array__")
        .map_err(|_| PyTypeError::new_err("expected an Arrow record batch: an object with __arrow_c_array__"))?;
    let capsules = export.call0()?;
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = capsules.extract()?;
    let schema_pointer = schema.pointer_checked(Some(arrow::SCHEMA_NAME))?;
    let array_pointer = array.pointer_checked(Some(arrow::ARRAY_NAME))?;
    // SAFETY: capsules with these names point to Arrow's structures.
    unsafe { arrow::import(schema_pointer.as_ptr(), array_pointer.as_ptr(), columns) }.map_err(PyTypeError::new_err)
}

fn parse_out_of_range(text: &str) -> PyResult<OutOfRange> {
    match text {
        "drop-aggregate" => Ok(OutOfRange::DropAggregate),
        "drop-record" => Ok(OutOfRange::DropRecord),
        "keep" => Ok(OutOfRange::Keep),
        _ => Err(PyValueError::new_err("out_of_range: expected drop-aggregate, drop-record or keep")),
    }
}

type IncidentTuple = (String, &'static str, usize);

/// The user records in the records of `batch`, and the incidents: sequence number, outcome, dropped user records.
#[pyfunction]
#[pyo3(signature = (batch, range_start=None, range_end=None, *, out_of_range="drop-aggregate", fail_unreadable=false,
                    user_records_max=200_000, expanded_bytes_max=134_217_728))]
#[allow(clippy::too_many_arguments)] // they are keywords in Python
fn deaggregate(
    py: Python<'_>,
    batch: &Bound<'_, PyAny>,
    range_start: Option<u128>,
    range_end: Option<u128>,
    out_of_range: &str,
    fail_unreadable: bool,
    user_records_max: u64,
    expanded_bytes_max: u64,
) -> PyResult<(NativeBatch, Vec<IncidentTuple>)> {
    let settings = Settings {
        range: range_start.zip(range_end),
        out_of_range: parse_out_of_range(out_of_range)?,
        fail_unreadable,
        user_records_max,
        expanded_bytes_max,
    };
    let imported = Arc::new(import(batch, RAW_COLUMNS)?);
    let (batch, incidents) = py.detach(|| split(&imported, &settings))?;
    Ok((NativeBatch { batch: Arc::new(batch) }, incidents))
}

fn split(imported: &Arc<ImportedBatch>, settings: &Settings) -> PyResult<(Batch, Vec<IncidentTuple>)> {
    let (data, partition_key, sequence_number) = (imported.bytes(0), imported.bytes(1), imported.bytes(2));
    if !deaggregation::has_aggregates((0..imported.rows).map(|row| data.bytes(row))) {
        return Ok((Batch::from_unaggregated(imported), Vec::new()));
    }
    let (arrival_ms, encryption_type) = (imported.ints(3), imported.bytes(4));
    let records = (0..imported.rows).map(|row| Record {
        data: data.bytes(row),
        partition_key: partition_key.bytes(row),
        sequence_number: sequence_number.bytes(row),
        arrival_ms: arrival_ms.get(row),
        encryption_type: encryption_type.get(row),
    });
    let text = |row| String::from_utf8_lossy(sequence_number.bytes(row)).into_owned();
    let found = deaggregation::deaggregate(records, settings).map_err(|failure| match failure {
        Failure::TooLong => PyOverflowError::new_err(
            "the user records of this batch repeat more than 256 MiB of keys and numbers, or need a column of more \
             than 2 GiB; split the batch by rows, or a single record in Python",
        ),
        Failure::Unreadable { row, problem } => UnreadableAggregateError::new_err((text(row), problem)),
    })?;
    let incidents = found.incidents.iter().map(|each| (text(each.row), each.outcome, each.dropped)).collect();
    Ok((Batch::from_user(found.raw, found.user), incidents))
}

/// The rows of a batch of user records, each as `tuple.__new__(class, row)`.
#[pyfunction]
fn to_records<'py>(batch: &Bound<'py, PyAny>, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyList>> {
    records::to_records(&import(batch, USER_COLUMNS)?, class)
}

#[pymodule]
fn leasehold_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("MalformedError", py.get_type::<MalformedError>())?;
    module.add("UnreadableAggregateError", py.get_type::<UnreadableAggregateError>())?;
    module.add_class::<NativeBatch>()?;
    module.add_class::<NativePage>()?;
    module.add_function(wrap_pyfunction!(decode_page, module)?)?;
    module.add_function(wrap_pyfunction!(decode_event, module)?)?;
    module.add_function(wrap_pyfunction!(deaggregate, module)?)?;
    module.add_function(wrap_pyfunction!(to_records, module)?)?;
    Ok(())
}
