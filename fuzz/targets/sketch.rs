//! Fuzzes the latency sketch: decoding, merging, quantiles.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(sketch);
