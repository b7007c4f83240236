//! Fuzzes the bytes that a Redis connection receives.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(resp);
