//! The memory store keeps every promise of the store traits.

use phalanx_integration_tests::bed::MemoryBed;
use phalanx_integration_tests::conformance_suite;

conformance_suite!(MemoryBed);
