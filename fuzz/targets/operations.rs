//! Compares the memory store and the Lua scripts with the state machines of core, over fuzzed operations.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(operations);
