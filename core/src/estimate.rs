//! Estimators: what is counted, over which window, and with what error. Each file names its formula and its bound.

pub mod digest;
pub mod ring;
