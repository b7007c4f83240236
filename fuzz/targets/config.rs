//! Fuzzes the parsers of configuration files, budgets and variables.
#![cfg_attr(fuzzing, no_main)]

phalanx_fuzz::target!(config);
