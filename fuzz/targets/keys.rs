//! Fuzzes the encoder of Redis keys.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(keys);
