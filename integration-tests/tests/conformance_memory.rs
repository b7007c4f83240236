//! The conformance suite on the memory store.

use phalanx_integration_tests::bed::MemoryBed;
use phalanx_integration_tests::conformance_suite;

conformance_suite!(MemoryBed);
