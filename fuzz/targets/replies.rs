//! Fuzzes the decoders of script replies, pushes and Cluster topologies.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(replies);
