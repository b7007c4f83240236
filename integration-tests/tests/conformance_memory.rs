//! The conformance suite on the memory store.

use phalanx_testkit::bed::MemoryBed;
use phalanx_testkit::conformance_suite;

conformance_suite!(MemoryBed: rate_limit, breaker, digest, tally, slots, lock);
