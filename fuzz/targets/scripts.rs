//! Fuzzes the Lua scripts over foreign contents of their keys and over foreign arguments.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(scripts);
