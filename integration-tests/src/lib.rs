//! Beds and conformance cases.
