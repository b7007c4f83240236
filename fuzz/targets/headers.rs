//! Fuzzes the parsers of deadline, criticality and `Retry-After` headers.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(headers);
